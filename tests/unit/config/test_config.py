"""Durations and the limits of checkpoints."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from penstock.config import Checkpoints, seconds, size
from penstock.errors import ConfigurationError
from penstock.naming import check_name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200ms", 0.2), ("1s", 1.0), ("1.5 s", 1.5), ("2sec", 2.0), ("15min", 900.0), ("3m", 180.0), (" 1h ", 3600.0),
        ("1d", 86400.0), (0, 0.0), (2.5, 2.5), ("10 min", 600.0), ("500 ms", 0.5), ("2 hours", 7200.0),
        ("1 DAY", 86400.0), ("250 millis", 0.25), ("PT10S", 10.0), ("PT1H30M", 5400.0), ("P1DT0.5S", 86400.5),
    ],
)  # fmt: skip
def test_durations(text: Any, value: float) -> None:
    assert seconds(text, "interval") == value


@pytest.mark.parametrize(
    "text", ["", "1", "s", "1 year", "-1s", "1s 2", "1,5s", "P", "PT", "1 mss", -1, -0.001, float("nan")]
)
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        seconds(text, "interval")
    assert "interval=" in refused.value.happened
    assert refused.value.to_do


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64mb", 64 << 20), ("1 gb", 1 << 30), ("1.5k", 1536), ("10 bytes", 10), ("2TB", 2 << 40), ("7 kb", 7168),
        ("4 kibibytes", 4096), (7, 7),
    ],
)  # fmt: skip
def test_sizes(text: Any, value: int) -> None:
    assert size(text, "limit") == value


@pytest.mark.parametrize("text", ["", "1", "mb", "1 pb", "-1mb", -1])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit="):
        size(text, "limit")


def test_checkpoints_know_what_was_written_down() -> None:
    """A copy and another process know it too; `but` adds only what changes."""
    limits = Checkpoints("1s", timeout="10min")
    assert limits.given == ("interval", "timeout")
    assert pickle.loads(pickle.dumps(limits)).given == limits.given
    assert limits.but(storage="/there").given == ("interval", "timeout", "storage")
    assert limits.but(storage="/there") == Checkpoints("1s", "/there")
    assert Checkpoints("1s") == limits


def test_checkpoints() -> None:
    limits = Checkpoints(interval="200ms", storage="/somewhere", timeout="2min", commit_timeout=5)
    assert (limits.interval_seconds, limits.timeout_seconds, limits.commit_timeout_seconds) == (0.2, 120.0, 5.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.retained = 3  # type: ignore[misc]


def test_checkpoints_unless_told() -> None:
    limits = Checkpoints()
    assert (limits.interval_seconds, limits.timeout_seconds, limits.commit_timeout_seconds) == (0.0, 600.0, 60.0)


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"commit_timeout": "0s"}, {"retained": 1}, {"interval": "often"}, {"timeout": -1}]
)
def test_checkpoints_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Checkpoints(**wrong)
    assert refused.value.safe == "nothing was started."
    assert refused.value.to_do


@pytest.mark.parametrize("name", ["a", "A-1.b_c", "0", "x" * 100])
def test_names(name: str) -> None:
    assert check_name(name, "job") == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "a/b", "a\\b", "a:b", "a\n", "ä", "x" * 101, None, 7])
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a job"):
        check_name(name, "job")
