"""Files, sockets and any stream of Spark's, read by real jobs: every row once, over restarts and restores."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from penstock import Checkpoints, DataGenSource, FileSink, FileSource, Job, RestartStrategy, SocketSource
from penstock.engine.restarts import error_chain
from penstock.errors import (
    ConfigurationError,
    EpochError,
    FilesMissing,
    GuaranteeError,
    NotRestorable,
    PenstockError,
    PositionsLost,
    UidChanged,
)
from tests.support.line_server import LineServer
from tests.support.run_job import CrashAt, Event, Watched, failing, run_all

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id bigint"


def job_at(folder: Path, session: SparkSession, name: str = "job", **more: Any) -> Job:
    settings = {"storage": str(folder / "checkpoints"), **more.pop("checkpoints", {})}
    return Job(name, checkpoints=Checkpoints(**settings), restart=RestartStrategy.none(), spark=session, **more)


def rows(folder: Path, column: str = "id") -> Counter[Any]:
    out = folder / "out"
    if not out.exists() or not list(out.glob("*.parquet")):
        return Counter()
    return Counter(ds.dataset(out, format="parquet").to_table().column(column).to_pylist())


def put(folder: Path, name: str, *numbers: int, age: float = 0.0) -> None:
    """A file as it should come: written under a hidden name, then renamed."""
    folder.mkdir(exist_ok=True)
    aside = folder / f".{name}"
    aside.write_text("".join(json.dumps({"id": number}) + "\n" for number in numbers))
    if age:
        then = aside.stat().st_mtime - age
        os.utime(aside, (then, then))
    aside.rename(folder / name)


def epochs(events: list[Event]) -> int:
    return len([one for one in events if one["event"] == "committed"])


# Files


def test_new_files_are_read_once_over_a_restart_however_old_they_are(
    session: SparkSession, tmp_path: Path, running: type[Watched]
) -> None:
    """A file that is moved into the folder keeps its time; Spark's own default forgets what is a week older."""

    def build() -> Job:
        job = job_at(tmp_path, session)
        job.write(
            job.read(FileSource(str(tmp_path / "in"), schema=SCHEMA), uid="in"),
            FileSink(str(tmp_path / "out")),
            uid="out",
        )
        return job

    put(tmp_path / "in", "a.json", 1, 2)
    with running(build()) as run:
        run.wait(lambda: rows(tmp_path).total() == 2, "the first file")
        put(tmp_path / "in", "b ä,%20.json", 3, age=30 * 86400)
        run.wait(lambda: rows(tmp_path).total() == 3, "an old file")
        put(tmp_path / "in", "far.json", 4, age=-400 * 365 * 86400)
        run.wait(lambda: rows(tmp_path).total() == 4, "a file whose time is centuries ahead")
    put(tmp_path / "in", "c.json", 5)
    newest = max((tmp_path / "checkpoints").glob("*/out/spark/sources/0/[0-9]*"), key=lambda note: int(note.name))
    newest.write_text("v1")  # as another driver, which had not seen the file yet, would have noted the same cut
    with running(build()) as run:
        run.wait(lambda: rows(tmp_path).total() == 5, "the file that came meanwhile")
        assert run.all("log_restored")
        put(tmp_path / "in", "d.json", 6, age=100 * 365 * 86400)
        run.wait(lambda: rows(tmp_path).total() == 6, "a file from before 1970")
    assert rows(tmp_path) == Counter([1, 2, 3, 4, 5, 6])


def test_a_bounded_folder_ends_with_a_committed_epoch(session: SparkSession, tmp_path: Path) -> None:
    def build() -> Job:
        job = job_at(tmp_path, session)
        source = FileSource(str(tmp_path / "in"), bounded=True, max_files_per_epoch=2)
        job.write(job.read(source, uid="in"), FileSink(str(tmp_path / "out")), uid="out")
        return job

    for number in range(5):
        put(tmp_path / "in", f"{number}.json", number, 10 + number)
    assert epochs(run_all(build())) == 3
    expected = Counter([*range(5), *range(10, 15)])
    assert rows(tmp_path) == expected
    assert epochs(run_all(build())) == 0
    put(tmp_path / "in", "more.json", 99)
    assert epochs(run_all(build())) == 1
    assert rows(tmp_path) == expected + Counter([99])


# Sockets


@pytest.fixture
def server() -> Iterator[LineServer]:
    with LineServer() as started:
        yield started


def lines_job(folder: Path, session: SparkSession, source: SocketSource, mode: str = "exactly_once") -> Job:
    job = job_at(folder, session, checkpoints={"mode": mode})
    job.write(job.read(source, uid="lines"), FileSink(str(folder / "out")), uid="out")
    return job


