"""Delta and Iceberg tables keep the contract, and what is particular to them."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DeltaSink, IcebergSink
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, TwoPhaseSink, WriterScope
from penstock.deadline import Deadline
from penstock.errors import (
    ConfigurationError,
    ConstraintViolated,
    DataError,
    PreCommitFailed,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TableMissing,
)
from penstock.sinks.tables import iceberg_mark
from penstock.sinks.tables.committer import TableCommitter
from penstock.sinks.tables.delta import _HARMLESS, _LEGACY
from penstock.sinks.tables.target import Change, History
from penstock.testing.sink_contract import LOST, VISIBLE, SinkContract
from tests.support.named_rows import NamedRows
from tests.support.s3 import object_store
from tests.support.servers.s3 import REGION, S3Server


class TableHarness(NamedRows):
    more: dict[str, Any]

    def read_visible(self) -> list[Any]:
        table = self.read()
        return [] if table is None else [tuple(row.values()) for row in table.to_pylist()]

    def read(self) -> pa.Table | None:
        raise NotImplementedError

    def data_file(self, committable: Committable) -> Path:
        raise NotImplementedError

    def table(self) -> Any:
        """As another program opens it."""
        raise NotImplementedError

    def versions(self) -> int:
        raise NotImplementedError

    def append(self, rows: pa.RecordBatch) -> None:
        """What another program does."""
        raise NotImplementedError

    def delete_everything(self) -> None:
        """All rows, and the files that held them."""
        raise NotImplementedError

    def forget_history(self, story: Story) -> None:
        raise NotImplementedError

    def change_columns(self) -> Callable[[], None]:
        """A column is gone; the answer brings it back."""
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError

    def read_where(self, column: str, value: Any) -> set[int]:
        """The ids of the rows that a reader finds by a filter."""
        raise NotImplementedError

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        self.data_file(committable).unlink()
        return True


class DeltaHarness(TableHarness):
    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder, self.more = folder / "delta", more

    def make_sink(self) -> DeltaSink:
        return DeltaSink(str(self.folder), **self.more)

    def read(self) -> pa.Table | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.folder)):
            return None
        return DeltaTable(str(self.folder)).to_pyarrow_table()

    def data_file(self, committable: Committable) -> Path:
        return self.folder / str(committable.payload["files"][0]["name"])

    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.folder))

    def versions(self) -> int:
        return int(self.table().version())

    def append(self, rows: pa.RecordBatch) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.folder), pa.table(rows), mode="append")

    def delete_everything(self) -> None:
        self.table().delete()
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def forget_history(self, story: Story) -> None:
        self.table().create_checkpoint()
        for version in range(1, self.versions()):
            (self.folder / "_delta_log" / f"{version:020d}.json").unlink()

    def change_columns(self) -> Callable[[], None]:
        table = self.table()
        before = table.version()
        from deltalake import write_deltalake

        other = pa.table({"id": [1], "label": ["x"]})
        write_deltalake(str(self.folder), other, mode="overwrite", schema_mode="overwrite")
        return lambda: self.table().restore(before)

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def read_where(self, column: str, value: Any) -> set[int]:
        found = self.table().to_pyarrow_table(filters=[(column, "=", value)])
        return set(found.column("id").to_pylist())


class IcebergHarness(TableHarness):
    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder, self.more = folder, more
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    def make_sink(self) -> IcebergSink:
        return IcebergSink("shop.orders", catalog="test", properties=self.properties, **self.more)

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self.properties)

    def read(self) -> pa.Table | None:
        catalog = self.catalog()
        return catalog.load_table("shop.orders").scan().to_arrow() if catalog.table_exists("shop.orders") else None

    def data_file(self, committable: Committable) -> Path:
        return self.folder / "warehouse" / "shop" / "orders" / "data" / str(committable.payload["files"][0]["name"])

    def table(self) -> Any:
        return self.catalog().load_table("shop.orders")

    def versions(self) -> int:
        return len(self.table().snapshots())

    def append(self, rows: pa.RecordBatch) -> None:
        self.table().append(pa.table(rows))

    def delete_everything(self) -> None:
        files = [task.file.file_path for task in self.table().scan().plan_files()]
        self.table().delete()
        for file in files:
            Path(file.removeprefix("file://")).unlink()

    def forget_history(self, story: Story) -> None:
        for page in sorted(self.folder.rglob("_penstock/*/*/taken/*.json"))[:-1]:
            page.unlink()

    def change_columns(self) -> Callable[[], None]:
        with self.table().update_schema() as change:
            change.rename_column("name", "label")

        def back() -> None:
            with self.table().update_schema() as change:
                change.rename_column("label", "name")

        return back

    def drop(self) -> None:
        self.catalog().drop_table("shop.orders")
        shutil.rmtree(self.folder / "warehouse")

    def read_where(self, column: str, value: Any) -> set[int]:
        found = self.table().scan(row_filter=f"{column} = '{value}'").to_arrow()
        return set(found.column("id").to_pylist())


class TestDelta(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = DeltaHarness(tmp_path)


class TestIceberg(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = IcebergHarness(tmp_path)


class OnS3:
    """Both tables in an object store, which has neither folders nor renames."""

    def __init__(self, address: str, keys: tuple[str, str] = ("somebody", "hunter2-hunter2")) -> None:
        self.options = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": keys[0],
            "AWS_SECRET_ACCESS_KEY": keys[1],
            "AWS_REGION": "eu-central-1",
        }
        self.properties = {
            "s3.endpoint": address,
            "s3.access-key-id": keys[0],
            "s3.secret-access-key": keys[1],
            "s3.region": "eu-central-1",
        }
        self.root = f"s3://lake/{uuid.uuid4().hex}"


class DeltaOnS3Harness(DeltaHarness):
    def __init__(self, s3: OnS3) -> None:
        self.s3 = s3

    def make_sink(self) -> DeltaSink:
        return DeltaSink(self.s3.root, storage_options=self.s3.options)

    def read(self) -> pa.Table | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.s3.root, storage_options=self.s3.options):
            return None
        return DeltaTable(self.s3.root, storage_options=self.s3.options).to_pyarrow_table()

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        from penstock.sinks.tables.delta import open_folder

        return open_folder(self.s3.root, self.s3.options).remove(str(committable.payload["files"][0]["name"]))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with object_store() as started:
        yield started


@pytest.mark.long
class TestDeltaOnS3(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, address: str) -> None:
        self.harness = DeltaOnS3Harness(OnS3(address))


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    boto3 = pytest.importorskip("boto3")
    with S3Server.start(tmp_path_factory.mktemp("s3")) as started:
        access, secret = started.keys
        client = boto3.session.Session(access, secret, region_name=REGION).client("s3", endpoint_url=started.url)
        client.create_bucket(Bucket="lake")
        yield started


@pytest.mark.long
class TestDeltaOnARealS3(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, s3_server: S3Server) -> None:
        self.harness = DeltaOnS3Harness(OnS3(s3_server.url, s3_server.keys))


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False

    harness: TableHarness

    def committer(self, generation: int = 1) -> TableCommitter:
        committer = self.harness.make_sink().open_committer(self.scope(generation))
        assert isinstance(committer, TableCommitter)
        return committer

    def just_before_its_commit(self, committer: TableCommitter, action: Callable[[], Any]) -> None:
        """Once: let something happen after the committer has looked at the table and before it commits."""
        target, waiting = committer._target, [action]
        original = target.append

        def append(change: Any) -> bool:
            if waiting:
                waiting.pop()()
            return original(change)

        target.append = append  # type: ignore[method-assign]


HARNESSES: dict[str, Callable[..., TableHarness]] = {"delta": DeltaHarness, "iceberg": IcebergHarness}


@pytest.fixture(params=sorted(HARNESSES))
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    told = Story()
    told.harness = HARNESSES[request.param](tmp_path)
    return told


@pytest.fixture(params=sorted(HARNESSES))
def by_day(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    """A table partitioned by two columns."""
    told = Story()
    told.harness = HARNESSES[request.param](tmp_path, partition_by=("day", "shop"))
    return told


@pytest.fixture
def delta(tmp_path: Path) -> Story:
    told = Story()
    told.harness = DeltaHarness(tmp_path)
    return told


@pytest.fixture
def iceberg(tmp_path: Path) -> Story:
    told = Story()
    told.harness = IcebergHarness(tmp_path)
    return told


def files_under(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


# ── one commit for each epoch, and only one ──────────────────────────────────────────────────────────────────────────


def test_an_epoch_of_several_writers_is_one_commit_of_the_table(story: Story) -> None:
    sink = story.harness.make_sink()
    story.commit(sink, story.prepare(sink, [story.harness.rows(1)]))
    before = story.harness.versions()
    story.commit(sink, story.prepare(sink, [story.harness.rows(5, i) for i in (1, 6, 11)], epoch=1), epoch=1)
    assert story.harness.versions() == before + 1


def test_a_job_restored_to_an_older_epoch_is_not_taken_for_a_replay(story: Story) -> None:
    sink, rows = story.harness.make_sink(), [story.harness.rows(2, 2 * i) for i in range(6)]
    for epoch in range(4):
        story.commit(sink, story.prepare(sink, [rows[epoch]], epoch=epoch), epoch=epoch)
    for number, epoch in ((4, 1), (5, 2)):
        prepared = story.prepare(sink, [rows[number]], epoch=epoch, generation=2)
        assert story.commit(sink, prepared, epoch=epoch, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(*rows)


def test_a_job_that_starts_over_with_a_fresh_ledger_is_not_taken_for_a_replay(story: Story) -> None:
    sink, rows = story.harness.make_sink(), [story.harness.rows(2), story.harness.rows(2, 2)]
    for batch in rows:  # twice generation 1, epoch 0, attempt 0
        assert story.commit(sink, story.prepare(sink, [batch])) == {Outcome.COMMITTED}
    story.assert_visible(*rows)


def test_a_lost_acknowledgement_is_no_second_commit(story: Story) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared, committer = story.prepare(sink, [rows]), story.committer()
    original = committer._target.append

    def append(change: Any) -> bool:
        original(change)
        raise SystemUnavailable("the answer got lost")

    committer._target.append = append  # type: ignore[method-assign]
    assert committer.commit(0, prepared, Deadline(30)) == {0: Outcome.COMMITTED}
    story.assert_visible(rows)


def test_a_table_that_took_the_rows_and_does_not_show_them_gets_them_only_once(story: Story) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared, committer = story.prepare(sink, [rows]), story.committer()
    committer._target.history = lambda since: History()  # type: ignore[method-assign]
    assert committer.commit(0, prepared, Deadline(30)) == {0: Outcome.UNKNOWN}
    story.assert_visible(rows)
    assert story.commit(sink, prepared) == {Outcome.ALREADY_COMMITTED}


def test_two_drivers_that_commit_the_same_epoch_at_once_add_it_once(story: Story) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared, slow = story.prepare(sink, [rows]), story.committer(1)
    story.just_before_its_commit(slow, lambda: story.commit(sink, prepared, generation=2))
    assert set(slow.commit(0, prepared, Deadline(30)).values()) <= VISIBLE
    story.assert_visible(rows)


def test_another_program_that_writes_at_the_same_moment_loses_nothing(story: Story) -> None:
    sink, rows, theirs = story.harness.make_sink(), story.harness.rows(5), story.harness.rows(3, 100)
    prepared, committer = story.prepare(sink, [rows]), story.committer()
    story.just_before_its_commit(committer, lambda: story.harness.append(theirs))
    assert committer.commit(0, prepared, Deadline(30)) == {0: Outcome.COMMITTED}
    story.assert_visible(rows, theirs)


def test_an_old_driver_cannot_add_a_file_that_a_newer_run_gives_up_at_that_moment(story: Story) -> None:
    sink = story.harness.make_sink()
    prepared, zombie = story.prepare(sink, [story.harness.rows(5)]), story.committer(1)
    story.just_before_its_commit(zombie, lambda: story.sweep(sink, generation=2))
    assert zombie.commit(0, prepared, Deadline(30)) == {0: Outcome.LOST}
    story.assert_visible()
    assert not story.harness.data_file(prepared[0]).exists()


def test_rows_that_were_rewritten_or_deleted_since_still_count_as_committed(story: Story) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared = story.prepare(sink, [rows])
    story.commit(sink, prepared)
    story.harness.delete_everything()
    assert story.commit(sink, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}
    story.abort(sink, prepared, generation=2)
    story.assert_visible()


def test_what_cannot_be_proven_any_more_is_unknown(story: Story) -> None:
    sink, rows = story.harness.make_sink(), [story.harness.rows(5, 5 * i) for i in range(6)]
    prepared = [story.prepare(sink, [batch], epoch=epoch) for epoch, batch in enumerate(rows[:2])]
    story.commit(sink, prepared[0])
    for epoch in range(2, 6):
        story.commit(sink, story.prepare(sink, [rows[epoch]], epoch=epoch), epoch=epoch)
    story.harness.forget_history(story)
    assert story.commit(sink, prepared[0]) == {Outcome.ALREADY_COMMITTED}  # the table still holds its file
    assert story.commit(sink, prepared[1], epoch=1, seconds=0.0) == {Outcome.UNKNOWN}


# ── leftovers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_beside_the_table(story: Story, tmp_path: Path) -> None:
    sink = story.harness.make_sink()
    for epoch in range(3):
        story.commit(sink, story.prepare(sink, [story.harness.rows(1, epoch)], epoch=epoch), epoch=epoch)
    story.prepare(sink, [story.harness.rows(1, 9)], epoch=3)
    assert story.sweep(sink, generation=2) == 1
    assert len(list(tmp_path.rglob("e00*.parquet"))) == 3
    kept = [path for path in tmp_path.rglob("_penstock/**/*") if path.is_file()]
    pages = 4 if isinstance(sink, IcebergSink) else 0  # what the three epochs and the sweep did, for proofs
    assert [path.parent.name for path in kept] == pages * ["taken"]


def test_a_crash_right_after_the_commit_leaves_a_marker_and_no_doubt(story: Story, monkeypatch: Any) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared = story.prepare(sink, [rows])
    with monkeypatch.context() as patched:
        patched.setattr(TableCommitter, "_forget", lambda *_: None)
        story.commit(sink, prepared)
    assert story.sweep(sink, generation=2) == 0
    story.assert_visible(rows)
    assert story.harness.data_file(prepared[0]).exists()


def test_an_attempt_that_failed_is_removed_without_a_word_in_the_tables_history(story: Story) -> None:
    sink = story.harness.make_sink()
    story.prepare(sink, [story.harness.rows(5)])
    before = story.harness.versions()
    assert story.sweep(sink, generation=1) == 1
    assert story.harness.versions() == before


def test_a_writer_whose_file_was_swept_cannot_prepare(story: Story) -> None:
    sink = story.harness.make_sink()
    writer = story.open_writer(sink, story.scope(1), epoch=0)
    writer.write(story.harness.rows(5))
    assert story.sweep(sink, generation=2) == 1
    with pytest.raises(PreCommitFailed, match="removed while it was written"):
        writer.pre_commit()


def test_a_file_that_is_not_as_it_was_written_is_never_added(story: Story) -> None:
    sink = story.harness.make_sink()
    prepared = story.prepare(sink, [story.harness.rows(5)])
    with story.harness.data_file(prepared[0]).open("ab") as file:
        file.write(b"!")
    with pytest.raises(PreCommitFailed, match="not as it was written"):
        story.seal(sink, story.scope(), prepared)
    assert story.commit(sink, prepared) == {Outcome.UNKNOWN}
    story.assert_visible()


# ── the table's shape ────────────────────────────────────────────────────────────────────────────────────────────────


def everything() -> pa.RecordBatch:
    """As Spark sends it: times in the session's zone, names of its own inside lists."""
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "id": (pa.int64(), [1, 2, 3]),
        "flag": (pa.bool_(), [True, None, False]),
        "tiny": (pa.int8(), [-128, None, 127]),
        "small": (pa.int16(), [-300, None, 300]),
        "whole": (pa.int32(), [-70_000, None, 70_000]),
        "single": (pa.float32(), [1.5, None, float("inf")]),
        "double": (pa.float64(), [float("-inf"), None, -0.0]),
        "money": (pa.decimal128(7, 2), [Decimal("12.30"), None, Decimal("-0.01")]),
        "price": (pa.decimal128(18, 4), [Decimal("99999999999999.9999"), None, Decimal(0)]),
        "huge": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), None, Decimal(0)]),
        "text": (pa.string(), ['Zażółć, "日本語"\n🚀', None, ""]),
        "raw": (pa.binary(), [b"\x00\xff", None, b""]),
        "day": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "moment": (
            pa.timestamp("us", "Europe/Warsaw"),
            [
                dt.datetime(2026, 3, 29, 0, 59, 59, 123456, dt.UTC),
                None,
                dt.datetime(1969, 7, 20, 20, 17, 40, 1, dt.UTC),
            ],
        ),
        "local": (pa.timestamp("us"), [dt.datetime(1900, 1, 1, 0, 0, 0, 1), None, dt.datetime(2026, 10, 25, 2, 30)]),
        "list": (pa.list_(pa.field("element", pa.string())), [["a", None, ""], None, []]),
        "point": (
            pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))]),
            [{"x": 1, "y": [0.5, None]}, None, {"x": None, "y": []}],
        ),
        "counts": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None, []]),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for kind, values in columns.values()], names=list(columns)
    )


