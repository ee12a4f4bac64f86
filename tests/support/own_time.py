"""A clock for waiting on a busy machine: it goes by the time that processes had, not by the time that passed.

A thread that neither runs nor waits for a core sleeps by its own will, and all of that time counts: a job that is stuck
is found. While threads stand in line for a core, only the share that they got counts: a job that is slow because others
use the machine is waited for.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock import processes

_PROC = Path("/proc")
_EVERY = 1.0  # seconds between looks
_LITTLE = 0.1  # cores that a process wants, below which what it waits for says nothing

#: By thread: how long it has run, and how long it stood in line for a core, in seconds.
Times = dict[tuple[int, str], tuple[float, float]]


def mine() -> list[int]:
    """This process and all below it."""
    parents = {child: int(fields[1]) for child, fields in processes.all_stat_fields().items()}
    found = level = [os.getpid()]
    while level := [child for child, parent in parents.items() if parent in level]:
        found = found + level
    return found


def times(pids: Iterable[int]) -> Times:
    """Of all threads of these processes; empty where the kernel does not count."""
    found: Times = {}
    for pid in pids:
        try:
            threads = list((_PROC / str(pid) / "task").iterdir())
        except OSError:
            continue
        for thread in threads:
            try:
                ran, waited, _ = (thread / "schedstat").read_text().split()
            except (OSError, ValueError):
                continue
            found[pid, thread.name] = int(ran) / 1e9, int(waited) / 1e9
    return found


def share(before: Times, after: Times, seconds: float) -> float:
    """Which share of the cores that it wanted the process got that got least: the others wait for it. 1 where none
    wanted any."""
    ran, wanted = defaultdict[int, float](float), defaultdict[int, float](float)
    for thread, (now_ran, now_waited) in after.items():
        then_ran, then_waited = before.get(thread, (0.0, 0.0))
        ran[thread[0]] += max(0.0, now_ran - then_ran)
        wanted[thread[0]] += max(0.0, now_ran - then_ran) + max(0.0, now_waited - then_waited)
    return min((ran[pid] / wanted[pid] for pid in wanted if wanted[pid] > _LITTLE * seconds), default=1.0)


class OwnTime:
    """Calling it gives seconds of the processes' own time since it was made. It looks once a second at most and reckons
    with the share of the second before in between: then it may go back a little. Between two calls that are far apart
    threads may have come and gone: so it is called while one waits."""

    def __init__(
        self,
        pids: Callable[[], Iterable[int]] = mine,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[Iterable[int]], Times] = times,
    ) -> None:
        self._pids, self._clock, self._read = pids, clock, read
        self._own, self._looked = 0.0, clock()
        self._last: Times | None = None  # most waits are over within the first second, which counts in full
        self._share = 1.0

    def __call__(self) -> float:
        now = self._clock()
        if now - self._looked >= _EVERY:
            after, passed = self._read(self._pids()), now - self._looked
            self._share = 1.0 if self._last is None else share(self._last, after, passed)
            self._own += passed * self._share
            self._last, self._looked = after, now
        return self._own + (now - self._looked) * self._share
