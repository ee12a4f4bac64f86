"""The user's functions, called when a checkpoint completes or is aborted.

They run in one thread, in the order of the checkpoints, so slow or failing ones neither delay nor break the job. An
error is logged with its trace and emitted as the event `callback_failed`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.events import Events

log = logging.getLogger("penstock")

_END_SECONDS = 10.0  # how long the end of a job waits for outstanding callbacks


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The argument of a callback. `error` is None for a complete checkpoint."""

    query: str
    epoch: int
    generation: int
    seconds: float
    error: str | None = None


Callback = Callable[[CheckpointInfo], None]


class Callbacks:
    """Registered on the job, called while it runs."""

    def __init__(self) -> None:
        self.complete: list[Callback] = []
        self.aborted: list[Callback] = []
        self._waiting: queue.Queue[tuple[Callback, CheckpointInfo] | None] = queue.Queue()
        self._events: Events | None = None

    @contextmanager
    def following(self, events: Events) -> Iterator[None]:
        """Listen to these events meanwhile; at the end, wait for outstanding callbacks."""
        if not self.complete and not self.aborted:
            yield
            return
        self._events = events
        thread = threading.Thread(target=self._run, name="penstock-callbacks", daemon=True)
        thread.start()
        events.listen(self._hear)
        try:
            yield
        finally:
            self._waiting.put(None)
            thread.join(_END_SECONDS)

    def _hear(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind not in ("completed", "checkpoint_failed", "failed") or event.get("epoch") is None:
            return
        if kind == "failed" and str(event["error"]).startswith(("JobStopped", "CheckpointExpired", "SystemUnavail")):
            return  # a stop is no failure, and a checkpoint's own failure was an event before
        info = CheckpointInfo(
            query=event["query"],
            epoch=event["epoch"],
            generation=event["generation"],
            seconds=float(event.get("seconds", 0.0)),
            error=None if kind == "completed" else str(event["error"]),
        )
        for callback in self.complete if kind == "completed" else self.aborted:
            self._waiting.put((callback, info))

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            callback, info = waiting
            try:
                callback(info)
            except Exception as error:
                log.exception("a checkpoint callback of query %s failed for epoch %d", info.query, info.epoch)
                assert self._events is not None
                text = f"{type(error).__name__}: {error}"
                self._events.emit("callback_failed", query=info.query, epoch=info.epoch, error=text)