def test_lines_of_a_socket_with_a_journal(
    session: SparkSession, tmp_path: Path, running: type[Watched], server: LineServer
) -> None:
    def build() -> Job:
        return lines_job(tmp_path, session, SocketSource("127.0.0.1", server.port, journal=tmp_path / "journal"))

    def seen(count: int) -> bool:
        return rows(tmp_path, "value").total() >= count

    with running(build()) as run:
        server.send(b"one\ntwo\r\n")
        run.wait(lambda: seen(2), "two lines")
        server.send("drei: grüße\n".encode())
        run.wait(lambda: seen(3), "the third line")
    with running(build()) as run:
        server.send(b"four\n")
        run.wait(lambda: seen(4), "the line after the restart")
    assert rows(tmp_path, "value") == Counter(["one", "two", "drei: grüße", "four"])

    # The checkpoint is nothing without its journal, and says so instead of skipping lines that were never read.
    job = lines_job(tmp_path, session, SocketSource("127.0.0.1", server.port, journal=tmp_path / "another"))
    error = failing(job, PenstockError)
    assert any(isinstance(one, PositionsLost) for one in error_chain(error)), error


def test_lines_of_a_socket_without_a_journal(
    session: SparkSession, tmp_path: Path, running: type[Watched], server: LineServer
) -> None:
    source = SocketSource("127.0.0.1", server.port)
    with pytest.raises(GuaranteeError, match="cannot send a line again"):
        lines_job(tmp_path, session, source).run()
    for number, word in enumerate(("first", "second")):
        with running(lines_job(tmp_path, session, SocketSource("127.0.0.1", server.port), "at_most_once")) as run:
            server.send(f"{word}\n".encode())
            run.wait(lambda: rows(tmp_path, "value").total() == number + 1, "the line")  # noqa: B023
    assert rows(tmp_path, "value") == Counter(["first", "second"])


# Any stream of Spark's


def numbers(session: SparkSession, **options: Any) -> Any:
    """A reader of Spark's that replays: rows numbered from 0."""
    given = {"rowsPerBatch": 50, "numPartitions": 2, "startTimestamp": 0, **options}
    return session.readStream.format("rate-micro-batch").options(**given)


def test_any_stream_with_its_word_on_replaying(session: SparkSession, tmp_path: Path, running: type[Watched]) -> None:
    def build(replayable: bool, **checkpoints: Any) -> Job:
        job = job_at(tmp_path, session, checkpoints=checkpoints)
        frame = job.read(numbers(session).load(), uid="numbers", replayable=replayable).selectExpr("value AS id")
        job.write(frame, FileSink(str(tmp_path / "out")), uid="out")
        return job

    for commits in (2, 2):
        with running(build(True)) as run:
            run.committed(commits)
    seen = rows(tmp_path)
    assert seen == Counter(range(seen.total()))
    assert seen.total() >= 200
    job = build(False)
    assert "at-most-once (the program says it cannot give rows again, Spark's rate-micro-batch)" in job.explain()
    with pytest.raises(GuaranteeError, match="cannot give rows again"):
        job.run()
    build(False, mode="at_most_once").require(next(iter(build(False, mode="at_most_once").chains().values())))


def test_a_stream_whose_word_is_missing_or_wrong_is_refused(session: SparkSession, tmp_path: Path) -> None:
    job = job_at(tmp_path, session)
    with pytest.raises(ConfigurationError, match="replayable= was not given"):
        job.read(numbers(session), uid="numbers")
    known = job.read(numbers(session), uid="numbers", replayable=True)  # a reader that is not loaded yet
    with pytest.raises(ConfigurationError, match=r"made of what was read as \['numbers'\] already"):
        job.read(known.where("value > 3"), uid="again", replayable=True)
    with pytest.raises(ConfigurationError, match="does not stream"):
        job.read(session.range(3), uid="batch", replayable=True)
    with pytest.raises(ConfigurationError, match="says itself whether"):
        job.read(DataGenSource(3), uid="generated", replayable=True)
    with pytest.raises(ConfigurationError, match="cannot read str"):
        job.read("orders", uid="text", replayable=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="another Spark session"):
        job.read(numbers(session.newSession()).load(), uid="elsewhere", replayable=True)


