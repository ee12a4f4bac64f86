"""What the Kafka benchmark needs around the jobs: topics, input, and a thousand open writers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FIRST_ID = 10**15  # numbers of JSON do not begin with zeros, and every row is to be of 100 bytes
PAD = b"x" * 29


def create_topics(servers: str, topics: Mapping[str, int]) -> None:
    admin = _admin(servers)
    for made in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        made.result()


def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 3})  # it has a word to say when it ends


def delete_topics(servers: str, names: Sequence[str]) -> None:
    admin = _admin(servers)
    for gone in admin.delete_topics(list(names)).values():
        gone.result()


def feed(servers: str, topic: str, rows: int, *, batch: int = 100_000) -> None:
    """`rows` messages of an 8-byte key and 100 bytes of JSON, spread over the partitions, through our own writer."""
    sink = KafkaSink(topic, servers=servers)
    scope = SinkScope("bench", f"feed-{topic}", 1)
    committer = sink.open_committer(scope)
    for number, start in enumerate(range(0, rows, 1_000_000)):
        writer = sink.open_writer(WriterScope(scope, number, 0, 0, 0, committer.hints()))
        for first in range(start, min(start + 1_000_000, rows), batch):
            writer.write(messages(first, min(batch, rows - first)))
        payload = writer.pre_commit()
        own = committer.seal([Committable("feed", 0, 1, 0, payload)], Deadline(30))
        outcomes = committer.commit(number, own, Deadline(30))
        assert all(outcome.visible for outcome in outcomes.values()), outcomes
    committer.close()


def messages(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    keys = pa.array([f"{number % 10_000:08d}" for number in ids]).cast(pa.binary())
    return pa.RecordBatch.from_arrays([keys, pa.array([message(number) for number in ids])], names=["key", "value"])


def message(number: int) -> bytes:
    """100 bytes of JSON."""
    return (
        b'{"id":%d,"account":"%08d","amount":%d,"pad":"%s"}'
        % (FIRST_ID + number, number % 10_000, 10**7 + number % 997, PAD)
    )  # fmt: skip


def open_writers_and_commit(servers: str, count: int, topic: str) -> dict[str, Any]:
    """`count` writers with rows, all prepared; then one decision's commit for all of them, timed."""
    sink = KafkaSink(topic, servers=servers)
    scope = SinkScope("bench", topic, 1)
    committer = sink.open_committer(scope)
    rows = messages(0, 10)
    started = time.monotonic()
    committables = []
    for number in range(count):
        writer = sink.open_writer(WriterScope(scope, 0, 0, number, number, {}))
        writer.write(rows)
        committables.append(Committable(topic, number, rows.num_rows, 0, writer.pre_commit()))
    opened = time.monotonic()
    sealed = committer.seal(committables, Deadline(60))
    decided = time.monotonic()
    outcomes = committer.commit(0, sealed, Deadline(60))
    done = time.monotonic()
    committer.close()
    assert len(outcomes) == count, len(outcomes)
    assert all(outcome.visible for outcome in outcomes.values()), outcomes
    return {
        "writers": count,
        "open_seconds": opened - started,
        "seal_seconds": decided - opened,
        "commit_seconds": done - decided,
    }
