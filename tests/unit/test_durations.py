"""One way to read a duration, whoever asks: every spelling of Flink's, Spark's and ISO 8601's."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Checkpoints, KafkaSink, RedisSink, RestartStrategy
from penstock.deadline import duration_text, seconds
from penstock.errors import ConfigurationError
from penstock.kafka import settings as kafka

TABLE: list[tuple[str, float]] = [
    ("500ms", 0.5), ("500 ms", 0.5), ("500milli", 0.5), ("500 millis", 0.5), ("500 milliseconds", 0.5),
    ("1s", 1), ("1 s", 1), ("1sec", 1), ("2 secs", 2), ("1 second", 1), ("90 SECONDS", 90),
    ("1m", 60), ("10 min", 600), ("10min", 600), ("1 minute", 60), ("15 minutes", 900), ("1.5 min", 90),
    ("1h", 3600), ("2 hours", 7200), ("1d", 86400), ("1 day", 86400), ("7 days", 604800), ("1 week", 604800),
    ("5000000ns", 0.005), ("250 us", 0.00025), ("250µs", 0.00025), ("250 micros", 0.00025),
    ("1 hour 30 minutes", 5400), ("1h30m", 5400), ("interval 10 minutes", 600), ("1 minute 30 seconds", 90),
    ("PT15M", 900), ("pt1h30m", 5400), ("P1D", 86400), ("P1DT2H", 93600), ("PT0.5S", 0.5), ("P1W", 604800),
    (" 10 s ", 10),
]  # fmt: skip

BROKEN = [
    "", " ", "soon", "10 parsecs", "-1s", "1 s 2", "s", "P", "PT", "P1", "1..5s", "10 min and 3 s", "1s;2s", "1e3s",
    "inf", "nan", "10 min 3 parsecs", "interval",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TABLE, ids=[text for text, _ in TABLE])
def test_every_spelling_means_the_same_everywhere(text: str, value: float) -> None:
    assert seconds(text, "x") == pytest.approx(value)
    assert duration_text(text, "x") == pytest.approx(value)
    assert kafka.transaction_seconds(text) == pytest.approx(value)
    assert Checkpoints(min_pause=text).min_pause_seconds == pytest.approx(value)
    assert RestartStrategy.fixed_delay(1, text).initial == pytest.approx(value)


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_duration_is_refused_everywhere(text: str) -> None:
    for ask in (lambda: seconds(text, "delay"), lambda: duration_text(text, "delay")):
        with pytest.raises(ConfigurationError, match="delay="):
            ask()
    with pytest.raises(ConfigurationError, match="transaction_timeout="):
        KafkaSink("t", servers="h:1", transaction_timeout=text)
    with pytest.raises(ConfigurationError):
        RedisSink("redis://h", key="id", ttl=text)


def test_the_advice_is_right_for_where_the_duration_is_written() -> None:
    """A bare number in a file or behind `-D` is milliseconds: advice of seconds would be off by a thousand."""
    with pytest.raises(ConfigurationError) as file:
        duration_text("0.5", "execution.checkpointing.interval")
    assert "a whole number of milliseconds, or a number with ms, s" in file.value.to_do
    assert "seconds," not in file.value.to_do.replace("milliseconds", "")
    with pytest.raises(ConfigurationError) as python:
        seconds("5", "interval")
    assert python.value.to_do.startswith("give a number of seconds (not as text), or a number with ms, s")


@pytest.mark.parametrize(("value", "found"), [(0, 0.0), (2.5, 2.5), (90, 90.0)])
def test_a_number_is_seconds_in_python(value: Any, found: float) -> None:
    assert seconds(value, "x") == found


@pytest.mark.parametrize("value", [-1, -0.5, float("nan")])
def test_a_number_that_is_none(value: float) -> None:
    with pytest.raises(ConfigurationError, match="negative or no number"):
        seconds(value, "x")


def test_a_bare_number_in_a_file_is_milliseconds() -> None:
    assert duration_text("1500", "x") == 1.5


@pytest.mark.parametrize("value", ["0s", "0", 0, "PT0S"])
def test_a_transaction_needs_time(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="leaves no time"):
        kafka.transaction_seconds(value)