def test_files_that_cannot_be_read_as_asked_are_refused(session: SparkSession, tmp_path: Path) -> None:
    job = job_at(tmp_path, session)
    folder = tmp_path / "in"
    with pytest.raises(ConfigurationError, match="PATH_NOT_FOUND") as refused:
        job.read(FileSource(str(folder), schema=SCHEMA), uid="a")
    assert "make the folder" in str(refused.value)
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="has no schema"):
        job.read(FileSource(str(folder)), uid="b")
    with pytest.raises(ConfigurationError, match="put a first file there"):
        job.read(FileSource(str(folder), format="parquet"), uid="c")
    assert job.read(FileSource(str(folder), format="text"), uid="d").columns == ["value"]
    put(folder, "a.json", 1)
    assert job.read(FileSource(str(folder), bounded=True), uid="e").columns == ["id"]


def test_spark_s_own_names_for_sources_are_refused(session: SparkSession, tmp_path: Path) -> None:
    key = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    session.conf.set(key, "true")
    try:
        with pytest.raises(ConfigurationError, match="known by its uid"):
            job_at(tmp_path, session).read(DataGenSource(3), uid="generated")
    finally:
        session.conf.unset(key)


# Sources that come and go


def test_sources_are_reordered_added_and_removed_over_a_restore(
    session: SparkSession, tmp_path: Path, running: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on where it stood, by its uid; files keep their log of what was read."""

    def build(*uids: str, **more: Any) -> Job:
        job = job_at(tmp_path, session, **more)
        read = []
        for uid in uids:
            if uid == "files":
                stream = job.read(FileSource(str(tmp_path / "in"), schema=SCHEMA), uid=uid)
            else:
                stream = job.read(numbers(session, rowsPerBatch=20), uid=uid, replayable=True)
            column = "id" if uid == "files" else "value"
            read.append(stream.selectExpr(f"{column} AS id", f"'{uid}' AS source"))
        job.write(reduce(DataFrame.union, read), FileSink(str(tmp_path / "out")), uid="out")
        return job

    def seen() -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = {}
        for row in ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist():
            found.setdefault(row["source"], Counter())[row["id"]] += 1
        return found

    put(tmp_path / "in", "1.json", 0, 1)
    with running(build("files", "gone", "stays")) as run:
        run.committed(3)
        savepoint = run.job.stop_with_savepoint(str(tmp_path / "savepoints"))
    before = seen()
    put(tmp_path / "in", "2.json", 2, 3)

    with pytest.raises(UidChanged, match="take a savepoint"):
        build("stays", "new", "files").run()
    monkeypatch.setenv("PENSTOCK_OPTIONS", json.dumps({"execution.state-recovery.path": savepoint}))
    with pytest.raises(NotRestorable, match="source gone is in the savepoint and not in the program"):
        build("stays", "new", "files").run()
    with running(build("stays", "new", "files", allow_non_restored_state=True)) as run:
        run.committed(2)
        run.wait(lambda: 3 in seen()["files"], "the second file")
    monkeypatch.delenv("PENSTOCK_OPTIONS")
    with running(build("stays", "new", "files")) as run:  # a plain restart of the changed program
        run.committed(2)
    after = seen()
    for uid, numbers_ in after.items():
        assert numbers_ == Counter(range(numbers_.total())), f"{uid}: lost or doubled"
    assert after["gone"] == before["gone"]
    assert after["files"].total() == 4
    assert after["stays"].total() >= before["stays"].total() + 80
    assert after["new"].total() >= 80


def test_a_file_that_vanishes_before_it_is_read_is_not_skipped(
    session: SparkSession, tmp_path: Path, running: type[Watched], crash_at: CrashAt
) -> None:
    """Noted in the checkpoint, gone when the epoch replays: it fails, and succeeds when the file is back. Another
    source stands before it twice, with two positions and one set of notes."""

    def build() -> Job:
        job = job_at(tmp_path, session)
        twice, once = (
            job.read(FileSource(str(tmp_path / name), schema=SCHEMA, bounded=True), uid=name)
            for name in ("twice", "in")
        )
        job.write(twice.union(twice).union(once), FileSink(str(tmp_path / "out")), uid="out")
        return job

    put(tmp_path / "twice", "kept.json", 1)
    put(tmp_path / "in", "gone.json", 2)
    crash_at("epoch.opened")
    failing(build(), EpochError)
    crash_at.no_more()
    (tmp_path / "in" / "gone.json").rename(tmp_path / "away")
    error = failing(build(), PenstockError)
    assert "gone.json" in str(error)
    assert any(isinstance(one, FilesMissing) for one in error_chain(error))
    assert rows(tmp_path) == Counter()
    (tmp_path / "away").rename(tmp_path / "in" / "gone.json")
    run_all(build())
    assert rows(tmp_path) == Counter([1, 1, 2])
