"""All processes of one session: what a driver has started and left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_POLL_SECONDS = 0.02
_KILL_SECONDS = 10.0  # after SIGKILL only a process stuck in the kernel is still there, which nobody can mend


def members(leader: int) -> list[int]:
    """Living processes of the session that `leader` opened, also when it is gone itself. Spark's Python workers form
    a process group of their own, so the session is what still names them."""
    found = []
    for pid in _alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def sweep(leader: int, patience: float) -> list[int]:
    """Wait for the session to empty, and kill what is left after `patience` seconds. Returns what had to be killed,
    once all is gone."""
    killed: set[int] = set()
    end = time.monotonic() + patience
    while left := members(leader):
        if time.monotonic() >= end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(left)
            if time.monotonic() >= end + _KILL_SECONDS:
                break
        time.sleep(_POLL_SECONDS)
    return sorted(killed)


def _alive() -> list[int]:
    """Every process of the machine that is not a zombie."""
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and not _is_zombie(entry)]
    listing = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [int(row[0]) for row in rows if len(row) > 1 and not row[1].startswith("Z")]


def _is_zombie(entry: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True  # gone meanwhile
