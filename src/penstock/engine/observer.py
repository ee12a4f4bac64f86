"""Follows a query's epochs: keeps a checkpoint record of each, with the size of the state that Spark reports.

`Observer` collects what there is to record; `Recorder` completes and writes the records in a thread of its own. No
epoch waits for either, and no error of theirs fails one.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import COMPLETE, FAILED, Alignment, CheckpointRecord, OperatorState, shares_of, tidy
from penstock.config import Checkpoints
from penstock.deadline import Deadline
from penstock.engine.attempt import Attempt
from penstock.events import Events
from penstock.spark.query import measure
from penstock.storage.storage import AlreadyExists, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")

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
        sums: Sums | None = None,
    ) -> None:
        self._sums = sums
        self._query, self._positions, self._spark = query, tuple(positions), spark
        self._mode = str(checkpoints.mode)
        self._measure: Measure | None = None
        self._running, self._stateless = running, False
        self._next = 0.0  # when an alignment is measured again
        self._recorder = Recorder(
            storage,
            keep=checkpoints.num_retained + LOOK_BACK,
            progress=self._progress,
            sums=sums,
            recorded=lambda record: events.emit("checkpoint", **(record.summary() | record.extent())),
        )

    def prepared(self, attempt: Attempt) -> None:
        """All tasks of the epoch are done. The alignment of short epochs is measured now and then."""
        self._measure = None
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _MEASURE_EVERY
        uids = [uid for uid, _ in self._positions_at(attempt)]
        group = self._spark.sparkContext.getLocalProperty("spark.jobGroup.id") or ""  # of the epoch's own thread
        self._measure = partial(measure, self._spark, group, attempt.began, epoch=attempt.epoch, uids=uids)

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """The epoch is complete or, with `error`, was given up."""
        alignment, self._measure = self._measure, None
        logged = attempt.logged and any(committable.logged for committable in attempt.committables)
        record = CheckpointRecord(
            query=self._query,
            epoch=attempt.epoch,
            generation=attempt.generation,
            mode=("unaligned" if logged else "aligned") if self._mode == "exactly_once" else self._mode,
            outcome=COMPLETE if error is None else FAILED,
            why=None if error is None else f"{type(error).__name__}: {error}",
            opened=attempt.began,
            decided=attempt.decided,
            ended=time.time(),
            precommit_ms=attempt.precommit_ms,
            commit_ms=attempt.commit_ms,
            sinks=shares_of(attempt.committables),
            inflight_bytes=attempt.inflight_bytes,
            positions=self._positions_at(attempt),
            sums=None if self._sums is None or attempt.once else self._sums(shares_of(attempt.committables), {}),
        )
        self._recorder.add(record, alignment if error is None else None)

    def close(self) -> None:
        self._recorder.close()

    def _progress(self, epoch: int) -> Mapping[str, Any] | None:
        """Spark's report. That of a query without state says nothing that is asked for, so one is enough."""
        if self._stateless and self._sums is None:
            return _STATELESS
        stream = self._running()
        report = {} if stream is None else progress_of(stream, epoch)
        self._stateless = bool(report and not state_sizes(report))
        return report

    def _positions_at(self, attempt: Attempt) -> tuple[tuple[str | None, Any], ...]:
        return tuple(zip(self._positions, attempt.barrier.offsets, strict=False))


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


LOOK_BACK = 20
"""How many records are kept beyond the retained checkpoints."""

_WAITING = 8  # records not yet written; each holds a plan of Spark's in memory
_REPORT_SECONDS = 10.0  # for Spark's report of the epoch, which comes milliseconds after its commit, or never
_POLL_SECONDS = 0.05
_CLOSE_SECONDS = 5.0  # for a storage that hangs; the job's end does not wait for longer
_TIDY_EVERY = 20  # records between two listings

Progress = Mapping[str, Any]
Sums = Callable[[Any, Progress], Mapping[str, Any]]  # of the shares of an epoch's sinks, and Spark's report
Measure = Callable[[], Alignment | None]


class Recorder:
    """Writes one query's records, keeping the newest `keep`.

    `progress` gives Spark's report of an epoch: None while it is not there, empty if it will not come. `recorded` is
    called with each record once it is as complete as it gets, also where it could not be written."""

    def __init__(
        self,
        storage: Storage,
        *,
        keep: int = 1 + LOOK_BACK,
        progress: Callable[[int], Progress | None] = lambda epoch: {},
        recorded: Callable[[CheckpointRecord], None] = lambda record: None,
        sums: Sums | None = None,
    ) -> None:
        self._sums = sums
        self._storage, self._keep = storage, max(1, keep)
        self._progress, self._recorded = progress, recorded
        self._queue: queue.Queue[tuple[CheckpointRecord, Measure | None] | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained: set[str] = set()
        self._written = 0
        self.dropped = 0

    def add(self, record: CheckpointRecord, measure: Measure | None = None) -> None:
        """Hand over a record; returns at once and never raises. `measure` gives its alignment, when its turn comes.
        Where too many wait, the oldest is dropped and counted."""
        if self._closing.is_set():
            return
        with suppress(queue.Empty):
            if self._queue.qsize() >= _WAITING:
                self._queue.get_nowait()
                self.dropped += 1
                text = "records of checkpoints come faster than they can be written; some are dropped"
                self._complain("dropped", text)
        self._queue.put((record, measure))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"penstock-records-{record.query}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, without waiting for Spark's reports any more, and end."""
        self._closing.set()
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            record, measure = waiting
            record = self._reported(replace(record, alignment=self._measured(record, measure)))
            self._write(record)
            try:
                self._recorded(record)
            except Exception as error:
                self._complain("recorded", f"a listener for checkpoint records failed: {error!r}")

    def _measured(self, record: CheckpointRecord, measure: Measure | None) -> Alignment | None:
        try:
            return record.alignment if measure is None else measure()
        except Exception as error:
            self._complain("measure", f"the alignment of epochs could not be measured: {error!r}")
            return None

    def _reported(self, record: CheckpointRecord) -> CheckpointRecord:
        if record.outcome != COMPLETE:
            return record
        patience = Deadline(_REPORT_SECONDS)
        try:
            while (report := self._progress(record.epoch)) is None:
                if self._closing.is_set() or patience.passed():
                    return record
                self._closing.wait(_POLL_SECONDS)
            sums = record.sums if self._sums is None or record.sums else self._sums(record.sinks, report)
            return replace(record, state=state_sizes(report) if report else record.state, sums=sums)
        except Exception as error:
            self._complain("state", f"the sizes of state could not be read: {error!r}")
            return record

    def _write(self, record: CheckpointRecord) -> None:
        try:
            data = record.to_bytes()
            try:
                self._storage.create(record.file, data)
            except AlreadyExists:
                # An epoch that is carried out again has one record, the last.
                self._storage.delete(record.file)
                self._storage.create(record.file, data)
            if self._written % _TIDY_EVERY == 0:
                tidy(self._storage, self._keep)
            self._written += 1
        except Exception as error:
            self._complain("write", f"a checkpoint's record could not be written: {error}")

    def _complain(self, what: str, message: str) -> None:
        """Once for each kind of trouble: it would be the same every epoch."""
        if what not in self._complained:
            self._complained.add(what)
            log.warning("%s; this is logged once", message)
