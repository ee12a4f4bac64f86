"""Whose turn it is to write rows into a sink: that of an epoch's tasks, or the drainer's; never both.

In a sink that is a log, such as a topic, a row's place is where it was *written*, not when it was committed. Epochs are
prepared one after the other, but an epoch may be prepared while earlier ones still wait for their commit, and any of
those may yet turn out to have lost what it had prepared. Two rules keep the order of epochs:

1. The drainer writes from the log only while no task writes into the sink: it waits for the epoch under way, and one
   that begins meanwhile goes by the log alone.
2. Before the drainer writes an epoch, it aborts what later epochs have prepared. Each is written again in its turn.

Take two visible epochs. Were both written by tasks, or both by the drainer, or the earlier by tasks and the later by
the drainer, they were written one after the other, in order. Was the earlier written by the drainer and the later by
tasks, those tasks either began after the drainer was done (1), or had ended before it began, and then what they wrote
was aborted (2). The drainer need not remember that: what it has aborted is lost at the sink, whichever process asks.

A third rule spares what the second would throw away: tasks write into the sink only while all that waits is prepared
there. An epoch behind one that has to be written from the log goes by the log alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WriteTurn:
    """One sink's, in one process. The coordinator's thread gives it to tasks, the drainer's takes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks = False
        self._wanted = False

    def give_to_tasks(self) -> bool:
        """Those of the epoch that begins; False where the drainer has it, or waits for it."""
        with self._changed:
            self._tasks = not self._wanted
            return self._tasks

    def take_from_tasks(self) -> None:
        """The epoch under way is in the backlog, visible or failed: nothing more of it will count."""
        with self._changed:
            self._tasks = False
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a drainer that waits see whether it was given up."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def drainer(self, given_up: Callable[[], bool]) -> Iterator[bool]:
        """While this lasts no task writes. False where the drainer was given up before the tasks had ended."""
        with self._changed:
            self._wanted = True
        try:
            with self._changed:
                while self._tasks and not given_up():
                    self._wait()
                mine = not self._tasks
            yield mine
        finally:
            with self._changed:
                self._wanted = False

    def _wait(self) -> None:
        self._changed.wait()
