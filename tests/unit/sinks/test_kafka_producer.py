"""What a producer knows of its topics; the broker's side is in tests/integration/test_kafka_sink.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import DataError
from penstock.sinks.kafka import producer as module
from penstock.sinks.kafka.producer import Producer

SETTINGS = {"bootstrap.servers": "s:1", "message.max.bytes": "1000", "delivery.timeout.ms": "1000"}


class Handle:
    """Takes every row; `counts` are the partitions that the broker tells of, one answer after the other."""

    counts: list[int]

    def __init__(self, *_: Any) -> None:
        self.sent, self.connected = 0, False

    def partitions(self, name: str, seconds: float) -> tuple[int, int]:
        return 0, self.counts.pop(0)

    def topic(self, name: str) -> int:
        return 1

    def produce_batch(self, topic: int, address: int, count: int) -> int:
        self.sent += count
        return count

    def poll(self, seconds: float) -> None: ...

    def reach(self, seconds: float) -> int:
        self.connected = True
        return 0

    def init_transactions(self, seconds: float) -> None:
        assert self.connected, "librdkafka would look for a coordinator now, find no broker, and wait half a second"


def send(producer: Producer, *partitions: int | None) -> None:
    columns = {"value": pa.array([b"x"] * len(partitions)), "partition": pa.array(partitions, pa.int32())}
    producer.send(columns, "t")


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(Handle, "counts", found, raising=False)
    monkeypatch.setattr(module, "Handle", Handle)
    return found


def test_partitions_that_were_added_meanwhile_are_asked_for_before_a_row_is_refused(counts: list[int]) -> None:
    producer = Producer(SETTINGS, None)
    counts[:] = [1, 2]
    send(producer, 0, None)
    send(producer, 0)
    assert counts == [2], "what is known is not asked for again"
    send(producer, 1)
    assert counts == []
    send(producer, 1)


def test_a_partition_that_is_not_there_either_time_is_refused(counts: list[int]) -> None:
    producer = Producer(SETTINGS, None)
    counts[:] = [1, 1, 2]
    send(producer, 0)
    with pytest.raises(DataError, match="partition 1 of topic 't'"):
        send(producer, 0, 1)
    send(producer, 1)


def test_a_number_below_nothing_is_refused(counts: list[int]) -> None:
    counts[:] = [3]
    with pytest.raises(DataError, match="partition -2"):
        send(Producer(SETTINGS, None), -2)


def test_a_producer_connects_before_it_asks_for_its_coordinator(counts: list[int]) -> None:
    assert Producer(SETTINGS, "job-u-g000001-a").transactional_id == "job-u-g000001-a"