def test_every_type_comes_back_as_it_was(story: Story) -> None:
    sink, rows = story.harness.make_sink(), everything()
    assert story.commit(sink, story.prepare(sink, [rows])) == {Outcome.COMMITTED}
    found = story.harness.read()
    assert found is not None
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == rows.to_pylist()
    assert story.commit(sink, story.prepare(sink, [rows], epoch=1), epoch=1) == {Outcome.COMMITTED}
    assert len(story.harness.read_visible()) == 6


def test_rows_go_in_by_name_and_numbers_may_be_narrower(story: Story) -> None:
    sink = story.harness.make_sink()
    wide = {"id": pa.array([1]), "price": pa.array([Decimal("1.00")], pa.decimal128(10, 2)), "note": pa.array(["a"])}
    story.commit(sink, story.prepare(sink, [pa.RecordBatch.from_pydict(wide)]))
    narrow = {"price": pa.array([Decimal("2.5")], pa.decimal128(4, 1)), "id": pa.array([2], pa.int8())}
    story.commit(sink, story.prepare(sink, [pa.RecordBatch.from_pydict(narrow)], epoch=1), epoch=1)
    assert sorted(story.harness.read_visible()) == [(1, Decimal("1.00"), "a"), (2, Decimal("2.50"), None)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"id": [1], "nmae": ["x"]}, "no column 'nmae' \\(it has 'name'\\)"),
        ({"id": [1], "Name": ["x"]}, "no column 'Name' \\(it has 'name'\\)"),
        ({"id": ["1"], "name": ["x"]}, "column 'id' is string, the table's is int64"),
        ({"id": [1.0], "name": ["x"]}, "column 'id' is double, the table's is int64"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_the_first_row(
    story: Story, tmp_path: Path, rows: dict[str, list[Any]], said: str
) -> None:
    sink = story.harness.make_sink()
    story.commit(sink, story.prepare(sink, [story.harness.rows(1)]))
    before = files_under(tmp_path)
    writer = story.open_writer(sink, story.scope(), epoch=1)
    with pytest.raises(SchemaMismatch, match=said):
        writer.write(pa.RecordBatch.from_pydict(rows))
    writer.abort()
    assert files_under(tmp_path) == before


def test_a_table_that_changes_after_the_decision_keeps_the_epoch_prepared(story: Story) -> None:
    sink, rows = story.harness.make_sink(), [story.harness.rows(2), story.harness.rows(2, 2)]
    story.commit(sink, story.prepare(sink, rows[:1]))
    prepared = story.prepare(sink, rows[1:], epoch=1)
    back = story.harness.change_columns()
    assert story.commit(sink, prepared, epoch=1) == {Outcome.UNKNOWN}
    with pytest.raises(PreCommitFailed, match="not what they were"):
        story.seal(sink, story.scope(), prepared)
    back()
    assert story.commit(sink, prepared, epoch=1) == {Outcome.COMMITTED}


def test_a_table_that_was_dropped_and_made_again_starts_afresh(story: Story) -> None:
    sink, rows = story.harness.make_sink(), [story.harness.rows(2, 2 * i) for i in range(4)]
    committer = story.committer()
    for epoch in range(2):
        prepared = story.prepare(sink, [rows[epoch]], epoch=epoch)
        assert committer.commit(epoch, prepared, Deadline(30)) == {0: Outcome.COMMITTED}
    decided = story.prepare(sink, [rows[2]], epoch=2)
    story.harness.drop()
    assert committer.commit(2, decided, Deadline(0)) == {0: Outcome.UNKNOWN}  # no table, no proof
    again = story.prepare(sink, [rows[3]], epoch=2, attempt=1)
    assert committer.commit(2, decided, Deadline(30)) == {0: Outcome.LOST}
    assert committer.commit(2, again, Deadline(30)) == {0: Outcome.COMMITTED}
    story.assert_visible(rows[3])


def test_tasks_that_begin_at_once_make_one_table(story: Story) -> None:
    sink = story.harness.make_sink()
    batches = [story.harness.rows(2, 2 * i) for i in range(4)]
    writers = [sink.open_writer(WriterScope(story.scope(), 0, 0, number, 0)) for number in range(4)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            writers[number].write(batches[number])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [str(error) for error in failed]
    told = [Committable(story.uid, number, 2, 0, one.pre_commit()) for number, one in enumerate(writers)]
    assert story.commit(sink, story.seal(sink, story.scope(), told)) == {Outcome.COMMITTED}
    story.assert_visible(*batches)


# ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sales(*rows: tuple[int, dt.date | None, str | None]) -> pa.RecordBatch:
    ids, days, shops = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(days, pa.date32()), pa.array(shops, pa.string())], names=["id", "day", "shop"]
    )


