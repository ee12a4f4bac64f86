"""The scheduler over greenlets: on a busy machine a change of threads waits for the system, and these do not."""

from __future__ import annotations

from typing import Any

from greenlet import greenlet

from tests.support.simulation.schedule import Actor, Scheduler


class _Actor(Actor):
    _body_of: Any = None

    def move(self) -> None:
        if self._body_of is None:
            self._body_of = greenlet(self.run)
        self._body_of.switch()

    def stop(self) -> None:
        self._body_of.parent.switch()


class FastScheduler(Scheduler):
    actor = _Actor
