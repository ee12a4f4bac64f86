"""A savepoint's folder: what it holds, what is refused, what disposing does; histories; the files of an epoch."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.history import Histories, Restored
from penstock.checkpoint.layout import seal
from penstock.checkpoint.spark_files import lost_state, needed, tables_of
from penstock.errors import (
    LedgerCorrupt,
    LedgerFromTheFuture,
    SavepointCorrupt,
    SavepointError,
    SavepointIncomplete,
)
from penstock.savepoints import savepoint
from penstock.savepoints.savepoint import Kind, SavedQuery, SavedSink, Savepoint
from penstock.storage.local import LocalStorage, LocalTree
from tests.support.memory_storage import MemoryStorage

DATA = Path(__file__).parents[2] / "data"
QUERY = SavedQuery(
    epoch=12,
    query_id="9c2f5c0e-6f0a-4c0e-8d6a-0a7f6f1e2b3c",
    generation=3,
    sources=("orders", None),
    sinks={"totals": SavedSink("KafkaSink", "Kafka topic totals at localhost:9092", "payments:totals")},
    watermark=0,
    backend="rocksdb",
    partitions=7,
    output_mode="update",
    operators=({"id": 0, "name": "stateStoreSave", "stores": [], "partitions": 7},),
)


def make(folder: Path, files: dict[str, bytes]) -> Savepoint:
    """A complete savepoint with these files."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    there = LocalTree(folder)
    sizes = there.files()
    digests = there.digests(sizes)
    saved = Savepoint(
        "3f2a9c41d07e", Kind.NATIVE, "payments", 1.5, "0.2.0", "4.2.0", {"totals": QUERY},
        {name: (size, digests[name]) for name, size in sizes.items()},
    )  # fmt: skip
    there.storage.create(savepoint.METADATA, saved.to_bytes())
    return saved


def test_what_is_written_is_read(tmp_path: Path) -> None:
    saved = make(tmp_path, {"queries/totals/spark/metadata": b"{}"})
    folder = LocalTree(tmp_path)
    assert savepoint.read(folder) == saved
    savepoint.verify(folder, saved)
    assert saved.size == 2


def test_the_first_version_is_read() -> None:
    """This file was written by the first version that had savepoints. It must be readable for ever."""
    saved = Savepoint.of((DATA / "savepoint-v1.json").read_bytes(), "savepoint-v1.json")
    assert saved.queries["totals"].epoch == 12
    assert saved.queries["totals"].sinks["totals"].prefix == "payments:totals"
    assert saved.kind is Kind.NATIVE
    assert saved.files == {"queries/totals/spark/metadata": (2, "0" * 64)}


def test_a_field_of_a_later_minor_version_is_passed_over(tmp_path: Path) -> None:
    from penstock.checkpoint.layout import seal

    body = dataclasses.asdict(make(tmp_path / "a", {}))
    body["queries"]["totals"]["unheard"] = 1
    assert Savepoint.of(seal("savepoint", {**body, "unheard": 1}), "x").queries["totals"] == QUERY


def test_a_newer_version_and_an_altered_one_are_refused(tmp_path: Path) -> None:
    data = make(tmp_path, {}).to_bytes()
    with pytest.raises(LedgerFromTheFuture):
        Savepoint.of(data.replace(b'"version":1', b'"version":99'), "x")
    with pytest.raises(LedgerCorrupt):
        Savepoint.of(data.replace(b'"epoch":12', b'"epoch":13'), "x")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_bytes(b"{"), "has 1 bytes instead of 2"),
        (lambda file: file.write_bytes(b"[]"), "does not match its checksum"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: object, said: str) -> None:
    saved = make(tmp_path, {"queries/totals/spark/metadata": b"{}"})
    damage(tmp_path / "queries/totals/spark/metadata")  # type: ignore[operator]
    with pytest.raises(SavepointCorrupt, match=said):
        savepoint.verify(LocalTree(tmp_path), saved)


def test_a_folder_without_metadata_is_no_savepoint(tmp_path: Path) -> None:
    half = tmp_path / "savepoint-payments-3f2a9c41d07e"
    make(half, {"queries/totals/spark/metadata": b"{}"})
    (half / "_metadata").unlink()
    with pytest.raises(SavepointIncomplete, match="never finished"):
        savepoint.read(LocalTree(half))
    with pytest.raises(SavepointIncomplete, match="not a savepoint"):
        savepoint.read(LocalTree(tmp_path))


