"""Completes and writes checkpoint records beside the epochs, in a thread of its own. No epoch ever waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import COMPLETE, Alignment, CheckpointRecord, OperatorState, tidy
from penstock.deadline import Deadline
from penstock.storage.storage import AlreadyExists

if TYPE_CHECKING:
    from penstock.storage.storage import Storage

log = logging.getLogger("penstock")

LOOK_BACK = 20
"""How many records are kept beyond the retained checkpoints."""

_WAITING = 8  # records not yet written; each holds a plan of Spark's in memory
_REPORT_SECONDS = 10.0  # for Spark's report of the epoch, which comes milliseconds after its commit, or never
_POLL_SECONDS = 0.05
_CLOSE_SECONDS = 5.0  # for a storage that hangs; the job's end does not wait for longer
_TIDY_EVERY = 20  # records between two listings

Progress = Mapping[str, Any]
Measure = Callable[[], Alignment | None]


class Recorder:
    """Writes one query's records, keeping the newest `keep`.

    `progress` gives Spark's report of an epoch: None while it is not there, empty if it will not come. `sizes` reads
    the state's sizes from it. `recorded` is called with each record once it is as complete as it gets, also where it
    could not be written."""

    def __init__(
        self,
        storage: Storage,
        *,
        keep: int = 1 + LOOK_BACK,
        progress: Callable[[int], Progress | None] | None = None,
        sizes: Callable[[Progress], tuple[OperatorState, ...]] | None = None,
        recorded: Callable[[CheckpointRecord], None] | None = None,
    ) -> None:
        self._storage, self._keep = storage, max(1, keep)
        self._progress, self._sizes, self._recorded = progress, sizes, recorded
        self._queue: deque[tuple[CheckpointRecord, Measure | None]] = deque()
        self._there = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._complained: set[str] = set()
        self._written = 0
        self.dropped = 0

    def add(self, record: CheckpointRecord, measure: Measure | None = None) -> None:
        """Hand over a record; returns at once and never raises. `measure` gives its alignment, when its turn comes.
        Where too many wait, the oldest is dropped and counted."""
        with self._there:
            if self._closing:
                return
            if len(self._queue) >= _WAITING:
                self._queue.popleft()
                self.dropped += 1
                self._complain(
                    "dropped", "records of checkpoints come faster than they can be written; some are left out"
                )
            self._queue.append((record, measure))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"penstock-records-{record.query}", daemon=True)
                self._thread.start()
            self._there.notify_all()

    def close(self) -> None:
        """Write what waits, without waiting for Spark's reports any more, and end."""
        with self._there:
            self._closing = True
            self._there.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            with self._there:
                while not self._queue and not self._closing:
                    self._there.wait()
                if not self._queue:
                    return
                record, measure = self._queue.popleft()
            record = replace(record, alignment=self._measured(record, measure), state=self._state(record))
            self._write(record)
            if self._recorded is not None:
                try:
                    self._recorded(record)
                except Exception as error:
                    self._complain("recorded", f"a listener for checkpoint records failed: {error!r}")

    def _measured(self, record: CheckpointRecord, measure: Measure | None) -> Alignment | None:
        if measure is None:
            return record.alignment
        try:
            return measure()
        except Exception as error:
            self._complain("measure", f"the alignment of epochs could not be measured: {error!r}")
            return None

    def _state(self, record: CheckpointRecord) -> tuple[OperatorState, ...] | None:
        if self._progress is None or self._sizes is None or record.outcome != COMPLETE:
            return record.state
        patience = Deadline(_REPORT_SECONDS)
        try:
            while True:
                report = self._progress(record.epoch)
                if report is not None:
                    return self._sizes(report) if report else record.state
                if self._closing or patience.passed():
                    return record.state
                self._pause()
        except Exception as error:
            self._complain("state", f"the sizes of state could not be read: {error!r}")
            return record.state

    def _pause(self) -> None:
        with self._there:
            if not self._closing:
                self._there.wait(_POLL_SECONDS)

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
            log.warning("%s; this is said once", message)
