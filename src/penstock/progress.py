"""The progress of long work, such as a savepoint, which calls a `Progress` with a `Step` as often as it likes. That
never disturbs the work: a `Progress` must not raise and must be quick."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_LEAST_SECONDS = 0.1  # between two reports: they must not slow down the copying of many small files


@dataclass(frozen=True, slots=True)
class Step:
    """`what` is being done now; `done` of `total` (0: not known), in a unit such as bytes, files, tasks or stores."""

    what: str
    done: int
    total: int
    unit: str

    def to_json(self) -> str:
        """In ASCII and one line, so that it fits into a header."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, body: object) -> Step | None:
        """From its fields, or from `to_json`; None where it is not understood: it is only shown."""
        try:
            fields: Any = json.loads(body) if isinstance(body, (str, bytes)) else body
            done, total = int(fields["done"]), int(fields["total"])
            return cls(str(fields.get("what") or "working"), max(0, done), max(0, total), str(fields["unit"]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Drop it."""


class Counter:
    """Counts one step's work, from any thread, and reports it now and then; its beginning and its end always."""

    def __init__(self, progress: Progress, what: str, total: int, unit: str) -> None:
        self._progress, self._what, self._total, self._unit = progress, what, total, unit
        self._lock = threading.Lock()
        self._done, self._reported = 0, time.monotonic()
        if total:
            progress(Step(what, 0, total, unit))

    def add(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._done < self._total and now - self._reported < _LEAST_SECONDS:
                return
            self._reported = now
            step = Step(self._what, self._done, self._total, self._unit)
        self._progress(step)


def throttled(progress: Progress, seconds: float, now: Callable[[], float] = time.monotonic) -> Progress:
    """Passes on new and complete steps at once, the others once in so many seconds."""
    last: list[tuple[str, float]] = []

    def report(step: Step) -> None:
        if last and last[0][0] == step.what and step.done < step.total and now() - last[0][1] < seconds:
            return
        last[:] = [(step.what, now())]
        progress(step)

    return report
