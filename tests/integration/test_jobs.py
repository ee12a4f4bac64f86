"""Whole jobs from Kafka to Kafka: started, stopped on the way, started again; plain Python computes what is right."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, FileSink, Job, KafkaSink, KafkaSource
from penstock.errors import TopicRecreated
from penstock.testing.oracle import compare
from tests.support.key_order import out_of_order
from tests.support.run_job import Checkpoint, Kafka, Numbers, Watched, failing, run_all, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

USERS = 7
START = 1_767_225_600  # 2026-01-01, in seconds
ROWS: list[dict[str, Any]] = [
    {"id": n, "user": f"u{n % USERS}", "amount": n * 3 % 101, "ts": START + n} for n in range(400)
]
LAST = {"id": -1, "user": "last", "amount": 0, "ts": START + 100_000}
"""A row so late that every window before it is closed."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
backends = pytest.mark.parametrize(
    "backend", [pytest.param(HASHMAP, marks=pytest.mark.long), ROCKSDB], ids=["hashmap", "rocksdb"], indirect=True
)


@pytest.fixture
def backend(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    session.conf.set(PROVIDER, request.param)
    yield request.param
    session.conf.unset(PROVIDER)


def as_messages(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(row["user"], json.dumps(row)) for row in rows]


def parsed(frame: DataFrame) -> DataFrame:
    """The JSON rows as columns, with `ts` as a timestamp."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col("value").cast("string"), "id bigint, user string, amount bigint, ts bigint")
    return frame.select(row.alias("row")).select("row.*").withColumn("ts", f.timestamp_seconds("ts"))


Build = Callable[[Job], "DataFrame"]


class Story:
    """One query in a job that reads `source` and writes `target`, as often as it is started."""

    def __init__(
        self, kafka: Kafka, session: SparkSession, storage: str, build: Build, *, mode: str = "append"
    ) -> None:
        self.kafka, self._session, self._storage, self._build, self._mode = kafka, session, storage, build, mode
        self.target = kafka.topic()
        self.checkpoint = Checkpoint(storage, "jobs", "out")

    def job(self) -> Job:
        job = Job("jobs", checkpoints=Checkpoints(storage=self._storage), spark=self._session)
        sink = KafkaSink(self.target, servers=self.kafka.servers)
        job.write(self._build(job), sink, uid="out", output_mode=self._mode)
        return job

    def run_in_two_parts(self, running: type[Watched], end: Callable[[], Any]) -> None:
        """Stop after two epochs, start again with nothing but the checkpoint, and let it go on until `end`."""
        with running(self.job()) as first:
            first.committed(2)
        before = len(self.checkpoint.epochs)
        assert first.all("stopped", error=None)
        with running(self.job()) as second:
            resumed = second.wait_for("recovered")
            assert (resumed["action"], resumed["epoch"], resumed["generation"]) == ("none", before, 2)
            until(end, "the rest of the output")
        assert not self.left_over(first) & self.left_over(second), "an epoch was run by both"

    @staticmethod
    def left_over(run: Watched) -> set[int]:
        return {event["epoch"] for event in run.all("committed")}

    def result(self) -> list[Any]:
        return [json.loads(value or b"null") for _, value in self.kafka.read(self.target)]


def source(job: Job, kafka: Kafka, topic: str, uid: str = "in", most: int = 100) -> DataFrame:
    return parsed(job.read(KafkaSource(topic, servers=kafka.servers, max_offsets_per_epoch=most), uid=uid))


def as_json(frame: DataFrame, *, key: str | None = None) -> DataFrame:
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*frame.columns)).alias("value")
    return frame.select(value) if key is None else frame.select(f.col(key).alias("key"), value)


def test_stateless(session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]) -> None:
    topic = kafka.topic(3)
    kafka.send(topic, as_messages(ROWS))

    def build(job: Job) -> DataFrame:
        doubled = source(job, kafka, topic).where("id % 2 = 0").selectExpr("id", "user", "amount * 2 AS amount")
        return as_json(doubled, key="user")

    story = Story(kafka, session, storage, build)
    expected = [(row["id"], row["user"], row["amount"] * 2) for row in ROWS if row["id"] % 2 == 0]
    story.run_in_two_parts(running, lambda: len(kafka.read(story.target)) >= len(expected))

    result = [(row["id"], row["user"], row["amount"]) for row in story.result()]
    assert compare(expected, result).ok, compare(expected, result).lines()
    assert out_of_order([user for _, user, _ in result], [number for number, _, _ in result]) == []


@backends
def test_totals_in_update_mode(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched], backend: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, as_messages(ROWS))

    def build(job: Job) -> DataFrame:
        from pyspark.sql import functions as f

        frame = source(job, kafka, topic).groupBy("user").agg(f.count("*").alias("rows"), f.sum("amount").alias("sum"))
        return as_json(frame, key="user")

    story = Story(kafka, session, storage, build, mode="update")
    story.run_in_two_parts(running, lambda: _input_done(story.checkpoint, kafka, topic))

    expected = list(_totals_of_every_epoch(story.checkpoint, kafka, topic))
    verdict = compare(expected, [(row["user"], row["rows"], row["sum"]) for row in story.result()])
    assert verdict.ok, verdict.lines()


def _input_done(checkpoint: Checkpoint, kafka: Kafka, topic: str) -> bool:
    """Whether a committed epoch reached the end of the topic."""
    if not checkpoint.epochs:
        return False
    positions = json.loads(checkpoint.barrier(checkpoint.epochs[-1])[0])[topic]
    return {int(number): end for number, end in positions.items()} == kafka.ends(topic)


def _totals_of_every_epoch(checkpoint: Checkpoint, kafka: Kafka, topic: str) -> Iterator[tuple[str, int, int]]:
    """What each epoch has to say: rows and sum so far of every user seen in it, from the positions it was cut at."""
    partitions = kafka.partitions(topic)
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    begin: dict[str, int] = defaultdict(int)
    for epoch in checkpoint.epochs:
        seen = set()
        for number, end in json.loads(checkpoint.barrier(epoch)[0])[topic].items():
            for _, value in partitions[int(number)][begin[number] : end]:
                row = json.loads(value or b"")
                totals[row["user"]][0] += 1
                totals[row["user"]][1] += row["amount"]
                seen.add(row["user"])
            begin[number] = end
        yield from ((user, totals[user][0], totals[user][1]) for user in seen)


@backends
def test_windows_in_append_mode(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched], backend: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, as_messages([*ROWS, LAST]))

    def build(job: Job) -> DataFrame:
        from pyspark.sql import functions as f

        frame = source(job, kafka, topic).withWatermark("ts", "5 minutes")
        windows = frame.groupBy(f.window("ts", "1 minute"), "user").agg(f.sum("amount").alias("sum"))
        return as_json(windows.select(f.unix_timestamp("window.start").alias("start"), "user", "sum"))

    expected: Counter[tuple[int, str]] = Counter()
    for row in ROWS:
        expected[row["ts"] // 60 * 60, row["user"]] += row["amount"]
    story = Story(kafka, session, storage, build)
    story.run_in_two_parts(running, lambda: len(kafka.read(story.target)) >= len(expected))

    verdict = compare(
        [(*window, total) for window, total in expected.items()],
        [(row["start"], row["user"], row["sum"]) for row in story.result()],
    )
    assert verdict.ok, verdict.lines()


@pytest.mark.parametrize("within_watermark", [False, True], ids=["dropDuplicates", "dropDuplicatesWithinWatermark"])
def test_deduplication(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched], within_watermark: bool
) -> None:
    topic = kafka.topic(2)
    doubled = [row for start in range(0, len(ROWS), 50) for _ in range(2) for row in ROWS[start : start + 50]]
    kafka.send(topic, as_messages(doubled))

    def build(job: Job) -> DataFrame:
        frame = source(job, kafka, topic, most=200)
        if within_watermark:
            return as_json(frame.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"]).select("id"))
        return as_json(frame.dropDuplicates(["id"]).select("id"))

    story = Story(kafka, session, storage, build)
    story.run_in_two_parts(running, lambda: _input_done(story.checkpoint, kafka, topic))

    verdict = compare([row["id"] for row in ROWS], [row["id"] for row in story.result()])
    assert verdict.ok, verdict.lines()


def test_join_of_two_streams(session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]) -> None:
    orders, payments = kafka.topic(2), kafka.topic(1)
    paid = [{**row, "ts": row["ts"] + 20, "amount": 7} for row in ROWS if row["id"] % 3]
    kafka.send(orders, as_messages(ROWS))
    kafka.send(payments, as_messages(paid))

    def build(job: Job) -> DataFrame:
        left = source(job, kafka, orders, "orders").withWatermark("ts", "10 minutes").alias("o")
        right = source(job, kafka, payments, "payments").withWatermark("ts", "20 minutes").alias("p")
        near = "o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 MINUTE"
        return as_json(_join(left, right, near).selectExpr("o.id AS id", "o.amount + p.amount AS amount"))

    story = Story(kafka, session, storage, build)
    story.run_in_two_parts(running, lambda: len(kafka.read(story.target)) >= len(paid))

    expected = [(row["id"], row["amount"] + 7) for row in ROWS if row["id"] % 3]
    verdict = compare(expected, [(row["id"], row["amount"]) for row in story.result()])
    assert verdict.ok, verdict.lines()


def _join(left: DataFrame, right: DataFrame, condition: str) -> DataFrame:
    from pyspark.sql import functions as f

    return left.join(right, f.expr(condition))


@pytest.mark.parametrize("twice", ["union", "join"])
def test_a_source_used_twice(session: SparkSession, storage: str, tmp_path: Path, twice: str) -> None:
    """Spark then logs two positions for it, and the end of the input is still seen."""
    from pyspark.sql import functions as f

    job = Job("twice", checkpoints=Checkpoints(storage=storage), spark=session)
    rows = job.read(Numbers(200, {"id": "id", "ts": f"timestamp_seconds({START} + id)"}), uid="in").withWatermark(
        "ts", "1 hour"
    )
    if twice == "union":
        frame = rows.union(rows).select("id")
    else:
        frame = rows.alias("a").join(rows.alias("b"), f.expr("a.id = b.id AND a.ts = b.ts")).select("a.id")
    job.write(frame, FileSink(str(tmp_path / "out"), format="csv"), uid="out")
    run_all(job)
    assert len(Checkpoint(storage, "twice", "out").barrier(0)) == 2
    lines = Counter(line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().split())
    assert lines == Counter({str(number): 2 if twice == "union" else 1 for number in range(200)})


def test_a_stream_of_the_users_own_beside_a_source(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]
) -> None:
    """Positions are told for the source that stands second, and for nothing else."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    topic, target = kafka.topic(1), kafka.topic(1)
    kafka.send(topic, as_messages(ROWS[:10]))
    own = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    job = Job("mixed", checkpoints=Checkpoints(storage=storage), spark=session)
    read = job.read(KafkaSource(topic, servers=kafka.servers), uid="in").selectExpr("cast(value AS string) AS value")
    job.write(
        own.selectExpr("cast(value AS string) AS value").union(read),
        KafkaSink(target, servers=kafka.servers),
        uid="out",
    )
    admin = AdminClient({"bootstrap.servers": kafka.servers})

    def group() -> dict[tuple[str, int], int]:
        [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("penstock-mixed-in")]).values()
        return {(part.topic, part.partition): part.offset for part in asked.result().topic_partitions}

    with running(job):
        until(lambda: group() == {(topic, 0): 10}, "the group at the end of the topic")


