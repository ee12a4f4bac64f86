"""A job's ledgers without the job: read as its next start would read them, and brought to their end by its protocol.

`JobLedgers` only reads. The functions below it commit what is decided and abort what is not, never the other way
round, and record an operator's ruling where the other system has forgotten how a decided writer ended. As when the job
itself starts, they register a new generation first, so that the dead driver is fenced should it wake; then they read
the ledger again, write the claim, and only then touch anything. No query starts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import CheckpointState, Committable, Decision, Outcome, WriterId, honoured
from penstock.checkpoint.history import Histories
from penstock.checkpoint.inflight import Entry, drained_up_to, read_entry
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import finish as finish_log
from penstock.checkpoint.log_repair import look, query_of, restore
from penstock.checkpoint.open import history_of
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import Leftover, SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine import drainer, protocol
from penstock.engine.driver import LedgerRun
from penstock.engine.inflight import InFlight
from penstock.errors import ConfigurationError, TransactionRefused, WritersLost
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.storage.local import tree_at
from penstock.storage.tree import Tree
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVIDENCE_SECONDS = 120.0  # to read what is in the target; an operator waits

Sinks = Mapping[str, TwoPhaseSink]


# Reading


@dataclass(frozen=True, slots=True)
class Decided:
    """A committable of a decision that counts and is not complete, in the form its sink knows."""

    committable: Committable
    epoch: int
    generation: int | None  # that decided it; None where only the in-flight log still knows the epoch
    at: float | None = None
    in_log: bool = False  # its rows are in the in-flight log as well, which is delivered in order


class QueryLedger:
    """One query's ledger beside Spark's log of it. Every property is read anew. `known`: see `SparkLog`."""

    def __init__(
        self, uid: str, ledger: Tree, log: Tree, inflight: Tree | None, state_format: str, known: bool = True
    ) -> None:
        self.uid, self._inflight = uid, inflight
        self.ledger = Ledger(ledger.storage)
        self.log = SparkLog(log.storage, state_format=state_format, known=known)

    @property
    def generation(self) -> int:
        return self.ledger.newest_generation()

    @property
    def facts(self) -> dict[str, Any]:
        """What the newest generation registered about itself."""
        return self.ledger.generation(self.generation) or {}

    @property
    def sinks(self) -> list[str]:
        """The uids that the newest generation named."""
        return sorted(self.facts.get("sinks", ()))

    def state(self) -> CheckpointState:
        """As the next start will find it."""
        return look(self.ledger, self.log)

    def decided(self) -> list[Decided]:
        """What is decided and may still be open, oldest epoch first."""
        entries: list[Decided] = []
        for uid in self.sinks:
            waiting = self.waiting(uid)
            for entry in waiting:
                entries += [Decided(committable, entry.epoch, None, in_log=True) for committable in entry.prepared]
            if waiting:
                entries += self._rewritten(uid, waiting[0].epoch)
        decision = honoured(self.state())
        if decision is not None:
            at = _decided_at(self.ledger, decision)
            entries += [
                Decided(plain, decision.id.epoch, decision.id.generation, at, committable.logged)
                for committable in decision.to_commit
                if (plain := committable.at_sink) is not None
            ]
        return entries

    @property
    def logged(self) -> bool:
        """Whether decided rows wait in the in-flight log."""
        decision = honoured(self.state())
        return any(self.waiting(uid) for uid in self.sinks) or (
            decision is not None and any(committable.logged for committable in decision.to_commit)
        )

    def waiting(self, sink: str) -> list[Entry]:
        query = query_of(self.ledger, self.log)
        if self._inflight is None or query is None:
            return []
        folder, storage = f"{query}/{sink}", self._inflight.storage
        drained = drained_up_to(storage, folder)
        epochs = layout.numbers(storage.list(f"{folder}/{layout.BACKLOG}"))
        entries = (read_entry(storage, folder, epoch) for epoch in epochs if epoch > drained)
        return [entry for entry in entries if entry is not None]

    def inflight(self, job: str, sinks: Sinks) -> InFlight | None:
        """The in-flight logs, for a run that has registered to open."""
        tree = self._inflight
        if tree is None:
            return None
        return InFlight(
            job=job,
            query=self.uid,
            sinks=sinks,
            location=tree.storage.location,
            storage=tree.storage,
            ledger=self.ledger,
            ledger_of=lambda where: Ledger(tree.at(where.removeprefix(f"{tree.storage.location}/")).storage),
            events=Events(),
            checkpoints=Checkpoints(),
        )

    def scopes(self, job: str, sink: str) -> Iterator[SinkScope]:
        """The names under which a sink may have opened something: the query's, and its drainer's."""
        yield SinkScope(job, sink, self.generation)
        if self.drain_ledger(sink) is not None:
            yield SinkScope(job, f"{sink}{drainer.MARK}", self.generation)

    def drain_ledger(self, sink: str) -> Ledger | None:
        """What the sink's drainer has claimed and decided; None where there is no in-flight log."""
        query = query_of(self.ledger, self.log)
        if self._inflight is None or query is None:
            return None
        return Ledger(self._inflight.at(f"{query}/{sink}/{layout.DRAIN}").storage)

    def _rewritten(self, sink: str, epoch: int) -> list[Decided]:
        """What the drainer has decided of the epoch it was at."""
        ledger, query = self.drain_ledger(sink), query_of(self.ledger, self.log)
        decision = honoured(drainer.look(ledger, query, epoch, waits=True)) if ledger is not None else None
        if ledger is None or decision is None:
            return []
        epoch, at, generation = decision.id.epoch, _decided_at(ledger, decision), drainer.generation_of(decision.id)
        return [Decided(committable, epoch, generation, at, in_log=True) for committable in decision.to_commit]


