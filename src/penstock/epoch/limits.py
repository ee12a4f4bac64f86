"""The gate that epochs pass one by one, and the watchdog that ends one that takes too long."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from penstock.errors import CheckpointExpired, JobStopped

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame


class Gate:
    """Held while an epoch is under way. Closed, it lets none begin and cuts every wait inside one short."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._shut = threading.Event()

    @property
    def closed(self) -> bool:
        return self._shut.is_set()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def try_enter(self) -> bool:
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        self._lock.release()

    def check(self) -> None:
        """Raises `JobStopped` once the gate is closed."""
        if self._shut.is_set():
            raise JobStopped(f"Query {self._query!r} is stopping.", safe="the epoch replays at the next start.")

    def pause(self, seconds: float) -> None:
        """Wait, unless the gate is closed meanwhile."""
        if seconds > 0:
            self._shut.wait(seconds)
            self.check()

    def shut(self) -> None:
        """From now on none begins; returns at once."""
        self._shut.set()

    def close(self) -> None:
        """Returns when no epoch is under way."""
        self.shut()
        with self._lock:
            pass

    def enter_within(self, seconds: float) -> bool:
        """Wait for the epoch under way to end, for so long; whether it has, and the gate is now held."""
        return self._lock.acquire(timeout=max(0.0, seconds))


class Watchdog:
    """While entered, cancels the epoch's Spark jobs when its time is up; `expired` then says so."""

    def __init__(self, frame: DataFrame, seconds: float, query: str, epoch: int) -> None:
        self._frame, self._seconds, self._query, self._epoch = frame, seconds, query, epoch
        self._lock = threading.Lock()
        self._over = False
        self._timer: threading.Timer | None = None
        self.expired: CheckpointExpired | None = None

    def __enter__(self) -> Watchdog:
        context = self._frame.sparkSession.sparkContext
        # Spark names the jobs of a query's batches after its run; `foreachBatch` runs under that name.
        self._group = context.getLocalProperty("spark.jobGroup.id")
        self._timer = threading.Timer(self._seconds, self._bite)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timer is not None
        with self._lock:
            self._over = True
        self._timer.cancel()
        if error is None and self.expired is not None:
            raise self.expired  # the time was up between two Spark jobs

    def _bite(self) -> None:
        with self._lock:
            if self._over:
                return
            self.expired = CheckpointExpired(
                f"Epoch {self._epoch} of query {self._query!r} was not prepared after {self._seconds:g} s.",
                safe="everything it had prepared is aborted; it replays from the same positions.",
                to_do="see what is slow (the sink, the plan, too many rows); raise the checkpoint timeout, limit"
                " the rows per epoch at the source, or use unaligned checkpoints if it is the sink.",
            )
            if self._group:
                with contextlib.suppress(Exception):
                    self._frame.sparkSession.sparkContext.cancelJobGroup(self._group)
