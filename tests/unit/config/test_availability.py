"""A standby is off unless somebody asks for it, and says what it costs."""

from __future__ import annotations

import json

import pytest

from penstock.config.availability import Availability
from penstock.config.load import OPTIONS_VARIABLE
from penstock.config.settings import resolve


def test_nothing_is_doubled_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    assert resolve().availability == Availability(standby=False, class_archive=True)
    assert resolve().availability.cost == ""
    asked = {"high-availability.standby": "true", "penstock.class-archive.enabled": "no"}
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(asked))
    found = resolve()
    assert found.availability == Availability(standby=True, class_archive=False)
    assert "twice the memory" in found.availability.cost
    assert not found.ignored, "the rest of Flink's family means nothing here"
