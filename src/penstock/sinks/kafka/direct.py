"""At-least-once into Kafka: no transaction, rows are visible as soon as the brokers have them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer
from penstock.sinks.kafka.columns import ACCEPTED
from penstock.sinks.kafka.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

_Settings = tuple[tuple[str, str], ...]


class _Idle:
    """Producers between two tasks of this process; a forked child forgets what it inherited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._kept: list[tuple[_Settings, Producer]] = []

    def take(self, settings: _Settings) -> Producer:
        with self._lock:
            if self._pid != os.getpid():
                for _, producer in self._kept:
                    producer.abandon()
                self._kept, self._pid = [], os.getpid()
            for place, (own, producer) in enumerate(self._kept):
                if own == settings:
                    del self._kept[place]
                    return producer
        return Producer(dict(settings), None)

    def give(self, settings: _Settings, producer: Producer) -> None:
        with self._lock:
            self._kept.append((settings, producer))


IDLE = _Idle()


class DirectKafkaWriter(Writer):
    """An idempotent producer: the broker drops what the producer itself sends twice, not what a replay repeats."""

    def __init__(self, settings: Mapping[str, str], topic: str | None) -> None:
        self._settings, self._topic = tuple(sorted(settings.items())), topic
        self._producer: Producer | None = IDLE.take(self._settings)
        self._producer.begin()

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._producer is not None
        columns = {name: batch.column(name) for name in batch.schema.names if name in ACCEPTED}
        self._producer.send(columns, self._topic)

    def pre_commit(self) -> Mapping[str, Any]:
        assert self._producer is not None
        self._producer.flush()
        producer, self._producer = self._producer, None
        IDLE.give(self._settings, producer)
        return {}

    def abort(self) -> None:
        """What was sent stays visible; the rest is dropped with the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.destroy()
