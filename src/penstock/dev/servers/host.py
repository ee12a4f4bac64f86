"""This machine: its ports, its processes, its accounts."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import signal
import socket
import time
from collections.abc import Callable

from penstock import processes
from penstock.errors import DevelopmentError

HOST = "127.0.0.1"

#: Below the range from which systems take ports for outgoing connections. Inside it, a client that keeps trying to
#: reach a stopped server can be given the server's own port, connect to itself, and keep the server from coming back.
_RANGE = range(20_000, 30_000)
_RANDOM = random.SystemRandom()  # not the shared generator: programs seed that one, and would pick the same ports
_POLL_SECONDS = 0.02


def is_free(port: int) -> bool:
    """Whether a server could bind `port` right now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now; random, so that two processes asking at once hardly ever get the same."""
    for port in _RANDOM.sample(_RANGE, 200):
        if is_free(port):
            return port
    raise DevelopmentError(
        f"None of 200 ports tried between {_RANGE.start} and {_RANGE.stop} is free.",
        safe="Nothing was started.",
        to_do="Stop what holds them (see `ss -ltn`), or give a port yourself.",
    )


def exchange(port: int, request: bytes, size: int, timeout: float = 1.0) -> bytes:
    """The first bytes that a server answers, at most `size`; none where it does not."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(request)
            answer = b""
            while len(answer) < size and (more := connection.recv(size - len(answer))):
                answer += more
    except OSError:
        return b""
    return answer


def unprivileged_account(name: str) -> pwd.struct_passwd | None:
    """Whom a server that refuses to be root runs as when we are root: `name`, or else nobody."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def is_alive(pid: int) -> bool:
    """Whether `pid` runs. A finished child that nobody waited for counts as gone, and is reaped."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    return processes.exists(pid)


def end_process(
    pid: int,
    patience: float,
    gone: Callable[[], bool] | None = None,
    with_signal: signal.Signals = signal.SIGTERM,
) -> bool:
    """A signal, and SIGKILL after `patience` seconds; returns once the process is gone, True if it went by itself.

    `gone` tells whether it is, for an owner that waits for its child itself.
    """
    gone = gone or (lambda: not is_alive(pid))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, with_signal)
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
