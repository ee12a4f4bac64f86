"""Transactions that a job's runs, dead or alive, have left open, and their end by command: `penstock transactions`.

`look` and `ended` write nothing. The commands go by `engine.settlement`, once `run_of` shows that the job is dead.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from penstock.checkpoint.decision import Committable, Decision
from penstock.checkpoint.log_repair import query_of
from penstock.contracts.sink import Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.engine import settlement
from penstock.engine.committers import of_all_generations
from penstock.engine.settlement import Decided, JobLedgers, QueryLedger, Sinks, decided_refusal, same_transaction
from penstock.errors import ConfigurationError, PenstockError, TransactionRefused
from penstock.ops.process.registry import Registry
from penstock.processes import exists, start_time
from penstock.storage.storage import same_place

LOOK_SECONDS = 30.0  # to ask one sink what it has open
_ABORT_SECONDS = 30.0
ENDED_EPOCHS = 5  # of each query, so many complete epochs are looked at
ENDED_MOST = 100  # and so many of their transactions listed


class DecisionState(StrEnum):
    DECIDED = "decided"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Orphan:
    """One line of the list. `state`: `open`, `not open` (decided, and ended since: only asking for the commit proves
    how), or `not asked`; of what has `ended`, `committed` or `lost`. `rows` is known of what is decided. Times are in
    seconds since 1970."""

    query: str
    sink: str
    id: str
    state: str
    decision: DecisionState
    generation: int | None = None
    epoch: int | None = None
    partition: int | None = None
    started: float | None = None
    rows: int | None = None
    decided_by: int | None = None
    decided_at: float | None = None
    in_log: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    leftover: Leftover | None = field(default=None, repr=False)
    scope: str = ""  # under which uid the sink opened it, where that is not the sink's own


@dataclass(frozen=True, slots=True)
class Report:
    """The list; the sinks that could not be asked, and why; and those that cannot list what they have open."""

    orphans: tuple[Orphan, ...]
    unseen: tuple[tuple[str, str, str], ...] = ()  # query, sink, why
    silent: tuple[tuple[str, str], ...] = ()

    def not_asked(self) -> list[dict[str, str | None]]:
        unseen = [*self.unseen, *((query, sink, "it cannot say") for query, sink in self.silent)]
        return [{"query": query, "sink": sink, "why": why} for query, sink, why in unseen]


def look(ledgers: JobLedgers, sinks: Sinks) -> Report:
    """Ask every sink what is open, and the ledger about each."""
    orphans: list[Orphan] = []
    unseen: list[tuple[str, str, str]] = []
    silent: list[tuple[str, str]] = []
    for query in ledgers.queries:
        decided = query.decided()
        for uid in sorted({*query.sinks, *(entry.committable.sink for entry in decided)}):
            leftovers: list[Leftover] | None = None
            beyond: list[Orphan] = []
            try:
                leftovers = _ask(query, ledgers.job, uid, sinks, beyond)
                if leftovers is None:
                    silent.append((query.uid, uid))
            except PenstockError as error:
                unseen.append((query.uid, uid, error.happened))
            of_sink = [entry for entry in decided if entry.committable.sink == uid]
            orphans += judge(query.uid, uid, leftovers, of_sink) + beyond
    return Report(tuple(orphans), tuple(unseen), tuple(silent))


def judge(query: str, sink: str, leftovers: Sequence[Leftover] | None, decided: Sequence[Decided]) -> list[Orphan]:
    """Match what a sink has open with what is decided for it; `leftovers` is None where the sink was not asked."""
    undecided = list(leftovers or ())
    orphans = []
    for entry in decided:
        committable = entry.committable
        open_now = next((each for each in undecided if same_transaction(each, committable)), None)
        if open_now is not None:
            undecided.remove(open_now)
            orphan = orphan_of(query, sink, open_now, DecisionState.DECIDED)
        else:
            state = "not asked" if leftovers is None else "not open"
            orphan = Orphan(query, sink, name_of(committable), state, DecisionState.DECIDED, entry.generation)
        orphans.append(
            replace(
                orphan,
                epoch=entry.epoch,
                partition=committable.writer,
                rows=committable.rows,
                in_log=entry.in_log,
                decided_by=entry.generation,
                decided_at=entry.at,
            )
        )
    return orphans + [orphan_of(query, sink, leftover) for leftover in undecided]


def orphan_of(
    query: str, sink: str, leftover: Leftover, decision: DecisionState = DecisionState.UNDECIDED, scope: str = ""
) -> Orphan:
    facts = {name: getattr(leftover, name) for name in ("generation", "epoch", "partition", "started", "details")}
    return Orphan(query, sink, leftover.name, "open", decision, leftover=leftover, scope=scope, **facts)


def _ask(query: QueryLedger, job: str, uid: str, sinks: Sinks, beyond: list[Orphan]) -> list[Leftover] | None:
    """What the runs in the ledger have left open; `beyond` takes that of runs which the ledger does not know."""
    if uid not in sinks:
        raise ConfigurationError("the sink is not known here: give --job JOB.py.", safe="")
    known: list[Leftover] = []
    for scope in query.scopes(job, uid):
        leftovers = of_all_generations(sinks[uid], scope, Deadline(LOOK_SECONDS))
        if leftovers is None:
            return None
        for leftover in leftovers:
            if leftover.generation <= scope.generation:
                known.append(leftover)
            else:
                beyond.append(orphan_of(query.uid, uid, leftover, DecisionState.UNKNOWN, scope.uid))
    return known


def name_of(committable: Committable) -> str:
    return str(committable.payload.get("transactional_id") or f"{committable.sink}/{committable.writer}")


def ended(ledgers: JobLedgers, epochs: int = ENDED_EPOCHS) -> list[Orphan]:
    """Transactions of the newest complete epochs, by the ledger alone; of each query the newest first.

    The newest decision of a complete epoch was carried out. What only an older one names was lost and replaced by a
    replay, or decided by a run that no longer counted. Those that went into the in-flight log are left out."""
    return [orphan for query in ledgers.queries for orphan in islice(_ended(query, epochs), ENDED_MOST)]


def _ended(query: QueryLedger, epochs: int) -> Iterator[Orphan]:
    complete, _ = query.log.next_epoch()
    decisions = query.ledger.decisions_since(max(0, complete - epochs), query_of(query.ledger, query.log))
    by_epoch: dict[int, list[Decision]] = {}
    for decision in decisions:
        if decision.id.epoch < complete:
            by_epoch.setdefault(decision.id.epoch, []).append(decision)
    for epoch, of_epoch in sorted(by_epoch.items(), reverse=True):
        newest = max(of_epoch, key=lambda decision: decision.id)
        carried_out = [committable.payload for committable in newest.to_commit]
        for decision in of_epoch:
            state, run = "committed" if decision is newest else "lost", decision.id.generation
            for writer in decision.to_commit:
                if not writer.logged and (decision is newest or writer.payload not in carried_out):
                    about = (query.uid, writer.sink, name_of(writer), state, DecisionState.DECIDED, run, epoch)
                    yield Orphan(*about, partition=writer.writer, rows=writer.rows)


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Whether the job runs: True, False, or None where that cannot be seen from here; and the evidence."""

    running: bool | None
    evidence: str


