"""Restart strategies, with a clock that the test turns and chance that the test picks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts, has_given_up
from penstock.errors import ConfigurationError, EpochError, SystemUnavailable, TopicMissing


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def restarts(strategy: RestartStrategy, clock: Clock, chance: float = 0.5, *, supervised: bool = False) -> Restarts:
    """`chance` one half is no jitter at all."""
    return Restarts(strategy, clock=clock, random=lambda: chance, supervised=supervised)


def delays(restarts: Restarts, count: int) -> list[float | None]:
    return [restarts.delay(SystemUnavailable("away")) for _ in range(count)]


def test_none(clock: Clock) -> None:
    assert delays(restarts(RestartStrategy.none(), clock), 2) == [None, None]


def test_fixed_delay(clock: Clock) -> None:
    assert delays(restarts(RestartStrategy.fixed_delay(3, "200ms"), clock), 5) == [0.2, 0.2, 0.2, None, None]


def test_fixed_delay_counts_over_the_whole_life(clock: Clock) -> None:
    counted = restarts(RestartStrategy.fixed_delay(), clock)
    assert delays(counted, 1) == [1.0]
    counted.started()
    clock.now += 1e9
    assert delays(counted, 1) == [None]


def test_failure_rate(clock: Clock) -> None:
    """The failure that is one too many ends it only if the others are recent enough."""
    counted = restarts(RestartStrategy.failure_rate(2, "1min", "3s"), clock)
    assert delays(counted, 2) == [3.0, 3.0]
    clock.now += 60.5
    assert delays(counted, 2) == [3.0, 3.0]
    clock.now += 60.0
    assert delays(counted, 1) == [None]


def test_exponential_delay(clock: Clock) -> None:
    counted = restarts(RestartStrategy.exponential_delay("1s", "10s", 2), clock)
    assert delays(counted, 6) == [1, 2, 4, 8, 10, 10]


def test_exponential_delay_after_days_of_failures(clock: Clock) -> None:
    """A power of the number of failures would be too large for a float by then."""
    counted = restarts(RestartStrategy.exponential_delay("1s", "1min", 1.5), clock)
    assert delays(counted, 10_000)[-1] == 60.0


def test_exponential_delay_gives_up(clock: Clock) -> None:
    counted = restarts(RestartStrategy.exponential_delay("1s", reset_after="1min", attempts=2), clock)
    assert delays(counted, 3) == [1.0, 1.5, None]
    counted.started()
    clock.now += 60
    assert delays(counted, 3) == [1.0, 1.5, None]


@pytest.mark.parametrize(("chance", "first", "last"), [(0.0, 7.5, 7.5), (0.5, 10, 10), (1.0, 12.5, 10.0)])
def test_jitter(clock: Clock, chance: float, first: float, last: float) -> None:
    """A share of the pause, both ways, and never above the maximum."""
    assert delays(restarts(RestartStrategy.exponential_delay(10, 100, 1.5, jitter=0.25), clock, chance), 1) == [first]
    assert delays(restarts(RestartStrategy.exponential_delay(10, 10, 1.5, jitter=0.25), clock, chance), 1) == [last]


def test_a_run_that_lasted_starts_the_count_over(clock: Clock) -> None:
    counted = restarts(RestartStrategy.exponential_delay("1s", "10s", 2, reset_after="1min"), clock)
    assert delays(counted, 3) == [1, 2, 4]
    counted.started()
    clock.now += 59
    assert delays(counted, 1) == [8]
    counted.started()
    clock.now += 60
    assert delays(counted, 1) == [1]


def test_after_a_run_that_lasted_the_first_restart_comes_at_once(clock: Clock) -> None:
    """What fails again soon waits, and goes on waiting where it had come to. Every restart is counted."""
    counted = restarts(RestartStrategy.exponential_delay(attempts=4), clock)
    assert delays(counted, 1) == [1.0]
    counted.started()
    clock.now += 10
    assert delays(counted, 2) == [0.0, 1.5]
    counted.started()
    clock.now += 9
    assert delays(counted, 2) == [2.25, None]


def test_what_fails_after_every_run_of_some_length_comes_to_pauses(clock: Clock) -> None:
    counted = restarts(RestartStrategy.exponential_delay(), clock)
    waits = []
    for _ in range(5):
        counted.started()
        clock.now += 25
        waits += delays(counted, 1)
    assert waits == [0.0, 0.0, 1.0, 1.5, 2.25]
    counted.started()
    clock.now += 3600
    assert delays(counted, 1) == [0.0]
    counted.started()
    clock.now += 25
    assert delays(counted, 1) == [0.0]


def test_a_pause_that_was_asked_for_is_made_after_every_run(clock: Clock) -> None:
    asked = (
        RestartStrategy.exponential_delay("1s"),
        RestartStrategy.fixed_delay(9, "1s"),
        RestartStrategy.failure_rate(9, "1h", "1s"),
    )
    for counted in [restarts(strategy, clock) for strategy in asked]:
        counted.started()
        clock.now += 1000
        assert delays(counted, 1) == [1.0]
    both = restarts(RestartStrategy.exponential_delay("5s", immediate_after="1min"), clock)
    clock.now += 60
    assert delays(both, 2) == [0.0, 5.0]


def test_waiting_is_not_running(clock: Clock) -> None:
    """A job that cannot even start for hours waits longer each time."""
    counted = restarts(RestartStrategy.exponential_delay("1s", "10s", 2, reset_after="1min"), clock)
    for expected in (1, 2, 4):
        assert delays(counted, 1) == [expected]
        clock.now += 3600


def test_what_no_retry_can_cure_is_not_retried(clock: Clock) -> None:
    counted = restarts(RestartStrategy.exponential_delay(), clock)
    fatal, passing = TopicMissing("gone"), EpochError("failed")
    assert counted.delay(fatal) is None
    assert not has_given_up(fatal)
    assert counted.delay(passing) == 1.0
    assert counted.delay(RuntimeError("a stranger's error may pass")) == 1.5


def test_what_only_a_new_process_can_cure_is_not_retried_here(clock: Clock) -> None:
    from py4j.protocol import Py4JNetworkError

    alone = restarts(RestartStrategy.exponential_delay(), clock)
    looked_after = restarts(RestartStrategy.exponential_delay(), clock, supervised=True)
    for counted in (alone, looked_after):
        assert counted.delay(Py4JNetworkError("Answer from Java side is empty")) is None
    assert alone.delay(MemoryError()) == 1.0
    assert looked_after.delay(MemoryError()) is None


def test_an_error_says_that_the_strategy_gave_up(clock: Clock) -> None:
    counted = restarts(RestartStrategy.fixed_delay(1), clock)
    first, last, around = SystemUnavailable("away"), SystemUnavailable("away"), RuntimeError("around")
    counted.delay(first)
    counted.delay(last)
    around.__cause__ = last
    assert [has_given_up(error) for error in (first, last, around)] == [False, True, True]


def test_another_strategy_on_the_way(clock: Clock) -> None:
    """As a supervisor learns it from its driver: what has been counted counts."""
    counted = restarts(RestartStrategy.exponential_delay(), clock)
    assert delays(counted, 2) == [1.0, 1.5]
    counted.follow(RestartStrategy.fixed_delay(3, "5s"))
    counted.follow(RestartStrategy.fixed_delay(3, "5s"))
    assert delays(counted, 2) == [5.0, None]


def test_the_defaults_are_flinks() -> None:
    assert RestartStrategy.fixed_delay() == RestartStrategy.fixed_delay(attempts=1, delay="1s")
    assert RestartStrategy.failure_rate() == RestartStrategy.failure_rate(max_failures=1, interval="1min", delay="1s")
    assert RestartStrategy.exponential_delay() == RestartStrategy.exponential_delay(
        initial="1s", maximum="1min", multiplier=1.5, reset_after="1h", jitter=0.1, attempts=None, immediate_after="10s"
    )  # but for the last one, which Flink has not


def test_delays_are_durations() -> None:
    with pytest.raises(ConfigurationError, match="delay='soon'"):
        RestartStrategy.fixed_delay(3, "soon")
    with pytest.raises(ConfigurationError, match="maximum"):
        RestartStrategy.exponential_delay(maximum=-1)


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("fixed_delay", {"attempts": -1}),
        ("fixed_delay", {"attempts": 1.5}),
        ("fixed_delay", {"attempts": True}),
        ("fixed_delay", {"delay": float("inf")}),
        ("failure_rate", {"max_failures": 0}),
        ("failure_rate", {"interval": 0}),
        ("failure_rate", {"delay": float("inf")}),
        ("exponential_delay", {"initial": 0}),
        ("exponential_delay", {"initial": "2min"}),
        ("exponential_delay", {"maximum": float("inf")}),
        ("exponential_delay", {"multiplier": 1.0}),
        ("exponential_delay", {"multiplier": float("nan")}),
        ("exponential_delay", {"reset_after": 0}),
        ("exponential_delay", {"jitter": 1.1}),
        ("exponential_delay", {"jitter": -0.1}),
        ("exponential_delay", {"attempts": 0}),
        ("exponential_delay", {"immediate_after": 0}),
    ],
)
def test_values_out_of_range_are_refused(strategy: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="out of range"):
        getattr(RestartStrategy, strategy)(**given)


DEFAULT_LINE = "exponential-delay: 1 s growing by 1.5 to 1 min, without end, starting over after a run of 1 h"


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (RestartStrategy.none(), "none: the first failure is the last"),
        (RestartStrategy.fixed_delay(3, "200ms"), "fixed-delay: at most 3 restarts, 200 ms apart"),
        (
            RestartStrategy.failure_rate(3, "5min", 10),
            "failure-rate: 10 s apart, until more than 3 failures fall within 5 min",
        ),
        (
            RestartStrategy.exponential_delay(),
            f"{DEFAULT_LINE}, at once after one of 10 s",
        ),
        (
            RestartStrategy.exponential_delay("1s", attempts=4, maximum=90),
            "exponential-delay: 1 s growing by 1.5 to 90 s, at most 4 in a row, starting over after a run of 1 h",
        ),
    ],
)
def test_a_strategy_in_one_line_and_in_another_process(strategy: RestartStrategy, line: str) -> None:
    assert strategy.describe() == line
    assert RestartStrategy.from_dict(json.loads(json.dumps(strategy.to_dict(), allow_nan=False))) == strategy
