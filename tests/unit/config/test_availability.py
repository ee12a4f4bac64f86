"""A standby is off unless somebody asks for it, and says what it costs."""

from __future__ import annotations

import json

import pytest

from penstock.config.levels import OPTIONS_VARIABLE
from penstock.config.operations import Availability
from penstock.config.resolve import resolve
from penstock.errors import ConfigurationError


def test_nothing_is_doubled_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    assert resolve().availability == Availability(standby=False), "twice the memory, unasked"
    assert resolve().availability.cost == ""
    asked = {"high-availability.standby": "true"}
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(asked))
    found = resolve()
    assert found.availability == Availability(standby=True)
    assert "twice the memory" in found.availability.cost
    assert not found.ignored, "the rest of Flink's family means nothing here"


def test_what_a_lease_costs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"high-availability.lease": "10s"}))
    cold = resolve().availability
    assert cold == Availability(lease=10.0)
    assert "next to no memory where the checkpoint is in a folder" in cold.cost
    warm = Availability(standby=True, lease=10.0)
    assert "twice the memory" in warm.cost
    assert "the memory of one driver there" in warm.cost


def test_a_lease_that_a_moment_would_lose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"high-availability.lease": "500ms"}))
    with pytest.raises(ConfigurationError, match="too short"):
        resolve()
