"""The gate that the epochs of a query pass one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import JobStopped, SavepointError

if TYPE_CHECKING:
    from penstock.deadline import Deadline


class Gate:
    """Held while an epoch is under way. Closed, it lets none begin and cuts every wait inside one short."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._shut = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether none may begin any more."""
        return self._shut.is_set()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def try_enter(self) -> bool:
        """Enter if no epoch is under way; then `leave`."""
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

    @property
    def busy(self) -> bool:
        """Whether an epoch is under way."""
        return self._lock.locked()

    @contextmanager
    def held(self, patience: Deadline) -> Iterator[None]:
        """While this lasts no epoch is under way and none begins. `SavepointError` where one does not end in time."""
        if not self._lock.acquire(timeout=max(0.0, patience.remaining())):
            raise SavepointError(
                f"The epoch under way of query {self._query!r} has not ended within the checkpoint timeout.",
                safe="the job goes on; nothing was changed.",
                to_do="see what it waits for, then ask again.",
            )
        try:
            yield
        finally:
            self._lock.release()
