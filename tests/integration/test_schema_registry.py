"""Kafka with a real schema registry: formats, schemas that come later, and a registry that refuses or is away."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Avro, Checkpoints, Job, JsonSchema, KafkaSink, KafkaSource, Protobuf, RestartStrategy
from penstock.checkpoint.layout import SCHEMAS
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    DataError,
    PenstockError,
    SchemaIncompatible,
    SchemaMismatch,
    SystemUnavailable,
)
from tests.support.run_job import CrashAt, Kafka, Watched, failing
from tests.support.servers.registry import Guard, Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("httpx2", reason="the extra penstock[registry] is not installed")

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "what", "type": "string"}],
}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
DEAD = "http://127.0.0.1:9/apis/ccompat/v7"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry.start() as started:
        yield started


def client(registry: Registry) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient({"url": registry.url})


def register(registry: Registry, topic: str, schema: Any, kind: str = "AVRO") -> int:
    from confluent_kafka.schema_registry import Schema

    text = schema if isinstance(schema, str) else json.dumps(schema)
    return int(client(registry).register_schema(f"{topic}-value", Schema(text, kind)))


def varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def text(value: str) -> bytes:
    return varint(len(value.encode())) + value.encode()


def order(id_: int, number: int, note: str | None = None, *, second: bool = False) -> bytes:
    """An order as another client of the registry writes it."""
    body = varint(number) + text(f"w{number}")
    if second:
        body += varint(0) if note is None else varint(1) + text(note)
    return struct.pack(">bI", 0, id_) + body


def job(session: SparkSession, storage: str, source: KafkaSource, sink: KafkaSink, **more: Any) -> Job:
    built = Job("orders", spark=session, checkpoints=Checkpoints(storage=storage, interval="100ms"), **more)
    built.write(built.read(source, uid="in").select("value.*"), sink, uid="out")
    return built


def with_topics(kafka: Kafka) -> tuple[str, str]:
    return kafka.topic(1), kafka.topic(1)


def avro_job(session: SparkSession, storage: str, kafka: Kafka, topics: tuple[str, str], url: str, **more: Any) -> Job:
    source = KafkaSource(topics[0], servers=kafka.servers, value=Avro(registry=url, schema=json.dumps(FIRST)))
    return job(session, storage, source, KafkaSink(topics[1], servers=kafka.servers, value=Avro(registry=url)), **more)


def values(kafka: Kafka, topic: str) -> list[bytes]:
    return [value for _, value in kafka.read(topic) if value is not None]


def numbers(kafka: Kafka, topic: str, *, nullable: bool = True) -> list[int]:
    """Of the orders that are visible, which this reads by itself. `nullable`: a byte says that there is a number."""
    found = []
    for value in values(kafka, topic):
        zigzag, shift, at = 0, 0, int(nullable)
        while True:
            byte = value[5 + at]
            zigzag, shift, at = zigzag | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        found.append(zigzag >> 1)
    return sorted(found)


def test_avro_from_topic_to_topic_with_a_schema_that_comes_while_the_job_runs(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, running: type[Watched]
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(None, order(first, n)) for n in range(50)])
    with running(avro_job(session, storage, kafka, topics, registry.url)) as run:
        run.wait(lambda: len(kafka.read(topics[1])) == 50, "the first rows")
        second = register(registry, topics[0], SECOND)
        kafka.send(topics[0], [(None, order(second, n, "late", second=True)) for n in range(50, 100)])
        kafka.send(topics[0], [(None, order(first, n)) for n in range(100, 120)])
        run.wait(lambda: len(kafka.read(topics[1])) >= 120, "the later rows")
        assert [event for event in run.all("restarting") if "was written with schema" in event["error"]]
        run.stop()
    assert numbers(kafka, topics[1]) == list(range(120))
    [version] = client(registry).get_versions(f"{topics[1]}-value")
    written = client(registry).get_version(f"{topics[1]}-value", version)
    assert {struct.unpack(">bI", value[:5]) for value in values(kafka, topics[1])} == {(0, written.schema_id)}
    assert [field["name"] for field in json.loads(written.schema.schema_str)["fields"]] == ["id", "what"]


def test_protobuf_and_json_from_topic_to_topic(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, running: type[Watched]
) -> None:
    message = order_message()
    topics = kafka.topic(1), kafka.topic(1), kafka.topic(1)
    path = 'syntax = "proto3"; package shop; message Other {} message Order { int64 id = 1; string what = 2; }'
    id_ = register(registry, topics[0], path, "PROTOBUF")
    rows = [message(id=n, what=f"w{n}").SerializeToString() for n in range(40)]
    kafka.send(topics[0], [(None, struct.pack(">bI", 0, id_) + b"\2\2" + row) for row in rows])
    proto = Protobuf(registry=registry.url, message=message)
    built = Job("forms", spark=session, checkpoints=Checkpoints(storage=storage, interval="100ms"))
    frame = built.read(KafkaSource(topics[0], servers=kafka.servers, value=proto), uid="in").select("value.*")
    built.write(frame, KafkaSink(topics[1], servers=kafka.servers, value=proto), uid="proto")
    built.write(frame, KafkaSink(topics[2], servers=kafka.servers, value=JsonSchema(registry=registry.url)), uid="json")
    with running(built) as run:
        run.wait(lambda: len(kafka.read(topics[1])) == len(kafka.read(topics[2])) == 40, "all rows")
        run.stop()
    seen = [message.FromString(value[7:]) for value in values(kafka, topics[1])]
    assert sorted((one.id, one.what) for one in seen) == [(n, f"w{n}") for n in range(40)]
    documents = [json.loads(value[5:]) for value in values(kafka, topics[2])]
    assert sorted(documents, key=lambda one: one["id"]) == [{"id": n, "what": f"w{n}"} for n in range(40)]
    again = KafkaSource(topics[2], servers=kafka.servers, value=JsonSchema(registry=registry.url))
    assert again.load(session, "u").select("value.*").dtypes == [("id", "bigint"), ("what", "string")]


def order_message() -> Any:
    """The class that protoc would generate; not the first message of its file, so that its path is written out."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="what", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_a_registry_that_is_away_stops_new_schemas_alone(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, running: type[Watched]
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(None, order(first, n)) for n in range(10)])
    with running(avro_job(session, storage, kafka, topics, registry.url)) as run:
        run.wait(lambda: len(kafka.read(topics[1])) == 10, "the first rows")
        run.stop()
    kafka.send(topics[0], [(None, order(first, n)) for n in range(10, 20)])
    with running(avro_job(session, storage, kafka, topics, DEAD)) as run:  # both schemas are kept with the query
        run.wait(lambda: len(kafka.read(topics[1])) == 20, "rows of a known schema")
        run.stop()
    kafka.send(topics[0], [(None, order(999_999, 20))])
    once = RestartStrategy.fixed_delay(attempts=1, delay=0.1)
    error = failing(avro_job(session, storage, kafka, topics, DEAD, restart=once), PenstockError)
    assert "999999" in str(error)
    assert numbers(kafka, topics[1]) == list(range(20))


