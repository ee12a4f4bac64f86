"""The write-ahead sink keeps the contract where its target can tell what it has; where it cannot, it says so."""

from __future__ import annotations

import decimal
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.guarantees import Guarantee
from penstock.contracts.sink import CheckContext, TwoPhaseSink
from penstock.errors import ConfigurationError, DataError, PreCommitFailed, SystemUnavailable
from penstock.sinks.write_ahead import WriteAheadSink
from penstock.sinks.write_ahead.commit import KEPT_EPOCHS
from penstock.testing.sink_contract import LOST, VISIBLE, SinkContract
from tests.support.named_rows import TEXT, NamedRows


@dataclass(frozen=True)
class Target:
    """A SQLite database as somebody else's system: rows, and the last id of each writer under a unique key."""

    path: str

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER, name TEXT)")
        db.execute("CREATE TABLE IF NOT EXISTS taken (id TEXT PRIMARY KEY)")
        return db

    def append(self, rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        """As the simplest target would: whatever comes is added."""
        with closing(self.connect()) as db, db:
            for batch in rows:
                db.executemany("INSERT INTO events VALUES (?, ?)", [tuple(row.values()) for row in batch.to_pylist()])

    def append_with_id(self, rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        """The id in the same transaction: a second one with the same id fails as a whole."""
        with closing(self.connect()) as db, db:
            db.execute("INSERT INTO taken VALUES (?)", (epoch_id,))
            for batch in rows:
                db.executemany("INSERT INTO events VALUES (?, ?)", [tuple(row.values()) for row in batch.to_pylist()])

    def append_once(self, rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        """A target that ignores what it has."""
        if epoch_id not in self.ids():
            self.append_with_id(rows, epoch_id)

    def ids(self) -> list[str]:
        with closing(self.connect()) as db:
            return [found for (found,) in db.execute("SELECT id FROM taken")]


class Harness(NamedRows):
    text = [*TEXT[:-1], "nul \x00"]

    def __init__(self, folder: Path, how: str = "marker") -> None:
        self.folder, self.how = folder, how
        self.target = Target(str(folder / "target.db"))

    def make_sink(self) -> TwoPhaseSink:
        log = str(self.folder / "log")
        if self.how == "marker":
            return WriteAheadSink(self.target.append_with_id, log=log, marker=self.target.ids)
        if self.how == "idempotent":
            return WriteAheadSink(self.target.append_once, log=log, idempotent=True)
        return WriteAheadSink(self.target.append, log=log)

    def read_visible(self) -> list[Any]:
        with closing(self.target.connect()) as db:
            return db.execute("SELECT id, name FROM events").fetchall()

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        self.log_of(committable).unlink()
        return True

    def log_of(self, committable: Committable) -> Path:
        [found] = (self.folder / "log").glob(f"*/*/rows/{committable.payload['rows']}")
        return found


class TestWriteAheadWithMarker(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = Harness(tmp_path)


class TestWriteAheadIdempotent(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, tmp_path: Path) -> None:
        self.harness = Harness(tmp_path, "idempotent")


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False


def tell(folder: Path, how: str = "marker") -> SinkContract:
    told = Story()
    told.harness = Harness(folder, how)
    return told


def target_of(story: SinkContract) -> Target:
    assert isinstance(story.harness, Harness)
    return story.harness.target


def deaf(story: SinkContract, times: int = 1) -> WriteAheadSink:
    """The sink, with a target that takes the rows and whose answer is lost."""
    sink = story.harness.make_sink()
    assert isinstance(sink, WriteAheadSink)
    left = times

    def write(rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        nonlocal left
        sink.write(rows, epoch_id)
        left -= 1
        if left >= 0:
            raise ConnectionResetError("the answer was lost")

    return WriteAheadSink(write, log=sink.log, marker=sink.marker, idempotent=sink.idempotent)


# ── the lost acknowledgement ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["marker", "idempotent"])
def test_a_lost_answer_shows_nothing_twice(tmp_path: Path, how: str) -> None:
    story = tell(tmp_path, how)
    batches = [story.harness.rows(3), story.harness.rows(3, 3)]
    prepared = story.prepare(story.harness.make_sink(), batches)
    assert story.commit(deaf(story, times=2), prepared) == {Outcome.COMMITTED}
    story.assert_visible(*batches)


def test_without_a_marker_a_lost_answer_doubles_and_the_sink_says_so(tmp_path: Path) -> None:
    """The classic flaw of a write-ahead sink, which only the target can close."""
    story = tell(tmp_path, "plain")
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    link = sink.link("out")
    assert link.guarantee is Guarantee.AT_LEAST_ONCE
    assert "written again" in link.because
    assert "marker" in link.lift
    assert story.commit(deaf(story), story.prepare(sink, [rows])) == {Outcome.COMMITTED}
    story.assert_visible(rows, rows)


@pytest.mark.parametrize(("how", "times"), [("marker", 1), ("idempotent", 1), ("plain", 2)])
def test_a_driver_killed_between_write_and_note(tmp_path: Path, how: str, times: int) -> None:
    story = tell(tmp_path, how)
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    assert isinstance(sink, WriteAheadSink)
    prepared = story.prepare(sink, [rows])

    def dies(batches: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        sink.write(batches, epoch_id)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        story.commit(WriteAheadSink(dies, log=sink.log, marker=sink.marker, idempotent=sink.idempotent), prepared)
    story.assert_visible(rows)
    story.sweep(sink, generation=2, keep=prepared)
    assert story.commit(sink, prepared, generation=2) <= VISIBLE
    assert story.commit(sink, prepared, generation=3) == {Outcome.ALREADY_COMMITTED}
    story.assert_visible(*[rows] * times)


def test_two_drivers_that_hand_over_at_once(tmp_path: Path) -> None:
    """Both saw that the target has nothing yet; its unique key lets one of them through."""
    story = tell(tmp_path)
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    assert isinstance(sink, WriteAheadSink)
    prepared, both = story.prepare(sink, [rows]), threading.Barrier(2)

    def together(batches: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        both.wait(30)
        sink.write(batches, epoch_id)

    outcomes: list[set[Outcome]] = []
    slow = WriteAheadSink(together, log=sink.log, marker=sink.marker)
    other = threading.Thread(target=lambda: outcomes.append(story.commit(slow, prepared)))
    other.start()
    outcomes.append(story.commit(slow, prepared, generation=2))
    other.join()
    assert outcomes == [{Outcome.COMMITTED}] * 2
    story.assert_visible(rows)


def test_marker_may_be_a_mapping_by_writer_and_is_asked_only_in_doubt(tmp_path: Path) -> None:
    story = tell(tmp_path)
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    assert isinstance(sink, WriteAheadSink)
    asked = 0

    def by_writer() -> dict[str, str]:
        nonlocal asked
        asked += 1
        return {one.rsplit(":", 2)[0]: one for one in target_of(story).ids()}

    mapped = WriteAheadSink(deaf(story).write, log=sink.log, marker=by_writer)
    for epoch in range(3):
        prepared = story.prepare(mapped, [rows], epoch=epoch)
        assert prepared[0].payload["id"].startswith(f"{story.job}:contract:0:{epoch}:")
        story.commit(mapped, prepared, epoch=epoch)
    assert asked == 1  # for the one answer that was lost
    story.assert_visible(rows, rows, rows)


# ── proof ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_that_is_gone_after_it_may_have_been_handed_over_is_unknown(tmp_path: Path) -> None:
    story = tell(tmp_path, "plain")
    sink = story.harness.make_sink()
    assert isinstance(story.harness, Harness)
    assert isinstance(sink, WriteAheadSink)
    begun, never = story.prepare(sink, [story.harness.rows(3), story.harness.rows(3, 3)])

    def away(rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        raise ConnectionRefusedError("away")

    assert story.commit(WriteAheadSink(away, log=sink.log), [begun], seconds=0.01) == {Outcome.UNKNOWN}
    story.abort(sink, [begun])  # never asked for what is decided; if it is, the log stays
    assert story.harness.log_of(begun).exists()
    story.harness.log_of(begun).unlink()
    story.harness.log_of(never).unlink()
    assert story.commit(sink, [begun]) == {Outcome.UNKNOWN}
    assert story.commit(sink, [never]) == LOST


def test_a_target_that_is_away_gets_everything_when_it_is_back(tmp_path: Path) -> None:
    story = tell(tmp_path)
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    assert isinstance(sink, WriteAheadSink)
    prepared = story.prepare(sink, [rows])
    calls: list[str] = []

    def away(_: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        calls.append(epoch_id)
        raise ConnectionRefusedError("away")

    def no_marker() -> list[str]:
        raise ConnectionRefusedError("away")

    gone = WriteAheadSink(away, log=sink.log, marker=no_marker)
    assert story.commit(gone, prepared, seconds=0.1) == {Outcome.UNKNOWN}
    assert len(calls) > 1
    assert set(calls) == {prepared[0].payload["id"]}
    with pytest.raises(SystemUnavailable, match="away"):  # it may have been written, and nobody can say
        story.commit(gone, prepared)
    with pytest.raises(SystemUnavailable):
        gone.check(CheckContext("job", 1.0, 30.0), "out")
    story.assert_visible()
    assert story.commit(sink, prepared, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_rows_that_the_target_refuses_for_good_stop_the_job_by_name(tmp_path: Path) -> None:
    story = tell(tmp_path)
    sink, rows = story.harness.make_sink(), story.harness.rows(3)
    assert isinstance(sink, WriteAheadSink)
    prepared = story.prepare(sink, [rows])

    def refuses(_: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        raise DataError("the target takes no row 2.", safe="nothing was written.", to_do="see the target.")

    with pytest.raises(DataError, match="row 2"):
        story.commit(WriteAheadSink(refuses, log=sink.log, marker=sink.marker), prepared)
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_an_altered_log_is_never_handed_over(tmp_path: Path) -> None:
    story = tell(tmp_path)
    sink = story.harness.make_sink()
    assert isinstance(story.harness, Harness)
    [prepared] = story.prepare(sink, [story.harness.rows(50)])
    file = story.harness.log_of(prepared)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert story.commit(sink, [prepared]) == {Outcome.UNKNOWN}
    story.assert_visible()
    file.write_bytes(content[:-1])
    with pytest.raises(PreCommitFailed, match="not as it was written"):
        story.seal(sink, story.scope(), [prepared])


def test_a_writer_whose_log_was_swept_cannot_prepare(tmp_path: Path) -> None:
    story = tell(tmp_path)
    sink = story.harness.make_sink()
    writer = story.open_writer(sink, story.scope(1), epoch=0)
    writer.write(story.harness.rows(5))
    assert story.sweep(sink, generation=2) == 1
    with pytest.raises(PreCommitFailed, match="removed while it was written"):
        writer.pre_commit()


@pytest.mark.parametrize("how", ["marker", "plain"])
def test_nothing_piles_up(tmp_path: Path, how: str) -> None:
    story = tell(tmp_path, how)
    sink = story.harness.make_sink()
    for epoch in range(KEPT_EPOCHS + 5):
        batches = [story.harness.rows(1, 2 * epoch), story.harness.rows(1, 2 * epoch + 1)]
        story.commit(sink, story.prepare(sink, batches, epoch=epoch), epoch=epoch)
    assert not list(tmp_path.glob("log/*/*/rows/*"))
    notes = len(list(tmp_path.glob("log/*/*/notes/*")))
    assert notes == (KEPT_EPOCHS + 1) * (2 if how == "marker" else 3)
    assert len(story.harness.read_visible()) == 2 * (KEPT_EPOCHS + 5)


# ── what arrives ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_arrive_with_the_very_types_they_had(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "money": pa.array([decimal.Decimal("-12345678901234567890.123456789"), None], pa.decimal128(38, 9)),
            "moment": pa.array([datetime(2024, 12, 31, tzinfo=UTC), None], pa.timestamp("us", "Asia/Tokyo")),
            "local": pa.array([datetime(2024, 2, 29), None], pa.timestamp("us")),
            "day": pa.array([date(1, 1, 1), None]),
            "bytes": pa.array([b"\x00\xff", b""], pa.binary()),
            "double": pa.array([float("inf"), -0.0]),
            "nested": pa.array([{"a": [1, None], "b": {"c": "日本語"}}, None]),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
            "nothing": pa.array([None, None], pa.null()),
            "Ünïcode.name `x`": pa.array(["🚀", ""]),
            **{f"c{n}": pa.array([n, None], pa.int64()) for n in range(1_000)},
        }
    )  # fmt: skip
    arrived: list[pa.RecordBatch] = []
    sink = WriteAheadSink(lambda rows, _: arrived.extend(rows), log=str(tmp_path), idempotent=True)
    story = tell(tmp_path)
    assert story.commit(sink, story.prepare(sink, [batch])) == {Outcome.COMMITTED}
    [got] = arrived
    assert got.schema.remove_metadata() == batch.schema
    assert got.replace_schema_metadata(None).equals(batch)


def test_the_log_may_be_anywhere_arrow_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The road HDFS and object stores take, over pyarrow's own local file system."""
    from pyarrow.fs import LocalFileSystem

    from penstock.checkpoint import inflight as log
    from penstock.sinks.write_ahead import commit as row_log
    from penstock.storage.hadoop import ArrowTree

    def arrow(location: str) -> ArrowTree:
        return ArrowTree(LocalFileSystem(), str(tmp_path / location.rpartition("/")[2]))

    monkeypatch.setattr(log, "task_tree", arrow)
    monkeypatch.setattr(row_log, "task_tree", arrow)
    story = tell(tmp_path)
    target = target_of(story)
    sink = WriteAheadSink(target.append_with_id, log="s3://bucket/waiting", marker=target.ids)
    rows = story.harness.rows(5)
    prepared = story.prepare(sink, [rows])
    dangling = story.prepare(sink, [rows], attempt=1)
    assert story.sweep(sink, generation=1, keep=prepared) == 1
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}
    assert story.commit(sink, prepared) == {Outcome.ALREADY_COMMITTED}
    assert story.commit(sink, dangling) == LOST
    story.assert_visible(rows)


def test_at_least_once_writes_from_the_task(tmp_path: Path) -> None:
    story = tell(tmp_path, "plain")
    from penstock.contracts.sink import WriterScope

    writer = story.harness.make_sink().open_direct_writer(WriterScope(story.scope(), 0, 0, 0, 0))
    writer.write(story.harness.rows(3))
    writer.pre_commit()
    story.assert_visible(story.harness.rows(3))


def test_a_function_that_cannot_travel_is_no_matter_until_a_task_calls_it(tmp_path: Path) -> None:
    """Tasks only log, so what holds a connection may stay in the driver."""
    connection, arrived = threading.Lock(), list[Any]()

    def write(rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        with connection:
            arrived.extend(rows)

    sink, story = WriteAheadSink(write, log=str(tmp_path), idempotent=True), tell(tmp_path)
    travelled = pickle.loads(pickle.dumps(sink))
    assert travelled.describe() == sink.describe()
    prepared = story.prepare(travelled, [story.harness.rows(3)])
    with pytest.raises(ConfigurationError, match="cannot be sent to a task"):
        story.commit(travelled, prepared)
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}
    assert len(arrived) == 1


@pytest.mark.parametrize("mistake", ["memory", "write", "marker"])
def test_mistakes_are_named(tmp_path: Path, mistake: str) -> None:
    with pytest.raises(ConfigurationError):
        WriteAheadSink(
            "no function" if mistake == "write" else print,  # type: ignore[arg-type]
            log="memory://log" if mistake == "memory" else str(tmp_path),
            marker="no function" if mistake == "marker" else None,  # type: ignore[arg-type]
        )


def test_the_folder_is_checked_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        WriteAheadSink(print, log=str(tmp_path / "file")).check(CheckContext("job", 1.0, 30.0), "out")
    sink = WriteAheadSink(print, log="relative")
    assert sink.log == str(Path("relative").absolute())


def test_the_first_fragment_of_the_page_runs_as_it_stands_there(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "write-ahead.md").read_text(encoding="utf-8")
    fragment = page.partition("```python\n")[2].partition("```")[0]
    story, kept = tell(tmp_path), list[WriteAheadSink]()

    def sink(write: Any, *, log: str, marker: Any) -> WriteAheadSink:
        return WriteAheadSink(write, log=str(tmp_path / "log"), marker=marker)

    class Program:
        def write(self, _: object, sink: WriteAheadSink, *, uid: str) -> None:
            kept.append(sink)

    assert isinstance(story.harness, Harness)
    names = {"connect": story.harness.target.connect, "job": Program(), "events": None, "WriteAheadSink": sink}
    exec(compile(fragment, "write-ahead.md", "exec"), names)
    rows, [shown] = story.harness.rows(3), kept
    prepared = story.prepare(shown, [rows])
    assert story.commit(shown, prepared) == {Outcome.COMMITTED}
    assert story.commit(shown, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}
    story.assert_visible(rows)
