"""The file sink keeps the contract, in every format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import TwoPhaseSink
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed, StorageFull
from penstock.sinks.files import FileSink
from penstock.sinks.files.commit import KEPT_RECEIPTS, FileCommitter
from penstock.storage.hadoop import ArrowTree
from penstock.testing.sink_contract import LOST, SinkContract
from tests.support.named_rows import TEXT, NamedRows


class ParquetHarness(NamedRows):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_sink(self) -> TwoPhaseSink:
        return FileSink(str(self.folder))

    def read_visible(self) -> list[Any]:
        files = sorted(self.folder.glob("part-*"))
        return [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        (self.folder / committable.payload["staged"]).unlink()
        return True


class LinesHarness(ParquetHarness):
    """Text formats get one column of lines that Spark has rendered."""

    def __init__(self, folder: Path, kind: Literal["json", "csv"], header: bool = False) -> None:
        super().__init__(folder)
        self.kind: Literal["json", "csv"] = kind
        self.header = header

    def make_sink(self) -> TwoPhaseSink:
        return FileSink(str(self.folder), format=self.kind, options={"header": "true"} if self.header else {})

    def render(self, values: list[Any]) -> str:
        if self.kind == "json":
            return json.dumps(dict(zip(("id", "name"), values, strict=True)), ensure_ascii=False)
        return ",".join('"' + str(value).replace('"', '""') + '"' for value in values)

    def batch(self, rows: list[list[Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id%2Cname": [self.render(row) for row in rows]})

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        return self.batch([[i, f"row {i}"] for i in range(start, start + n)])

    def special(self) -> pa.RecordBatch:
        return self.batch([[i, text] for i, text in enumerate(TEXT)])

    def large(self) -> pa.RecordBatch:
        return self.batch([[1, "x" * 500_000]])

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        lines: list[Any] = batch.column(0).to_pylist()
        return lines

    def read_visible(self) -> list[Any]:
        found: list[Any] = []
        for file in sorted(self.folder.glob("part-*")):
            lines = file.read_text().split("\n")
            assert lines.pop() == "", "a file ends with a whole line"
            if self.header:
                assert lines.pop(0) == "id,name"
            found += lines
        return found


class TestParquetFiles(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = ParquetHarness(tmp_path / "out")


class TestJsonFiles(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = LinesHarness(tmp_path / "out", "json")


class TestCsvFiles(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = LinesHarness(tmp_path / "out", "csv")


class TestCsvFilesWithHeader(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = LinesHarness(tmp_path / "out", "csv", header=True)


class TestFilesThroughArrow(SinkContract):
    """The road HDFS takes, over pyarrow's own local file system."""

    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyarrow.fs import LocalFileSystem

        self.harness = ParquetHarness(tmp_path / "out")
        monkeypatch.setattr("penstock.sinks.files.task_tree", lambda path: ArrowTree(LocalFileSystem(), path))


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False


@pytest.fixture
def story(tmp_path: Path) -> SinkContract:
    told = Story()
    told.harness = ParquetHarness(tmp_path / "out")
    return told


def out(story: SinkContract) -> Path:
    assert isinstance(story.harness, ParquetHarness)
    return story.harness.folder


