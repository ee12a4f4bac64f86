"""Ending processes, and asking servers whether they answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable

from penstock.dev.kafka import HOST
from penstock.processes import exists

_POLL_SECONDS = 0.02


def exchange(port: int, request: bytes, size: int, timeout: float = 1.0) -> bytes:
    """The first bytes of a server's reply, at most `size`; empty where it does not answer."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(request)
            reply = b""
            while len(reply) < size and (more := connection.recv(size - len(reply))):
                reply += more
    except OSError:
        return b""
    return reply


def is_alive(pid: int) -> bool:
    """Whether `pid` runs. A finished child counts as gone, and is reaped."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    return exists(pid)


def end_process(
    pid: int, patience: float, gone: Callable[[], bool] | None = None, with_signal: signal.Signals = signal.SIGTERM
) -> bool:
    """Send a signal, and SIGKILL after `patience` seconds; returns once the process is gone, True if it exited by
    itself. An owner that waits for its child itself passes `gone`."""
    is_gone = gone or (lambda: not is_alive(pid))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, with_signal)
        os.kill(pid, signal.SIGCONT)  # a paused process would never see the first one
        if _wait(is_gone, patience):
            return True
        os.kill(pid, signal.SIGKILL)
        _wait(is_gone, patience)
        return False
    return True  # it exited before the signal arrived


def _wait(gone: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not gone():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True
