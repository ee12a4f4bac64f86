"""In a task: rows go into the log and, beside it, into the sink's transaction, as long as the sink keeps up.

The sink's writer lives in a thread of its own. Should it block, or still be busy when the time for it is up, the task
goes on without it: the log is whole by itself. The thread aborts its transaction when it comes back to life; what it
never gets to abort, the driver finds by its name.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.contracts.sink import TwoPhaseSink, Writer, WriterScope

_QUEUED = 4  # batches between the two; enough to keep both busy, little to hold in memory


class SideWriter:
    """The sink's writer beside the log. `offer` and `finish` never wait longer than until `deadline`."""

    def __init__(self, sink: TwoPhaseSink, scope: WriterScope, seconds: float) -> None:
        self._sink, self._scope = sink, scope
        self._deadline = time.monotonic() + seconds
        self._batches: queue.Queue[pa.RecordBatch | None] = queue.Queue(_QUEUED)
        self._given_up = threading.Event()
        self._ended = threading.Event()
        self._payload: Mapping[str, Any] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-side-writer", daemon=True)
        self._thread.start()

    def offer(self, batch: pa.RecordBatch) -> None:
        """Hand over rows, unless the sink was given up."""
        self._put(batch)

    def finish(self) -> Mapping[str, Any] | None:
        """What the sink prepared; None if it was given up. Raises what no later delivery could cure."""
        self._put(None)
        if not self._given_up.is_set() and not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            self.give_up()
        if self._error is not None and not _curable(self._error):
            raise self._error
        return None if self._given_up.is_set() else self._payload

    def give_up(self) -> None:
        """Go on without the sink; its thread aborts when it comes back to life."""
        self._given_up.set()

    def _put(self, batch: pa.RecordBatch | None) -> None:
        while not self._given_up.is_set() and not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                # Room is taken at once even when time is up: only a sink that makes others wait is given up.
                self._batches.put(batch, timeout=min(0.05, max(0.0, self._deadline - time.monotonic())) or 0.001)
                return
            if time.monotonic() >= self._deadline:
                self.give_up()

    def _run(self) -> None:
        writer: Writer | None = None
        try:
            writer = self._sink.open_writer(self._scope)
            while (batch := self._next()) is not None:
                writer.write(batch)
            failpoint("task.written")
            if not self._given_up.is_set():
                self._payload = writer.pre_commit()
                failpoint("task.prepared")
        except BaseException as error:
            self._error = error
            self._given_up.set()
        finally:
            self._ended.set()
            if self._given_up.is_set() and writer is not None:
                with contextlib.suppress(Exception):
                    writer.abort()

    def _next(self) -> pa.RecordBatch | None:
        while not self._given_up.is_set():
            with contextlib.suppress(queue.Empty):
                return self._batches.get(timeout=0.1)
        return None


def _curable(error: BaseException) -> bool:
    """Whether the drainer may succeed later where this writer failed now."""
    return isinstance(error, PenstockError) and error.retryable
