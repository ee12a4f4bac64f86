"""What a dead driver has left behind is ended beside the start of the next one.

Nobody has to wait for it: a process without its driver can decide nothing, and what it has prepared is fenced by the
next generation. It must only be gone before the supervisor is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from penstock.processes import all_stat_fields, end_session

log = logging.getLogger("penstock.supervisor")

#: A JVM that has lost its driver ends by itself and removes its temporary files, in about a second.
PATIENCE_SECONDS = 10.0


class Sweeper:
    """Ends the sessions of dead drivers, each in a thread of its own."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._threads: list[threading.Thread] = []

    def begin(self, leader: int) -> None:
        """See to it that nothing is left of the session that `leader`, which has ended, had opened. Returns at once."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._sweep, args=(leader,), name=f"penstock-sweep-{leader}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Return when all of it is gone."""
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _sweep(self, leader: int) -> None:
        killed = end_session(leader, self._patience)
        if killed:
            log.warning("processes that the driver left behind were killed: %s", ", ".join(map(str, killed)))
        _reap(leader)


def _reap(leader: int) -> None:
    """The first process of a container inherits orphans, and has to wait for them or they stay for ever. Only those of
    that session: the next driver, a child as well, is somebody else's to wait for."""
    with contextlib.suppress(FileNotFoundError):  # a system without `/proc` has no containers either
        for pid in all_stat_fields():
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                if os.getsid(pid) == leader:
                    os.waitpid(pid, os.WNOHANG)
