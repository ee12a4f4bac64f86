"""The Kafka sink as the contract's suite, and a power cut, see it."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import TwoPhaseSink
from penstock.sinks.kafka import KafkaSink
from penstock.testing.sink_contract import SinkHarness
from tests.support.kafka import create_topic, read_committed, transactions
from tests.support.waiting import until

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
PARTITIONS = 2


class KafkaHarness(SinkHarness):
    def __init__(self, servers: str, timeout: str) -> None:
        self.servers = servers
        self.topic = create_topic(servers, PARTITIONS, prefix="contract")
        self.timeout = timeout

    def make_sink(self) -> TwoPhaseSink:
        sink: TwoPhaseSink = KafkaSink(self.topic, servers=self.servers, transaction_timeout=self.timeout)
        return sink

    def read_visible(self) -> list[Any]:
        """Everything up to the last stable offset, as any consumer with read_committed sees it. The broker says that a
        transaction is ended a moment before the markers are in every partition; that moment is waited for."""
        until(
            lambda: not any(state.startswith("Prepare") for state in transactions(self.servers, "").values()),
            "the broker to write its markers",
        )
        return [(message.key(), message.value()) for message in read_committed(self.servers, self.topic)]

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
