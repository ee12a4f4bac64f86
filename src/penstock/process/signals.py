"""SIGTERM and SIGINT as a wish for a clean end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopping_cleanly(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop cleanly while the job runs. Only the main thread may install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
