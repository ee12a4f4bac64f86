"""Ends what a dead job has left open: commits what is decided, aborts what is not, and nothing the other way round.
Where the other system has forgotten how something decided ended, keeps somebody's word on it for the next recovery.

As when the job itself starts, a new generation is registered first, so that the dead driver, should it wake, is fenced;
then the ledger is read again, the claim written, and only then anything is touched. No query is started. The next
start of the job finds a run before it that did a part of its recovery.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.checkpoint.backlog import is_logged
from penstock.checkpoint.decision import Committable, Decision, DecisionId, Outcome, WriterId
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.driver import ProtocolDriver, Timing
from penstock.engine.inflight.manager import InFlight
from penstock.engine.log_repair import finish as finish_log
from penstock.engine.log_repair import query_of, restore
from penstock.errors import PenstockError, TransactionRefused, WritersLost
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.ops.process.registry import Registry
from penstock.ops.transactions.ledgers import JobLedgers, QueryLedger
from penstock.ops.transactions.orphans import DecisionState, Orphan, Sinks, same_transaction
from penstock.processes import exists, start_time
from penstock.storage.storage import same_place

_EVIDENCE_SECONDS = 120.0  # to read what is in the target; a person waits
_ABORT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """Whether the job runs: True, False, or None where that cannot be seen from here; and how it is known."""

    running: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of the decided epoch of a query. `complete`: Spark's log says so too; otherwise the next start adds
    that, without writing a row again."""

    query: str
    epoch: int
    generation: int
    complete: bool
    outcomes: dict[WriterId, Outcome]


def run_of(ledgers: JobLedgers) -> Run:
    """Goes by this machine's registry, and by the process that the newest generation names."""
    for entry in Registry().entries():
        if not entry.state.ended and entry.name == ledgers.job and _same(entry.storage, entry.name, ledgers.location):
            return Run(True, f"run {entry.id} is {entry.state}, process {entry.pid or entry.supervisor}")
    unseen: list[str] = []
    gone = "no run of it is left on this machine"
    for query in ledgers.queries:
        facts = query.facts
        host, pid = facts.get("host"), facts.get("pid")
        who = f"generation {query.generation} of query {query.uid}, process {pid} on {host}"
        if "command" in facts:
            gone = f"generation {query.generation} of query {query.uid} was this command, and no run came after it"
        elif host != socket.gethostname():
            unseen.append(who)
        elif _alive(pid, facts.get("registered")):
            return Run(True, who)
        else:
            gone = f"{who}, is gone"
    return Run(None, f"{unseen[0]}, cannot be seen from here") if unseen else Run(False, gone)


def refuse_running(run: Run, job: str, *, take_over: bool) -> None:
    """Raise `TransactionRefused` unless the job is known to be dead, or somebody says that it is."""
    if run.running:
        raise TransactionRefused(
            f"Job {job!r} runs: {run.evidence}.",
            safe="nothing was touched.",
            to_do="let it be: it commits and aborts by itself, and so does its next start. To end it first, use"
            " penstock stop or penstock cancel.",
        )
    if run.running is None and not take_over:
        raise TransactionRefused(
            f"Whether job {job!r} runs is not known: {run.evidence}.",
            safe="nothing was touched.",
            to_do="see there that it is dead, then add --take-over: should it live after all, it is superseded.",
        )


def commit(ledgers: JobLedgers, query: QueryLedger, sinks: Sinks) -> CommitResult:
    """Carry out the query's decision, with the same steps as its recovery; nothing is aborted. Raises `WritersLost`
    where the other system has ended some of it meanwhile, `OutcomeUnknown` where nobody can prove it."""
    _refuse_unknown_sinks(query, sinks)
    settlement = Settlement(ledgers, query, sinks)
    try:
        return settlement.commit()
    finally:
        settlement.close()


