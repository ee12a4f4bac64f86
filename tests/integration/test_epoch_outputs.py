"""Several outputs of one epoch under one decision: all of them, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from penstock import Checkpoints, Epoch, FileSink, Job, KafkaSink, RestartStrategy
from penstock.engine.restarts import ErrorClass, classify
from penstock.errors import ConfigurationError, DuplicateUid, PreCommitFailed
from penstock.failpoints import InjectedFault
from tests.support.run_job import Checkpoint, CrashAt, Event, Kafka, Numbers, failing, run_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

ROWS, PER_EPOCH = 400, 100


class Two:
    """A job with a Kafka topic and a folder of Parquet files, written by whatever function a test gives it."""

    def __init__(self, session: SparkSession, kafka: Kafka, storage: str, folder: Path) -> None:
        self._session, self._kafka, self._storage, self._folder = session, kafka, storage, folder
        self.topic = kafka.topic()
        self.alerts = KafkaSink(self.topic, servers=kafka.servers)
        self.archive = FileSink(str(folder))
        self.checkpoint = Checkpoint(storage, "two", "split")

    def job(
        self,
        split: Callable[[DataFrame, Epoch], None],
        shape: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        **options: Any,
    ) -> Job:
        job = Job(
            "two", checkpoints=Checkpoints(storage=self._storage), spark=self._session, restart=RestartStrategy.none()
        )
        source = Numbers(ROWS, {"id": "id", "even": "id % 2 = 0"}, per_epoch=PER_EPOCH)
        frame = shape(job.read(source, uid="in"))
        job.epoch(frame, uid="split", sinks={"alerts": self.alerts, "archive": self.archive}, **options)(split)
        return job

    def alerts_seen(self) -> Counter[int]:
        return Counter(map(int, self._kafka.values(self.topic).elements()))

    def archive_seen(self, *columns: str) -> Counter[Any]:
        files = [str(path) for path in self._folder.glob("part-*")]
        rows = ds.dataset(files).to_table().to_pylist() if files else []
        return Counter(row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows)


@pytest.fixture
def two(session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path) -> Two:
    return Two(session, kafka, storage, tmp_path / "archive")


def values(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("cast(id AS string) AS value")


def evens(count: int = ROWS) -> Counter[int]:
    return Counter(range(0, count, 2))


def recovered(events: list[Event]) -> list[str]:
    return [event["action"] for event in events if event["event"] == "recovered"]


@pytest.mark.parametrize("point", ["epoch.sealed", "commit.first"])
def test_both_or_none_through_a_crash(two: Two, crash_at: CrashAt, point: str) -> None:
    def split(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch.where("even")), two.alerts)
        epoch.write(batch, "archive")

    crash_at(point, 2 if point != "commit.first" else 3)
    failing(two.job(split), InjectedFault)
    crash_at.no_more()
    if point == "epoch.sealed":
        assert two.alerts_seen() == evens(PER_EPOCH)
        assert two.archive_seen("id") == Counter(range(PER_EPOCH))
    events = run_all(two.job(split))
    assert recovered(events) == ["none" if point == "epoch.sealed" else "finished"]
    assert two.alerts_seen() == evens()
    assert two.archive_seen("id") == Counter(range(ROWS))
    assert {one[0] for one in two.checkpoint.manifests[1]["committables"] if one[2]} == {"alerts", "archive"}


def test_a_failing_second_output_leaves_nothing_of_the_first(two: Two) -> None:
    bad = True

    def split(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch.where("even")), two.alerts)
        if bad:
            batch = batch.selectExpr("if(id = 250, raise_error('row 250 is bad'), id) AS id")
        epoch.write(batch.select("id"), two.archive)

    error = failing(two.job(split), PreCommitFailed)
    assert "Epoch 2" in str(error)
    assert "row 250 is bad" in str(error)
    assert two.alerts_seen() == evens(2 * PER_EPOCH)
    assert two.archive_seen("id") == Counter(range(2 * PER_EPOCH))

    bad = False
    run_all(two.job(split))
    assert two.alerts_seen() == evens()
    assert two.archive_seen("id") == Counter(range(ROWS))


@pytest.mark.parametrize("persist", [True, False])
def test_a_stateful_batch(two: Two, crash_at: CrashAt, persist: bool) -> None:
    def counted(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("id % 5 AS id").groupBy("id").count()

    def split(batch: DataFrame, epoch: Epoch) -> None:
        if epoch.id % 2 == 0:  # only now and then, and the state goes on all the same
            epoch.write(values(batch), two.alerts)
        epoch.write(batch, two.archive)

    crash_at("epoch.decided", 3)
    failing(two.job(split, counted, output_mode="update", persist=persist), InjectedFault)
    crash_at.no_more()
    assert recovered(run_all(two.job(split, counted, output_mode="update", persist=persist))) == ["finished"]
    each = PER_EPOCH // 5
    assert two.archive_seen("id", "count") == Counter((n, each * (epoch + 1)) for epoch in range(4) for n in range(5))
    assert two.alerts_seen() == Counter([*range(5)] * 2)


def test_all_outputs_are_of_the_same_rows(two: Two) -> None:
    """Even where the plan is left to chance: the batch is computed once."""

    def chosen(frame: DataFrame) -> DataFrame:
        return frame.where("rand() < 0.5")

    def split(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch), two.alerts)
        epoch.write(batch, two.archive)

    run_all(two.job(split, chosen))
    assert two.alerts_seen() == two.archive_seen("id")
    assert 0 < two.alerts_seen().total() < ROWS


def test_a_part_of_the_batch_that_is_lost_is_not_computed_a_second_time(two: Two, session: SparkSession) -> None:
    """As when an executor dies between two outputs: the plan is left to chance, so the second would have other rows."""
    dies = True

    def chosen(frame: DataFrame) -> DataFrame:
        return frame.where("rand() < 0.5")

    def split(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch), two.alerts)
        if dies and epoch.id == 1:
            kept: Any = session.sparkContext._jsc.getPersistentRDDs()
            assert len(kept) > 0
            for number in list(kept):
                session._jvm.org.apache.spark.SparkEnv.get().blockManager().removeRdd(number)  # type: ignore[union-attr]
        epoch.write(batch, two.archive)

    assert classify(failing(two.job(split, chosen), PreCommitFailed)) is ErrorClass.RETRY
    dies = False
    run_all(two.job(split, chosen))
    assert two.alerts_seen() == two.archive_seen("id")
    assert len(session.sparkContext._jsc.getPersistentRDDs()) == 0, "nothing is kept for longer"


def test_an_epoch_that_writes_nothing(two: Two) -> None:
    events = run_all(two.job(lambda batch, epoch: None, persist=False))
    assert [event["epoch"] for event in events if event["event"] == "committed"][:4] == [0, 1, 2, 3]
    assert not two.alerts_seen() | two.archive_seen("id")


def test_the_same_sink_twice(two: Two) -> None:
    def split(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch), two.alerts)
        epoch.write(values(batch), "alerts")

    error = failing(two.job(split), DuplicateUid)
    assert "'alerts' is written twice in epoch 0" in str(error)
    assert "union" in str(error)
    assert not two.alerts_seen()


def test_a_sink_nobody_declared(two: Two) -> None:
    other = KafkaSink("elsewhere", servers="nowhere:1", options={"sasl.password": "hidden"})
    for stranger, named in (("elsewhere", "'elsewhere'"), (other, "KafkaSink('elsewhere'")):

        def split(batch: DataFrame, epoch: Epoch, stranger: Any = stranger) -> None:
            epoch.write(values(batch), two.alerts)
            epoch.write(values(batch), stranger)

        error = failing(two.job(split), ConfigurationError)
        assert named in str(error)
        assert "hidden" not in str(error)
        assert "nothing of it is visible" in str(error)
    assert not two.alerts_seen()


def test_a_frame_that_only_the_function_makes_fit(session: SparkSession, kafka: Kafka, storage: str) -> None:
    """With a single sink, too, the function decides what is written, not the epoch's own frame."""
    topic = kafka.topic()
    sink = KafkaSink(topic, servers=kafka.servers)
    job = Job("one", checkpoints=Checkpoints(storage=storage), spark=session)

    @job.epoch(job.read(Numbers(100, {"id": "id"}), uid="in"), sinks={"out": sink})
    def write(batch: DataFrame, epoch: Epoch) -> None:
        epoch.write(values(batch), sink)

    run_all(job)
    assert kafka.values(topic) == Counter(map(str, range(100)))
    assert (Path(storage) / "one" / "write").is_dir()
