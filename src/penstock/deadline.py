"""One span of time shared by several steps, and work that is repeated beside other work."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
