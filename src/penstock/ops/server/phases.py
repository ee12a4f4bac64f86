"""An epoch's phases, put together from events alone, for whoever measures or traces them.

Read lasts from the barrier until the last source partition was read up to it, prepare until every writer is prepared
and sealed, decide until the manifest is durable, commit until every writer is visible or safe in the in-flight log.
Where modes or measurements lack a phase, the one after it begins where the one before it ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PHASES = ("read", "prepare", "decide", "commit")

_MOST_WAITING = 16  # complete epochs whose record has not come; the recorder leaves records out when it is late


@dataclass
class EpochTimes:
    """One attempt at an epoch that has ended. Times are seconds since 1970; `error` is None for a complete one."""

    query: str
    epoch: int
    generation: int | None
    opened: float
    ended: float = 0.0
    read: float | None = None
    prepared: float | None = None
    decided: float | None = None
    committed: float | None = None
    rows: int = 0
    writers: int = 0
    mode: str | None = None
    error: str | None = None

    def phases(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each phase that is known, in order."""
        found, begin = [], self.opened
        for name, end in zip(PHASES, (self.read, self.prepared, self.decided, self.committed), strict=True):
            if end is not None:
                end = max(begin, end)
                found.append((name, begin, end))
                begin = end
        return found


class Phases:
    """An `Events` listener. Calls `ended` with every attempt: one that failed at once, a complete one when its record
    has come, which knows how long reading took, or when no record can be expected any more."""

    def __init__(self, ended: Callable[[EpochTimes], None]) -> None:
        self._ended = ended
        self._open: dict[str, EpochTimes] = {}
        self._waiting: OrderedDict[tuple[str, int], EpochTimes] = OrderedDict()

    def on_event(self, event: Mapping[str, Any]) -> None:
        query, epoch = event.get("query"), event.get("epoch")
        if not isinstance(query, str) or not isinstance(epoch, int):
            return
        match event["event"]:
            case "opened":
                self._open[query] = EpochTimes(query, epoch, event.get("generation"), float(event["time"]))
            case "checkpoint" if event.get("outcome") == "complete":
                self._record(event, self._waiting.pop((query, epoch), None))
            case name:
                attempt = self._open.get(query)
                if attempt is not None and attempt.epoch == epoch:
                    self._follow(attempt, str(name), event)

    def close(self) -> None:
        """No more events come."""
        while self._waiting:
            self._ended(self._waiting.popitem(last=False)[1])

    def _follow(self, attempt: EpochTimes, name: str, event: Mapping[str, Any]) -> None:
        time = float(event["time"])
        match name:
            case "precommitted":
                attempt.prepared, attempt.rows = time, int(event.get("rows") or 0)
                attempt.writers = int(event.get("writers") or 0)
            case "decided":
                attempt.decided = time
            case "committed" | "logged" if not event.get("recovery"):
                attempt.committed = time
            case "completed":
                attempt.ended = time
                del self._open[attempt.query]
                self._waiting[attempt.query, attempt.epoch] = attempt
                while len(self._waiting) > _MOST_WAITING:
                    self._ended(self._waiting.popitem(last=False)[1])
            case "checkpoint_failed" | "failed":
                attempt.ended, attempt.error = time, str(event.get("error"))
                del self._open[attempt.query]
                self._ended(attempt)

    def _record(self, event: Mapping[str, Any], attempt: EpochTimes | None) -> None:
        if attempt is None:
            return
        attempt.mode = event.get("mode")
        read_ms = event.get("read_ms")
        if read_ms is not None and attempt.prepared is not None:
            attempt.read = min(attempt.opened + read_ms / 1000, attempt.prepared)
        self._ended(attempt)
