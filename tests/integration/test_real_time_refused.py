"""A job that cannot run in real time is refused by name before it starts: it leaves nothing in storage or in Kafka."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, FileSink, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.engine.real_time import require_real_time
from penstock.errors import DuplicateUid, NotEnoughSlots, PenstockError, RealTimeRefused
from tests.support.run_job import Kafka, failing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock import TwoPhaseSink


class World:
    """Jobs `bad` with a query `alerts` over a topic, with a latency and a session of two slots."""

    def __init__(self, session: SparkSession, kafka: Kafka, storage: str) -> None:
        self.kafka, self._session, self.storage = kafka, session, storage
        self.target = kafka.topic()
        self.sink: TwoPhaseSink = KafkaSink(self.target, servers=kafka.servers)

    def job(self, partitions: int = 1) -> tuple[Job, DataFrame]:
        checkpoints = Checkpoints(storage=self.storage, latency="20ms")
        job = Job("bad", checkpoints=checkpoints, spark=self._session, restart=RestartStrategy.none())
        return job, job.read(KafkaSource(self.kafka.topic(partitions), servers=self.kafka.servers), uid="in")

    def left(self) -> list[Any]:
        """What a start would have left behind."""
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": self.kafka.servers}).list_topics(timeout=30).topics
        files = [path for path in Path(self.storage).rglob("*") if path.is_file()]
        return [*files, *(topic for topic in topics if topic.startswith("penstock.bad."))]


@pytest.fixture
def world(session: SparkSession, kafka: Kafka, storage: str) -> World:
    return World(session, kafka, storage)


def says(error: BaseException, *parts: str) -> None:
    assert isinstance(error, PenstockError)
    assert error.safe == "nothing was started."
    assert error.to_do
    for part in parts:
        assert part in str(error), (part, error)


def test_a_topic_with_more_partitions_than_there_are_slots(world: World) -> None:
    job, rows = world.job(partitions=5)
    job.write(rows.select("key", "value"), world.sink, uid="alerts")
    says(failing(job, NotEnoughSlots), "runs 2 tasks at a time", "read 5 source partitions", "spark.master=local[7]")
    assert world.left() == []


def test_queries_that_share_the_slots_count_together(world: World) -> None:
    job, rows = world.job(partitions=2)
    job.write(rows.select("key", "value"), world.sink, uid="alerts")
    other = job.read(KafkaSource(world.kafka.topic(1), servers=world.kafka.servers), uid="more")
    job.write(other.select("key", "value"), KafkaSink(world.target, servers=world.kafka.servers), uid="others")
    says(failing(job, NotEnoughSlots), "runs 2 tasks at a time", "read 3 source partitions")
    assert world.left() == []


def test_a_plan_that_keeps_state(world: World) -> None:
    job, rows = world.job()
    counts = rows.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
    job.write(counts, world.sink, uid="alerts", output_mode="update")
    says(failing(job, RealTimeRefused), "'alerts'", "groupBy", "the micro-batch mode takes it")
    assert world.left() == []


def test_a_sink_without_lanes(world: World, tmp_path: Path) -> None:
    job, rows = world.job()
    job.write(rows.selectExpr("cast(value AS string) AS value"), FileSink(str(tmp_path / "out")), uid="alerts")
    says(failing(job, RealTimeRefused), "'alerts'", "a sink without lanes: parquet files", "leave latency out")
    assert world.left() == []


def test_an_older_spark() -> None:
    def session(version: str) -> Any:
        conf = SimpleNamespace(get=lambda _, otherwise: otherwise)
        return SimpleNamespace(version=version, sparkContext=SimpleNamespace(getConf=lambda: conf))

    with pytest.raises(RealTimeRefused) as refused:
        require_real_time(session("4.1.1"))
    says(refused.value, "Spark 4.1.1 has no real-time mode", "4.2 and newer", "leave latency out")
    require_real_time(session("4.2.0"))


def test_two_queries_with_one_uid(world: World) -> None:
    job, rows = world.job()
    job.write(rows.select("key", "value"), world.sink, uid="alerts")
    with pytest.raises(DuplicateUid) as refused:
        job.write(rows.select("key", "value"), KafkaSink(world.target, servers=world.kafka.servers), uid="alerts")
    says(refused.value, "'alerts'", "give each a uid of its own")
    assert world.left() == []
