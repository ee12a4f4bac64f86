"""What the file sink has synced, and in which order, when it says that something is so."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.sinks.files import FileSink
from penstock.sinks.files.commit import FileCommitter
from penstock.storage import durable
from penstock.storage.local import LocalTree
from tests.support.power import PowerCut, Steps


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new" / "out"


def prepared(sink: FileSink, writer: int = 0) -> Committable:
    one = sink.open_writer(WriterScope(SinkScope("job", "out", 1), 0, 1, writer, 1))
    one.write(pa.record_batch([pa.array([1, 2])], names=["a"]))
    return Committable("out", writer, 2, 3, one.pre_commit())


def cut_before_the_sync(sink: FileSink, one: Committable, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(storage: LocalTree, folder: str) -> None:
        raise PowerCut

    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(LocalTree, "sync", die)
        sink.open_committer(SinkScope("job", "out", 1)).commit(0, [one], Deadline(5))


def test_what_was_renamed_by_a_run_that_died_is_synced_by_the_next(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(str(out))
    one = prepared(sink)
    cut_before_the_sync(sink, one, monkeypatch)
    steps = Steps(out, monkeypatch)
    committer = sink.open_committer(SinkScope("job", "out", 2))
    assert committer.commit(0, [one], Deadline(5)) == {0: Outcome.ALREADY_COMMITTED}
    assert {".", "_penstock/job/out/staged"} <= steps.synced


def test_a_name_leaves_its_receipt_for_good_before_its_file_goes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A receipt that came back after a power cut would turn the lost file into one that a reader has moved away.
    sink = FileSink(str(out))
    one = prepared(sink)
    committer = sink.open_committer(SinkScope("job", "out", 1))
    assert isinstance(committer, FileCommitter)
    committer._receipts.write(0, [one.payload["staged"]])
    steps = Steps(out, monkeypatch)
    committer.abort([one], Deadline(5))
    removed = steps.did.index(("unlink", one.payload["staged"]))
    receipt = next(n for n, (what, name) in enumerate(steps.did) if what == "unlink" and "/receipts/" in name)
    assert ("sync", "_penstock/job/out/receipts") in steps.did[receipt:removed]
    assert committer.commit(0, [one], Deadline(5)) == {0: Outcome.LOST}


def test_a_name_that_a_power_cut_left_in_both_folders_is_committed(out: Path) -> None:
    # A rename between folders is two entries, and a disk may keep the new one without having dropped the old one.
    sink = FileSink(str(out))
    one = prepared(sink)
    os.link(out / one.payload["staged"], out / one.payload["final"])
    committer = sink.open_committer(SinkScope("job", "out", 2))
    assert committer.commit(0, [one], Deadline(5))[0].visible
    assert not (out / one.payload["staged"]).exists()
    assert (out / one.payload["final"]).exists()


def test_folders_made_by_a_process_that_died_are_synced_too(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "_penstock" / "job" / "out" / "staged").mkdir(parents=True)
    steps = Steps(out, monkeypatch)
    prepared(FileSink(str(out)))
    assert {
        "_penstock/job/out/staged",
        "_penstock/job/out",
        "_penstock/job",
        "_penstock",
        ".",
        "..",
        "../..",
    } <= steps.synced


def test_a_folder_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.ensure_folder(tmp_path / "a" / "b")
    steps = Steps(tmp_path, monkeypatch)
    durable.ensure_folder(tmp_path / "a" / "b")
    assert not steps.did
    durable.ensure_folder(tmp_path / "a" / "c")
    assert steps.synced == {"a"}
