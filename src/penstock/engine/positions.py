"""The positions that Spark runs an epoch between, by its memory, held against its log and the ledger.

Spark writes `offsets/N` and goes on by what it holds in memory. On most storage two drivers may both believe to have
created that file, and a driver that was superseded may rename its own over it at any later time. So the file alone does
not tell what an epoch's rows are: it is compared with Spark's memory before anything of the epoch is written, and a
manifest holds what was run. What becomes of the file afterwards does no harm: every start goes by the manifest, see
`log_repair`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.checkpoint import layout
from penstock.checkpoint.belonging import mismatch
from penstock.checkpoint.log_repair import completed
from penstock.errors import BarrierOverwritten, LedgerError

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger
    from penstock.checkpoint.spark_log import Barrier, SparkLog


class RunningEpoch(Protocol):
    """What Spark holds in memory of the epoch under way, each as it would stand in `offsets/N`; None where it cannot
    be seen. Then Spark's log is believed."""

    def starts_at(self) -> str | None: ...

    def ends_at(self) -> str | None: ...


class Positions:
    """Of one start of one query."""

    def __init__(self, query: str, ledger: Ledger, log: SparkLog, running: RunningEpoch | None) -> None:
        self._query, self._ledger, self._log, self._running = query, ledger, log, running
        self._followed = -1  # the epoch whose end the next one starts at, as seen in this run

    def barrier(self, epoch: int, *, drains: bool = False) -> Barrier:
        """What the epoch under way is cut at. Raises where the log, or the decision before it, says otherwise.
        `drains`: it may be a barrier at the end of time; otherwise a superseded drain has written it since."""
        barrier = self._log.barrier(epoch)
        if barrier is None:
            # Spark writes it before it calls us: the checkpoint we read is not the one it writes.
            raise mismatch(self._query, f"{self._log.location} has no {layout.offsets(epoch)}")
        if not drains and self._log.drained(epoch):
            raise LedgerError(
                f"A drain of an earlier run has replaced the barrier of epoch {epoch} of query {self._query!r}.",
                safe="the epoch was not run; no window was closed.",
                to_do="let the job restart: its recovery removes that barrier.",
            )
        if self._running is not None:
            starts = self._running.starts_at() if self._followed != epoch - 1 else None
            ends = self._running.ends_at()
            if starts is not None:
                self._check_start(epoch, starts)
            if ends is not None and self._log.parse_barrier(epoch, ends.encode()).cut != barrier.cut:
                raise self.overwritten(epoch)
        self._followed = epoch
        return replace(barrier, notes=self._log.notes(barrier))

    def _check_start(self, epoch: int, text: str) -> None:
        """In the first epoch of a run: Spark has read the end of the epoch before from its log, after we have looked at
        it there."""
        before = completed(self._ledger, epoch - 1, self._log.query_id())
        if before is None or before.file is None:
            return  # it was not decided, or by an earlier version
        decided = self._log.parse_barrier(epoch - 1, before.file.encode())
        if self._log.parse_barrier(epoch - 1, text.encode()).offsets != decided.offsets:
            raise self.overwritten(epoch - 1)

    def overwritten(self, epoch: int) -> BarrierOverwritten:
        """The error for a barrier that is another driver's."""
        return BarrierOverwritten(
            f"{self._log.location}/{layout.offsets(epoch)} is not what Spark runs query {self._query!r} by: another"
            " driver, one that this run has superseded, has written it.",
            safe="nothing of the epoch was written; the next start takes what was decided from the ledger.",
            to_do="let the job restart. If it happens again, a second driver of this job is still alive: stop it.",
        )