@dataclass(frozen=True)
class JobLedgers:
    """All queries of one job, by its folder; or the one query of a drop-in, by its checkpoint."""

    job: str
    location: str
    queries: tuple[QueryLedger, ...]

    @classmethod
    def at(cls, location: str, spark: SparkSession | None = None) -> JobLedgers:
        """Raises `ConfigurationError` where there is no ledger."""
        folder, queries = tree_at(location, spark), []
        storage = folder.storage
        state_format = "" if spark is None else str(spark.conf.get(STATE_FORMAT, "1"))  # where no commit shows it
        if storage.list(f"{layout.PRIVATE}/{layout.GENERATIONS}"):
            dropin = QueryLedger("", folder.at(layout.PRIVATE), folder, None, state_format)
            dropin.uid = next(iter(dropin.sinks), "")
            queries.append(dropin)
        else:
            history = Histories(storage).current()
            known = spark is None or version_of(spark).log_known
            for uid in storage.list(""):
                if storage.list(f"{uid}/{layout.LEDGER}/{layout.GENERATIONS}"):
                    of, log = folder.at(uid), folder.at(f"{uid}/{history}")
                    trees = (of.at(layout.LEDGER), log, of.at(layout.INFLIGHT))
                    queries.append(QueryLedger(uid, *trees, state_format, known))
        if not queries:
            raise ConfigurationError(
                f"There is no ledger in {location}.",
                safe="nothing was changed.",
                to_do="give a job's folder, STORAGE/JOB, or the checkpoint of a query that uses penstock.exactly_once.",
            )
        named = location.rstrip("/").rpartition("/")[2]
        job = next((str(query.facts["job"]) for query in queries if "job" in query.facts), named)
        return cls(job, storage.location, tuple(queries))


def same_transaction(leftover: Leftover, committable: Committable) -> bool:
    return bool(leftover.payload) and leftover.payload.items() <= committable.payload.items()


def _decided_at(ledger: Ledger, decision: Decision) -> float | None:
    manifests = ledger.manifests(decision.id.epoch)
    return next((manifest.decided for manifest in manifests if manifest.decision.id == decision.id), None)


# Settling


@dataclass(frozen=True, slots=True)
class CommitResult:
    """`complete`: Spark's log has the epoch too; otherwise the next start adds it, without writing a row again."""

    query: str
    epoch: int
    generation: int
    complete: bool
    outcomes: dict[WriterId, Outcome]


@dataclass(frozen=True, slots=True)
class Unprovable:
    """A decided writer whose outcome cannot be proven, and the evidence in the target; empty where there is none."""

    query: str
    epoch: int
    committable: Committable
    seen: str = ""


Ruling = Callable[[Sequence[Unprovable]], Outcome | None]


def commit(ledgers: JobLedgers, query: QueryLedger, sinks: Sinks) -> CommitResult:
    """Carry out the query's decision, with the same steps as its recovery; nothing is aborted. Raises `WritersLost`
    where the other system has ended some of it meanwhile, `OutcomeUnknown` where that cannot be proven."""
    _refuse_unknown_sinks(query, sinks)
    with closing(Settlement(ledgers, query, sinks)) as settlement:
        resume = settlement.recover()
        if settlement.decision is None:
            raise settlement.nothing_decided()
        epoch, complete = settlement.decision.id.epoch, resume.action == "finished"
        return CommitResult(query.uid, epoch, resume.generation, complete, settlement.outcomes)


def finish(ledgers: JobLedgers, query: QueryLedger, sinks: Sinks) -> int:
    """Recover as the query's next start would, but run and abort nothing; the generation that did. Raises as `commit`
    does, and `TransactionRefused` where completing Spark's log takes the plan."""
    _refuse_unknown_sinks(query, sinks)
    with closing(Settlement(ledgers, query, sinks, command=None)) as settlement:
        resume = settlement.recover()
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


