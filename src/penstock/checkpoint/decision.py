"""What the ledger keeps of an epoch: what writers prepared, what was decided, what a run claimed when it started.

Plain values without behaviour. The protocol says what they mean; the ledger makes them durable; sinks commit them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MODULO = 1 << 64
"""Of the sum of hashes in a checksum; above it stands the rule that they were made by, see `epoch.checksum`."""

WriterId = tuple[str, int]
"""Sink uid and writer number: the name of a writer inside one epoch."""


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
    epoch: some sources deal their rows out by it. None in a decision by an earlier version, and in a drained one."""

    id: DecisionId
    committables: tuple[Committable, ...]
    watermark: int | None = 0
    parallelism: int | None = None

    @property
    def to_commit(self) -> tuple[Committable, ...]:
        return tuple(committable for committable in self.committables if committable.rows)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a run saw when it started: the epoch that comes next, and the decision it honours there."""

    generation: int
    epoch: int
    honours: DecisionId | None


def match_replay(
    decided: Sequence[Committable], replayed: Sequence[Committable], rewritten: Collection[str]
) -> tuple[dict[WriterId, Committable], set[WriterId]]:
    """Whether a replay holds what was decided. For each decided writer of the sinks to be `rewritten` the replayed one
    that holds the very same rows; and the writers, of either side, that differ.

    Partners are found by what they hold, not by their number: Spark does not promise that a replay gives a partition
    of the input to the same task (with Kafka, the order of the partitions comes from a hash map). Of a sink that is
    not rewritten nobody takes the place of another, so all its rows together are compared: how they are dealt out may
    depend on the number of cores."""
    found: dict[WriterId, Committable] = {}
    differing: set[WriterId] = set()
    for sink in {one.sink for one in (*decided, *replayed)}:
        old = [one for one in decided if one.sink == sink and one.rows]
        new = [one for one in replayed if one.sink == sink and one.rows]
        if sink not in rewritten:
            if _held(old) != _held(new):
                differing.update(one.id for one in (*old, *new))
            continue
        partners: dict[tuple[int, int], list[Committable]] = {}
        for one in new:
            partners.setdefault((one.rows, one.checksum), []).append(one)
        for one in old:
            alike = partners.get((one.rows, one.checksum))
            if alike:
                found[one.id] = alike.pop()
            else:
                differing.add(one.id)
        differing.update(one.id for alike in partners.values() for one in alike)
    return found, differing


def _held(committables: Sequence[Committable]) -> tuple[int, int, set[int]]:
    """Rows, the sum of their hashes, and the rules that these were made by, which stand above the hashes' 64 bits."""
    rules = {one.checksum // MODULO for one in committables}
    return sum(one.rows for one in committables), sum(one.checksum for one in committables) % MODULO, rules
