"""What the runs of a job, dead or alive, have left open in other systems, and what the ledger says of each.

| the ledger says | so it |
|---|---|
| decided: a decision that counts names it | can only be committed |
| undecided: none does | can only be aborted |
| unknown: there is no ledger to ask, or it does not know the run | is not touched, unless somebody takes the blame |

Which decision counts is `protocol.honoured`'s to say, as when the job itself starts. Nothing here writes: not into the
ledger, not into the other system. See `settlement` for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import Leftover, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine.committers import of_all_generations
from penstock.errors import ConfigurationError, PenstockError
from penstock.ops.transactions.ledgers import Decided, JobLedgers, QueryLedger

LOOK_SECONDS = 30.0  # to ask one sink what it has open

Sinks = Mapping[str, TwoPhaseSink]


class DecisionState(StrEnum):
    """What the ledger says of a transaction."""

    DECIDED = "decided"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Orphan:
    """One line of the list. `state`: `open`, `not open` (decided, and ended since: only asking for the commit proves
    how), or `not asked`. `rows` is known of what is decided. Times are in seconds since 1970."""

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
    """What was found; the sinks that could not be asked, each with the reason; and those that can be swept but cannot
    say what they have open."""

    orphans: tuple[Orphan, ...]
    unseen: tuple[tuple[str, str, str], ...] = ()  # query, sink, why
    silent: tuple[tuple[str, str], ...] = ()

    def of(self, query: str) -> list[Orphan]:
        """Those of one query."""
        return [orphan for orphan in self.orphans if orphan.query == query]


def look(ledgers: JobLedgers, sinks: Sinks) -> Report:
    """Ask every sink what is open, and the ledger about each."""
    orphans: list[Orphan] = []
    unseen: list[tuple[str, str, str]] = []
    silent: list[tuple[str, str]] = []
    for query in ledgers.queries:
        decided = query.decided()
        named = sorted({*query.sinks, *(entry.committable.sink for entry in decided)})
        for uid in named:
            own = [entry for entry in decided if entry.committable.sink == uid]
            found: list[Leftover] | None = None
            beyond: list[Orphan] = []
            try:
                found = _ask(query, ledgers.job, uid, sinks, beyond)
                if found is None:
                    silent.append((query.uid, uid))
            except PenstockError as error:
                unseen.append((query.uid, uid, error.happened))
            orphans += judge(query.uid, uid, found, own) + beyond
    return Report(tuple(orphans), tuple(unseen), tuple(silent))


def judge(query: str, sink: str, found: Sequence[Leftover] | None, decided: Sequence[Decided]) -> list[Orphan]:
    """Put what a sink has open beside what is decided for it; `found` is None where the sink was not asked."""
    left = list(found or ())
    orphans = []
    for one in decided:
        open_now = next((each for each in left if same_transaction(each, one.committable)), None)
        if open_now is not None:
            left.remove(open_now)
        state = "open" if open_now is not None else "not asked" if found is None else "not open"
        orphans.append(
            Orphan(
                query,
                sink,
                open_now.name if open_now is not None else name_of(one.committable),
                state,
                DecisionState.DECIDED,
                generation=open_now.generation if open_now is not None else one.generation,
                epoch=one.epoch,
                partition=one.committable.writer,
                started=open_now.started if open_now is not None else None,
                rows=one.committable.rows,
                decided_by=one.generation,
                decided_at=one.at,
                in_log=one.in_log,
                details=open_now.details if open_now is not None else {},
                leftover=open_now,
            )
        )
    return orphans + [orphan_of(query, sink, one) for one in left]


def orphan_of(
    query: str, sink: str, one: Leftover, decision: DecisionState = DecisionState.UNDECIDED, scope: str = ""
) -> Orphan:
    """A line of the list for what no decision names."""
    return Orphan(
        query,
        sink,
        one.name,
        "open",
        decision,
        one.generation,
        one.epoch,
        one.partition,
        one.started,
        details=one.details,
        leftover=one,
        scope=scope,
    )


def _ask(query: QueryLedger, job: str, uid: str, sinks: Sinks, beyond: list[Orphan]) -> list[Leftover] | None:
    """What the runs in the ledger have left; `beyond` takes that of others, of which nobody knows."""
    if uid not in sinks:
        raise ConfigurationError("the sink is not known here: give --job JOB.py, or --servers if it is Kafka.", safe="")
    found: list[Leftover] = []
    for scope in query.scopes(job, uid):
        own = of_all_generations(sinks[uid], scope, Deadline(LOOK_SECONDS))
        if own is None:
            return None
        found += [one for one in own if one.generation <= scope.generation]
        beyond += [
            orphan_of(query.uid, uid, one, DecisionState.UNKNOWN, scope.uid)
            for one in own
            if one.generation > scope.generation
        ]
    return found


def same_transaction(leftover: Leftover, committable: Committable) -> bool:
    """Whether both are the same transaction."""
    return bool(leftover.payload) and leftover.payload.items() <= committable.payload.items()


def name_of(committable: Committable) -> str:
    """What people call it."""
    return str(committable.payload.get("transactional_id") or f"{committable.sink}/{committable.writer}")
