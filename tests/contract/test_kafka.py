"""The Kafka sink keeps the contract."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import TwoPhaseSink
from penstock.testing.sink_contract import SinkContract, SinkHarness
from tests.support.kafka import transactions
from tests.support.waiting import until

kafka = pytest.importorskip("penstock.sinks.kafka")
confluent_kafka = pytest.importorskip("confluent_kafka")

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
PARTITIONS = 2


class KafkaHarness(SinkHarness):
    def __init__(self, servers: str, timeout: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self.servers = servers
        self.topic = f"contract-{uuid.uuid4().hex[:8]}"
        self.timeout = timeout
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)]).values():
            future.result(30)

    def make_sink(self) -> TwoPhaseSink:
        sink: TwoPhaseSink = kafka.KafkaSink(self.topic, servers=self.servers, transaction_timeout=self.timeout)
        return sink

    def read_visible(self) -> list[Any]:
        """Everything up to the last stable offset, as any consumer with read_committed sees it. The broker says that a
        transaction is ended a moment before the markers are in every partition; that moment is waited for."""
        until(
            lambda: not any(state.startswith("Prepare") for state in transactions(self.servers, "").values()),
            "the broker to write its markers",
        )
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"contract-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        ends: set[int] = set()
        rows: list[Any] = []
        try:
            consumer.assign([confluent_kafka.TopicPartition(self.topic, n, 0) for n in range(PARTITIONS)])
            give_up = time.monotonic() + 30
            while len(ends) < PARTITIONS and time.monotonic() < give_up:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error() is None:
                    rows.append((message.key(), message.value()))
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends.add(message.partition())
        finally:
            consumer.close()
        assert len(ends) == PARTITIONS, "the topic could not be read to its end"
        return rows

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        columns = [[b"key %d" % i for i in numbers], [b"value %d" % i for i in numbers]]
        return pa.RecordBatch.from_arrays([pa.array(column, pa.binary()) for column in columns], schema=SCHEMA)

    def special(self) -> pa.RecordBatch:
        keys = [None, b"", "日本語".encode(), b"deleted", b"\x00\xff"]
        values = ["🚀 Zażółć".encode(), b"", b"no key", None, b"\x00\xff"]
        return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA)

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"key": [b"large"], "value": [b"x" * 500_000]}, schema=SCHEMA)

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """Wait until the broker itself gives the transaction up, which it looks for every ten seconds."""
        from kafka import KafkaAdminClient

        name = committable.payload["transactional_id"]
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        try:
            give_up = time.monotonic() + 40
            while "CompleteAbort" not in str(admin.describe_transactions([name])):
                assert time.monotonic() < give_up, "the broker never ended the transaction"
                time.sleep(0.2)
        finally:
            admin.close()
        return True


class TestKafka(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, broker: Any, request: pytest.FixtureRequest) -> None:
        expires = "other_system_ended" in request.node.name
        self.harness = KafkaHarness(broker.servers, timeout="2s" if expires else "60s")
