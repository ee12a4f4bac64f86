"""Topics of a broker for development, over real clients: make and list them, fill them with rows, read them back."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from penstock.dev import kafka
from penstock.errors import DevelopmentError, MissingExtra, TopicMissing
from penstock.kafka import errors

_SECONDS = 30.0  # for an answer of the broker
_POLL_SECONDS = 0.2


def servers_of(given: str | None) -> str:
    """`given`, or the development broker's address."""
    if given:
        return given
    now = kafka.status()
    if now.servers is None:
        raise DevelopmentError(
            "No servers are named, and no development broker runs.",
            to_do="Start one with `penstock dev kafka up`, or name a broker: --servers HOST:PORT.",
        )
    return now.servers


@contextmanager
def named_errors(servers: str, doing: str) -> Iterator[None]:
    """What the client library raises inside becomes an error of ours, also where the library is missing."""
    with MissingExtra.named("Kafka (confluent-kafka)", "kafka"):
        from confluent_kafka import KafkaException
    try:
        yield
    except KafkaException as error:
        fault = error.args[0]
        raise errors.from_code(fault.code(), fault.str(), servers=servers, doing=doing, seconds=_SECONDS) from error


def list_topics(servers: str) -> list[dict[str, Any]]:
    """Name, partitions and rows of each topic that is not the broker's own. Rows count transactions' marks, too."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": servers, "group.id": f"penstock-{uuid.uuid4()}"})
    try:
        found = []
        for name, topic in sorted(reader.list_topics(timeout=_SECONDS).topics.items()):
            if not name.startswith("__"):
                ends = [reader.get_watermark_offsets(TopicPartition(name, n), _SECONDS) for n in topic.partitions]
                found.append({"topic": name, "partitions": len(ends), "rows": sum(end - first for first, end in ends)})
        return found
    finally:
        reader.close()


def create_topics(servers: str, names: Sequence[str], partitions: int) -> list[str]:
    """Create those of `names` that are missing; which those are."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    there = admin.list_topics(timeout=_SECONDS).topics
    missing = [name for name in names if name not in there]
    if missing:
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in missing]).values():
            future.result()
    return missing


def payments() -> Iterator[tuple[str, str]]:
    """Keys and values without end: payments of 500 accounts, every hundredth of them large."""
    number = 0
    while True:
        amount = (number * 48_271 % 100_000) / 100 if number % 100 else 1_000 + number % 9_000
        account, at = f"acc-{number * 7919 % 500:04d}", datetime.now(UTC).isoformat(timespec="milliseconds")
        yield account, json.dumps({"id": number, "account": account, "amount": amount, "at": at})
        number += 1


def produce(servers: str, topic: str, rows: Iterable[tuple[str | None, str]], rate: float) -> Iterator[int]:
    """Send rows, `rate` of them a second (0: as fast as they come). Yields how many the broker has, about once a second
    and at the end."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    sent, begun = 0, time.monotonic()
    shown = begun
    for key, value in rows:
        if rate:
            time.sleep(max(0.0, begun + sent / rate - time.monotonic()))
        while True:
            try:
                producer.produce(topic, value.encode(), None if key is None else key.encode())
                break
            except BufferError:
                producer.poll(_POLL_SECONDS)
        sent += 1
        if time.monotonic() - shown >= 1:
            shown = time.monotonic()
            yield sent - producer.flush(_SECONDS)
    if left := producer.flush(_SECONDS):
        raise DevelopmentError(
            f"{left} of {sent} rows did not reach {servers} within {_SECONDS:g} s.",
            to_do="See whether the broker runs: penstock dev kafka status.",
        )
    yield sent


def consume(
    servers: str, topic: str, *, follow: bool = True, newest: bool = False, committed: bool = True
) -> Iterator[Mapping[str, Any]]:
    """Rows of a topic: from its beginning or, with `newest`, from now on. With `follow` it has no end, and a missing
    topic is waited for; otherwise up to the topic's end. `committed`: only those of committed transactions."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    level = "read_committed" if committed else "read_uncommitted"
    own = {"group.id": f"penstock-{uuid.uuid4()}", "isolation.level": level, "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": servers, **own, "enable.auto.commit": False})
    try:
        while not (partitions := reader.list_topics(topic, _SECONDS).topics[topic].partitions) and follow:
            time.sleep(_POLL_SECONDS)
        if not partitions:
            raise TopicMissing(
                f"There is no topic {topic!r} at {servers}.",
                to_do="penstock dev kafka topics lists those that there are; penstock dev kafka produce makes one.",
            )
        open_ends = set(partitions)
        start = -1 if newest else -2  # Kafka's words for its end and its beginning
        reader.assign([TopicPartition(topic, number, start) for number in partitions])
        while follow or open_ends:
            message = reader.poll(_POLL_SECONDS)
            if message is None:
                continue
            if (fault := message.error()) is None:
                at = {"partition": message.partition(), "offset": message.offset()}
                yield {**at, "key": _text(message.key()), "value": _text(message.value())}
            elif fault.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise DevelopmentError(f"Reading {topic!r} at {servers} failed: {fault.str()}.")
    finally:
        reader.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