def test_recovery_of_a_decided_epoch_asks_no_registry(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, crash_at: CrashAt
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(None, order(first, n)) for n in range(10)])
    never = RestartStrategy.none()
    crash_at("epoch.decided")
    failing(avro_job(session, storage, kafka, topics, registry.url, restart=never), Exception)
    crash_at.no_more()
    assert kafka.read(topics[1]) == []
    for kept in (Path(storage) / "orders" / "out" / SCHEMAS).iterdir():  # not even what it could know
        kept.unlink()
    failing(avro_job(session, storage, kafka, topics, DEAD, restart=never), SystemUnavailable)
    assert numbers(kafka, topics[1]) == list(range(10))


def test_a_schema_that_the_registry_does_not_take_is_refused_before_anything_is_written(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    register(registry, topics[1], {**FIRST, "fields": [{"name": "id", "type": "string"}]})
    client(registry).set_compatibility(f"{topics[1]}-value", "BACKWARD")
    kafka.send(topics[0], [(None, order(first, 1))])
    error = failing(avro_job(session, storage, kafka, topics, registry.url), SchemaIncompatible)
    assert f"{topics[1]}-value" in str(error)
    assert kafka.ends(topics[1]) == {0: 0}


def test_a_schema_that_is_not_registered_is_refused_where_the_sink_may_not(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry
) -> None:
    topics = with_topics(kafka)
    register(registry, topics[0], FIRST)
    source = KafkaSource(topics[0], servers=kafka.servers, value=Avro(registry=registry.url))
    sink = KafkaSink(topics[1], servers=kafka.servers, value=Avro(registry=registry.url, auto_register=False))
    failing(job(session, storage, source, sink), ConfigurationError)
    missing = KafkaSource(topics[1], servers=kafka.servers, value=Avro(registry=registry.url))
    with pytest.raises(ConfigurationError, match="no such schema"):
        missing.load(session, "u")


def test_a_row_with_an_id_that_no_registry_has_stops_the_job(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry
) -> None:
    topics = with_topics(kafka)
    register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(None, order(999_999, 1))])
    error = failing(avro_job(session, storage, kafka, topics, registry.url), DataError)
    assert "999999" in str(error)


