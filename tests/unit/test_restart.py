"""Restart strategies, with a clock that the test turns."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigurationError, EpochError, SystemUnavailable, TopicMissing
from penstock.runtime.restart import Restarts, RestartStrategy


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def delays(restarts: Restarts, count: int) -> list[float | None]:
    return [restarts.delay(SystemUnavailable("away")) for _ in range(count)]


def test_none(clock: Clock) -> None:
    assert delays(Restarts(RestartStrategy.none(), clock=clock), 2) == [None, None]


def test_fixed_delay(clock: Clock) -> None:
    restarts = Restarts(RestartStrategy.fixed_delay(3, "200ms"), clock=clock)
    assert delays(restarts, 5) == [0.2, 0.2, 0.2, None, None]


def test_exponential_delay(clock: Clock) -> None:
    restarts = Restarts(RestartStrategy.exponential_delay("1s", "10s", 2), clock=clock)
    assert delays(restarts, 6) == [1, 2, 4, 8, 10, 10]


def test_exponential_delay_after_days_of_failures(clock: Clock) -> None:
    """A power of the number of failures would be too large for a float by then."""
    restarts = Restarts(RestartStrategy.exponential_delay("1s", "1min", 1.5), clock=clock)
    assert delays(restarts, 10_000)[-1] == 60.0


def test_a_run_that_lasted_starts_the_count_over(clock: Clock) -> None:
    restarts = Restarts(RestartStrategy.exponential_delay("1s", "10s", 2, reset_after="1min"), clock=clock)
    assert delays(restarts, 3) == [1, 2, 4]
    restarts.started()
    clock.now += 59
    assert delays(restarts, 1) == [8]
    restarts.started()
    clock.now += 60
    assert delays(restarts, 1) == [1]


def test_what_no_retry_can_cure_is_not_retried(clock: Clock) -> None:
    restarts = Restarts(RestartStrategy.exponential_delay(), clock=clock)
    assert restarts.delay(TopicMissing("gone")) is None
    assert restarts.delay(EpochError("failed")) == 1.0
    assert restarts.delay(RuntimeError("a stranger's error may pass")) == 1.5


def test_delays_are_durations() -> None:
    with pytest.raises(ConfigurationError, match="delay='soon'"):
        RestartStrategy.fixed_delay(3, "soon")
    with pytest.raises(ConfigurationError, match="maximum"):
        RestartStrategy.exponential_delay(maximum=-1)
