"""What the ledger keeps of an epoch: what writers prepared, what was decided, what a run claimed when it started; and
which decision is in force (`honoured`).

Plain values without I/O. The protocol gives them their meaning; the ledger makes them durable; sinks commit them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

MODULO = 1 << 64
"""Of the sum of hashes in a checksum; the number of their rule is above it, see `engine.checksum`."""

WriterId = tuple[str, int]
"""Sink uid and writer number: the name of a writer inside one epoch."""

StateIds = Mapping[str, Sequence[Sequence[str]]]
"""Of the state that an epoch left, in Spark's format 2: by operator and partition the ids of its stores, which are part
of the names of their files."""


class Outcome(Enum):
    """What is proven about one committable after an attempt to commit it."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    LOST = "lost"  # the other system ended it; final, it can never become visible any more
    UNKNOWN = "unknown"  # nothing is proven: ask again, never guess

    @property
    def visible(self) -> bool:
        return self in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)


@dataclass(frozen=True, slots=True)
class Committable:
    """What one writer prepared: enough to commit or abort it from any process, later.

    `payload` is JSON-able and versioned by `format`, both owned by the sink. `rows` and `checksum` (the sum of the
    rows' 64-bit hashes, modulo 2**64, so independent of their order) are how a replay is proven equal. A writer
    without rows prepared nothing and has nothing to commit.
    """

    sink: str
    writer: int
    rows: int
    checksum: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    format: int = 1

    @property
    def id(self) -> WriterId:
        return (self.sink, self.writer)

    @property
    def logged(self) -> bool:
        """Whether the rows are in the in-flight log; the payload is then the log's, see `checkpoint.backlog`."""
        return self.payload.keys() == {"log", "prepared"}

    @property
    def at_sink(self) -> Committable | None:
        """What the sink itself has prepared: all of it, or what it prepared beside the log. None where the sink did
        not keep up with the log."""
        if not self.logged:
            return self
        prepared: Mapping[str, Any] | None = self.payload["prepared"]
        return None if prepared is None else replace(self, payload=prepared)

    def with_payload(self, **more: Any) -> Committable:
        return replace(self, payload={**self.payload, **more})


@dataclass(frozen=True, slots=True, order=True)
class DecisionId:
    """Of several decisions for one epoch the highest generation's counts."""

    epoch: int
    generation: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The commit point of an epoch over all its sinks, once durable. `watermark` is the one batch N leads to, None
    where it is not known for sure. `parallelism` is the number of tasks that Spark reckoned with when it planned the
    epoch: some sources deal their rows out by it. None in a drained one. `state_ids` are None in format 1 of Spark's
    state, or where they are not known."""

    id: DecisionId
    committables: tuple[Committable, ...]
    watermark: int | None = 0
    parallelism: int | None = None
    state_ids: StateIds | None = None

    @property
    def to_commit(self) -> tuple[Committable, ...]:
        return tuple(committable for committable in self.committables if committable.rows)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a run saw when it started: the epoch that comes next, and the decision it honours there."""

    generation: int
    epoch: int
    honours: DecisionId | None


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Spark's log says that `epoch` comes next: its barrier may be written (`barrier`), its commit is not. `decisions`
    are those for this epoch and later ones. `damaged`: files of the log are half-written, or missing in its middle, or
    an undecided attempt may have left something in Spark's way."""

    epoch: int
    barrier: bool
    decisions: tuple[Decision, ...] = ()
    claims: tuple[Claim, ...] = ()
    damaged: bool = False


def next_epoch(state: CheckpointState) -> int:
    """The epoch that comes next. Usually the one that Spark's log says; a later one where the log has lost epochs that
    the ledger knows to be complete, or decided."""
    claim = _newest_claim(state)
    counting = [decision.id.epoch for decision in state.decisions if counts(decision, claim)]
    # The run that made the claim saw these in Spark's log as complete, whichever run had decided them.
    seen = -1 if claim is None else claim.epoch
    complete = [decision.id.epoch + 1 for decision in state.decisions if decision.id.epoch < seen]
    return max([state.epoch, *counting, *complete])


def honoured(state: CheckpointState) -> Decision | None:
    """The decision that counts for the epoch that comes next, if there is one."""
    epoch, claim = next_epoch(state), _newest_claim(state)
    valid = [decision for decision in state.decisions if decision.id.epoch == epoch and counts(decision, claim)]
    return max(valid, key=lambda decision: decision.id, default=None)


def _newest_claim(state: CheckpointState) -> Claim | None:
    return max(state.claims, key=lambda claim: claim.generation, default=None)


def counts(decision: Decision, claim: Claim | None) -> bool:
    """Whether the run that made the claim left the decision in force."""
    return claim is None or decision.id.generation >= claim.generation or decision.id == claim.honours


def match_replay(
    decided: Sequence[Committable], replayed: Sequence[Committable], rewritten: Collection[str]
) -> tuple[dict[WriterId, Committable], set[WriterId]]:
    """Whether a replay holds what was decided. For each decided writer of the sinks to be `rewritten` the replayed one
    that holds the very same rows; and the writers, of either side, that differ.

    Partners are found by what they hold, not by their number: Spark does not promise that a replay gives a partition
    of the input to the same task (with Kafka, the order of the partitions comes from a hash map). In a sink
    that is not rewritten no writer replaces another, so all its rows are compared together: how they are dealt out may
    depend on the number of cores."""
    matches: dict[WriterId, Committable] = {}
    differing: set[WriterId] = set()
    for sink in {committable.sink for committable in (*decided, *replayed)}:
        old = [committable for committable in decided if committable.sink == sink and committable.rows]
        new = [committable for committable in replayed if committable.sink == sink and committable.rows]
        if sink not in rewritten:
            if _contents(old) != _contents(new):
                differing.update(committable.id for committable in (*old, *new))
            continue
        partners: dict[tuple[int, int], list[Committable]] = {}
        for committable in new:
            partners.setdefault((committable.rows, committable.checksum), []).append(committable)
        for committable in old:
            if alike := partners.get((committable.rows, committable.checksum)):
                matches[committable.id] = alike.pop()
            else:
                differing.add(committable.id)
        differing.update(committable.id for alike in partners.values() for committable in alike)
    return matches, differing


def _contents(committables: Sequence[Committable]) -> tuple[int, int, set[int]]:
    """Rows, the sum of their hashes, and the numbers of the rules above the hashes' 64 bits."""
    rows = sum(committable.rows for committable in committables)
    total = sum(committable.checksum for committable in committables)
    return rows, total % MODULO, {committable.checksum // MODULO for committable in committables}