def test_a_partitioned_table_gets_a_file_for_each_partition(by_day: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.tables.writer.OPEN_FILES", 2)
    sink, first, second = by_day.harness.make_sink(), dt.date(2026, 1, 1), dt.date(2026, 1, 2)
    rows = sales((1, first, "a/b =%"), (2, second, "a/b =%"), (3, first, None), (4, None, "żółw"), (5, first, "a/b =%"))
    assert by_day.commit(sink, by_day.prepare(sink, [rows])) == {Outcome.COMMITTED}
    by_day.assert_visible(rows)
    more = sales((6, second, "b"))
    by_day.commit(sink, by_day.prepare(sink, [more], epoch=1), epoch=1)
    by_day.assert_visible(rows, more)
    assert by_day.harness.read_where("shop", "a/b =%") == {1, 2, 5}
    assert by_day.sweep(sink, generation=2) == 0


def test_empty_text_in_a_partition_is_refused(by_day: Story) -> None:
    sink = by_day.harness.make_sink()
    writer = by_day.open_writer(sink, by_day.scope(), epoch=0)
    with pytest.raises(DataError, match="empty text in column 'shop'"):
        writer.write(sales((1, dt.date(2026, 1, 1), "")))
    writer.abort()


def test_a_column_that_is_no_partition_is_named(by_day: Story) -> None:
    sink = by_day.harness.make_sink()
    writer = by_day.open_writer(sink, by_day.scope(), epoch=0)
    with pytest.raises(SchemaMismatch, match=r"no column 'day'.*no column 'shop'"):
        writer.write(by_day.harness.rows(1))


# ── checks, secrets, faults ──────────────────────────────────────────────────────────────────────────────────────────


def check(sink: TwoPhaseSink) -> Any:
    return sink.check(CheckContext("job", interval_seconds=1.0, timeout_seconds=30.0), "uid")


def test_a_check_writes_nothing(story: Story, tmp_path: Path) -> None:
    check(story.harness.make_sink())
    assert files_under(tmp_path) == {}
    sink = story.harness.make_sink()
    story.commit(sink, story.prepare(sink, [story.harness.rows(1)]))
    before = files_under(tmp_path)
    check(sink)
    assert files_under(tmp_path) == before


def test_a_missing_table_that_may_not_be_made_is_an_error(story: Story) -> None:
    story.harness.more["create"] = False
    with pytest.raises(TableMissing, match="does not exist"):
        check(story.harness.make_sink())


def test_a_table_partitioned_otherwise_is_an_error(story: Story) -> None:
    sink = story.harness.make_sink()
    story.commit(sink, story.prepare(sink, [story.harness.rows(1)]))
    story.harness.more["partition_by"] = "name"
    with pytest.raises(ConfigurationError, match="partitioned by nothing, the sink asks for name"):
        check(story.harness.make_sink())


def test_a_full_disk_is_named_and_the_epoch_waits(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared, committer = story.prepare(sink, [rows]), story.committer()

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.storage.local.LocalTree.stage", no_space)
        with pytest.raises(StorageFull):
            story.open_writer(sink, story.scope(), epoch=1).write(rows)
        patched.setattr(type(committer._target), "append", no_space)
        with pytest.raises(StorageFull):
            committer.commit(0, prepared, Deadline(5))
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_a_fork_writes_beside_the_table(story: Story) -> None:
    sink = story.harness.make_sink()
    aside = sink.redirected("_fork")
    story.commit(aside, story.prepare(aside, [story.harness.rows(2)]))
    story.assert_visible()
    assert [word for word in aside.describe().split() if word.endswith("_fork")]


# ── Delta alone ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _feature(name: str) -> Any:
    from deltalake import TableFeatures

    return getattr(TableFeatures, name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.alter.add_constraint({"positive": "id > 0"}), "constraint delta.constraints.positive"),
        (lambda table: table.alter.add_feature(_feature("RowTracking"), True), "feature rowTracking"),
    ],
    ids=["constraint", "feature"],
)
def test_a_delta_table_that_asks_for_more_is_refused(delta: Story, change: Callable[[Any], None], said: str) -> None:
    sink = delta.harness.make_sink()
    delta.commit(sink, delta.prepare(sink, [delta.harness.rows(1, 1)]))
    change(delta.harness.table())
    with pytest.raises(ConfigurationError, match=said):
        check(sink)


