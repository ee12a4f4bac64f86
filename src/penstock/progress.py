"""How far long work is, told to whoever waits for it, and how long the rest will take.

Whoever does long work takes a `Progress` and calls it with a `Step` as often as it likes; `silent` is what it takes
where nobody waits. Telling never disturbs the work, so a `Progress` must not raise and must be quick.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_LEAST_SECONDS = 0.1  # between two steps that are told: many small files must not be slowed down by it
_NOT_YET = 2.0  # seconds; an estimate made earlier is a guess


@dataclass(frozen=True, slots=True)
class Step:
    """`what` is being done now; `done` of `total`, in a unit such as bytes, files, tasks or stores."""

    what: str
    done: int
    total: int
    unit: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        """In ASCII and one line, so that it fits into a header."""
        return json.dumps(self.to_dict())

    @classmethod
    def of(cls, body: object) -> Step | None:
        """From `to_dict`, or from `to_json`; None where it is not understood: nothing depends on it."""
        try:
            fields: Any = json.loads(body) if isinstance(body, (str, bytes)) else body
            done, total = int(fields["done"]), int(fields["total"])
            return cls(str(fields.get("what") or "working"), max(0, done), max(0, total), str(fields["unit"]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Nobody waits."""


class Counter:
    """Counts one step's work, from any thread, and tells of it now and then; its beginning and its end always."""

    def __init__(self, progress: Progress, what: str, total: int, unit: str) -> None:
        self._progress, self._what, self._total, self._unit = progress, what, total, unit
        self._lock = threading.Lock()
        self._done, self._told = 0, time.monotonic()
        if total:
            progress(Step(what, 0, total, unit))

    def add(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._done < self._total and now - self._told < _LEAST_SECONDS:
                return
            self._told = now
            step = Step(self._what, self._done, self._total, self._unit)
        self._progress(step)


def throttled(progress: Progress, seconds: float, now: Callable[[], float] = time.monotonic) -> Progress:
    """Passes on what is new or complete, and of the rest one step in so many seconds."""
    last: list[tuple[str, float]] = []

    def tell(step: Step) -> None:
        if last and last[0][0] == step.what and step.done < step.total and now() - last[0][1] < seconds:
            return
        last[:] = [(step.what, now())]
        progress(step)

    return tell


class Pace:
    """How long something has taken, and how long the step it is in will take still."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = self._step_began = now()
        self._what: str | None = None
        self._first = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning of it all."""
        return self._now() - self._began

    def remaining(self, step: Step) -> float | None:
        """Seconds until this step's end, if it goes on as it did; None while nothing can be said."""
        if step.what != self._what:
            self._what, self._step_began, self._first = step.what, self._now(), step.done
        took, done = self._now() - self._step_began, step.done - self._first
        if step.total <= step.done:
            return 0.0
        if done <= 0 or took < _NOT_YET:
            return None
        return took * (step.total - step.done) / done
