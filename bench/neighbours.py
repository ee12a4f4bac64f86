"""How much of the machine others took while something was measured: a number to trust the other numbers by."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

from memory import families, family
from penstock.processes import all_stat_fields

_EVERY = 2.0
_NOTICEABLE = 0.1  # cores
_OWN, _OF_ENDED_CHILDREN = (11, 12), (13, 14)  # places in `stat`: in the program and in the kernel


class Neighbours:
    """`cores`: what processes other than this one and its descendants used on average while the block ran."""

    def __init__(self) -> None:
        self.cores = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Neighbours:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def remark(self) -> str:
        """Empty where the machine was ours."""
        return f" (others used {self.cores:.1f} cores meanwhile)" if self.cores > _NOTICEABLE else ""

    def _watch(self) -> None:
        began, before, used = time.monotonic(), cpu_seconds(), 0.0
        while not self._done.wait(_EVERY):
            now, own = cpu_seconds(), set(family(os.getpid()))
            used += sum(value - before.get(pid, 0.0) for pid, value in now.items() if pid not in own)
            before = now
            self.cores = used / (time.monotonic() - began)


def used_by(roots: Iterable[int]) -> float:
    """Processor time of these processes and their descendants so far, also of those that have ended and were waited
    for."""
    ticks, everything = os.sysconf("SC_CLK_TCK"), all_stat_fields()
    own = [everything[pid] for pid in families(roots) if pid in everything]
    return sum(int(fields[place]) for fields in own for place in (*_OWN, *_OF_ENDED_CHILDREN)) / ticks


def cpu_seconds() -> dict[int, float]:
    """What each process has used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    return {pid: sum(int(fields[place]) for place in _OWN) / ticks for pid, fields in all_stat_fields().items()}