def _with_protocol(folder: Path, version: int, features: list[str]) -> DeltaSink:
    """A table as other writers make it, which deltalake does not."""
    from deltalake import DeltaTable

    DeltaTable.create(str(folder), schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    both = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
    reading = sorted(both & set(features))
    protocol: dict[str, Any] = {"minReaderVersion": 1 if version < 5 else 2, "minWriterVersion": version}
    if version >= 7:
        protocol |= {"minReaderVersion": 3 if reading else 1, "writerFeatures": features}
        protocol |= {"readerFeatures": reading} if reading else {}
    (folder / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}))
    return DeltaSink(str(folder))


def test_every_delta_protocol_that_is_not_refused_can_be_committed_to(delta: Story, tmp_path: Path) -> None:
    """deltalake refuses some of them in the commit, which comes after the decision."""
    asked: list[tuple[int, list[str]]] = [(version, []) for version in _LEGACY] + [
        (7, [name]) for name in sorted(_HARMLESS)
    ]
    for number, (version, features) in enumerate(asked):
        sink = _with_protocol(tmp_path / f"t{number}", version, features)
        check(sink)
        assert delta.commit(sink, delta.prepare(sink, [delta.harness.rows(1)])) == {Outcome.COMMITTED}, features


@pytest.mark.parametrize(
    ("version", "features", "said"),
    [
        (6, [], "needs writers of version 6"),
        (7, ["vacuumProtocolCheck"], "feature vacuumProtocolCheck"),
        (7, ["identityColumns"], "feature identityColumns"),
    ],
)
def test_a_delta_protocol_that_the_library_cannot_commit_to_is_refused_at_the_check(
    tmp_path: Path, version: int, features: list[str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check(_with_protocol(tmp_path / "t", version, features))


def test_the_length_of_a_delta_column_is_watched_or_the_table_refused(delta: Story) -> None:
    from deltalake import DeltaTable, Field, Schema
    from deltalake.schema import ArrayType, PrimitiveType, StructType

    def limited(kind: str) -> Field:
        return Field("name", PrimitiveType("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": kind})

    assert isinstance(delta.harness, DeltaHarness)
    folder = delta.harness.folder
    DeltaTable.create(str(folder), schema=Schema([limited("varchar(3)")]))
    sink = delta.harness.make_sink()
    assert delta.prepare(sink, [pa.RecordBatch.from_pydict({"name": ["äöü", None]})])
    with pytest.raises(ConstraintViolated, match="more than 3 letters in column 'name'"):
        delta.prepare(sink, [pa.RecordBatch.from_pydict({"name": ["a", "abcd"]})])
    for column in (limited("char(3)"), Field("s", ArrayType(StructType([limited("varchar(3)")]), contains_null=True))):
        DeltaTable.create(str(folder), schema=Schema([column]), mode="overwrite")
        with pytest.raises(ConfigurationError, match=r"is (var)?char\(3\), a length that only Spark enforces"):
            check(sink)


def test_a_delta_column_that_may_not_be_null_is_watched(delta: Story) -> None:
    from deltalake import DeltaTable

    assert isinstance(delta.harness, DeltaHarness)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    DeltaTable.create(str(delta.harness.folder), schema=schema)
    sink = delta.harness.make_sink()
    with pytest.raises(ConstraintViolated, match="1 rows have no value in column 'id'"):
        delta.prepare(sink, [pa.RecordBatch.from_pydict({"id": [1, None], "name": ["a", "b"]})])
    with pytest.raises(SchemaMismatch, match="'id' may not be null, has no default, and the rows"):
        delta.prepare(sink, [pa.RecordBatch.from_pydict({"name": ["a"]})])


def test_the_delta_log_says_who_wrote_what(delta: Story) -> None:
    sink = delta.harness.make_sink()
    for epoch in range(2):
        delta.commit(sink, delta.prepare(sink, [delta.harness.rows(1, epoch)], epoch=epoch), epoch=epoch)
    table = delta.harness.table()
    assert table.transaction_version(f"penstock:{delta.job}:contract") == 2
    assert table.history(1)[0]["userMetadata"] == f"{delta.job}:contract generation 1 epoch 1"


# ── Iceberg alone ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_prepared_before_many_commits_of_many_writers_is_still_proven(
    iceberg: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several epochs are sealed before the first is committed, and none of them may become unknown for its length."""
    monkeypatch.setattr(iceberg_mark, "PRUNE_EVERY", 1)
    monkeypatch.setattr(iceberg_mark, "KEPT_COMMITS", 4)
    sink, rows = iceberg.harness.make_sink(), [iceberg.harness.rows(1, n) for n in range(2)]
    first = iceberg.prepare(sink, [rows[0]])
    last = iceberg.prepare(sink, [rows[1]], epoch=9)
    assert iceberg.commit(sink, first) == {Outcome.COMMITTED}
    target = sink.open_committer(iceberg.scope())._target  # type: ignore[attr-defined]
    for epoch in range(3):
        assert target.look()
        assert target.append(Change("", added=[f"{epoch}{writer:019x}" for writer in range(300)]))
    assert iceberg.commit(sink, last, epoch=9, generation=2) == {Outcome.COMMITTED}
    assert iceberg.commit(sink, last, epoch=9, generation=3) == {Outcome.ALREADY_COMMITTED}
    mark = iceberg.harness.table().properties[f"penstock.{iceberg.scope().prefix}"]
    assert len(mark) < 1_000, "Hive's metastore takes 4,000 characters"
    assert len(list(tmp_path.rglob("taken/*.json"))) == 4, "old pages go"


def test_a_writer_that_lasted_longer_than_the_kept_history_is_sealed_unless_runs_were_given_up(
    iceberg: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once, every task of an epoch commits by itself, and all of them were hinted the same position."""
    monkeypatch.setattr(iceberg_mark, "PRUNE_EVERY", 1)
    monkeypatch.setattr(iceberg_mark, "KEPT_COMMITS", 1)
    sink, scope = iceberg.harness.make_sink(), iceberg.scope()
    iceberg.commit(sink, iceberg.prepare(sink, [iceberg.harness.rows(1)]))
    hints = sink.open_committer(scope).hints()
    tasks = [sink.open_direct_writer(WriterScope(scope, 1, 0, n, 0, hints)) for n in range(4)]
    for number, task in enumerate(tasks[:3]):
        task.write(iceberg.harness.rows(1, 1 + number))
        assert task.pre_commit() == {}
    tasks[3].write(iceberg.harness.rows(1, 4))
    target = sink.open_committer(scope)._target  # type: ignore[attr-defined]
    for token in ("a", "b"):
        assert target.look()
        assert target.append(Change("", swept=[token * 20]))
    with pytest.raises(PreCommitFailed, match="cut off"):
        tasks[3].pre_commit()


def test_an_iceberg_table_of_a_format_that_cannot_be_written_is_refused(iceberg: Story) -> None:
    sink = iceberg.harness.make_sink()
    iceberg.prepare(sink, [iceberg.harness.rows(1)])
    catalog = iceberg.harness.catalog()  # type: ignore[attr-defined]
    old = Path(catalog.load_table("shop.orders").metadata_location.removeprefix("file://"))
    new = old.with_name(f"00009-{uuid.uuid4()}.metadata.json")
    new.write_text(json.dumps({**json.loads(old.read_text()), "format-version": 3, "next-row-id": 0}))
    with catalog.engine.begin() as database:
        database.exec_driver_sql("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{new}",))
    with pytest.raises(ConfigurationError, match="format 3, which this pyiceberg cannot write"):
        check(sink)


def test_an_iceberg_table_partitioned_by_a_transform_is_refused(iceberg: Story) -> None:
    from pyiceberg.transforms import BucketTransform

    sink = iceberg.harness.make_sink()
    iceberg.commit(sink, iceberg.prepare(sink, [iceberg.harness.rows(1)]))
    with iceberg.harness.table().update_spec() as spec:
        spec.add_field("id", BucketTransform(4))
    with pytest.raises(ConfigurationError, match="bucket"):
        check(sink)


def test_iceberg_metadata_is_on_the_disk_when_it_is_committed(iceberg: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        original(fd)

    sink = iceberg.harness.make_sink()
    prepared = iceberg.prepare(sink, [iceberg.harness.rows(1)])
    monkeypatch.setattr(os, "fsync", fsync)
    iceberg.commit(sink, prepared)
    table = iceberg.harness.table()
    snapshot = table.current_snapshot()
    wanted = {table.metadata_location, snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io))}
    assert {path.removeprefix("file://") for path in wanted} <= set(synced)


