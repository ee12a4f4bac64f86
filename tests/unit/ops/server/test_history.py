"""What a run leaves behind: kept in bounds, read as far as it goes."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.events import Events
from penstock.ops.process.registry import history_folder
from penstock.ops.server import history
from penstock.ops.server.history import HistoryWriter, read_history
from tests.support.ui_client import a_story, checkpoint

RUN = uuid.uuid4().hex


def written(epochs: int = 3) -> Path:
    writer, events = HistoryWriter(RUN, lambda: {"settings": [], "name": "payments"}), Events()
    events.listen(writer.on_event)
    a_story(events.emit, epochs)
    events.emit("opened", query="out", epoch=1, generation=1)  # not worth keeping
    writer.close()
    return history_folder(RUN)


def test_all_of_it_comes_back() -> None:
    folder = written()
    found = read_history(RUN)
    assert (found.description["name"], found.description["version"], found.damage) == ("payments", 1, [])
    assert [event["epoch"] for event in found.epochs] == [1, 2, 3, 4]
    assert [event["event"] for event in found.story] == [
        "started", "recovered", "failed", "restarting", "savepoint", "logged", "drained",
    ]  # fmt: skip
    assert found.events == sorted(found.events, key=lambda event: event["time"])
    for path in (folder, *folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0  # errors may quote rows


def test_the_next_process_of_the_run_goes_on_where_the_line_was_torn() -> None:
    folder = written()
    with (folder / "epochs-00000001.jsonl").open("ab") as file:
        file.write(b'{"time": 17672')
    written(1)
    found = read_history(RUN)
    assert [event["epoch"] for event in found.epochs] == [1, 2, 3, 4, 1, 2]
    assert found.damage == ["epochs-00000001.jsonl has 1 damaged lines, which are left out"]


@pytest.mark.parametrize(
    ("name", "data", "epochs"),
    [
        ("epochs-00000001.jsonl", "half", 2), ("epochs-00000001.jsonl", b"\xff\xfe\0garbage\n", 0),
        ("epochs-00000001.jsonl", b"[1]\n7\nnull\n\"a\"\n{}\n", 0), ("epochs-00000001.jsonl", b"[" * 100_000, 0),
        ("description.json", b"{", 4), ("description.json", b"", 4), ("description.json", b'{"version": 99}', 4),
        ("description.json", b"7", 4), ("description.json", None, 4),
        ("description.json", b'{"version": 1, "plan": [7]}', 4),
        ("description.json", b'{"version": 1, "settings": {"a": 1}}', 4),
    ],
)  # fmt: skip
def test_what_is_damaged_is_read_as_far_as_it_goes(name: str, data: Any, epochs: int) -> None:
    file = written() / name
    if data is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 100] if data == "half" else data)
    found = read_history(RUN)
    assert len(found.epochs) == epochs
    assert len(found.damage) == 1
    assert len(found.story) == 7


def test_a_run_without_a_history() -> None:
    assert (read_history(RUN).events, read_history("../../etc").events) == ([], [])


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SEGMENT_BYTES", {"epochs": 4000, "story": 4000})
    writer = HistoryWriter(RUN, dict)
    for epoch in range(100):
        writer.on_event({"time": float(epoch), "event": "checkpoint", **checkpoint(epoch)})
    writer.close()
    files = sorted(history_folder(RUN).glob("epochs-*"))
    assert len(files) == history.SEGMENTS["epochs"]
    assert all(file.stat().st_size <= 4000 for file in files)
    kept = [event["epoch"] for event in read_history(RUN).epochs]
    assert kept == list(range(kept[0], 100))


def test_the_oldest_go_and_the_living_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 2500)
    names = [uuid.uuid4().hex for _ in range(5)]
    for age, name in enumerate(names):
        folder = history_folder(name)
        folder.mkdir(parents=True)
        (folder / "epochs-00000001.jsonl").write_bytes(b" " * 1000)
        for path in (folder / "epochs-00000001.jsonl", folder):
            os.utime(path, (1000 + age, 1000 + age))
    (history_folder("not-a-run")).mkdir()
    living, forgotten = names[0], names[4]
    (history_folder(uuid.uuid4().hex)).mkdir()  # of a job that starts just now
    history.prune(known=set(names) - {forgotten}, ended=set(names) - {forgotten, living})
    left = {folder.name for folder in (tmp_path / "home" / "history").iterdir()}
    assert len(left) == 5
    assert left > {living, names[2], names[3], "not-a-run"}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "history").write_text(json.dumps("in the way"))
    writer = HistoryWriter(RUN, dict)
    writer.on_event({"time": 0.0, "event": "started"})
    writer.close()
    assert "keeps no history" in caplog.text