def test_disposing_deletes_savepoints_and_halves_and_nothing_else(tmp_path: Path) -> None:
    whole, half = tmp_path / "renamed", tmp_path / "savepoint-payments-3f2a9c41d07e"
    make(whole, {"queries/totals/spark/metadata": b"{}"})
    make(half, {"queries/totals/spark/metadata": b"{}"})
    (half / "_metadata").unlink()
    other = tmp_path / "documents"
    other.mkdir()
    (other / "letter").write_text("dear")
    assert savepoint.dispose(str(whole)) == 2
    assert savepoint.dispose(f"file://{half}") == 1
    with pytest.raises(SavepointIncomplete):
        savepoint.dispose(str(other))
    assert not whole.exists()
    assert not half.exists()
    assert (other / "letter").exists()


class TestFilesOfAnEpoch:
    def folder(self, root: Path, *names: str) -> LocalTree:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"")
        return LocalTree(root)

    LOG = ("metadata", *(f"{kind}/{number}" for kind in ("offsets", "commits") for number in range(6)), "offsets/6")

    def test_the_log(self, tmp_path: Path) -> None:
        found = needed(self.folder(tmp_path, *self.LOG, "sources/0/0", "commits/.5.crc"), 4)
        assert found == ["metadata", "offsets/3", "offsets/4", "commits/3", "commits/4", "sources/0/0"]

    def test_an_epoch_that_is_not_complete(self, tmp_path: Path) -> None:
        with pytest.raises(SavepointError, match="commits/6 is missing"):
            needed(self.folder(tmp_path, *self.LOG), 6)

    def test_state_since_the_last_whole_picture(self, tmp_path: Path) -> None:
        state = [f"state/0/0/{version}.delta" for version in range(1, 7)] + ["state/0/0/3.snapshot"]
        folder = self.folder(tmp_path, *self.LOG, *state, "state/0/_metadata/schema/0", "state/0/_metadata/metadata")
        assert {name for name in needed(folder, 4) if name.startswith("state")} == {
            "state/0/_metadata/schema/0",
            "state/0/_metadata/metadata",
            "state/0/0/3.snapshot",
            "state/0/0/4.delta",
            "state/0/0/5.delta",
        }

    def test_state_that_is_cleaned_away(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, *self.LOG, "state/0/0/3.delta")
        with pytest.raises(SavepointError, match="version 5 is not there"):
            needed(folder, 4)

    def test_rocksdb_takes_the_tables_its_picture_names(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, *self.LOG, "state/0/0/SSTs/a.sst", "state/0/0/SSTs/b.sst")
        (tmp_path / "state/0/0/5.zip").write_bytes(picture("a.sst"))
        found = [name for name in needed(folder, 4) if name.startswith("state")]
        assert found == ["state/0/0/5.zip", "state/0/0/SSTs/a.sst"]

    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_format_2_takes_what_led_to_the_decided_attempt(self, tmp_path: Path, codec: str) -> None:
        """Of every version there are files of an attempt that lost, and a checksum beside each."""
        names = [f"{version}_{who}.changelog" for version in range(1, 7) for who in ("won", "lost")]
        names += ["3_won.zip", "4_lost.zip", "3_lost.zip"]
        state = [f"state/0/0/{name}{end}" for name in names for end in ("", ".crc")]
        folder = self.folder(tmp_path, *self.LOG, *state, "state/0/0/_metadata/schema")
        (tmp_path / "commits/4").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["won"]]}}')
        (tmp_path / "state/0/0/5_won.changelog").write_bytes(changelog(codec, "3_won", "4_won"))
        wanted = {"3_won.zip", "4_won.changelog", "5_won.changelog"}
        assert {name for name in needed(folder, 4) if name.startswith("state/0/0/")} == {
            "state/0/0/_metadata/schema",
            *(f"state/0/0/{name}{end}" for name in wanted for end in ("", ".crc")),
        }

    def test_format_2_without_the_decided_attempt(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, *self.LOG, "state/0/0/5_lost.zip")
        (tmp_path / "commits/4").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["won"]]}}')
        with pytest.raises(SavepointError, match="version 5 is not there"):
            needed(folder, 4)

        def lost(folder: LocalTree) -> str | None:
            sizes = folder.storage.sizes("state")
            return lost_state(folder.storage, 4, sizes, {"0": [["won"]]})

        assert lost(folder) == "version 5 of state/0/0"
        (tmp_path / "state/0/0/5_won.zip").write_bytes(picture())
        assert lost(folder) is None
        (tmp_path / "state/0/0/5_won.zip.crc").write_bytes(b"")
        assert lost(folder) == "version 5 of state/0/0"

    def test_of_a_changelog_that_cannot_be_read_every_attempt_counts(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, *self.LOG, "state/0/0/4_lost.changelog", "state/0/0/5_won.changelog")
        (tmp_path / "commits/4").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["won"]]}}')
        assert "state/0/0/4_lost.changelog" in needed(folder, 4)

    def test_a_picture_of_an_unknown_format_takes_all_tables(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, *self.LOG, "state/0/0/5.zip", "state/0/0/SSTs/b.sst")
        assert "state/0/0/SSTs/b.sst" in needed(folder, 4)
        assert tables_of(b"") is None


