"""Time: a deadline that several steps share, work beside other work, and durations as users write them.

    0.5   "500ms"   "10 min"   "1d"   "2 hours 30 minutes"   "PT15M"   "P1DT2H"

These are the spellings of Flink, Spark and ISO 8601. A number is seconds in Python. A bare number in a file or behind
`-D` is milliseconds, as in Flink.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.errors import ConfigurationError

_T = TypeVar("_T")

_NAMES = {
    1e-9: ("ns", "nano", "nanosecond"),
    1e-6: ("us", "µs", "micro", "microsecond"),
    1e-3: ("ms", "milli", "millisecond"),
    1.0: ("s", "sec", "second"),
    60.0: ("m", "min", "minute"),
    3600.0: ("h", "hour"),
    86400.0: ("d", "day"),
    604800.0: ("w", "week"),
}
_UNITS = {
    word: unit for unit, names in _NAMES.items() for name in names for word in (name, f"{name}s" if name[2:] else name)
}
_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµμ]+)", re.IGNORECASE)
_ALL = re.compile(r"(?:interval\s+)?(?:\d+(?:\.\d+)?\s*[a-zµμ]+\s*)+", re.IGNORECASE)
_ISO = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


class Deadline:
    """A moment on the monotonic clock; flush, commit and abort of one epoch share one, so their waits never add up."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Never below zero."""
        return max(0.0, self._end - self._clock())

    def passed(self) -> bool:
        return self.remaining() == 0.0


@contextmanager
def polling(name: str, seconds: float, look: Callable[[], bool]) -> Iterator[None]:
    """Call `look` every so many seconds in a thread of this name, until it returns False or the block ends."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(seconds) and look():
            pass

    thread = threading.Thread(target=poll, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def beside(name: str, work: Callable[[], _T], thread: type[Any] = threading.Thread) -> Future[_T]:
    """Run `work` once in a thread of this name: its own and not a pool's, as one that never returns must not keep the
    process from ending."""
    promise: Future[_T] = Future()

    def run() -> None:
        try:
            promise.set_result(work())
        except BaseException as error:
            promise.set_exception(error)

    thread(target=run, name=name, daemon=True).start()
    return promise


def seconds(value: float | str, name: str) -> float:
    """A duration in seconds, from a number or text; otherwise an error that names the setting."""
    if isinstance(value, str):
        return _read_or_refuse(value, name, "give a number of seconds (not as text)")
    if not value >= 0:  # written this way, it refuses "not a number" too
        raise ConfigurationError(f"{name}={value} is negative or no number.", to_do="give a duration of 0 or more.")
    return float(value)


def duration_text(text: str, name: str) -> float:
    """A duration from a file or the command line, where a bare number is milliseconds."""
    if text.strip().isdecimal():
        return int(text) / 1000
    return _read_or_refuse(text, name, "write a whole number of milliseconds")


def _read_or_refuse(text: str, name: str, bare: str) -> float:
    duration = _read(text.strip())
    if duration is None:
        to_do = f"{bare}, or a number with ms, s, min, h or d, for example '200ms'."
        raise ConfigurationError(f"{name}={text!r} is not a duration.", to_do=to_do)
    return duration


def _read(text: str) -> float | None:
    iso = _ISO.fullmatch(text)
    if iso is not None and any(iso.groups()):
        return sum(float(number) * _UNITS[unit] for unit, number in iso.groupdict().items() if number)
    if _ALL.fullmatch(text) is None:
        return None
    parts = [
        (float(part["number"]), _UNITS.get(part["unit"].lower().replace("μ", "µ"))) for part in _PART.finditer(text)
    ]
    known = [number * unit for number, unit in parts if unit is not None]
    return sum(known) if len(known) == len(parts) else None
