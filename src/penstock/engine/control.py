"""The interfaces between a run and the operations above it, of which the engine imports nothing. `hooks` is how a
supervised process adds its part to jobs and drop-ins that start in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.progress import Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.contracts.sink import TwoPhaseSink


class Steerable(Protocol):
    """A job, commanded from any thread. Every method raises a `PenstockError` where it cannot do what it is asked."""

    name: str

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        """Take a savepoint while the job goes on. Blocks; returns its path. `progress` hears how far it is."""

    def checkpoint(self) -> int:
        """Wait for a checkpoint that begins after this call; its number. Where a query has nothing to read, its newest
        one holds everything already, and counts."""

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        kind: str = "native",
        cancel: bool = False,
        progress: Progress = silent,
    ) -> str:
        """Finish the epoch under way, take a savepoint, end. Blocks until there is a path; the job then ends, and with
        `cancel` it counts as cancelled. `drain`: first emit what windows still hold, as if all time had passed."""

    def stop(self) -> None:
        """Ask for a clean end; returns at once."""

    def cancel(self) -> None:
        """Ask for an end without waiting for the epoch under way; returns at once."""

    def status(self) -> dict[str, Any]:
        """`{"queries": {uid: {"epoch": 12, "generation": 3, …}}}`; never blocks."""


class Insight(Protocol):
    """What a running job shows beyond `Steerable`, asked from any thread. Nothing here waits for an epoch or runs Spark
    jobs."""

    def plan(self) -> dict[str, Any]:
        """Queries with sources, operators and sinks, and the weakest link; the same during a run."""

    def positions(self) -> dict[str, dict[str, Any]]:
        """By query: its `watermark`; under `watermarks`, by source, that of its own rows; and under `sources`, by uid,
        partitions with `offset`, `end` and `lag`. May ask other systems for a moment."""

    def reading(self, query: str, epoch: int) -> bool:
        """Whether an epoch that is being prepared still reads its sources, as far as Spark says."""

    def transactions(self) -> dict[str, Any]:
        """What is open in other systems, and what the ledger says of it. May take seconds."""

    def threads(self) -> list[dict[str, str]]:
        """`name` and `stack` of the JVM's threads."""


@dataclass
class Hooks:
    """Called in every process; they do nothing until operations set them, see `ops.attach_process`."""

    before_dropin: Callable[[SparkSession, Iterable[TwoPhaseSink]], None] = lambda spark, sinks: None
    """Returns when the drop-in may touch its checkpoint and its sink."""
    dropin_ready: Callable[[], None] = lambda: None
    """The drop-in has recovered."""


hooks = Hooks()