def record(job: str, query: QueryLedger, generation: int, epoch: int, text: str) -> None:
    """Run an epoch that has no rows, as the run of `generation`: `text` is its `offsets/N`."""
    log = query.log
    barrier = log.parse_barrier(epoch, text.encode())
    watermark = int(barrier.metadata["batchWatermarkMs"])
    run = LedgerRun(
        job=job, query=query.uid, sinks={}, ledger=query.ledger, events=Events(), where=log.location,
        query_id=log.query_id,
    )  # fmt: skip
    run.generation = generation

    def perform(action: Any) -> Any:
        match action:
            case protocol.PreCommit():
                return protocol.Prepared((), watermark)
            case protocol.Decide(decision):
                history = history_of(log)
                query.ledger.decide(
                    decision, query=log.query_id(), barrier=barrier.digest, offsets=text, history=history
                )
        return {}

    log.write_again(layout.offsets(epoch), text)
    with closing(run.committers):
        run.drive(protocol.run_epoch(generation, epoch), perform)
    finish_log(query.ledger, log, epoch, watermark)


def abort(
    ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, only: Collection[Leftover], others: Collection[Committable]
) -> None:
    """Abort what no decision that counts names, but leave `others` open. Raises `TransactionRefused`, and aborts
    nothing, where one of `only` has been decided meanwhile."""
    with closing(Settlement(ledgers, query, sinks)) as settlement:
        settlement.abort(only, others)


def resolve(
    ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, only: Collection[WriterId], ruling: Ruling
) -> list[Unprovable]:
    """Try to commit the decision once more, and the next epoch of each in-flight log; ask for a ruling on the writers
    (of `only`, if given) that still cannot be proven; record it for the next recovery. Returns them."""
    _refuse_unknown_sinks(query, sinks)
    with closing(Settlement(ledgers, query, sinks)) as settlement:
        return settlement.resolve(only, ruling)


def refuse_logged(query: QueryLedger) -> None:
    """Rows in the in-flight log are delivered in order, by the job itself."""
    if query.logged:
        raise TransactionRefused(
            f"Query {query.uid!r} has decided rows in its in-flight log, which are delivered in their order.",
            safe="nothing was touched; the rows are safe in the log.",
            to_do="start the job: it delivers them before anything else, and aborts what is not decided.",
        )


def decided_refusal(id: str, epoch: int | None) -> TransactionRefused:
    """The error for a transaction that may only be committed."""
    return TransactionRefused(
        f"{id} belongs to epoch {epoch}, which is decided: it can only be committed.",
        safe="nothing was touched. Aborting it would lose rows that the job counts as written.",
        to_do="penstock transactions commit, or start the job, which does the same.",
    )


def _refuse_unknown_sinks(query: QueryLedger, sinks: Sinks) -> None:
    missing = sorted({decided.committable.sink for decided in query.decided()} - sinks.keys())
    if missing:
        raise TransactionRefused(
            f"Epoch {query.state().epoch} of query {query.uid!r} is decided for the sinks {missing}, which are not"
            " known here.",
            safe="nothing was touched: an epoch is committed in all its sinks or in none.",
            to_do="give the job's file by --job, or start the job.",
        )


