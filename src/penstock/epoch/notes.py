"""What there is to tell of an epoch, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable
    from penstock.checkpoint.spark_log import Barrier


@dataclass
class EpochNotes:
    """What there is to tell of one attempt at an epoch. Times are of the wall clock."""

    opened: float
    decided: float | None = None
    precommit_ms: float | None = None
    commit_ms: float | None = None
    committables: tuple[Committable, ...] = ()
    logged: bool = False  # went into the in-flight log, not at once into its sinks
    inflight_bytes: int = 0


class EpochObserver(Protocol):
    """Told of every attempt, in the thread that runs it; must return at once and raise nothing."""

    def prepared(self, epoch: int, barrier: Barrier | None, opened: float, plan: Any) -> None: ...
    def ended(
        self, epoch: int, generation: int, barrier: Barrier | None, notes: EpochNotes, error: BaseException | None
    ) -> None: ...