def finish(ledgers: JobLedgers, query: QueryLedger, sinks: Sinks) -> int:
    """Recover the query as its next start would, but run nothing and abort nothing; the generation that did. Afterwards
    what was decided is visible and in Spark's log. Raises as `commit` does, and `TransactionRefused` where it takes the
    plan to complete the log."""
    _refuse_unknown_sinks(query, sinks)
    settlement = Settlement(ledgers, query, sinks, command=None)
    try:
        resume = settlement.recover()
    finally:
        settlement.close()
    if resume.replay is not None:
        raise TransactionRefused(
            f"Epoch {resume.epoch} of query {query.uid!r} is decided and visible, but the format of Spark's log is not"
            " known well enough to complete it.",
            safe="what is visible stays.",
            to_do="start the job: it proves the epoch by a replay.",
        )
    return resume.generation


def fence(ledgers: JobLedgers, query: QueryLedger) -> int:
    """Register a generation that does nothing, so that no earlier one decides anything; its number."""
    return Settlement(ledgers, query, {}, command=None).fence()


def abort(
    ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, only: Collection[Orphan], others: Collection[Orphan]
) -> None:
    """Abort what no decision that counts names, but leave `others` open. Raises `TransactionRefused`, and aborts
    nothing, where one of `only` has been decided meanwhile."""
    settlement = Settlement(ledgers, query, sinks)
    try:
        settlement.abort(only, others)
    finally:
        settlement.close()


@dataclass(frozen=True, slots=True)
class Unprovable:
    """A decided writer whose outcome nobody can prove, and what is seen of it in the target; empty: nothing can be."""

    query: str
    epoch: int
    committable: Committable
    seen: str = ""


Word = Callable[[Sequence[Unprovable]], Outcome | None]


def resolve(
    ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, only: Collection[WriterId], word: Word
) -> list[Unprovable]:
    """Try to commit the query's decision once more, and of each in-flight log the epoch that comes next; ask for
    somebody's word on the writers of which nothing is proven even then (of those in `only`, if there are any), and keep
    it in the ledger. Returns them. The next recovery goes by that word, where it still cannot prove more itself."""
    _refuse_unknown_sinks(query, sinks)
    settlement = Settlement(ledgers, query, sinks)
    try:
        return settlement.resolve(only, word)
    finally:
        settlement.close()


def abort_unknown(ledgers: JobLedgers, sinks: Sinks, chosen: Collection[Orphan]) -> None:
    """Abort what a run has opened that the ledger does not know: it was lost, and somebody takes the blame."""
    for orphan in chosen:
        assert orphan.leftover is not None
        scope = SinkScope(ledgers.job, orphan.scope or orphan.sink, orphan.leftover.generation)
        committer = sinks[orphan.sink].open_committer(scope)
        try:
            committer.abort([Committable(orphan.sink, -1, 1, 0, orphan.leftover.payload)], Deadline(_ABORT_SECONDS))
        finally:
            committer.close()


def refuse_logged(query: QueryLedger) -> None:
    """Rows in the in-flight log are delivered in order, by the job itself."""
    if query.logged:
        raise TransactionRefused(
            f"Query {query.uid!r} has decided rows in its in-flight log, which are delivered in their order.",
            safe="nothing was touched; the rows are safe in the log.",
            to_do="start the job: it delivers them before anything else, and aborts what is not decided.",
        )


