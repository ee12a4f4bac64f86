"""What is remembered of the development broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.dev import kafka as service


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    file = service.service_folder() / "state.json"
    file.parent.mkdir(parents=True)
    return file


def test_what_is_written_is_read(state: Path) -> None:
    service._write(71, 9092)
    assert json.loads(state.read_text()) == {"pid": 71, "port": 9092}
    assert service._read() == (71, 9092)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "3", '{"pid": "x", "port": 1}'])
def test_what_cannot_be_read_is_none(state: Path, text: str) -> None:
    state.write_text(text)
    assert service._read() is None
    assert not service.status().running


def test_a_broker_that_is_gone_is_named(state: Path) -> None:
    state.write_text(json.dumps({"pid": 2_000_000_000, "port": 1}))
    assert service.status().note == "A broker was started as process 2000000000, but it is gone."