def changelog(codec: str, *before: str) -> bytes:
    """As Java writes one: version and lineage, each with its size, and rows. LZ4 in blocks, small ones as they are."""
    split = [one.partition("_") for one in before]
    lineage = json.dumps([{"version": int(version), "checkpointUniqueId": id_} for version, _, id_ in split])
    text = b"".join(len(part).to_bytes(2, "big") + part.encode() for part in ("v3", lineage)) + b"rows" * 1000
    if codec == "zstd":
        return bytes(pa.Codec("zstd").compress(text, asbytes=True))
    packed = [(0x10, text[:9]), (0x20, pa.Codec("lz4_raw").compress(text[9:], asbytes=True)), (0x10, b"")]
    sizes = (9, len(text) - 9, 0)
    blocks = zip(packed, sizes, strict=True)
    return b"".join(struct.pack("<8sBIII", b"LZ4Block", how, len(data), size, 0) + data for (how, data), size in blocks)


def picture(*tables: str) -> bytes:
    body = {"sstFiles": [{"localFileName": "1", "dfsSstFileName": one, "sizeBytes": 1} for one in tables]}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps(body))
    return data.getvalue()


class TestHistories:
    def restored(self, name: str, number: int = 0) -> Restored:
        history = f"spark-{name * 12}"
        return Restored(f"id-{name}", "file:/sp", "3f2a9c41d07e", 1.0, history, {"totals": 12}, number=number)

    def restore(self, histories: Histories, name: str) -> int:
        number = histories.reserve(f"spark-{name * 12}")
        histories.record(self.restored(name, number))
        return number

    def test_the_newest_counts(self) -> None:
        histories = Histories(MemoryStorage())
        assert histories.current() == "spark"
        assert self.restore(histories, "a") == 1
        assert self.restore(histories, "b") == 2
        assert histories.current() == "spark-bbbbbbbbbbbb"
        assert histories.find("id-a") is not None
        assert histories.find("id-c") is None
        assert histories.find("id-") is None
        [_, newest] = histories.all()
        histories.record(newest)  # its answer was lost, and it is tried again
        assert [one.number for one in histories.all()] == [1, 2]

    def test_a_damaged_record_is_named(self) -> None:
        storage = MemoryStorage("file:/jobs/shop")
        storage.create("restores/0000000001.json", b"{")
        with pytest.raises(LedgerCorrupt, match="file:/jobs/shop/restores/0000000001"):
            Histories(storage).current()

    def test_only_the_one_before_is_kept_beside_it(self, tmp_path: Path) -> None:
        """What restores before it have left goes; what one after it builds does not."""
        histories = Histories(LocalStorage(tmp_path))
        for name in ("spark", "spark-aaaaaaaaaaaa", "spark-bbbbbbbbbbbb", "spark-cccccccccccc", "ledger"):
            (tmp_path / "totals" / name).mkdir(parents=True)
        histories.reserve("spark-bbbbbbbbbbbb")
        made = self.restore(histories, "a")
        builds = histories.reserve("spark-cccccccccccc")
        for number in (made, builds):
            assert histories.unneeded("totals", number) == ["totals/spark-bbbbbbbbbbbb"]
        made = self.restore(histories, "d")
        assert sorted(histories.unneeded("totals", made)) == [
            "totals/spark",
            "totals/spark-bbbbbbbbbbbb",
            "totals/spark-cccccccccccc",
        ]

    def test_a_number_is_reserved_once(self) -> None:
        class Late(MemoryStorage):
            def list(self, folder: str) -> list[str]:
                return []

        histories = Histories(Late())
        assert histories.reserve("spark-aaaaaaaaaaaa") == 1
        assert histories.reserve("spark-bbbbbbbbbbbb") == 2

    def test_a_restore_that_is_not_recorded_when_a_run_registers_never_counts(self) -> None:
        storage = MemoryStorage()
        histories = Histories(storage)
        self.restore(histories, "a")
        number = histories.reserve("spark-bbbbbbbbbbbb")
        histories.void_unrecorded()
        with pytest.raises(SavepointError, match="Another restore"):
            histories.record(self.restored("b", number))
        # It had looked before the run registered, and records now.
        body = {**dataclasses.asdict(self.restored("b", number)), "number": number}
        storage.create(f"restores/{number:010d}.json", seal("restore", body))
        assert histories.current() == "spark-aaaaaaaaaaaa"
        assert histories.find("id-b") is None
        assert self.restore(histories, "c") == number + 2
        assert histories.current() == "spark-cccccccccccc"

    def test_a_run_voids_each_restore_once_and_none_that_is_recorded(self) -> None:
        storage = MemoryStorage()
        histories = Histories(storage)
        histories.void_unrecorded()
        self.restore(histories, "a")
        histories.void_unrecorded()
        assert storage.list("restoring") == ["0000000001.json"]
        histories.reserve("spark-bbbbbbbbbbbb")
        for _ in range(2):
            histories.void_unrecorded()
        assert sorted(storage.list("restoring")) == ["0000000001.json", "0000000002.json", "0000000003.json"]
        assert [one.number for one in histories.all()] == [1]

    def test_of_two_restores_the_one_that_began_last_counts(self) -> None:
        histories = Histories(MemoryStorage())
        first, second = histories.reserve("spark-aaaaaaaaaaaa"), histories.reserve("spark-bbbbbbbbbbbb")
        with pytest.raises(SavepointError, match="Another restore"):
            histories.record(self.restored("a", first))
        assert histories.current() == "spark"
        histories.record(self.restored("b", second))
        assert histories.current() == "spark-bbbbbbbbbbbb"

    def test_a_restore_that_begins_while_another_is_recorded_is_seen(self) -> None:
        class Meanwhile(MemoryStorage):
            def create(self, name: str, data: bytes) -> None:
                super().create(name, data)
                if name == "restores/0000000001.json":
                    other.reserve("spark-bbbbbbbbbbbb")

        storage = Meanwhile()
        histories, other = Histories(storage), Histories(storage)
        number = histories.reserve("spark-aaaaaaaaaaaa")
        with pytest.raises(SavepointError, match="Another restore"):
            histories.record(self.restored("a", number))
        assert histories.current() == "spark-aaaaaaaaaaaa", "whole, until the other one is complete"


