"""What is in a topic for a `read_committed` reader, once all is over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

_AT_ONCE = 10_000
_WAIT = 0.1  # `consume` waits so long for as many as it was asked for, even when it has some

Ints = npt.NDArray[np.int64]


def read_all(servers: str, topic: str) -> Iterator[list[Message]]:
    """Every visible row, copies included, in handfuls; those of one partition in their order."""
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = reader.list_topics(topic, 30).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            rows = []
            for message in reader.consume(_AT_ONCE, _WAIT):
                problem = message.error()
                if problem is None:
                    rows.append(message)
                elif problem.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(problem)
            if rows:
                yield rows
    finally:
        reader.close()


def ids_in(servers: str, topic: str, place: slice) -> Ints:
    """The id of every visible row, which stands at `place` in its value."""
    found = [numbers([(one.value() or b"")[place] for one in rows]) for rows in read_all(servers, topic)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def counts_in(servers: str, topic: str) -> dict[int, tuple[Ints, Ints, Ints]]:
    """Of rows whose key and value are numbers, by partition: offsets, keys and values, in their order."""
    found: dict[int, list[tuple[int, bytes, bytes]]] = {}
    for rows in read_all(servers, topic):
        for one in rows:
            row = (one.offset() or 0, one.key() or b"", one.value() or b"")
            found.setdefault(one.partition() or 0, []).append(row)
    by_column = {one: tuple(zip(*rows, strict=True)) for one, rows in found.items()}
    return {
        one: (np.array(offsets, np.int64), numbers(keys), numbers(values))
        for one, (offsets, keys, values) in by_column.items()
    }


def numbers(texts: list[bytes] | tuple[bytes, ...]) -> Ints:
    return np.array(texts).astype(np.int64)
