"""Reads a topic as a `read_committed` consumer does and notes when it saw each row, until it has seen as many as a line
of its input says. In a process of its own: python stream_reader.py '{"servers": …, "topic": …, "file": …}'

It waits for a first message and then takes all that are there: it never waits to fill a batch, which would add to the
latency of every row in it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

_WAIT = 0.1  # for a first message: it comes at once when it is there
_AT_ONCE = 10_000
_LATE = 30.0  # seconds that the last rows may take


class Wanted:
    """How many rows to see: unknown until the parent says so, and nothing more once it is gone."""

    def __init__(self) -> None:
        self._rows: int | None = None
        self._told = float("inf")
        threading.Thread(target=self._listen, daemon=True).start()

    def is_enough(self, seen: int) -> bool:
        return self._rows is not None and (seen >= self._rows or time.monotonic() > self._told + _LATE)

    def _listen(self) -> None:
        self._rows, self._told = int(sys.stdin.readline() or 0), time.monotonic()


def main(given: Mapping[str, Any]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": given["servers"],
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        }
    )
    partitions = consumer.list_topics(given["topic"], 30).topics[given["topic"]].partitions
    consumer.assign([TopicPartition(given["topic"], number, 0) for number in partitions])
    values, moments, counts = bytearray(), [], []
    seen, wanted = 0, Wanted()
    while not wanted.is_enough(seen):
        first = consumer.poll(_WAIT)
        if first is None:
            continue
        found = [first, *consumer.consume(_AT_ONCE, 0)]
        now = time.time_ns()
        for message in found:
            if message.error() is not None:
                raise KafkaException(message.error())
            values += message.value() or b""
        moments.append(now)
        counts.append(len(found))
        seen += len(found)
    consumer.close()
    np.savez(given["file"], values=np.frombuffer(bytes(values), np.uint8), moments=moments, counts=counts)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
