"""The record of a real checkpoint: alignment of Kafka partitions, and the size of state on both backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, FileSink, Job, KafkaSource, RestartStrategy
from penstock.checkpoint.record import Alignment, CheckpointRecord, records
from penstock.spark.query import measure
from penstock.storage.local import LocalStorage
from tests.support.run_job import Kafka, Numbers, Watched, until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATES = "org.apache.spark.sql.execution.streaming.state"


def recorded(storage: str, job: str, query: str) -> list[CheckpointRecord]:
    return records(LocalStorage(Path(storage) / job / query))


def slow_for(
    slow: int, others: list[int], folder: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: one partition goes on when all others have been read, then takes its time for each row."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        number = None
        for batch in batches:
            number = batch["partition"][0].as_py()
            if number == slow:
                while not all((Path(folder) / str(other)).exists() for other in others):
                    time.sleep(0.02)
                time.sleep(0.02 * batch.num_rows)
            yield batch.select(["value"])
        if number is not None:
            (Path(folder) / str(number)).touch()

    return run


def test_the_slow_partition_is_measured(session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path) -> None:
    topic = kafka.topic(3)
    kafka.send(topic, [(None, f"row {number}") for number in range(90)], spread=3)
    job = Job("skewed", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
    rows = job.read(KafkaSource(topic, servers=kafka.servers), uid="in").selectExpr(
        "cast(value AS string) AS value", "partition"
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    slowed = rows.mapInArrow(slow_for(1, [0, 2], str(marks)), "value string")
    job.write(slowed, FileSink(str(tmp_path / "out"), format="json"), uid="out")

    with Watched(job) as run:
        told = run.wait_for("checkpoint")
    [record] = recorded(storage, "skewed", "out")

    assert (told["rows"], told["outcome"]) == (90, "complete")
    assert record.rows == 90
    assert record.positions == (("in", {topic: {"0": 30, "1": 30, "2": 30}}),)
    aligned = record.alignment
    assert aligned is not None
    assert aligned.unknown is None
    first, *others = aligned.partitions
    assert told["slowest"] == aligned.slowest == first.partition
    assert aligned.skew is not None
    assert {cut.partition for cut in aligned.partitions} == {"in #0", "in #1", "in #2"}
    assert {(cut.source, cut.rows) for cut in aligned.partitions} == {("in", 30)}
    assert first.waited_ms == 0
    for cut in others:
        assert cut.waited_ms == pytest.approx(first.reached_ms - cut.reached_ms)
        assert cut.waited_ms > 0


def ticks(session: SparkSession, rows: int, partitions: int) -> DataFrame:
    options = {"rowsPerBatch": rows, "numPartitions": partitions, "startTimestamp": 0}
    return session.readStream.format("rate-micro-batch").options(**options).load().select("value")


def collect(batch: DataFrame) -> None:
    batch.collect()


def twice(batch: DataFrame) -> None:
    batch.persist()
    batch.collect()
    batch.where("value > 0").collect()
    batch.unpersist()


A = {"a #0": 10, "a #1": 10}
BOTH = {f"#{number}": 10 for number in range(5)}
ONE = {"a #0": 20}
Build = Callable[["DataFrame", "DataFrame"], "DataFrame"]


@pytest.mark.parametrize(
    ("build", "body", "rows"),
    [
        pytest.param(lambda a, b: a, twice, A, id="kept and read again"),
        pytest.param(lambda a, b: a.union(b), collect, BOTH, id="union"),
        pytest.param(lambda a, b: a.repartition(3), collect, A, id="adaptive, run before the epoch is opened"),
        pytest.param(lambda a, b: a.groupBy("value").count(), collect, A, id="state"),
        pytest.param(lambda a, b: a.coalesce(1), collect, ONE, id="coalesce"),
        pytest.param(lambda a, b: a, lambda batch: batch.coalesce(1).collect(), ONE, id="coalesce in the epoch"),
    ],
)
def test_what_spark_runs_is_followed(
    session: SparkSession,
    tmp_path: Path,
    build: Build,
    body: Callable[[DataFrame], Any],
    rows: dict[str, int],
) -> None:
    found: list[Alignment | None] = []
    log = tmp_path / "offsets" / "0"

    def epoch(batch: DataFrame, number: int) -> None:
        if found:
            return
        opened = time.time()
        body(batch)
        context: Any = session.sparkContext
        uids = list("ab")[: len(log.read_text().splitlines()) - 2]
        group = context.getLocalProperty("spark.jobGroup.id")
        found.append(measure(session, group, opened, epoch=number, uids=uids))

    frame = build(ticks(session, 20, 2), ticks(session, 30, 3))
    writer = frame.writeStream.foreachBatch(epoch).outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        until(lambda: found or not query.isActive, "an epoch")
    finally:
        query.stop()
    [aligned] = found
    assert aligned is not None
    assert {one.partition: one.rows for one in aligned.partitions} == rows
    assert aligned.unknown is None
    assert all(0 <= one.started_ms <= one.reached_ms for one in aligned.partitions)


@pytest.fixture
def backend(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    session.conf.set(PROVIDER, f"{STATES}.{request.param}StateStoreProvider")
    yield {"HDFSBacked": "hashmap", "RocksDB": "rocksdb"}[request.param]
    session.conf.unset(PROVIDER)


@pytest.mark.parametrize("backend", ["HDFSBacked", "RocksDB"], ids=["hashmap", "rocksdb"], indirect=True)
def test_state_grows(session: SparkSession, storage: str, tmp_path: Path, backend: str) -> None:
    job = Job("growing", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
    # One epoch more than is looked at: Spark is stopped after the last, and may not have reported it.
    numbers = job.read(Numbers(4000, {"id": "id"}, per_epoch=1000), uid="in")
    counted = numbers.groupBy("id").count().selectExpr("cast(id AS string) AS value")
    job.write(counted, FileSink(str(tmp_path / "out"), format="json"), uid="out", output_mode="update")
    job.run()

    first, second, third, *_ = recorded(storage, "growing", "out")
    states = []
    for number, record in enumerate((first, second, third)):
        assert record.epoch == number
        assert record.state is not None
        [state] = record.state
        assert (state.operator, state.backend) == ("stateStoreSave", backend)
        assert (state.rows, state.updated, state.removed) == (1000 * (number + 1), 1000, 0)
        states.append(state)
    sizes = [one.state_bytes or 0 for one in states]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert all(one.memory_bytes > 0 for one in states)
    assert first.alignment is not None
    assert [one.partition for one in first.alignment.partitions] != []
    assert sum(one.rows or 0 for one in first.alignment.partitions) == 1000
