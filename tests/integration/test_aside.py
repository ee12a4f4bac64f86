"""Rows that a sink refuses are in the aside sink, each once, with the reason and the place in the source; all others
are in the sink. Both become visible under one decision."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock import (
    Checkpoints,
    FileSink,
    FileSource,
    Job,
    Json,
    KafkaSink,
    KafkaSource,
    PostgresSink,
    RestartStrategy,
    parse,
)
from penstock.checkpoint.decision import Committable
from penstock.checkpoint.record import records as records_of
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.engine.checksum import FLAT, HASH_COLUMN, MODULO, with_hashes
from penstock.errors import AsideLimitExceeded, ConfigurationError, PenstockError, SchemaMismatch
from penstock.storage.local import LocalStorage
from tests.support.run_job import Checkpoint, CrashAt, Kafka, Watched, failing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.servers.postgres import Postgres

TABLE = """CREATE TABLE {} (id bigint PRIMARY KEY, name varchar(10) NOT NULL, amount numeric(6,2) CHECK (amount >= 0),
  code uuid)"""
CODE = "0190a5b8-2f10-7000-8000-000000000001"
BAD = {
    7: ({"name": None}, "column 'name' is null"),
    40: ({"name": "x" * 11}, "column 'name' is character varying(10)"),
    41: ({"amount": "123456.00"}, "numeric field overflow"),
    150: ({"amount": "-1.00"}, "check constraint"),
    151: ({"id": 3}, "duplicate key"),
    199: ({"code": "none"}, "uuid"),
}


def orders(count: int, bad: dict[int, Any] = BAD) -> list[tuple[Any, Any]]:
    rows = [{"id": n, "name": f"n{n}", "amount": f"{n % 100}.50", "code": CODE} for n in range(count)]
    return [(str(n), json.dumps({**row, **bad.get(n, ({},))[0]})) for n, row in enumerate(rows)]


def parsed(frame: DataFrame) -> DataFrame:
    kinds = "id bigint, name string, amount decimal(12,2), code string"
    return frame.selectExpr(f"from_json(cast(value AS string), '{kinds}') AS v").select("v.*")


def new_job(session: SparkSession, storage: str, name: str = "aside") -> Job:
    checkpoints = Checkpoints(storage=storage, interval=0.2)
    restart = RestartStrategy.none()
    return Job(f"{name}-{uuid.uuid4().hex[:8]}", checkpoints=checkpoints, restart=restart, spark=session)


def records(texts: list[Any]) -> dict[int, dict[str, Any]]:
    """By offset in the one partition of the source."""
    bodies = [json.loads(text) for text in texts]
    found = {body["source"]["offset"]: body for body in bodies}
    assert len(found) == len(bodies), "a row is aside twice"
    return found


def test_what_a_table_refuses_is_aside_and_the_rest_in_the_table(
    session: SparkSession, postgres: Postgres, kafka: Kafka, storage: str
) -> None:
    source, aside, table = kafka.topic(1), kafka.topic(1), f"orders_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as database:
        database.execute(TABLE.format(table).encode())
    job = new_job(session, storage)
    rows = parsed(job.read(KafkaSource(source, servers=kafka.servers, max_offsets_per_epoch=100), uid="orders"))
    sink = PostgresSink(postgres.dsn, table=table, mode="two_phase", create=False)
    job.write(rows, sink, uid="table", aside=KafkaSink(aside, servers=kafka.servers), aside_limit="10%")
    kafka.send(source, orders(200))
    with Watched(job) as watched:
        watched.committed(2)
        watched.wait_for("checkpoint", 2)
    assert [event["sums"] for event in watched.all("checkpoint")] == [
        {"in": {"orders": 100}, "out": {"table": 100 - bad}, "aside": bad, "filtered": 0} for bad in (3, 3)
    ]
    texts = [value.decode() for _, value in kafka.read(aside) if value]
    found = records(texts)
    hashed = with_hashes(session.createDataFrame([(text,) for text in texts], "value string not null"), FLAT)
    outputs = Checkpoint(storage, job.name, "table").outputs
    sums = [checksum for epoch in outputs.values() for name, _, _, checksum in epoch if name == "table.aside"]
    assert sum(row[HASH_COLUMN] for row in hashed.collect()) % MODULO == sum(sums) % MODULO, "as an audit finds them"
    assert {offset: why in found[offset]["reason"] for offset, (_, why) in BAD.items()} == dict.fromkeys(BAD, True), (
        found
    )
    assert found.keys() == BAD.keys()
    assert found[7] == {
        "version": 1, "reason": found[7]["reason"], "sink": "table", "epoch": 0,
        "source": {"topic": source, "partition": 0, "offset": 7},
        "row": {"id": 7, "name": None, "amount": "7.50", "code": CODE},
    }  # fmt: skip
    with psycopg.connect(postgres.dsn) as database:
        there = [n for (n,) in database.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()]
    assert there == [n for n in range(200) if n not in BAD]


def test_what_a_topic_refuses_is_in_files(session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path) -> None:
    source, target = kafka.topic(1), kafka.topic(1, {"cleanup.policy": "compact", "max.message.bytes": "20000"})
    job = new_job(session, storage)
    rows = job.read(KafkaSource(source, servers=kafka.servers), uid="in").select("key", "value")
    aside = FileSink(str(tmp_path / "aside"), format="json")
    rows = rows.where("value <> 'v7'")
    job.write(rows, KafkaSink(target, servers=kafka.servers), uid="out", aside=aside, aside_limit=10)
    sent: list[tuple[Any, Any]] = [(f"k{n}", f"v{n}") for n in range(50)]
    sent[5], sent[20] = (None, "no key"), ("large", "x" * 20_001)
    kafka.send(source, sent)
    with Watched(job) as watched:
        watched.committed(1)
        event = watched.wait_for("checkpoint")
    assert event["sums"] == {"in": {"in": 50}, "out": {"out": 47}, "aside": 2, "filtered": 1}
    lines = [line for file in (tmp_path / "aside").glob("part-*") for line in file.read_text().splitlines()]
    found = records(lines)
    assert found.keys() == {5, 20}
    assert "without a key" in found[5]["reason"]
    assert "larger than" in found[20]["reason"]
    assert found[5]["row"] == {"key": None, "value": "bm8ga2V5"}
    assert [row for row in sent if row not in (sent[5], sent[7], sent[20])] == [
        (key.decode(), value.decode()) for key, value in kafka.read(target) if key and value
    ]


def test_a_record_names_the_file_and_what_is_aggregated_has_no_source(
    session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path
) -> None:
    folder, targets, aside = (
        tmp_path / "in",
        [kafka.topic(1, {"cleanup.policy": "compact"}) for _ in "ab"],
        kafka.topic(1),
    )
    folder.mkdir()
    (folder / "one.json").write_text('{"value": "a"}\n{"key": "k", "value": "b"}\n')
    job = new_job(session, storage)
    rows = job.read(FileSource(str(folder), format="json", schema="key string, value string"), uid="files")
    sinks = [KafkaSink(topic, servers=kafka.servers) for topic in (*targets, aside)]
    job.write(rows, sinks[0], uid="rows", aside=sinks[2], aside_limit=5)
    counts = rows.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
    job.write(counts, sinks[1], uid="counts", output_mode="update", aside=sinks[2], aside_limit=5)
    with Watched(job) as watched:
        watched.wait(lambda: len(kafka.read(aside)) == 2, "two records")
        watched.wait_for("checkpoint", 2)
    found = {body["sink"]: body for body in (json.loads(value) for _, value in kafka.read(aside) if value)}
    assert found["rows"]["source"]["file"].endswith("/in/one.json")
    assert (found["counts"]["source"], found["counts"]["row"]) == (None, {"key": None, "value": "MQ=="})
    sums = {event["query"]: event["sums"] for event in watched.all("checkpoint")}
    assert sums["rows"] == {"in": {"files": 2}, "out": {"rows": 1}, "aside": 1, "filtered": 0}
    assert sums["counts"]["not_countable"] == "Aggregate changes how many rows there are"


def test_too_many_refused_rows_stop_the_job_before_anything_is_decided(
    session: SparkSession, kafka: Kafka, storage: str
) -> None:
    source, target, aside = kafka.topic(1), kafka.topic(1, {"cleanup.policy": "compact"}), kafka.topic(1)
    job = new_job(session, storage)
    rows = job.read(KafkaSource(source, servers=kafka.servers), uid="in").select("key", "value")
    sink, other = (KafkaSink(topic, servers=kafka.servers) for topic in (target, aside))
    job.write(rows, sink, uid="out", aside=other, aside_limit="5%")
    kafka.send(source, [(None if n < 6 else "k", "v") for n in range(100)])
    error = failing(job, AsideLimitExceeded)
    assert "Epoch 0 would set aside 6 of 100 rows that sink 'out' refuses, and aside_limit allows 5%" in str(error)
    assert kafka.read(target) == kafka.read(aside) == []


def test_what_cannot_be_an_aside_sink_is_refused_at_once(session: SparkSession, kafka: Kafka, storage: str) -> None:
    job = new_job(session, storage)
    rows = job.read(KafkaSource(kafka.topic(1), servers=kafka.servers), uid="in")
    sink = KafkaSink(kafka.topic(1), servers=kafka.servers)
    with pytest.raises(SchemaMismatch):
        job.write(rows, sink, uid="a", aside=FileSink("/tmp/x", format="csv"))
    with pytest.raises(ConfigurationError, match="no limit of rows"):
        job.write(rows, sink, uid="b", aside=sink, aside_limit="few")
    with pytest.raises(ConfigurationError, match="exactly-once epochs"):
        job.write(rows, sink, uid="c", aside=sink, latency="20ms")


class World:
    """A job from a topic of two partitions into a table, with a topic aside; started again after every death."""

    def __init__(self, session: SparkSession, postgres: Postgres, kafka: Kafka, storage: str) -> None:
        self.session, self.postgres, self.kafka, self.storage = session, postgres, kafka, storage
        self.source, self.aside, self.table = kafka.topic(2), kafka.topic(2), f"orders_{uuid.uuid4().hex[:8]}"
        self.sent, self.bad = 0, set[int]()
        self.name = f"aside-{uuid.uuid4().hex[:8]}"
        self.sql(TABLE.format(self.table).replace(" PRIMARY KEY", ""))

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as database:
            cursor = database.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def feed(self, rows: int = 60) -> None:
        """Of every seven rows one is bad, of four kinds."""
        kinds: list[dict[str, Any]] = [{"name": None}, {"amount": "-1.00"}, {"amount": "123456.00"}, {"code": "none"}]
        bodies = []
        for number in range(self.sent, self.sent + rows):
            body: dict[str, Any] = {"id": number, "name": f"n{number}", "amount": "1.50", "code": CODE}
            if number % 7 == 3:
                self.bad.add(number)
                body |= kinds[number // 7 % 4]
            bodies.append((str(number), json.dumps(body)))
        self.kafka.send(self.source, bodies, spread=2)
        self.sent += rows

    def watched(self) -> Watched:
        checkpoints = Checkpoints(storage=self.storage, interval=0.1)
        job = Job(self.name, checkpoints=checkpoints, restart=RestartStrategy.none(), spark=self.session)
        rows = parsed(job.read(KafkaSource(self.source, servers=self.kafka.servers), uid="orders"))
        sink = PostgresSink(self.postgres.dsn, table=self.table, mode="two_phase", create=False)
        aside = KafkaSink(self.aside, servers=self.kafka.servers)
        job.write(rows, sink, uid="table", aside=aside, aside_limit="50%")
        return Watched(job)

    def dies(self) -> None:
        """Run it until it fails."""
        with pytest.raises(PenstockError), self.watched() as run:
            run.wait(lambda: False, "dying")

    def finish(self) -> None:
        """Run it until everything is visible; then every row is in exactly one place, and every sum is true."""
        with self.watched() as run:
            run.wait(lambda: self.visible() >= self.sent, "all rows")
        there = sorted(number for (number,) in self.sql(f"SELECT id FROM {self.table}"))
        assert there == [number for number in range(self.sent) if number not in self.bad]
        bodies = [json.loads(value) for _, value in self.kafka.read(self.aside) if value]
        assert sorted(body["row"]["id"] for body in bodies) == sorted(self.bad)
        assert all(body["source"]["partition"] == body["row"]["id"] % 2 for body in bodies)
        for record in records_of(LocalStorage(Path(self.storage) / self.name / "table")):
            sums = record.sums
            if record.outcome == "complete" and sums is not None and "in" in sums:
                told = sums["out"].get("table", 0), sums["aside"], sums["filtered"]
                assert sum(told) == sums["in"]["orders"], record
                assert told[1] == sum(body["epoch"] == record.epoch for body in bodies)
        left = f"SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '{self.name}%'"
        assert self.sql(left) == []

    def visible(self) -> int:
        [(rows,)] = self.sql(f"SELECT count(*) FROM {self.table}")
        return int(rows) + len(self.kafka.read(self.aside))


@pytest.fixture
def world(session: SparkSession, postgres: Postgres, kafka: Kafka, storage: str) -> World:
    return World(session, postgres, kafka, storage)


BETWEEN = ["epoch.precommitted", "epoch.sealed", "epoch.decided", "epoch.confirmed", "commit.first", "epoch.committed"]


def test_every_row_is_in_one_place_wherever_the_driver_fails(world: World, crash_at: CrashAt) -> None:
    for point in BETWEEN:
        world.feed()
        crash_at(point)
        world.dies()
        crash_at.no_more()
    world.feed()
    world.finish()


def test_lost_rows_of_either_sink_are_written_again_as_they_were_decided(world: World, crash_at: CrashAt) -> None:
    world.feed()
    crash_at("epoch.decided")
    world.dies()
    crash_at.no_more()
    [(lost,), *_] = world.sql(f"SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '{world.name}%' ORDER BY gid")
    world.sql(f"ROLLBACK PREPARED '{lost}'")
    world.finish()

    world.feed()
    crash_at("epoch.decided")
    world.dies()
    crash_at.no_more()
    manifests = Checkpoint(world.storage, world.name, "table").manifests
    newest = manifests[max(manifests)]["committables"]
    prepared = [Committable(name, writer, rows, total, payload) for name, writer, rows, total, _, payload in newest]
    aside = next(item for item in prepared if item.sink == "table.aside")
    sink = KafkaSink(world.aside, servers=world.kafka.servers)
    with closing(sink.open_committer(SinkScope(world.name, "table.aside", 9))) as committer:
        committer.abort([aside], Deadline(30.0))
    world.finish()


def test_what_was_set_aside_is_put_back_once_by_a_job_that_reads_the_aside_topic(
    world: World, crash_at: CrashAt
) -> None:
    """Its ledger knows up to where it has read: killed in the middle, and started once more, it writes no row twice."""
    world.feed()
    with world.watched() as run:
        run.wait(lambda: world.visible() >= world.sent, "all rows")

    def again() -> Watched:
        checkpoints = Checkpoints(storage=world.storage, interval=0.1)
        job = Job(f"{world.name}-again", checkpoints=checkpoints, restart=RestartStrategy.none(), spark=world.session)
        records = job.read(KafkaSource(world.aside, servers=world.kafka.servers), uid="aside")
        kinds = "sink string, row struct<id bigint, name string, amount decimal(12,2), code string>"
        rows = parse(records, Json(kinds)).where("value.sink = 'table'").select("value.row.*")
        corrected = rows.selectExpr(
            "id", "coalesce(name, '?') AS name", "least(abs(amount), 9999) AS amount", f"'{CODE}' AS code"
        )
        sink = PostgresSink(world.postgres.dsn, table=world.table, mode="two_phase", create=False)
        job.write(corrected, sink, uid="table", aside=KafkaSink(world.aside, servers=world.kafka.servers))
        return Watched(job)

    def there() -> list[int]:
        return sorted(number for (number,) in world.sql(f"SELECT id FROM {world.table}"))

    crash_at("commit.first")
    with pytest.raises(PenstockError), again() as run:
        run.wait(lambda: False, "dying")
    crash_at.no_more()
    with again() as run:
        run.wait(lambda: len(there()) >= world.sent, "all rows")
    assert there() == list(range(world.sent))
    with again() as run:
        run.wait_for("recovered")
    assert there() == list(range(world.sent))
