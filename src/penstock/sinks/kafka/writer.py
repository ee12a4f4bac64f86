"""A task's side: rows in, a prepared transaction out; or, for at-least-once, rows that are visible at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import EpochError
from penstock.sinks.kafka.columns import ACCEPTED
from penstock.sinks.kafka.pool import POOL, Key, Pool
from penstock.sinks.kafka.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaWriter(Writer):
    """Opening takes a producer and begins; the broker learns of the transaction with the first row.

    After pre_commit the rows are at the broker, invisible to read_committed readers, and stay so until the driver ends
    the transaction or its timeout passes, whether this process lives or not.
    """

    def __init__(self, scope: WriterScope, key: Key, topic: str | None, pool: Pool = POOL) -> None:
        self._key, self._topic, self._pool = key, topic, pool
        self._producer: Producer | None = pool.acquire(key, scope.hints)
        self._prepared = self._tainted = False
        try:
            self._producer.begin()
        except BaseException:
            self._drop()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names if name in ACCEPTED}
        self._guarded(lambda producer: producer.send(columns, self._topic))

    def pre_commit(self) -> Mapping[str, Any]:
        producer = self._guarded(lambda producer: producer.flush())
        if producer.rows == 0:
            # The broker knows nothing of it: nothing to commit, nothing to prove.
            self.abort()
            return {"transactional_id": None}
        self._prepared = True
        self._pool.park(self._key, producer)
        return {
            "transactional_id": producer.transactional_id,
            "sequence": producer.sequence,
            "topics": sorted(producer.topics),
        }

    def abort(self) -> None:
        """Also after pre_commit, as long as no driver has seen the committable."""
        producer, self._producer = self._producer, None
        if producer is None or (self._prepared and not self._pool.reclaim(producer)):
            return
        # After an error librdkafka gives itself a new epoch behind the abort, and may drop rows of the next
        # transaction meanwhile. What is left open here the driver fences.
        if producer.abort() and not self._tainted:
            self._pool.release(self._key, producer)
        else:
            producer.destroy()

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.destroy()

    def _guarded(self, work: Callable[[Producer], None]) -> Producer:
        producer = self._mine()
        try:
            work(producer)
        except BaseException:
            self._tainted = True
            raise
        return producer

    def _mine(self) -> Producer:
        if self._producer is None or self._prepared:
            raise EpochError(
                "A Kafka writer was used after it had been prepared or aborted.",
                safe="its transaction is unchanged.",
                to_do="open a new writer for every task attempt.",
            )
        return self._producer


_Settings = tuple[tuple[str, str], ...]


class _Idle:
    """Producers between two tasks of this process; a forked child forgets what it inherited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._producers: list[tuple[_Settings, Producer]] = []

    def take(self, settings: _Settings) -> Producer:
        with self._lock:
            if self._pid != os.getpid():
                for _, producer in self._producers:
                    producer.abandon()
                self._producers, self._pid = [], os.getpid()
            for place, (own, producer) in enumerate(self._producers):
                if own == settings:
                    del self._producers[place]
                    return producer
        return Producer(dict(settings), None)

    def give(self, settings: _Settings, producer: Producer) -> None:
        with self._lock:
            self._producers.append((settings, producer))


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