def test_log_and_data_of_a_delta_table_are_in_one_store_under_whatever_names_it_is_given(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment names another store, and the options have names that only the library knows."""
    from deltalake import DeltaTable

    options = {"endpoint": address, "access_key_id": "a", "SECRET_ACCESS_KEY": "b", "region": "x", "allow_http": "true"}
    with object_store() as elsewhere:
        for name, value in {"ENDPOINT_URL": elsewhere, "ACCESS_KEY_ID": "c", "SECRET_ACCESS_KEY": "d"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        story, path = Story(), f"s3://lake/{uuid.uuid4().hex}"
        story.harness = DeltaHarness(Path())
        sink = DeltaSink(path, storage_options=options)
        assert story.commit(sink, story.prepare(sink, [story.harness.rows(3)])) == {Outcome.COMMITTED}
        assert DeltaTable(path, storage_options=options).to_pyarrow_table().num_rows == 3


def test_an_iceberg_table_in_an_object_store(address: str, tmp_path: Path) -> None:
    s3, told = OnS3(address), Story()
    told.harness = IcebergHarness(tmp_path)
    told.harness.properties |= {**s3.properties, "warehouse": s3.root}
    sink, rows = told.harness.make_sink(), [told.harness.rows(5), told.harness.rows(5, 5)]
    prepared = told.prepare(sink, rows[:1])
    assert told.commit(sink, prepared) == {Outcome.COMMITTED}
    assert told.commit(sink, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}
    left = told.prepare(sink, rows[1:], epoch=1)
    assert told.sweep(sink, generation=2) == 1
    assert told.commit(sink, left, epoch=1) == LOST
    told.assert_visible(rows[0])
    assert told.sweep(sink, generation=2) == 0


def test_no_error_shows_what_a_catalog_was_given(tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    uri = f"postgresql+psycopg://penstock:{secret}@127.0.0.1:1/none"
    sink = IcebergSink("a.b", properties={"type": "sql", "uri": uri, "s3.secret-access-key": secret})
    with pytest.raises(SystemUnavailable) as caught:
        check(sink)
    for text in (str(caught.value), repr(sink), sink.describe(), sink.link("u").because):
        assert secret not in text
    assert caught.value.__suppress_context__


def test_an_entry_that_a_run_wrote_and_did_not_live_to_sync_is_synced_by_the_next(
    delta: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(path: Any) -> None:
        raise Died

    [one] = delta.prepare(delta.harness.make_sink(), [delta.harness.rows(5)])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr("penstock.sinks.tables.delta.sync", die)
        delta.committer().commit(0, [one], Deadline(10))
    synced, real = [], os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert delta.committer(2).commit(0, [one], Deadline(10)) == {0: Outcome.ALREADY_COMMITTED}
    assert {f"{1:020d}.json", "_delta_log"} <= set(synced)


# ── what the ledger holds ────────────────────────────────────────────────────────────────────────────────────────────


def days(by_day: Story) -> pa.RecordBatch:
    first, second = dt.date(2026, 3, 29), dt.date(2026, 3, 30)
    return pa.RecordBatch.from_pydict(
        {"day": [first, second, None], "shop": ["Secret Street 7", None, "é"], "name": ["Alice", "Bob", "Carol"]}
    )


def test_no_value_of_any_row_is_in_what_the_ledger_keeps(by_day: Story) -> None:
    sink = by_day.harness.make_sink()
    prepared = by_day.prepare(sink, [days(by_day)])
    kept = json.dumps([dict(one.payload) for one in prepared])
    for value in ("Secret", "Alice", "Carol", "2026-03", "\\u00e9", "min", "bounds"):
        assert value not in kept
    assert by_day.commit(sink, prepared) == {Outcome.COMMITTED}
    by_day.assert_visible(days(by_day))


def test_dates_and_times_that_python_cannot_tell_have_no_bounds(story: Story) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "id": [1, 2],
            "day": pa.array([-800_000, 4_000_000], pa.int32()).cast(pa.date32()),
            "at": pa.array([-(2**61), 2**61], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    sink = story.harness.make_sink()
    assert story.commit(sink, story.prepare(sink, [rows])) == {Outcome.COMMITTED}
    assert story.harness.read_where("id", 2) == {2}


def test_a_partition_that_python_cannot_tell_is_named(tmp_path: Path) -> None:
    told = Story()
    told.harness = DeltaHarness(tmp_path, partition_by="day")
    day = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(DataError, match="outside the years 1 to 9999"):
        told.prepare(told.harness.make_sink(), [pa.RecordBatch.from_pydict({"id": [1], "day": day})])