class Settlement(ProtocolDriver):
    """One run of a query's ledger that starts no query."""

    def __init__(
        self, ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, command: str | None = "transactions"
    ) -> None:
        """`command`: what runs is no job, and ends by itself."""
        own = {uid: sinks[uid] for uid in query.sinks if uid in sinks}
        super().__init__(
            job=ledgers.job,
            query=query.uid,
            sinks=own,
            ledger=query.ledger,
            events=Events(),
            timing=Timing(),
            where=query.log.location,
        )
        self._of = query
        self._before, self._command = query.facts, command
        self._decision: Decision | None = None
        self._outcomes: dict[WriterId, Outcome] = {}
        self._others: list[Committable] = []
        self._committing = False
        self._inflight: InFlight | None = None

    def commit(self) -> CommitResult:
        """See `commit`."""
        resume = self.recover()
        if self._decision is None:
            raise self._nothing_decided()
        complete = resume.action == "finished"
        return CommitResult(self._query, self._decision.id.epoch, resume.generation, complete, self._outcomes)

    def recover(self) -> protocol.Resume:
        """A recovery that aborts nothing. Raises `WritersLost` where it cannot finish what is decided."""
        self._committing = True
        resume = self._drive(protocol.recover())
        if self._decision is not None and resume.action in ("void", "repair"):
            lost = sorted(writer for writer, outcome in self._outcomes.items() if outcome is Outcome.LOST)
            some = f"{len(lost)} of {len(self._outcomes)} transactions"
            raise WritersLost(
                f"Epoch {resume.epoch} of query {self._query!r} is decided, but the other system has ended {some}.",
                safe="the decision, its counts and checksums are kept; what could be committed is visible.",
                to_do="start the job: it "
                + ("replays the epoch." if resume.action == "void" else "rewrites just these, with proof."),
            )
        return resume

    def fence(self) -> int:
        """See `fence`."""
        return self._register()

    def abort(self, only: Collection[Orphan], others: Collection[Orphan]) -> None:
        """See `abort`."""
        self._others = [
            Committable(orphan.sink, -1, 1, 0, orphan.leftover.payload) for orphan in others if orphan.leftover
        ]

        def chosen_as(committable: Committable) -> str | None:
            """Its name in the list, if it is one of those to be aborted."""
            return next(
                (orphan.id for orphan in only if orphan.leftover and same_transaction(orphan.leftover, committable)),
                None,
            )

        decision = self._drive(protocol.abort_undecided(lambda committable: chosen_as(committable) is not None))
        if decision is not None:  # since the list was made
            first = next(name for committable in decision.committables if (name := chosen_as(committable)) is not None)
            raise refusal_of(first, DecisionState.DECIDED, decision.id.epoch)

    def resolve(self, only: Collection[WriterId], word: Word) -> list[Unprovable]:
        """See `resolve`."""
        self._committing = True
        self._inflight = self._of.inflight(self._job, self._sinks)
        decided = self._drive(protocol.commit_decided())
        drainers = self._inflight.drainers() if self._inflight is not None else {}
        if decided is None and not drainers:
            raise self._nothing_decided()
        found = [(self.rule, unprovable) for unprovable in self._unproven(*decided)] if decided is not None else []
        for drainer in drainers.values():
            found += [
                (drainer.rule, Unprovable(self._query, epoch, committable, seen))
                for epoch, committable, seen in drainer.unproven(_EVIDENCE_SECONDS)
            ]
        found = [(rule, one) for rule, one in found if not only or one.committable.id in only]
        outcome = word([one for _, one in found]) if found else None
        if outcome is not None:
            for rule, one in found:
                rule(one.epoch, [one.committable], outcome)
        return [one for _, one in found]

    def rule(self, epoch: int, committables: Sequence[Committable], outcome: Outcome) -> None:
        """Keep a person's word on how these ended."""
        self.refuse_superseded()
        self._ledger.rule(epoch, self._query_id(), committables, outcome)

    def _unproven(self, decision: Decision, outcomes: Mapping[WriterId, Outcome]) -> list[Unprovable]:
        found = []
        for uid in sorted({committable.sink for committable in decision.to_commit}):
            own = [
                committable
                for committable in decision.to_commit
                if committable.sink == uid and outcomes.get(committable.id, Outcome.UNKNOWN) is Outcome.UNKNOWN
            ]
            seen = self._committers[uid].evidence(own, Deadline(_EVIDENCE_SECONDS)) if own else {}
            found += [
                Unprovable(self._query, decision.id.epoch, committable, seen.get(committable.writer, ""))
                for committable in own
            ]
        return found

    def _nothing_decided(self) -> TransactionRefused:
        return TransactionRefused(
            f"Nothing of query {self._query!r} is decided any more.",
            safe="nothing was committed or aborted.",
            to_do="list once more: somebody else has finished it.",
        )

    def close(self) -> None:
        """Free the sinks' connections."""
        if self._inflight is not None:
            self._inflight.close()
        self._committers.close()

    # What differs from an epoch's or a drainer's

    def _facts(self) -> dict[str, Any]:
        # The rest as the job said it: its next start compares itself with the newest generation.
        kept = {key: value for key, value in self._before.items() if key not in ("registered", "run", "command")}
        command = {} if self._command is None else {"command": self._command}
        return {**kept, "job": self._job, "host": socket.gethostname(), "pid": os.getpid(), **command}

    def _query_id(self) -> str | None:
        return self._of.log.query_id()

    def _look(self) -> protocol.Found:
        found = self._of.found()
        query = query_of(self._of.ledger, self._of.log)
        if self._inflight is None:
            refuse_logged(self._of)
        elif query is not None:
            self._inflight.open(query, self._generation)
        self._decision = protocol.honoured(found)
        self._passed("recover.looked")
        return found

    def _restore_log(self, epoch: int, decided: DecisionId | None) -> bool:
        return restore(self._of.ledger, self._of.log, epoch, decided) is not None

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        logged = [committable for committable in decision.to_commit if is_logged(committable)]
        plain = replace(decision, committables=tuple(one for one in decision.committables if not is_logged(one)))
        self._outcomes = super()._commit(plain)
        if logged and self._inflight is not None:
            self._inflight.commit(decision.id.epoch, logged, self._commit_at_sinks)
            self._outcomes |= {committable.id: Outcome.COMMITTED for committable in logged}
        self._passed("recover.committed")
        return self._outcomes

    def _sweep(self, keep: Sequence[Committable]) -> None:
        """What the ledger does not know is listed, and left to whoever takes the blame."""
        if not self._committing:
            self._abort_known((*keep, *self._others), Deadline(self._timing.abort_seconds))
            self._passed("recover.swept")

    def _finish_log(self, epoch: int, watermark: int | None) -> bool:
        finished = finish_log(self._of.ledger, self._of.log, epoch, watermark)
        self._passed("recover.finished")
        return finished

    def _pre_commit(self, epoch: int, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        raise AssertionError("no epoch is run")

    def _decide(self, decision: Decision) -> None:
        raise AssertionError("nothing is decided")

    def _passed(self, point: str) -> None:
        failpoint(point)


def refusal_of(id: str, decision: DecisionState, epoch: int | None = None) -> PenstockError:
    """The error for a transaction that may only be ended the other way."""
    if decision is DecisionState.DECIDED:
        return TransactionRefused(
            f"{id} belongs to epoch {epoch}, which is decided: it can only be committed.",
            safe="nothing was touched. Aborting it would lose rows that the job counts as written.",
            to_do="penstock transactions commit, or start the job, which does the same.",
        )
    if decision is DecisionState.UNDECIDED:
        return TransactionRefused(
            f"{id} is not decided: it can only be aborted.",
            safe="nothing was touched. The job replays these rows; committing them would show them twice.",
            to_do="penstock transactions abort, or start the job, which does the same.",
        )
    return TransactionRefused(
        f"No ledger knows of {id}, or none was asked, so it is not known whether it is decided.",
        safe="nothing was touched.",
        to_do="give the job's folder, STORAGE/JOB, or its file by --job. If its ledger is lost for good: --force. It"
        " loses rows if the transaction was decided and you abort it, and doubles them if not and you commit it.",
    )


def _refuse_unknown_sinks(query: QueryLedger, sinks: Sinks) -> None:
    missing = sorted({decided.committable.sink for decided in query.decided()} - sinks.keys())
    if missing:
        raise TransactionRefused(
            f"Epoch {query.found().epoch} of query {query.uid!r} is decided for the sinks {missing}, which are not"
            " known here.",
            safe="nothing was touched: an epoch is committed in all its sinks or in none.",
            to_do="give the job's file by --job, or --servers where all of them are Kafka.",
        )


def _same(storage: str, name: str, location: str) -> bool:
    return same_place(f"{storage.rstrip('/')}/{name}", location)


def _alive(pid: Any, registered: Any) -> bool:
    """Whether a process of that number runs that was there when the generation was registered."""
    if not isinstance(pid, int) or pid == os.getpid() or not exists(pid):
        return False
    began = start_time(pid)
    return began is None or not isinstance(registered, int | float) or began <= registered + 1
