"""Follows a query's epochs and hands each one's record to the recorder. Nothing it does can disturb an epoch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.backlog import is_logged
from penstock.checkpoint.record import COMPLETE, FAILED, CheckpointRecord, shares_of
from penstock.epoch.recorder import LOOK_BACK, Measure, Recorder
from penstock.spark.alignment import later
from penstock.spark.state_size import progress_of, state_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.checkpoint.spark_log import Barrier
    from penstock.config import Checkpoints
    from penstock.epoch.attempt import EpochNotes
    from penstock.events import Events
    from penstock.storage.storage import Storage


class Observer:
    """One start's. The coordinator calls `prepared` in the thread that runs the epoch, and `ended` once it is over."""

    def __init__(
        self,
        query: str,
        positions: Sequence[str | None],
        spark: SparkSession,
        storage: Storage,
        checkpoints: Checkpoints,
        events: Events,
        running: Callable[[], StreamingQuery | None],
    ) -> None:
        self._query, self._positions, self._spark = query, tuple(positions), spark
        self._mode = str(checkpoints.mode)
        self._measure: Measure | None = None
        self._recorder = Recorder(
            storage,
            keep=checkpoints.num_retained + LOOK_BACK,
            progress=lambda epoch: progress_of(stream, epoch) if (stream := running()) is not None else {},
            sizes=state_sizes,
            recorded=lambda record: events.emit("checkpoint", **record.summary()),
        )

    def prepared(self, epoch: int, barrier: Barrier | None, opened: float, plan: Any) -> None:
        """All tasks of the epoch are done; `plan` is what Spark executed."""
        self._measure = later(self._spark, plan, opened, epoch=epoch, sources=self._cut(barrier)) if plan else None

    def ended(
        self, epoch: int, generation: int, barrier: Barrier | None, notes: EpochNotes, error: BaseException | None
    ) -> None:
        """The epoch is complete or, with `error`, was given up."""
        measure, self._measure = self._measure, None
        record = CheckpointRecord(
            query=self._query,
            epoch=epoch,
            generation=generation,
            mode=self._named(notes),
            outcome=COMPLETE if error is None else FAILED,
            why=None if error is None else f"{type(error).__name__}: {error}",
            opened=notes.opened,
            decided=notes.decided,
            ended=time.time(),
            precommit_ms=notes.precommit_ms,
            commit_ms=notes.commit_ms,
            sinks=shares_of(notes.committables),
            inflight_bytes=notes.inflight_bytes,
            positions=self._cut(barrier),
        )
        self._recorder.add(record, measure if error is None else None)

    def close(self) -> None:
        self._recorder.close()

    def _cut(self, barrier: Barrier | None) -> tuple[tuple[str | None, Any], ...]:
        return tuple(zip(self._positions, barrier.offsets, strict=False)) if barrier is not None else ()

    def _named(self, notes: EpochNotes) -> str:
        if self._mode != "exactly_once":
            return self._mode
        return "unaligned" if notes.logged and any(is_logged(one) for one in notes.committables) else "aligned"
