"""Resident memory of this process and of everything it started, from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.processes import all_stat_fields


def resident_megabytes(pid: int | None = None) -> float:
    """What one process holds in memory now; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid or os.getpid()}/statm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def family(root: int) -> list[int]:
    """`root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in ((pid, int(fields[1])) for pid, fields in all_stat_fields().items()):
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, ()))
    return found


def families(roots: Iterable[int]) -> set[int]:
    return {pid for root in roots for pid in family(root)}


class PeakMemory:
    """The highest sum over the families of `roots` while the block runs, looked at four times a second. Without any it
    is this process's."""

    def __init__(self, roots: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self.megabytes = 0.0
        self._roots = roots
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.25):
            self.megabytes = max(self.megabytes, sum(map(resident_megabytes, families(self._roots()))))