def run_of(ledgers: JobLedgers) -> RunCheck:
    """Look at this machine's registry, and at the process that the newest generation names."""
    for entry in Registry().entries():
        place = f"{entry.storage.rstrip('/')}/{entry.name}"
        if not entry.state.ended and entry.name == ledgers.job and same_place(place, ledgers.location):
            return RunCheck(True, f"run {entry.id} is {entry.state}, process {entry.pid or entry.supervisor}")
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
            return RunCheck(True, who)
        else:
            gone = f"{who}, is gone"
    return RunCheck(None, f"{unseen[0]}, cannot be seen from here") if unseen else RunCheck(False, gone)


def refuse_running(run: RunCheck, job: str, *, take_over: bool) -> None:
    """Raise `TransactionRefused` unless the job is known to be dead, or the operator says that it is."""
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


def abort(
    ledgers: JobLedgers, query: QueryLedger, sinks: Sinks, only: Collection[Orphan], others: Collection[Orphan]
) -> None:
    chosen = [orphan.leftover for orphan in only if orphan.leftover]
    kept = [Committable(orphan.sink, -1, 1, 0, orphan.leftover.payload) for orphan in others if orphan.leftover]
    settlement.abort(ledgers, query, sinks, chosen, kept)


def abort_unknown(ledgers: JobLedgers, sinks: Sinks, chosen: Collection[Orphan]) -> None:
    """Abort what a run opened that the ledger does not know. The operator answers for it: it may have been decided."""
    for orphan in chosen:
        assert orphan.leftover is not None
        scope = SinkScope(ledgers.job, orphan.scope or orphan.sink, orphan.leftover.generation)
        with closing(sinks[orphan.sink].open_committer(scope)) as committer:
            committer.abort([Committable(orphan.sink, -1, 1, 0, orphan.leftover.payload)], Deadline(_ABORT_SECONDS))


def refusal_of(id: str, decision: DecisionState, epoch: int | None = None) -> PenstockError:
    """The error for a transaction that may only be ended the other way."""
    if decision is DecisionState.DECIDED:
        return decided_refusal(id, epoch)
    if decision is DecisionState.UNDECIDED:
        return TransactionRefused(
            f"{id} is not decided: it can only be aborted.",
            safe="nothing was touched. The job replays these rows; committing them would show them twice.",
            to_do="penstock transactions abort, or start the job, which does the same.",
        )
    return TransactionRefused(
        f"The ledger does not know the run of {id}, so it is not known whether it is decided.",
        safe="nothing was touched.",
        to_do="restore the ledger that knows it. If that is lost for good: abort --force, which loses rows if the"
        " transaction was decided.",
    )


def _alive(pid: Any, registered: Any) -> bool:
    """Whether the process runs that registered the generation, and not a younger one of the same number."""
    if not isinstance(pid, int) or pid == os.getpid() or not exists(pid):
        return False
    started = start_time(pid)
    return started is None or not isinstance(registered, int | float) or started <= registered + 1
