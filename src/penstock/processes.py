"""A process by its number and the moment it began, so that a number used again is not taken for it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


def mark(pid: int) -> str | None:
    """Text that no other process with this number ever has; None if none runs (a zombie does not)."""
    if not (_PROC / "self" / "stat").exists():
        return _listed(pid)
    try:
        # The name may hold blanks and brackets; what follows its last bracket is regular.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{_boot()}.{fields[19]}"


def is_running(pid: int | None, marked: str | None) -> bool:
    """Whether that very process still runs."""
    return pid is not None and marked is not None and mark(pid) == marked


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def _listed(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, began = found.stdout.strip().partition(" ")
    return None if not began or state.startswith("Z") else " ".join(began.split())
