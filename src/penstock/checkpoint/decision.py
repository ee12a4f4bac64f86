"""What the ledger keeps of an epoch: what writers prepared, what was decided, what a run claimed when it started.

Plain values without behaviour. The protocol says what they mean; the ledger makes them durable; sinks commit them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    where it is not known for sure."""

    id: DecisionId
    committables: tuple[Committable, ...]
    watermark: int | None = 0

    @property
    def to_commit(self) -> tuple[Committable, ...]:
        return tuple(committable for committable in self.committables if committable.rows)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a run saw when it started: the epoch that comes next, and the decision it honours there."""

    generation: int
    epoch: int
    honours: DecisionId | None
