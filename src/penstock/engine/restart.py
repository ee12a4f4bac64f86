"""Whether, and after how long, a failed job is started again, and the exit status that asks for it. Pure: clock and
random source are passed in."""

from __future__ import annotations

import random
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.engine.error_class import ErrorClass, classify, error_chain, jvm_gone, out_of_memory
from penstock.errors import LeaseLost
from penstock.ops.process import lifeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config.restart_strategy import RestartStrategy

_GAVE_UP = "_penstock_gave_up"


class Restarts:
    """The restarts of one job. Call `started` when a run begins and `delay` when it has failed. `supervised` says
    whether somebody starts this process again; if not given, whether `penstock run` has started it."""

    def __init__(
        self,
        strategy: RestartStrategy,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        supervised: bool | None = None,
    ) -> None:
        self._strategy, self._clock, self._random = strategy, clock, random
        self._supervised = lifeline.connected() if supervised is None else supervised
        self._failures = 0
        self._recent: deque[float] = deque()
        self._wait = strategy.initial
        self._needed = strategy.immediate_after  # how long a run must have lasted to be started again at once
        self._started: float | None = clock()

    def started(self) -> None:
        self._started = self._clock()

    def delay(self, error: BaseException) -> float | None:
        """Seconds to wait before the next start in this process, None to give up.

        What no retry can cure is never retried. What only a new process can cure is not retried in this one: a JVM
        that is gone, and, where a supervisor starts the new process, memory that is used up. If it is the strategy
        that gives up, `has_given_up` says so of the error from then on.
        """
        if classify(error) is ErrorClass.FATAL or jvm_gone(error) or (self._supervised and out_of_memory(error)):
            return None
        wait = self.after_failure()
        if wait is None:
            with suppress(AttributeError):  # an exception of a C library may take no attributes
                setattr(error, _GAVE_UP, True)
        return wait

    def after_failure(self) -> float | None:
        """Count a failure of which nothing else is known: seconds to wait, None to give up."""
        strategy, now = self._strategy, self._clock()
        lasted = 0.0 if self._started is None else now - self._started
        if lasted >= strategy.reset_after:
            self._failures, self._wait, self._needed = 0, strategy.initial, strategy.immediate_after
        self._started = None  # one run fails once: what fails before the next has begun has lasted for no time
        if not self._may_retry(now):
            return None
        if lasted >= self._needed:
            self._needed *= 2  # what fails again and again after a while comes to pauses all the same
            return 0.0
        # Step by step, never as a power: after days of failures that would be too large for a float.
        wait = min(self._wait, strategy.maximum)
        self._wait = wait * strategy.multiplier
        return min(strategy.maximum, wait * (1 + strategy.jitter * (2 * self._random() - 1)))

    def follow(self, strategy: RestartStrategy) -> None:
        """Go by another strategy from now on; what was counted stays counted."""
        if strategy != self._strategy:
            self._strategy, self._wait, self._needed = strategy, strategy.initial, strategy.immediate_after

    def _may_retry(self, now: float) -> bool:
        strategy = self._strategy
        self._failures += 1
        if strategy.attempts is None:
            return True
        if strategy.interval is None:
            return self._failures <= strategy.attempts
        self._recent.append(now)
        while now - self._recent[0] > strategy.interval:
            self._recent.popleft()
        return len(self._recent) <= strategy.attempts


def has_given_up(error: BaseException) -> bool:
    """Whether a restart strategy has given up over this error, or one that it was raised from."""
    return any(getattr(cause, _GAVE_UP, False) for cause in error_chain(error))


def status_of(error: BaseException) -> int:
    """What a program that ends of `error` tells whoever started it. Only `CRASHED` asks for another start, and, of a
    supervisor, `LOST_TURN` for another driver that waits.

    An error of which nothing is known has already had the restarts of its job, or it comes from the program around
    the job, where the same mistake would come again at once.
    """
    if any(isinstance(cause, LeaseLost) for cause in error_chain(error)) and lifeline.connected():
        return lifeline.LOST_TURN
    if has_given_up(error):
        return lifeline.GAVE_UP
    verdict = classify(error)
    if verdict is ErrorClass.FATAL:
        return lifeline.FAILED
    again = verdict is ErrorClass.RETRY or jvm_gone(error) or out_of_memory(error)
    return lifeline.CRASHED if again else lifeline.FAILED
