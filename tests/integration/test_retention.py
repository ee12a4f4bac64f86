"""Cancelling a job in the middle of an epoch, and what becomes of its checkpoints then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Checkpoints, FileSink, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.engine.retention import RETAINED_BATCHES
from penstock.failpoints import ONCE, RELEASE, VARIABLE, InjectedFault, hooked
from tests.support.kafka import Input, assert_copied, assert_nothing_open
from tests.support.run_job import Checkpoint, CrashAt, Kafka, Numbers, Watched, run_all, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Copy:
    """A job that copies one topic into another, as often as it is started."""

    def __init__(self, kafka: Kafka, session: SparkSession, storage: str) -> None:
        self.kafka, self._session, self._storage = kafka, session, storage
        self.source, self.target = Input(kafka.servers, kafka.topic(2)), kafka.topic(2)
        self.folder = Path(storage) / "copier"

    def job(self, retention: str = "retain_on_cancellation") -> Job:
        checkpoints = Checkpoints(storage=self._storage, retention=retention)
        restart = RestartStrategy.none()
        job = Job("copier", checkpoints=checkpoints, restart=restart, spark=self._session)
        rows = job.read(KafkaSource(self.source.topic, servers=self.kafka.servers), uid="in")
        sink = KafkaSink(self.target, servers=self.kafka.servers)
        job.write(rows.selectExpr("key", "CAST(value AS STRING) AS value"), sink, uid="copy")
        return job

    def visible(self) -> int:
        return len(self.kafka.read(self.target))

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def go_on(self, running: type[Watched]) -> None:
        """Start it again, with more to do, and judge."""
        self.source.feed(50)
        with running(self.job()):
            until(lambda: self.visible() >= len(self.source.rows), "the rest of the rows")
        assert_nothing_open(self.kafka.servers, "copier")
        assert_copied(self.source, self.kafka.servers, self.target)


@pytest.fixture
def copy(kafka: Kafka, session: SparkSession, storage: str) -> Copy:
    return Copy(kafka, session, storage)


@pytest.fixture
def held(session: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """While this lasts, the first task that has written its rows hangs; the file is there from then on."""
    (tmp_path / "once").mkdir()
    points: Mapping[str, str] = {
        VARIABLE: "task.written=hang",
        ONCE: str(tmp_path / "once"),
        RELEASE: str(tmp_path / "release"),
    }
    environment = session.sparkContext.environment
    environment.update(points)
    yield tmp_path / "once" / "task.written"
    (tmp_path / "release").touch()
    for name in points:
        environment.pop(name, None)


def cancel(run: Watched) -> None:
    """Cancel, and wait for the end; raises what the job failed of."""
    run.job.cancel()
    run.end()
    if run.error is not None:
        raise run.error


def test_retain_on_cancellation(copy: Copy, running: type[Watched], held: Path) -> None:
    """The epoch under way is given up, nothing stays open, and the next run goes on from the checkpoint."""
    copy.source.feed(100)
    with running(copy.job()) as run:
        until(held.exists, "a task to hang")
        cancel(run)
    assert_nothing_open(copy.kafka.servers, "copier")
    assert (copy.visible(), run.all("decided")) == (0, [])
    assert [event["error"] for event in run.all("stopped")] == [None]
    assert "copy/spark/offsets/0" in copy.files()
    copy.go_on(running)


def test_delete_on_cancellation(copy: Copy, running: type[Watched], held: Path) -> None:
    """All is gone but the numbers of the runs, and what is not the job's."""
    copy.source.feed(100)
    for name in ("savepoints/one/metadata", "notes.txt"):
        (copy.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (copy.folder / name).write_text("mine")
    with running(copy.job("delete_on_cancellation")) as run:
        until(held.exists, "a task to hang")
        cancel(run)
    assert_nothing_open(copy.kafka.servers, "copier")
    assert copy.visible() == 0
    left = {name for name in copy.files() if not name.startswith("copy/ledger/generations/")}
    assert left == {"savepoints/one/metadata", "notes.txt"}
    with running(copy.job("delete_on_cancellation")) as again:
        recovered = again.wait_for("recovered")
        assert recovered["epoch"] == 0, "it starts over"
        assert recovered["generation"] > run.all("recovered")[-1]["generation"]
        until(lambda: copy.visible() == 100, "the rows")
    assert "copy/spark/commits/0" in copy.files(), "a stop always keeps"
    assert_copied(copy.source, copy.kafka.servers, copy.target)


def test_a_failed_job_keeps_its_checkpoints(copy: Copy, running: type[Watched], crash_at: CrashAt) -> None:
    """Even if it was cancelled: what it failed of may leave something to recover."""
    copy.source.feed(100)
    crash_at("epoch.decided")
    run = running(copy.job("delete_on_cancellation"))
    with pytest.raises(InjectedFault), run:
        run.wait_for("failed")
        until(lambda: run.error is not None, "the job to end")
        run.job.cancel()
    crash_at.no_more()
    assert copy.visible() == 0
    copy.go_on(running)


@contextmanager
def standing_at(point: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The driver's thread stands at `point`: whether it has come, and what lets it go on."""
    come, go = threading.Event(), threading.Event()

    def stand() -> None:
        come.set()
        go.wait(90)

    with hooked(point, stand):
        try:
            yield come, go
        finally:
            go.set()


def test_cancel_does_not_wait_for_an_epoch_that_hangs(
    copy: Copy,
    session: SparkSession,
    running: type[Watched],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The driver stands still between preparing and deciding. Another generation aborts what it prepared, and when
    it goes on, it finds itself superseded. Its checkpoint is kept: it may still write there."""
    monkeypatch.setattr("penstock.engine.run._CANCEL_SECONDS", 0.5)
    copy.source.feed(100)
    with standing_at("epoch.sealed") as (come, go):
        with running(copy.job("delete_on_cancellation")) as run, caplog.at_level(logging.WARNING, "penstock"):
            until(come.is_set, "the epoch to be prepared")
            cancel(run)
        assert_nothing_open(copy.kafka.servers, "copier")
        assert any("is kept: an epoch of copy has not ended" in line for line in caplog.messages)
        go.set()
        until(lambda: not session.streams.active, "the abandoned epoch to end")
    [failed] = run.all("failed")
    assert failed["error"].startswith("Superseded")
    assert copy.visible() == 0
    copy.go_on(running)


@pytest.fixture
def unsaid(session: SparkSession) -> Iterator[None]:
    """The session as it is where nobody has said how many epochs Spark keeps."""
    before = session.conf.get(RETAINED_BATCHES)
    assert before is not None
    session.conf.unset(RETAINED_BATCHES)
    yield
    assert session.conf.get(RETAINED_BATCHES, None) is None, "it was put back"
    session.conf.set(RETAINED_BATCHES, before)


@pytest.mark.usefixtures("unsaid")
def test_num_retained(session: SparkSession, storage: str, tmp_path: Path) -> None:
    """Spark keeps so many epochs, and a few until it gets round to deleting them."""
    job = Job("few", checkpoints=Checkpoints(storage=storage, num_retained=3), spark=session)
    frame = job.read(Numbers(1500, {"id": "id"}), uid="in")
    job.write(frame, FileSink(str(tmp_path / "out"), format="csv"), uid="out")
    run_all(job)
    epochs = Checkpoint(storage, "few", "out").epochs
    assert epochs[-3:] == [12, 13, 14]
    assert len(epochs) < 10