def test_every_folder_of_a_copy_is_synced_up_to_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LocalTree(tmp_path / "source")
    names = ["metadata", "state/0/1/2.delta"]
    for name in names:
        source.put(name, b"x")
    synced, real = set(), os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalTree(tmp_path / "new" / "savepoint").take(source, {name: name for name in names})
    made = ["new", "new/savepoint", "new/savepoint/state", "new/savepoint/state/0", "new/savepoint/state/0/1"]
    assert {".", *made, "new/savepoint/metadata"} <= synced


def test_what_spark_wrote_is_synced_file_by_file_and_folder_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "savepoint"
    (root / "queries" / "in" / "state").mkdir(parents=True)
    (root / "queries" / "in" / "state" / "part-0.parquet").write_bytes(b"x")
    (root / "queries" / "in" / "state" / ".part-0.parquet.crc").write_bytes(b"crc")
    synced, real = set(), os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalTree(root).sync_all()
    folders = {".", "savepoint", "savepoint/queries", "savepoint/queries/in", "savepoint/queries/in/state"}
    files = {"savepoint/queries/in/state/part-0.parquet", "savepoint/queries/in/state/.part-0.parquet.crc"}
    assert folders | files <= synced, "Spark refuses a file whose checksum is cut"


def test_state_is_linked_and_positions_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "state").mkdir(parents=True)
    (source / "state" / "1.delta").write_bytes(b"state")
    (source / "metadata").write_bytes(b"{}")
    LocalTree(target).take(LocalTree(source), {"state/1.delta": "state/1.delta", "metadata": "metadata"})
    assert os.stat(target / "state/1.delta").st_ino == os.stat(source / "state/1.delta").st_ino
    assert os.stat(target / "metadata").st_ino != os.stat(source / "metadata").st_ino