def test_a_file_a_reader_has_moved_away_still_counts_as_committed(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    prepared = story.prepare(sink, [story.harness.rows(5)])
    story.commit(sink, prepared)
    (out(story) / prepared[0].payload["final"]).unlink()
    assert story.commit(sink, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}


def test_a_crash_between_receipt_and_rename_commits_on_restart(
    story: SinkContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared = story.prepare(sink, [rows])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FileCommitter, "_rename", die)
        with pytest.raises(KeyboardInterrupt):
            story.commit(sink, prepared)
    story.assert_visible()
    assert story.commit(sink, prepared, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_an_abort_after_a_receipt_is_lost_and_not_taken_for_committed(
    story: SinkContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = story.harness.make_sink()
    prepared = story.prepare(sink, [story.harness.rows(5), story.harness.rows(5, 5)])
    with monkeypatch.context() as patched:
        patched.setattr(FileCommitter, "_rename", lambda *_: Outcome.UNKNOWN)
        story.commit(sink, prepared)
    story.abort(sink, prepared[:1])
    assert story.commit(sink, prepared[:1]) == LOST
    assert story.commit(sink, prepared[1:]) == {Outcome.COMMITTED}


def test_a_strange_file_under_our_name_is_never_overwritten(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    prepared = story.prepare(sink, [story.harness.rows(5)])
    strange = out(story) / prepared[0].payload["final"]
    strange.write_text("somebody else's")
    assert story.commit(sink, prepared) == {Outcome.UNKNOWN}
    assert strange.read_text() == "somebody else's"


def test_a_writer_whose_file_was_swept_cannot_prepare(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    writer = story.open_writer(sink, story.scope(1), epoch=0)
    writer.write(story.harness.rows(5))
    assert story.sweep(sink, generation=2) == 1
    with pytest.raises(PreCommitFailed, match="removed while it was written"):
        writer.pre_commit()


def test_seal_refuses_a_file_that_is_not_where_the_driver_looks(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    [prepared] = story.prepare(sink, [story.harness.rows(5)])
    (out(story) / prepared.payload["staged"]).unlink()
    with pytest.raises(PreCommitFailed, match="is gone"):
        story.seal(sink, story.scope(), [prepared])


def test_receipts_do_not_pile_up(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    for epoch in range(KEPT_RECEIPTS + 10):
        story.commit(sink, story.prepare(sink, [story.harness.rows(1, epoch)], epoch=epoch), epoch=epoch)
    assert len(list(out(story).glob("_penstock/*/*/receipts/*"))) == KEPT_RECEIPTS + 1
    assert not list(out(story).glob("_penstock/*/*/staged/*"))


def test_nothing_but_whole_files_is_ever_listed(story: SinkContract) -> None:
    sink = story.harness.make_sink()
    story.prepare(sink, [story.harness.rows(5)])
    assert [entry.name for entry in out(story).iterdir()] == ["_penstock"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named(story: SinkContract, monkeypatch: pytest.MonkeyPatch) -> None:

    sink = story.harness.make_sink()
    writer = story.open_writer(sink, story.scope(), epoch=0)
    prepared = story.prepare(sink, [story.harness.rows(5)], epoch=1)
    with monkeypatch.context() as patched:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file._fd)  # type: ignore[attr-defined]
        os.dup2(full, writer._file.stream.fileno())  # type: ignore[attr-defined]
        os.close(full)
        writer.write(story.harness.rows(5))
        with pytest.raises(StorageFull) as caught:
            writer.pre_commit()
        assert caught.value.retryable
        writer.abort()

        def no_space(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "rename", no_space)
        committer = sink.open_committer(story.scope())
        with pytest.raises(StorageFull, match="No space"):
            committer.commit(1, prepared, Deadline(5))
    assert story.commit(sink, prepared, epoch=1) == {Outcome.COMMITTED}


def test_what_tasks_left_on_hdfs_is_synced_by_the_driver_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.fs import LocalFileSystem

    synced: list[str] = []
    monkeypatch.setattr("penstock.storage.hadoop.hsync", synced.append)
    storage = ArrowTree(LocalFileSystem(), str(tmp_path), address="hdfs://nn/out/")
    monkeypatch.setattr("penstock.sinks.files.task_tree", lambda path: storage)
    told = Story()
    told.harness = ParquetHarness(tmp_path)
    sink = told.harness.make_sink()
    [one] = told.prepare(sink, [told.harness.rows(3)])
    assert synced == [f"hdfs://nn/out/{one.payload['staged']}"]
    assert told.commit(sink, [one]) == {Outcome.COMMITTED}
    assert synced[1].startswith("hdfs://nn/out/_penstock/"), "the receipt, before the rename"
    ArrowTree(LocalFileSystem(), str(tmp_path), address="s3://bucket").secure("x")
    assert len(synced) == 2
