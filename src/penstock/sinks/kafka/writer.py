"""A task's side: rows in, a prepared transaction out; or, for at-least-once, immediately visible rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from penstock.contracts.sink import Writer, WriterScope, first_reasons
from penstock.errors import EpochError
from penstock.sinks.kafka.pool import POOL, Key, Pool
from penstock.sinks.kafka.producer import Producer, plain, spans
from penstock.sinks.kafka.sink import ACCEPTED


class KafkaWriter(Writer):
    """Opening takes a producer and begins; the broker learns of the transaction with the first row.

    After pre_commit the rows are at the broker, invisible to read_committed readers until the driver ends the
    transaction or its timeout passes, whether this process lives or not.
    """

    def __init__(self, scope: WriterScope, key: Key, topic: str | None, pool: Pool = POOL) -> None:
        self._key, self._topic, self._pool = key, topic, pool
        self._prepared = self._tainted = False
        self._rules = scope.hints.get("rules", {})
        producer = pool.acquire(key, scope.hints)
        self._producer: Producer | None = producer
        try:
            producer.begin()
        except BaseException:
            producer.destroy()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names if name in ACCEPTED}
        self._guarded(lambda producer: producer.send(columns, self._topic))

    def unfit(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        """A row is as large as its key and value, and up to 90 bytes that Kafka puts around a row that is alone."""
        columns = {name: plain(batch.column(name)) for name in ("value", "key") if name in batch.schema.names}
        sizes = sum(spans(column)[1] for column in columns.values())
        client = int(dict(self._key.settings)["message.max.bytes"])
        most = min(client, self._rules.get("most", client) - 90)
        broken = [(sizes > most, f"the row is larger than the {most:,} bytes that the topic takes")]
        if self._rules.get("keyed") and "key" in columns:
            null = columns["key"].is_null().to_numpy(zero_copy_only=False)
            broken.append((null, "the topic is compacted and takes no row without a key"))
        return first_reasons(broken)

    def pre_commit(self) -> Mapping[str, Any]:
        producer = self._guarded(lambda producer: producer.flush())
        if producer.rows == 0:
            # The broker knows nothing of it: there is nothing to commit or prove.
            self.abort()
            return {"transactional_id": None}
        self._prepared = True
        self._pool.park(self._key, producer)
        return {
            "transactional_id": producer.transactional_id,
            "sequence": producer.sequence,
            "after": producer.after,
            "topics": sorted(producer.topics),
        }

    def abort(self) -> None:
        """Also after pre_commit, as long as no driver has seen the committable."""
        producer, self._producer = self._producer, None
        if producer is None or (self._prepared and not self._pool.reclaim(producer)):
            return
        # After an error librdkafka gives itself a new epoch behind the abort, and may drop rows of the next
        # transaction meanwhile. The driver fences a transaction that stays open here. With rows, one has begun at the
        # broker of which the driver does not know when: `after` would not name it.
        if producer.abort() and not self._tainted and not producer.rows:
            self._pool.release(self._key, producer)
        else:
            producer.destroy()

    def _guarded(self, work: Callable[[Producer], None]) -> Producer:
        producer = self._producer
        if producer is None or self._prepared:
            raise EpochError(
                "A Kafka writer was used after it had been prepared or aborted.",
                safe="its transaction is unchanged.",
                to_do="open a new writer for every task attempt.",
            )
        try:
            work(producer)
        except BaseException:
            self._tainted = True
            raise
        return producer


class DirectKafkaWriter(KafkaWriter):
    """An idempotent producer: the broker drops rows that the producer sends twice, not rows that a replay repeats."""

    def pre_commit(self) -> Mapping[str, Any]:
        producer = self._guarded(lambda producer: producer.flush())
        self._producer = None
        self._pool.release(self._key, producer)
        return {}

    def abort(self) -> None:
        """Sent rows stay visible; queued ones are dropped with the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.destroy()
