"""Follows a query's epochs and hands each one's record to the recorder, with the size of the state that Spark reports.

Nothing it does can disturb an epoch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import COMPLETE, FAILED, CheckpointRecord, OperatorState, shares_of
from penstock.engine.recorder import LOOK_BACK, Measure, Recorder
from penstock.spark.alignment import measure_later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.checkpoint.spark_log import Barrier
    from penstock.config import Checkpoints
    from penstock.engine.attempt import EpochNotes
    from penstock.events import Events
    from penstock.storage.storage import Storage

_LOOK_BACK = 10  # reports; one is made per epoch, and a record is never so many epochs behind
_MEASURE_EVERY = 0.8  # seconds; less than the shortest interval at which each epoch is to be measured, a second
_ROCKSDB_FILES = "rocksdbSstFileSize"
_HEAP_VERSION = "stateOnCurrentVersionSizeBytes"
_STATELESS: Mapping[str, Any] = {"stateOperators": []}


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
        self._running, self._stateless = running, False
        self._next = 0.0  # when an alignment is measured again
        self._recorder = Recorder(
            storage,
            keep=checkpoints.num_retained + LOOK_BACK,
            progress=self._progress,
            sizes=state_sizes,
            recorded=lambda record: events.emit("checkpoint", **(record.summary() | record.extent())),
        )

    def prepared(self, epoch: int, barrier: Barrier | None, opened: float, plan: Callable[[], Any]) -> None:
        """All tasks of the epoch are done; `plan` gives what Spark executed. The alignment of short epochs is measured
        now and then."""
        self._measure = None
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _MEASURE_EVERY
        if executed := plan():
            sources = self._positions_at(barrier)
            self._measure = measure_later(self._spark, executed, opened, epoch=epoch, sources=sources)

    def ended(
        self, epoch: int, generation: int, barrier: Barrier | None, notes: EpochNotes, error: BaseException | None
    ) -> None:
        """The epoch is complete or, with `error`, was given up."""
        measure, self._measure = self._measure, None
        record = CheckpointRecord(
            query=self._query,
            epoch=epoch,
            generation=generation,
            mode=self._mode_of(notes),
            outcome=COMPLETE if error is None else FAILED,
            why=None if error is None else f"{type(error).__name__}: {error}",
            opened=notes.opened,
            decided=notes.decided,
            ended=time.time(),
            precommit_ms=notes.precommit_ms,
            commit_ms=notes.commit_ms,
            sinks=shares_of(notes.committables),
            inflight_bytes=notes.inflight_bytes,
            positions=self._positions_at(barrier),
        )
        self._recorder.add(record, measure if error is None else None)

    def close(self) -> None:
        self._recorder.close()

    def _progress(self, epoch: int) -> Mapping[str, Any] | None:
        """Spark's report. That of a query without state says nothing that is asked for, so one is enough."""
        if self._stateless:
            return _STATELESS
        stream = self._running()
        report = {} if stream is None else progress_of(stream, epoch)
        self._stateless = bool(report and not state_sizes(report))
        return report

    def _positions_at(self, barrier: Barrier | None) -> tuple[tuple[str | None, Any], ...]:
        return tuple(zip(self._positions, barrier.offsets, strict=False)) if barrier is not None else ()

    def _mode_of(self, notes: EpochNotes) -> str:
        if self._mode != "exactly_once":
            return self._mode
        return (
            "unaligned" if notes.logged and any(committable.logged for committable in notes.committables) else "aligned"
        )


def state_sizes(progress: Mapping[str, Any]) -> tuple[OperatorState, ...]:
    """The state of each operator, in the plan's order; empty for a query without state. `progress` is one report of
    Spark's: `StreamingQuery.lastProgress`, or what `progress_of` gives."""
    return tuple(_operator(body) for body in progress.get("stateOperators") or ())


def progress_of(query: StreamingQuery, epoch: int) -> dict[str, Any] | None:
    """Spark's report of the epoch, None as long as it is not there. It comes after `commits/N`. Empty where it will
    not come any more: reports of later epochs are there, and none of this one."""
    reports: Any = query._jsq.recentProgress()
    newest = -1
    for index in range(len(reports) - 1, max(-1, len(reports) - 1 - _LOOK_BACK), -1):
        report = reports[index]
        number = int(report.batchId())
        if number < epoch:
            break
        if number == epoch:
            body: dict[str, Any] = json.loads(report.json())
            if "addBatch" in body.get("durationMs", {}):
                return body
            continue  # a report of a query that waits for data bears the number of the epoch to come
        newest = max(newest, number)
    return {} if newest > epoch else None


def _operator(body: Mapping[str, Any]) -> OperatorState:
    metrics: Mapping[str, Any] = body.get("customMetrics") or {}
    rocksdb = any(name.startswith("rocksdb") for name in metrics)
    size = metrics.get(_ROCKSDB_FILES if rocksdb else _HEAP_VERSION)
    return OperatorState(
        operator=str(body["operatorName"]),
        rows=int(body["numRowsTotal"]),
        updated=int(body["numRowsUpdated"]),
        removed=int(body.get("numRowsRemoved", 0)),
        memory_bytes=int(body["memoryUsedBytes"]),
        state_bytes=None if size is None else int(size),
        backend="rocksdb" if rocksdb else "hashmap",
        partitions=int(body.get("numStateStoreInstances", body.get("numShufflePartitions", 0))),
    )
