"""The files of the in-flight log: a decision relies on them, so each is seen, whole and durable before it is made."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint import inflight
from penstock.checkpoint.inflight import LogFile, LogWriter, confirm, make_folder, read_log
from penstock.errors import LedgerCorrupt, LedgerError, LedgerFromTheFuture, PreCommitFailed, StorageNotShared
from penstock.storage.local import task_tree
from tests.support.power import Disk

END = b"\xff\xff\xff\xff\0\0\0\0"
ROWS = pa.RecordBatch.from_pydict({"n": pa.array([1, 2, 3], pa.int64())})


def write(folder: Path, *batches: pa.RecordBatch, name: str = "one.arrow") -> LogFile:
    writer = LogWriter(str(folder), name, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def read(folder: Path, file: LogFile) -> list[int]:
    return [number for batch in read_log(str(folder), file) for number in batch.column(0).to_pylist()]


# Their folder


def test_the_folder_that_the_driver_makes_survives_a_power_cut(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk").watched() as disk:
        make_folder(f"file:{disk.root}/id/out/logs")
        disk.copy_durable(tmp_path / "after")
    assert (tmp_path / "after" / "id" / "out" / "logs").is_dir()


def test_an_object_store_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_folder("s3a://bucket/id/out/logs")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "id").write_bytes(b"")
    with pytest.raises(LedgerError, match=f"making {tmp_path}/id/logs"):
        make_folder(str(tmp_path / "id" / "logs"))


# Before a decision


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (b"rows" + END, 11),
        (b"rows" + END, 13),
        (b"rows" + b"\xff" * 8, 12),
        (b"rows" + b"\0" * 8, 12),
        (END[:7], 7),
    ],
)
def test_a_file_of_another_length_or_without_its_end_is_not_decided_on(
    tmp_path: Path, content: bytes, size: int
) -> None:
    (tmp_path / "one.arrow").write_bytes(content)
    with pytest.raises(PreCommitFailed, match="not as its writer left it"):
        confirm(str(tmp_path), [LogFile("one.arrow", size, 0)])


@pytest.mark.parametrize("content", [END, b"r" + END, b"rows" + END])
def test_a_file_of_the_reported_length_with_its_end_is_decided_on(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.arrow").write_bytes(content)
    confirm(str(tmp_path), [LogFile("one.arrow", len(content), 0)])


def test_each_file_and_their_names_are_durable_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task syncs the bytes; the names, and files of storage that syncs late, the driver sees to."""
    files = [write(tmp_path, ROWS, name=name) for name in ("one.arrow", "two.arrow")]
    steps: list[tuple[str, str]] = []
    tree: Any = task_tree(str(tmp_path))
    monkeypatch.setattr(tree, "secure", lambda name: steps.append(("secure", name)))
    monkeypatch.setattr(tree, "sync", lambda folder: steps.append(("sync", folder)))
    monkeypatch.setattr(inflight, "task_tree", lambda _: tree)
    confirm(str(tmp_path), files)
    assert steps == [("secure", "one.arrow"), ("secure", "two.arrow"), ("sync", "")]
    with pytest.raises(StorageNotShared):
        confirm(str(tmp_path), [LogFile("three.arrow", 1, 0)])


# Writing


def test_rows_are_compressed(tmp_path: Path) -> None:
    zeros = pa.RecordBatch.from_pydict({"n": pa.array([0] * 100_000, pa.int64())})
    assert write(tmp_path, zeros).bytes < zeros.nbytes / 10


def test_batches_need_no_metadata_of_the_first(tmp_path: Path) -> None:
    file = write(tmp_path, ROWS.replace_schema_metadata({"of": "the first"}), ROWS)
    assert read(tmp_path, file) == [1, 2, 3, 1, 2, 3]


def test_a_file_that_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), "one.arrow", ROWS.schema)
    writer.write(ROWS)
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_arrow_may_close_what_it_writes_to_and_the_file_stays_open() -> None:
    stream = io.BytesIO()
    counted = inflight._Counted(stream)
    file = pa.PythonFile(counted, mode="w")
    file.write(b"rows")
    file.close()
    assert counted.closed is True
    assert counted.crc == zlib.crc32(stream.getvalue()) == zlib.crc32(b"rows")


# Reading


@pytest.mark.parametrize(("size", "crc"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_file_of_another_length_or_checksum_delivers_nothing(tmp_path: Path, size: int, crc: int) -> None:
    file = write(tmp_path, ROWS)
    with pytest.raises(LedgerCorrupt, match=rf"log {tmp_path}/one\.arrow cannot be trusted: it has {file.bytes} bytes"):
        read(tmp_path, LogFile(file.name, file.bytes + size, file.crc + crc))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerCorrupt, match=rf"log {tmp_path}/one\.arrow cannot be trusted: it is gone"):
        read(tmp_path, LogFile("one.arrow", 1, 1))


@pytest.mark.parametrize("metadata", [None, {"of": "the rows"}])
def test_a_file_without_a_version_is_read(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path, schema = tmp_path / "one.arrow", ROWS.schema.with_metadata(metadata)
    with pa.ipc.new_stream(str(path), schema) as stream:
        stream.write_batch(ROWS)
    data = path.read_bytes()
    assert read(tmp_path, LogFile("one.arrow", len(data), zlib.crc32(data))) == [1, 2, 3]


def test_a_file_of_a_newer_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(inflight, "INFLIGHT_VERSION", 2)
        file = write(tmp_path, ROWS)
    with pytest.raises(LedgerFromTheFuture, match=rf"{tmp_path}/one\.arrow has version 2"):
        read(tmp_path, file)