def test_positions_are_told_to_the_consumer_group(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    topic = kafka.topic(3)
    kafka.send(topic, as_messages(ROWS))
    story = Story(kafka, session, storage, lambda job: as_json(source(job, kafka, topic, most=150).select("id")))
    admin = AdminClient({"bootstrap.servers": kafka.servers})

    def group() -> dict[int, int]:
        [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("penstock-jobs-in")]).values()
        return {part.partition: part.offset for part in asked.result().topic_partitions if part.topic == topic}

    with running(story.job()):
        kafka.read_until(story.target, len(ROWS))
        until(lambda: group() == kafka.ends(topic), "the group at the end of the topic")


def test_a_topic_that_was_created_again_is_not_read_at_the_old_position(
    kafka: Kafka,
    session: SparkSession,
    storage: str,
    tmp_path: Path,
    running: type[Watched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, out = kafka.topic(1), tmp_path / "out"

    def job(name: str = "recreated", accepted: Sequence[str] = ()) -> Job:
        made = Job(name, checkpoints=Checkpoints(storage=storage), spark=session)
        read = made.read(KafkaSource(topic, servers=kafka.servers, accepted_ids=accepted), uid="in")
        made.write(read.selectExpr("CAST(value AS string) AS value"), FileSink(str(out), format="json"), uid="out")
        return made

    def values() -> list[str]:
        return sorted(json.loads(line)["value"] for path in out.glob("*.json") for line in path.open())

    kafka.send(topic, [(None, f"old {n}") for n in range(5)])
    with running(job()) as run:
        run.wait(lambda: len(values()) == 5)
        savepoint = run.job.savepoint(str(tmp_path / "savepoints"))
    kafka.create_again(topic)
    kafka.send(topic, [(None, f"new {n}") for n in range(8)])

    error = failing(job(), TopicRecreated)
    assert topic in str(error)
    assert len(values()) == 5
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_OPTIONS", json.dumps({"execution.state-recovery.path": savepoint}))
        failing(job("moved"), TopicRecreated)

    [new] = KafkaSource(topic, servers=kafka.servers).identities([topic]).values()
    assert new in str(error)
    with running(job(accepted=[new])) as run:
        run.wait(lambda: len(values()) == 8)
    assert values()[:3] == ["new 5", "new 6", "new 7"]
    with running(job()) as run:  # accepted once, it is the topic that the positions belong to
        run.wait_for("recovered")
