"""Kafka read through Spark, over SASL_SSL too, with nothing but librdkafka's settings; positions in the group."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.contracts.sink import CheckContext
from penstock.errors import AccessDenied, SystemUnavailable, TopicMissing
from penstock.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.servers.broker import Broker
    from tests.support.servers.security import SecureBroker, SecurityFiles

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("cryptography")

CONTEXT = CheckContext("job", interval_seconds=1.0, timeout_seconds=10.0)


@pytest.fixture
def orders(sasl_broker: SecureBroker) -> str:
    """Ten committed rows, and five of a transaction that was aborted."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": sasl_broker.servers})
    for future in admin.create_topics([NewTopic(name, 2, 1)]).values():
        future.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": sasl_broker.servers, "transactional.id": name})
    producer.init_transactions(30)
    for start, rows, end in ((0, 10, producer.commit_transaction), (100, 5, producer.abort_transaction)):
        producer.begin_transaction()
        for number in range(start, start + rows):
            producer.produce(name, str(number), partition=number % 2)
        producer.flush(30)
        end(30)
    return name


def drain(frame: DataFrame, checkpoint: Path) -> tuple[list[int], Any]:
    seen: list[int] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(row.number for row in batch.selectExpr("cast(cast(value AS string) AS int) AS number").collect())

    stream = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    progress = query.lastProgress
    assert progress is not None
    return sorted(seen), progress["sources"][0]["endOffset"]


def test_committed_rows_are_read_with_librdkafkas_settings(
    session: SparkSession, sasl_broker: SecureBroker, security: SecurityFiles, orders: str, tmp_path: Path
) -> None:
    source = KafkaSource(orders, servers=sasl_broker.sasl_servers, options=security.client("alice"))
    assert source.check(CONTEXT, "orders") == ()
    seen, end = drain(source.load(session, "orders"), tmp_path / "checkpoint")
    assert seen == list(range(10))
    source.publish("job", "orders", end)
    assert group_positions(sasl_broker, "penstock-job-orders", orders) == end_positions(end, orders)
    source.stop()


def test_positions_are_mirrored_to_the_group_of_choice(sasl_broker: SecureBroker, orders: str) -> None:
    source = KafkaSource(orders, servers=sasl_broker.servers, group="lag")
    for offset in range(1, 5):
        source.publish("job", "orders", f'{{"{orders}": {{"0": {offset}, "1": {offset}}}}}')
    assert group_positions(sasl_broker, "lag", orders, wanted={0: 4, 1: 4}) == {0: 4, 1: 4}
    source.stop()


def end_positions(end: Any, topic: str) -> dict[int, int]:
    import json

    parsed = json.loads(end) if isinstance(end, str) else end
    return {int(partition): offset for partition, offset in parsed[topic].items()}


def group_positions(broker: Broker, group: str, topic: str, wanted: dict[int, int] | None = None) -> dict[int, int]:
    """What a lag tool sees, once it is `wanted`, or there at all; a new group's coordinator needs a moment to load."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.servers, "group.id": group})
    found: dict[int, int] = {}
    give_up = time.monotonic() + 20
    try:
        while time.monotonic() < give_up:
            try:
                answered = consumer.committed([confluent_kafka.TopicPartition(topic, n) for n in (0, 1)], timeout=10)
                found = {one.partition: one.offset for one in answered}
            except confluent_kafka.KafkaException:
                pass  # not yet; a group that never answers leaves `found` empty
            if found == wanted or (wanted is None and found and min(found.values()) >= 0):
                break
            time.sleep(0.1)
    finally:
        consumer.close()
    return found


def test_the_check_names_what_is_wrong(sasl_broker: SecureBroker, security: SecurityFiles, orders: str) -> None:
    with pytest.raises(TopicMissing, match="no topic 'nothing'"):
        KafkaSource([orders, "nothing"], servers=sasl_broker.servers).check(CONTEXT, "orders")
    wrong = security.client("alice", "wrong")
    with pytest.raises(AccessDenied):
        KafkaSource(orders, servers=sasl_broker.sasl_servers, options=wrong).check(CONTEXT, "orders")
    with pytest.raises(SystemUnavailable):
        KafkaSource(orders, servers=sasl_broker.sasl_servers).check(CheckContext("job", 1.0, 2.0), "orders")
    [finding] = KafkaSource(pattern="nothing.*", servers=sasl_broker.servers).check(CONTEXT, "orders")
    assert "no topic matches" in finding.message
    assert KafkaSource(pattern="orders-.*", servers=sasl_broker.servers).check(CONTEXT, "orders") == ()


def test_a_forbidden_topic_is_not_called_missing(
    sasl_broker: SecureBroker, security: SecurityFiles, orders: str
) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": sasl_broker.servers})
    forbid = AclBinding(
        ResourceType.TOPIC,
        orders,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    for future in admin.create_acls([forbid]).values():
        future.result(30)
    source = KafkaSource(orders, servers=sasl_broker.sasl_servers, options=security.client("alice"))
    with pytest.raises(AccessDenied):
        check_for_a_while(source)


def check_for_a_while(source: KafkaSource) -> None:
    """The broker applies a new right a moment later."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        source.check(CONTEXT, "orders")
        time.sleep(0.1)
