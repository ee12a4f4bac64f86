"""What the Kafka benchmark needs around the jobs: topics, input, and a thousand open writers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping


def create_topics(servers: str, topics: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        made.result()


def feed(servers: str, topic: str, rows: int, *, batch: int = 100_000) -> None:
    """`rows` messages of an 8-byte key and 100 bytes of JSON, spread over the partitions, through our own writer."""
    sink = KafkaSink(topic, servers=servers)
    scope = SinkScope("bench", "feed", 1)
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
    ids = np.arange(first, first + count)
    keys = pa.array([f"{number % 10_000:08d}" for number in ids]).cast(pa.binary())
    values = pa.array(
        [
            f'{{"id":{number:016d},"account":"{number % 10_000:08d}","amount":{number % 997:08d},"pad":"{"x" * 24}"}}'
            for number in ids
        ]
    )
    return pa.RecordBatch.from_arrays([keys, values.cast(pa.binary())], names=["key", "value"])


def open_writers_and_commit(servers: str, count: int) -> dict[str, Any]:
    """`count` writers with rows, all prepared; then one decision's commit for all of them, timed."""
    create_topics(servers, {"writers": 4})
    sink = KafkaSink("writers", servers=servers)
    scope = SinkScope("bench", "writers", 1)
    committer = sink.open_committer(scope)
    rows = messages(0, 10)
    started = time.monotonic()
    committables = []
    for number in range(count):
        writer = sink.open_writer(WriterScope(scope, 0, 0, number, number, {}))
        writer.write(rows)
        committables.append(Committable("writers", number, rows.num_rows, 0, writer.pre_commit()))
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
