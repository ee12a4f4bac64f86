"""Kafka, read batch by batch without isolation: every batch names its producer, every transaction ends in a marker.

The ledger has producer id, epoch and start of each writer's transaction: a producer's batches up to a commit marker
belong to the transaction that began last before that marker. Missing rows are no longer provable where a partition's
beginning is gone and the transaction began before the first marker left (retention), and where a compacted topic has
gaps between its offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.audit.compare import KEPT_HASHES, Decided, Later, Part, Visible
from penstock.deadline import Deadline
from penstock.engine.hashing import I64, Values
from penstock.errors import SystemUnavailable
from penstock.kafka.connections import Batch, Connections, Place, batches, fetch, find_places, kafka_python
from penstock.kafka.settings import for_librdkafka
from penstock.kafka.tokens import for_confluent

_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY, _TRANSACTIONAL = 2, 0x10
_TOGETHER = 1 << 15  # rows hashed at once: enough to be quick, and few enough for the processor's cache
_SECONDS = 60.0

Producer = tuple[int, int]


@dataclass(slots=True)
class Segment:
    """Rows of one producer in one partition, up to the marker at `ended` (milliseconds); -1 without a transaction."""

    producer: Producer
    part: Part
    first: int
    ended: int = -1


@dataclass
class Partition:
    place: Place
    compacted: bool
    position: int
    first_marker: int | None = None
    gaps: bool = False
    open: dict[Producer, Segment] = field(default_factory=dict)
    committed: list[Segment] = field(default_factory=list)

    def gone(self, writer: Decided) -> str:
        """Why rows of a writer may be missing here; empty where they may not."""
        first, begun = self.first_marker, writer.payload.get("started", 0)
        if self.place.start and (first is None or begun <= first):
            return f"retention: {self.name} begins at offset {self.place.start}"
        return f"compaction: {self.name} has gaps between its offsets" if self.compacted and self.gaps else ""

    @property
    def name(self) -> str:
        return f"{self.place.topic}-{self.place.number}"


class KafkaReader:
    """One sink's topics. Each `read` goes on where the last one ended."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._partitions = sink, dict[str, list[Partition]]()
        self._layouts = list(product((True, False), repeat=2 if sink.topic else 3))
        self._waiting, self._hashed = list[tuple[Part, bytes, int]](), 0

    def read(self, decided: Sequence[Decided], later: Later) -> Visible:
        topics = sorted({topic for writer in decided for topic in writer.payload.get("topics", ())})
        with (
            closing(Connections(self._sink.servers, self._sink.options)) as connections,
            ThreadPoolExecutor(1) as ahead,
        ):
            for topic in topics:
                known = {partition.place.number: partition for partition in self._partitions.get(topic, ())}
                found = connections.ask(partial(_describe, topic), Deadline(_SECONDS))
                kept = [(known.get(each.place.number, each), each.place.node) for each in found]
                self._partitions[topic] = [replace(each, place=each.place._replace(node=node)) for each, node in kept]
                for partition in self._partitions[topic]:
                    self._advance(partition, partial(_fetch, connections, partition), ahead)
        return self._attribute(decided, later(), [part for topic in topics for part in self._partitions[topic]])

    def _attribute(
        self, decided: Sequence[Decided], later: Sequence[Decided], partitions: Sequence[Partition]
    ) -> Visible:
        visible, begun = Visible(), dict[Producer, list[tuple[int, Decided]]]()
        for writer in sorted([*decided, *later], key=lambda writer: writer.payload.get("started", 0)):
            payload = writer.payload
            if "started" in payload:
                producer = payload["producer_id"], payload["producer_epoch"]
                begun.setdefault(producer, []).append((payload["started"], writer))
            if any(not self._partitions.get(topic) for topic in payload.get("topics", ())) or "started" not in payload:
                visible.gone[visible.group(writer)] = "the topic is gone, or the ledger lacks the producer's number"
        for partition in partitions:
            strangers, since = list[Segment](), partition.position
            for segment in partition.committed:
                mine = begun.get(segment.producer, [])
                number = bisect_right(mine, segment.ended, key=lambda entry: entry[0]) - 1
                if number >= 0:
                    since, key = min(since, segment.first), visible.group(mine[number][1])
                    visible.parts.setdefault(key, Part(partition.place.topic, self._layouts)).merge(segment.part)
                elif not mine:
                    strangers.append(segment)
            # What precedes the first row of a decided writer may be of an epoch that the ledger has forgotten.
            since = since if min(writer.epoch for writer in decided) else partition.place.start
            visible.others += [segment.part for segment in strangers if segment.first >= since]
            for writer in decided:
                if partition.place.topic in writer.payload.get("topics", ()) and (why := partition.gone(writer)):
                    visible.gone[visible.group(writer)] = why
        return visible

    def _advance(self, partition: Partition, read: Callable[[int], Any], ahead: ThreadPoolExecutor) -> None:
        """Read to the end that the partition has now; the next bytes are fetched while these are hashed."""
        answer = read(partition.position)
        end = answer.high_watermark
        while True:
            whole = list(batches(answer))
            following = max([partition.position, *(batch.last + 1 for batch in whole)])
            more = partition.position < following < end
            fetched = ahead.submit(read, following) if more else None
            for batch in whole:
                if batch.last >= partition.position:  # a broker answers with the whole batch that holds an offset
                    self._take(partition, batch)
            if fetched is None:
                break
            answer = fetched.result()
        self._hash(partition.place.topic)

    def _take(self, partition: Partition, batch: Batch) -> None:
        partition.gaps |= batch.rows <= batch.last - batch.first or batch.first > partition.position
        partition.position, where = batch.last + 1, f"{partition.name} from offset {batch.first}"
        if batch.is_marker:
            self._hash(partition.place.topic)
            partition.first_marker = partition.first_marker or batch.time
            segment = partition.open.pop(batch.producer, None)
            if segment is not None and batch.commits:
                segment.ended = batch.time
                partition.committed.append(segment)
            return
        if batch.first < partition.place.start:
            return  # retention cuts batches, too: readers get the rest of it
        if batch.attributes & _TRANSACTIONAL:
            made = Segment(batch.producer, Part(f"{where}, producer {batch.producer[0]}", self._layouts), batch.first)
            segment = partition.open.setdefault(batch.producer, made)
        else:
            segment = Segment((-1, -1), Part(f"{where}, no transaction", self._layouts), batch.first)
            partition.committed.append(segment)
        self._waiting.append((segment.part, _plain(batch), batch.rows))
        if sum(rows for *_, rows in self._waiting) >= _TOGETHER:
            self._hash(partition.place.topic)

    def _hash(self, topic: str) -> None:
        if not self._waiting:
            return
        parts, records, counts = zip(*self._waiting, strict=True)
        columns, rows = _columns(b"".join(records), sum(counts)), sum(counts)
        if not self._sink.topic:
            name = np.frombuffer(topic.encode(), np.uint8)
            columns.append(Values(name, np.zeros(rows, np.int64), np.full(rows, len(name))))
        Part.add_all(parts, counts, columns, keep=self._hashed < KEPT_HASHES)
        self._hashed += rows
        self._waiting.clear()


