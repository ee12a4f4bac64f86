"""The demo on Kafka: a private broker, the payments written into it beforehand, and readers that see only what is
committed.

The broker is a real one. A reader of Kafka cannot see an epoch in one instant, because every partition gets its own
commit marker; what it can rely on, and what is checked here, is that nothing is visible before its epoch is decided,
that everything is once the epoch is complete, and that nothing ever goes away.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.deadline import Deadline
from penstock.dev.broker import Broker
from penstock.dev.demo.result import Outputs
from penstock.dev.demo.truth import Truth
from penstock.errors import DevelopmentError, MissingExtra
from penstock.kafka.connections import librdkafka_admin
from penstock.testing.oracle import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.dev.demo.job_process import JobConfig
    from penstock.dev.demo.plan import Progress

try:
    from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
except ImportError as error:
    raise MissingExtra(
        "The demo on Kafka needs the package confluent-kafka.",
        safe="nothing was started.",
        to_do='install it with pip install "penstock[kafka]", or run the demo without --kafka.',
    ) from error

INPUT = "payments"
#: By the query that writes it.
TOPICS = {"payments": "payments-out", "totals": "totals-out"}
PARTITIONS = 2
#: For one request to a broker on this machine; it shares two cores with Spark.
_ANSWER_SECONDS = 30.0
_READ = 10_000
#: `consume` waits so long for as many messages as it was asked for, even when it already has some.
_WAIT_SECONDS = 0.05


class KafkaStage:
    """Topics on a broker of its own. The job never ends by itself: it is stopped once the outputs are complete."""

    endless = True

    def __init__(self, config: JobConfig) -> None:
        self._broker = Broker.start(Path(config.folder) / "broker")
        try:
            self.config = replace(config, servers=self._broker.servers)
            self._admin = librdkafka_admin(_client(self._broker.servers))
            _create_topics(self._admin)
            feed(self._broker.servers, config.rows)
            self._tail = _Tail(self._broker.servers)
        except BaseException:
            self._broker.stop()
            raise
        self._looks: list[tuple[float, float, dict[str, list[int]]]] = []

    def look(self) -> None:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        began = time.time()
        answers = self._admin.list_offsets(
            dict.fromkeys(_places(), latest),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_SECONDS,
        )
        ends = {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
        found = {query: [ends[topic, part] for part in range(PARTITIONS)] for query, topic in TOPICS.items()}
        self._looks.append((began, time.time() - began, found))
        self._tail.read()

    def full(self) -> bool:
        return self._tail.payments >= self.config.rows and sum(self._tail.counts.values()) >= self.config.rows

    def outputs(self, progress: Progress) -> Outputs:
        sizes = {query: progress.sizes(query) for query in TOPICS}
        payments, totals = (list(read_all(self._broker.servers, topic)) for topic in TOPICS.values())
        places = {"payments": _offsets(payments), "totals": _offsets(totals)}
        looks = [
            Observation(
                began,
                {query: _by_epoch(_visible(places[query], ends), sizes[query]) for query, ends in found.items()},
                took=took,
            )
            for began, took, found in self._looks
        ]
        return Outputs(
            payments=_table(payments, {"id": pa.int64(), "account": pa.string(), "amount": pa.int64()}),
            totals=_table(totals, {"account": pa.string(), "n": pa.int64(), "total": pa.int64()}),
            sizes=sizes,
            looks=looks,
        )

    def close(self) -> None:
        self._tail.close()
        self._broker.stop()


def feed(servers: str, rows: int) -> None:
    """Write the first `rows` payments, keyed by account, so that each account's stay in order."""
    producer = Producer({**_client(servers), "enable.idempotence": True, "linger.ms": 20})
    columns = [column.to_pylist() for column in Truth(rows).payments.columns]
    for number, account, amount in zip(*columns, strict=True):
        value = f'{{"id":{number},"account":"{account}","amount":{amount}}}'
        while True:
            try:
                producer.produce(INPUT, key=account, value=value)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(_ANSWER_SECONDS) != 0:
        raise DevelopmentError(
            "The development broker did not take all payments of the demo.",
            safe="nothing else was started.",
            to_do="see broker.log in the demo's folder.",
        )


def read_all(servers: str, topic: str) -> Iterator[Message]:
    """Every committed message of a topic, partition by partition, by a consumer that has nothing to do with the job."""
    consumer = Consumer({**_reading(servers), "enable.partition.eof": True})
    try:
        for part in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, part, 0)])
            ended, deadline = False, Deadline(_ANSWER_SECONDS)
            while not ended:
                messages = consumer.consume(_READ, _WAIT_SECONDS)
                if messages:
                    deadline = Deadline(_ANSWER_SECONDS)
                elif deadline.passed():
                    raise DevelopmentError(
                        f"The end of {topic}-{part} was not reached in {_ANSWER_SECONDS:.0f} seconds.",
                        safe="what was written is kept.",
                        to_do="see broker.log in the demo's folder; a transaction may have been left open.",
                    )
                for message in messages:
                    problem = message.error()
                    if problem is None:
                        yield message
                    elif problem.code() == KafkaError._PARTITION_EOF:
                        ended = True
                    else:
                        raise KafkaException(problem)
    finally:
        consumer.close()


class _Tail:
    """Follows both outputs, to know when they are complete. Counts only; the verdict reads everything anew."""

    def __init__(self, servers: str) -> None:
        self.payments = 0
        self.counts: dict[str, int] = {}
        self._consumer = Consumer(_reading(servers))
        self._consumer.assign(_places())

    def read(self) -> None:
        while messages := self._consumer.consume(_READ, _WAIT_SECONDS):
            for message in messages:
                if message.error() is not None:
                    continue  # a broker that is slow to answer is no finding; the final read is the strict one
                if message.topic() == TOPICS["payments"]:
                    self.payments += 1
                else:
                    row = json.loads(message.value() or b"{}")
                    self.counts[row["account"]] = row["n"]

    def close(self) -> None:
        self._consumer.close()


def _client(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": 0}  # what goes wrong is raised; the terminal is the view's


def _reading(servers: str) -> dict[str, Any]:
    return {
        **_client(servers),
        "group.id": "penstock-demo-reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
    }


def _places() -> list[TopicPartition]:
    return [TopicPartition(topic, part, 0) for topic in TOPICS.values() for part in range(PARTITIONS)]


def _create_topics(admin: AdminClient) -> None:
    topics = [NewTopic(name, PARTITIONS, 1) for name in (INPUT, *TOPICS.values())]
    for answer in admin.create_topics(topics, request_timeout=_ANSWER_SECONDS).values():
        answer.result()


def _table(messages: list[Message], columns: dict[str, pa.DataType]) -> pa.Table:
    rows = [json.loads(message.value() or b"{}") for message in messages]
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in columns.items()})


def _offsets(messages: list[Message]) -> list[np.ndarray[Any, Any]]:
    return [
        np.array([message.offset() for message in messages if message.partition() == part], dtype=np.int64)
        for part in range(PARTITIONS)
    ]


def _visible(places: list[np.ndarray[Any, Any]], ends: list[int]) -> int:
    """How many rows lie before the last stable offsets `ends`; markers and aborted rows use up offsets too."""
    return sum(int(np.searchsorted(offsets, end)) for offsets, end in zip(places, ends, strict=True))


def _by_epoch(rows: int, sizes: dict[int, int]) -> dict[int, int]:
    """Epochs follow each other, so the first rows are those of the first epochs."""
    found = {}
    for epoch in sorted(sizes):
        found[epoch] = min(rows, sizes[epoch])
        rows -= found[epoch]
    return {**found, **({-1: rows} if rows else {})}
