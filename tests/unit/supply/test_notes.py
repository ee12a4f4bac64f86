"""Notes in the user's cache: whole or not at all, trusted, and never too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.supply import notes
from penstock.supply.notes import read_note, write_note


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "java" / "launch-1.json"
    assert read_note(file) is None
    write_note(file, "one")
    write_note(file, "two")
    assert read_note(file) == "two"
    assert [path.name for path in file.parent.iterdir()] == ["launch-1.json"]
    file.chmod(0o606)
    assert read_note(file) is None


def test_nowhere_to_write_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_note(tmp_path / "file" / "launch-1.json", "one")


def test_the_oldest_of_a_kind_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST", 2)
    for number in range(4):
        for kind in ("launch", "early"):
            file = tmp_path / f"{kind}-{number}.json"
            write_note(file, str(number))
            os.utime(file, (number, number))
    write_note(tmp_path / "launch-3.json", "more")
    assert sorted(path.name for path in tmp_path.glob("launch-*")) == ["launch-2.json", "launch-3.json"]
    assert (tmp_path / "early-3.json").exists()
