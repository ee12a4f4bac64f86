"""Ending a process that may or may not be a child of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

_POLL_SECONDS = 0.02


def is_alive(pid: int) -> bool:
    """Whether `pid` runs. A finished child that nobody waited for counts as gone, and is reaped."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # someone else's: it runs, though not for us
    return True


def end_process(pid: int, patience: float, gone: Callable[[], bool] | None = None) -> bool:
    """SIGTERM, and SIGKILL after `patience` seconds; returns once the process is gone, True if it went by itself.

    `gone` tells whether it is, for an owner that waits for its child itself.
    """
    gone = gone or (lambda: not is_alive(pid))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # a paused process would never see the first one
        if _wait(gone, patience):
            return True
        os.kill(pid, signal.SIGKILL)
        _wait(gone, patience)
        return False
    return True  # it was gone before the signal came


def _wait(gone: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not gone():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True
