"""Processes of this machine, as `/proc` shows them, or `ps` where there is none.

Process ids are reused. So a certain process is identified by its id and a `mark`, which no later process with that id
has. Nothing else reads `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_STATE, _START = 0, 19  # where `stat` has them, counted from behind the process's name
_ENDED = "ZX"  # a zombie, or being removed
_POLL_SECONDS = 0.02
_MOST_FILES = 1 << 16
_KILL_SECONDS = 10.0  # after SIGKILL only a process stuck in the kernel is still there, and nothing helps that


def mark(pid: int) -> str | None:
    """Text that no other process with this id ever has; None if none runs (a zombie does not)."""
    if not _has_proc():
        return _mark_by_ps(pid)
    fields = stat_fields(pid)
    return f"{_boot()}.{fields[_START]}" if fields and fields[_STATE] not in _ENDED else None


def is_running(pid: int | None, marked: str | None) -> bool:
    """Whether that very process still runs."""
    return pid is not None and marked is not None and mark(pid) == marked


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def raise_file_limit() -> None:
    """Let this process open as many files as it may, within reason: some libraries walk through all descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def start_time(pid: int) -> float | None:
    """Seconds since 1970: infinite for a process that only waits to be reaped, None where unknown."""
    fields = stat_fields(pid)
    if not fields:
        return None
    if fields[_STATE] in _ENDED:
        return float("inf")
    try:
        uptime = float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - uptime + int(fields[_START]) / os.sysconf("SC_CLK_TCK")


def command_line(pid: int) -> bytes | None:
    """Arguments, each with a zero byte behind it; empty where they cannot be read, None without `/proc`."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b"" if _has_proc() else None


def all_running() -> list[int]:
    """Every process of the machine that is not a zombie."""
    if _has_proc():
        return [pid for pid, fields in all_stat_fields().items() if fields[_STATE] != "Z"]
    listing = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [int(row[0]) for row in rows if len(row) > 1 and not row[1].startswith("Z")]


def session_members(leader: int) -> list[int]:
    """Living processes of the session that `leader` opened, also when it is gone itself. Spark's Python workers form
    a process group of their own, so the session is what still names them."""
    members = []
    for pid in all_running():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                members.append(pid)
    return members


def end_session(leader: int, patience: float) -> list[int]:
    """Wait for the session to empty, kill what is left after `patience` seconds, return the killed."""
    killed: set[int] = set()
    end = time.monotonic() + patience
    while members := session_members(leader):
        if time.monotonic() >= end:
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(members)
            if time.monotonic() >= end + _KILL_SECONDS:
                break
        time.sleep(_POLL_SECONDS)
    return sorted(killed)


def stat_fields(pid: int) -> list[str]:
    """What `/proc` has in `stat` behind the process's name; empty for a process that is gone."""
    try:
        # The name may hold blanks and brackets; what follows its last bracket is regular.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def all_stat_fields() -> dict[int, list[str]]:
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return {pid: fields for pid in numbers if (fields := stat_fields(pid))}


def _has_proc() -> bool:
    return (_PROC / "self" / "stat").exists()


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _mark_by_ps(pid: int) -> str | None:
    result = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    letter, _, began = result.stdout.strip().partition(" ")
    return None if not began or letter.startswith("Z") else " ".join(began.split())


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """In the block, SIGTERM and SIGINT call `stop` instead. Only the main thread may install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