def rows_of_topic(sink: Any) -> pa.Table:
    """Key and value of every committed row, in the order of each partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    own = {"group.id": "penstock-drill", "isolation.level": "read_committed", "enable.partition.eof": True}
    known = for_confluent(for_librdkafka(sink.servers, sink.options))
    reader = Consumer({**known, **own, "enable.auto.commit": False})
    rows: dict[int | None, list[tuple[bytes | None, bytes | None]]] = {}
    try:
        numbers = list(reader.list_topics(sink.topic, _SECONDS).topics[sink.topic].partitions)
        reader.assign([TopicPartition(sink.topic, number, -2) for number in numbers])
        open_ends: set[int | None] = {*numbers}
        while open_ends:
            message = reader.poll(_SECONDS)
            fault = message.error() if message is not None else None
            if message is not None and fault is None:
                rows.setdefault(message.partition(), []).append((message.key(), message.value()))
            elif message is not None and fault is not None and fault.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise SystemUnavailable(f"{sink.topic} cannot be read: {fault}.", to_do="see whether its brokers run.")
    finally:
        reader.close()
    keys, values = ([row[at] for of_partition in rows.values() for row in of_partition] for at in (0, 1))
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _describe(topic: str, admin: Any) -> list[Partition]:
    """None where the topic is gone."""
    resource = kafka_python().ConfigResource("TOPIC", topic, ["cleanup.policy"])
    answer = admin.describe_configs([resource], config_filter="all")
    policy = next(iter(next(iter(answer.values())).values())).get("cleanup.policy", {"value": "compact"})["value"]
    return [Partition(place, "compact" in policy, place.start) for place in find_places(topic, admin)]


def _fetch(connections: Connections, partition: Partition, offset: int) -> Any:
    answer, why = fetch(connections, partition.place, offset, Deadline(_SECONDS))
    if answer is not None:
        return answer
    raise SystemUnavailable(
        f"The leader of {partition.name} gave no rows from offset {offset}: {why}.",
        safe="the audit only reads.",
        to_do="run it again once the brokers answer; the sink's user needs the right to read the topic.",
    )


def _plain(batch: Batch) -> bytes:
    codec = batch.attributes & 7
    if codec == _SNAPPY:  # in front of its block is the size
        size = _varints(np.frombuffer(batch.records[:10], np.uint8), np.zeros(1, np.int64))[0][0]
        return bytes(pa.decompress(batch.records, int(size), "snappy", asbytes=True))
    return pa.input_stream(pa.py_buffer(batch.records), compression=_CODECS[codec]).read() if codec else batch.records


def _columns(blob: bytes, count: int) -> list[Values]:
    """Value and key of each record, in Spark's order. Only the way from record to record is a loop."""
    starts, at = list[int](), 0
    for _ in range(count):
        low, high = blob[at], blob[at + 1]
        if low > 127 > high:  # most records: a length of two bytes, so this is all they cost
            starts.append(at + 2)
            at += (low >> 1) + (high << 6) - 62
            continue
        length, shift = low, 7
        at += 1
        while length >> shift:  # its last byte was above 127
            length += (blob[at] - 1) << shift
            at, shift = at + 1, shift + 7
        starts.append(at)
        at += length >> 1
    data = np.frombuffer(blob, np.uint8)
    _, place = _varints(data, np.array(starts, np.int64) + 1)  # behind the attributes: the time
    _, place = _varints(data, place)  # the offset
    length, place = _varints(data, place)
    keys = Values(data, place, (length >> 1) ^ -(length & 1))
    length, place = _varints(data, place + np.maximum(keys.lengths, 0))
    return [Values(data, place, (length >> 1) ^ -(length & 1)), keys]


def _varints(data: npt.NDArray[np.uint8], at: I64) -> tuple[Any, Any]:
    """The numbers of one to ten bytes at these places, and the places behind them."""
    byte = data[at]
    values, behind = (byte & 127).astype(np.int64), at + 1
    live, shift = np.flatnonzero(byte > 127), 7
    while live.size:
        byte = data[behind[live]]
        values[live] |= (byte & 127).astype(np.int64) << shift
        behind[live] += 1
        live, shift = live[byte > 127], shift + 7
    return values, behind