@pytest.mark.parametrize("bad", [b"no wire format", b""])
def test_a_row_in_another_format_is_named(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, bad: bytes
) -> None:
    topics = with_topics(kafka)
    register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(None, bad)])
    failing(avro_job(session, storage, kafka, topics, registry.url), DataError)


def test_a_tombstone_stays_one(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, running: type[Watched]
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    kafka.send(topics[0], [(b"k", order(first, 1)), (b"k", None)])
    built = Job("orders", spark=session, checkpoints=Checkpoints(storage=storage, interval="100ms"))
    frame = built.read(KafkaSource(topics[0], servers=kafka.servers, value=Avro(registry=registry.url)), uid="in")
    built.write(frame, KafkaSink(topics[1], servers=kafka.servers, value=Avro(registry=registry.url)), uid="out")
    with running(built) as run:
        run.wait(lambda: len(kafka.read(topics[1])) == 2, "both rows")
        run.stop()
    assert [value is None for _, value in kafka.read(topics[1])] == [False, True]


def test_a_password_is_used_and_never_shown(
    session: SparkSession, kafka: Kafka, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic(1)
    register(registry, topic, FIRST)
    guard = Guard(registry, "shop", "s3cret-door")
    try:
        good, bad = ({"url": guard.url, "basic.auth.user.info": f"shop:{word}"} for word in ("s3cret-door", "a-guess"))
        source = KafkaSource(topic, servers=kafka.servers, value=Avro(registry=good))
        source.load(session, "u")
        assert guard.passed
        with pytest.raises(AccessDenied) as caught:
            KafkaSource(topic, servers=kafka.servers, value=Avro(registry=bad)).load(session, "u")
        shown = f"{caught.value} {source!r} {Avro(registry=good)!r} {caplog.text}"
        assert "s3cret-door" not in shown
        assert "a-guess" not in shown
    finally:
        guard.close()


def test_a_frame_that_the_sink_s_schema_cannot_take_is_refused_where_it_is_written(
    session: SparkSession, storage: str, kafka: Kafka
) -> None:
    sink = KafkaSink("t", servers=kafka.servers, value=Avro(registry=DEAD, schema=json.dumps(FIRST)))
    with pytest.raises(SchemaMismatch):
        sink.shape(session.range(3).selectExpr("cast(id AS string) AS id", "'w' AS what"))
    with pytest.raises(ConfigurationError, match="subject"):
        KafkaSink(servers=kafka.servers, value=Avro(registry=DEAD))


def test_in_real_time(
    session: SparkSession, storage: str, kafka: Kafka, registry: Registry, running: type[Watched]
) -> None:
    topics = with_topics(kafka)
    first = register(registry, topics[0], FIRST)
    avro = Avro(registry=registry.url, schema=json.dumps(FIRST))
    built = Job("orders", spark=session, checkpoints=Checkpoints(storage=storage, interval="1s", latency="50ms"))
    frame = built.read(KafkaSource(topics[0], servers=kafka.servers, value=avro), uid="in").where("value.id % 2 = 0")
    built.write(frame.select("value.*"), KafkaSink(topics[1], servers=kafka.servers, value=avro), uid="out")
    with running(built) as run:
        kafka.send(topics[0], [(None, order(first, n)) for n in range(100)])
        run.wait(lambda: len(kafka.read(topics[1])) == 50, "the rows")
        run.stop()
    assert numbers(kafka, topics[1], nullable=False) == list(range(0, 100, 2))


def test_the_drop_in_writes_with_a_schema(
    session: SparkSession, tmp_path: Path, kafka: Kafka, registry: Registry
) -> None:
    from penstock import exactly_once

    topics = with_topics(kafka)
    kafka.send(topics[0], [(None, str(n)) for n in range(20)])
    rows = session.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    rows = rows.option("subscribe", topics[0]).option("startingOffsets", "earliest")
    frame = rows.load().selectExpr("cast(cast(value AS string) AS bigint) AS id", "'w' AS what")
    sink = KafkaSink(topics[1], servers=kafka.servers, value=Avro(registry=registry.url))
    writer = exactly_once(sink, uid="out", spark=session)
    stream = frame.writeStream.foreachBatch(writer).option("checkpointLocation", str(tmp_path / uuid.uuid4().hex))
    assert stream.trigger(availableNow=True).start().awaitTermination(90)
    assert numbers(kafka, topics[1]) == list(range(20))
