"""When to look again for what others have left open, after the sweep at a start has found what was there then.

Tasks that were given up may still open something: they are looked for every few seconds, for a minute. A driver that
stood still may do so whenever it wakes, long after a newer run took over: only that run can find it, so as long as it
lasts it looks once a minute.
"""

from __future__ import annotations

import time

_AGAIN_FOR = 60.0  # seconds after a start, or after tasks raced
_AGAIN_EVERY = 5.0
_OLDER_EVERY = 60.0


class SweepTimes:
    """Of one start of a query."""

    def __init__(self) -> None:
        self._swept = self._until = time.monotonic()
        self._older = False

    def started(self, generation: int) -> None:
        """A recovery is over. Tasks and drivers of runs before `generation` may still live."""
        self._swept = self._until = time.monotonic()
        self._older = generation > 1
        if self._older:
            self.expect()

    def expect(self) -> None:
        """From now on, for a while, tasks of this run may leave something behind."""
        self._until = time.monotonic() + _AGAIN_FOR

    def swept(self) -> None:
        self._swept = time.monotonic()

    @property
    def soon(self) -> bool:
        """Whether what this run's tasks may leave is looked for as well."""
        return time.monotonic() < self._until

    @property
    def due(self) -> bool:
        every = _AGAIN_EVERY if self.soon else _OLDER_EVERY
        return (self.soon or self._older) and time.monotonic() > self._swept + every
