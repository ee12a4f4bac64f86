"""Whether, and after how long, a failed query is started again. Pure: the clock is passed in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.config import seconds
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class RestartStrategy:
    """Use the class methods: `none()`, `fixed_delay(...)`, `exponential_delay(...)` (the default)."""

    attempts: int | None  # None: without end
    initial: float
    maximum: float
    multiplier: float
    reset_after: float  # a run that lasted this long counts as recovered

    @classmethod
    def none(cls) -> RestartStrategy:
        """The first failure is the last."""
        return cls(0, 0.0, 0.0, 1.0, 0.0)

    @classmethod
    def fixed_delay(cls, attempts: int = 3, delay: float | str = "1s") -> RestartStrategy:
        """At most `attempts` restarts over the job's whole life, `delay` apart."""
        wait = seconds(delay, "delay")
        return cls(attempts, wait, wait, 1.0, float("inf"))

    @classmethod
    def exponential_delay(
        cls,
        initial: float | str = "1s",
        maximum: float | str = "1min",
        multiplier: float = 1.5,
        reset_after: float | str = "1h",
    ) -> RestartStrategy:
        """Without end, each wait `multiplier` times the one before, up to `maximum`."""
        return cls(
            None,
            seconds(initial, "initial"),
            seconds(maximum, "maximum"),
            multiplier,
            seconds(reset_after, "reset_after"),
        )


class Restarts:
    """The restarts of one query."""

    def __init__(self, strategy: RestartStrategy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._strategy, self._clock = strategy, clock
        self._failures = 0
        self._wait = strategy.initial
        self._started = clock()

    def started(self) -> None:
        self._started = self._clock()

    def delay(self, error: BaseException) -> float | None:
        """Seconds to wait before the next start, None to give up. What no retry can cure is never retried."""
        if isinstance(error, PenstockError) and not error.retryable:
            return None
        strategy = self._strategy
        if self._clock() - self._started >= strategy.reset_after:
            self._failures, self._wait = 0, strategy.initial
        self._failures += 1
        if strategy.attempts is not None and self._failures > strategy.attempts:
            return None
        # Step by step, never as a power: after days of failures that would be too large for a float.
        wait = min(self._wait, strategy.maximum)
        self._wait = wait * strategy.multiplier
        return float(wait)
