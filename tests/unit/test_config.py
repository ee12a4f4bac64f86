"""Durations and the limits of checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.config import Checkpoints, seconds
from penstock.errors import ConfigurationError
from penstock.naming import check_name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200ms", 0.2), ("1s", 1.0), ("1.5 s", 1.5), ("2sec", 2.0), ("15min", 900.0), ("3m", 180.0), (" 1h ", 3600.0),
        ("1d", 86400.0), (0, 0.0), (2.5, 2.5),
    ],
)  # fmt: skip
def test_durations(text: Any, value: float) -> None:
    assert seconds(text, "interval") == value


@pytest.mark.parametrize("text", ["", "1", "s", "1 year", "-1s", "1s 2ms", "1,5s", -1, -0.001, float("nan")])
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        seconds(text, "interval")
    assert "interval=" in refused.value.happened
    assert refused.value.to_do


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