class Settlement:
    """One run of a query's ledger that starts no query. `command`: the run is no job, and ends by itself."""

    def __init__(
        self, ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, command: str | None = "transactions"
    ) -> None:
        self._run = LedgerRun(
            job=ledgers.job,
            query=query.uid,
            sinks={uid: sinks[uid] for uid in query.sinks if uid in sinks},
            ledger=query.ledger,
            events=Events(),
            where=query.log.location,
            query_id=query.log.query_id,
        )
        self._of, self._before, self._command = query, query.facts, command
        self.decision: Decision | None = None
        self.outcomes: dict[WriterId, Outcome] = {}
        self._others: Collection[Committable] = ()
        self._committing = False
        self._inflight: InFlight | None = None

    def recover(self) -> protocol.Resume:
        """A recovery that aborts nothing. Raises `WritersLost` where it cannot finish what is decided."""
        self._committing = True
        resume = self._run.drive(protocol.recover(), self._perform)
        if self.decision is not None and resume.action in ("void", "repair"):
            lost = sum(outcome is Outcome.LOST for outcome in self.outcomes.values())
            raise WritersLost(
                f"Epoch {resume.epoch} of query {self._run.query!r} is decided, but the other system has ended"
                f" {lost} of {len(self.outcomes)} transactions.",
                safe="the decision, its counts and checksums are kept; what could be committed is visible.",
                to_do="start the job: it "
                + ("replays the epoch." if resume.action == "void" else "rewrites just these, with proof."),
            )
        return resume

    def fence(self) -> int:
        return self._run.register(self._facts())

    def abort(self, only: Collection[Leftover], others: Collection[Committable]) -> None:
        self._others = others

        def chosen_as(committable: Committable) -> str | None:
            """Its name, if it is one of those to be aborted."""
            return next((leftover.name for leftover in only if same_transaction(leftover, committable)), None)

        steps = protocol.abort_undecided(lambda committable: chosen_as(committable) is not None)
        decision = self._run.drive(steps, self._perform)
        if decision is not None:  # since it was listed
            name = next(name for committable in decision.committables if (name := chosen_as(committable)) is not None)
            raise decided_refusal(name, decision.id.epoch)

    def resolve(self, only: Collection[WriterId], ruling: Ruling) -> list[Unprovable]:
        self._committing = True
        self._inflight = self._of.inflight(self._run.job, self._run.sinks)
        decided = self._run.drive(protocol.commit_decided(), self._perform)
        drainers = self._inflight.drainers() if self._inflight is not None else {}
        if decided is None and not drainers:
            raise self.nothing_decided()
        unproven = [(self._run.rule, writer) for writer in self._unproven(*decided)] if decided is not None else []
        for each in drainers.values():
            unproven += [
                (each.rule, Unprovable(self._run.query, epoch, committable, seen))
                for epoch, committable, seen in each.unproven(_EVIDENCE_SECONDS)
            ]
        unproven = [(rule, writer) for rule, writer in unproven if not only or writer.committable.id in only]
        outcome = ruling([writer for _, writer in unproven]) if unproven else None
        if outcome is not None:
            for rule, writer in unproven:
                rule(writer.epoch, [writer.committable], outcome)
        return [writer for _, writer in unproven]

    def _unproven(self, decision: Decision, outcomes: Mapping[WriterId, Outcome]) -> list[Unprovable]:
        unproven = []
        proven = {writer for writer, outcome in outcomes.items() if outcome is not Outcome.UNKNOWN}
        unknown = [committable for committable in decision.to_commit if committable.id not in proven]
        for uid in sorted({committable.sink for committable in unknown}):
            of_sink = [committable for committable in unknown if committable.sink == uid]
            seen = self._run.committers[uid].evidence(of_sink, Deadline(_EVIDENCE_SECONDS))
            unproven += [
                Unprovable(self._run.query, decision.id.epoch, committable, seen.get(committable.writer, ""))
                for committable in of_sink
            ]
        return unproven

    def nothing_decided(self) -> TransactionRefused:
        return TransactionRefused(
            f"Nothing of query {self._run.query!r} is decided any more.",
            safe="nothing was committed or aborted.",
            to_do="list once more: another run has finished it.",
        )

    def close(self) -> None:
        if self._inflight is not None:
            self._inflight.close()
        self._run.committers.close()

    # The steps that differ from an epoch's or a drainer's

    def _facts(self) -> dict[str, Any]:
        # The other facts stay as the job registered them: its next start compares itself with the newest generation.
        kept = {key: value for key, value in self._before.items() if key not in ("registered", "run", "command")}
        command = {} if self._command is None else {"command": self._command}
        return {**kept, "job": self._run.job, "host": socket.gethostname(), "pid": os.getpid(), **command}

    def _perform(self, action: Any) -> Any:
        match action:
            case protocol.Register():
                return self.fence()
            case protocol.Look():
                return self._look()
            case protocol.RestoreLog(epoch, decided):
                fence = self._run.refuse_superseded
                return restore(self._of.ledger, self._of.log, epoch, decided, fence=fence) is not None
            case protocol.Commit(decision):
                return self._commit(decision)
            case protocol.FinishLog(epoch, watermark, ids):
                fence = self._run.refuse_superseded
                finished = finish_log(self._of.ledger, self._of.log, epoch, watermark, ids, fence)
                failpoint("recover.finished")
                return finished
            case protocol.Sweep(keep) if not self._committing:
                # What the ledger does not know is listed, and only aborted by force.
                self._run.abort_known((*keep, *self._others), Deadline(self._run.limits.abort_timeout_seconds))
                failpoint("recover.swept")
        return None

    def _look(self) -> CheckpointState:
        state = self._of.state()
        query = query_of(self._of.ledger, self._of.log)
        if self._inflight is None:
            refuse_logged(self._of)
        elif query is not None:
            self._inflight.open(query, self._run.generation)
        self.decision = honoured(state)
        failpoint("recover.looked")
        return state

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        logged = [committable for committable in decision.to_commit if committable.logged]
        direct = [committable for committable in decision.to_commit if not committable.logged]
        self.outcomes = self._run.commit(decision.id.epoch, direct)
        if logged and self._inflight is not None:
            self._inflight.commit(decision.id.epoch, logged, self._run.commit)
            self.outcomes |= {committable.id: Outcome.COMMITTED for committable in logged}
        failpoint("recover.committed")
        return self.outcomes
