"""Kafka, read batch by batch without isolation: every batch names its producer, every transaction ends in a marker.

The ledger has producer id, epoch and start of each writer's transaction. One producer runs many transactions, one after
the other, so its batches up to a commit marker belong to the transaction that began last before that marker. Batches
before an abort marker are not visible to readers, and left out.

| what is missing | finding |
|---|---|
| rows of a transaction that began before the first marker left in a partition whose beginning is gone | no longer provable: retention |
| rows in a partition with gaps between its offsets, of a compacted topic | no longer provable: compaction |
| any others | lost |
"""  # noqa: E501

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.audit.compare import KEPT_HASHES, Decided, Part, Visible
from penstock.audit.hashing import Spans, Values
from penstock.deadline import Deadline
from penstock.errors import SystemUnavailable
from penstock.kafka.connections import Connections, kafka_python

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY, _TRANSACTIONAL, _CONTROL, _COMMIT = 2, 0x10, 0x20, 1
_FETCH_BYTES = 8 << 20
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
    topic: str
    number: int
    node: int
    compacted: bool
    start: int = 0
    position: int = -1
    first_marker: int | None = None
    gaps: bool = False
    open: dict[Producer, Segment] = field(default_factory=dict)
    committed: list[Segment] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class KafkaReader:
    """One sink's topics. Each `read` goes on where the last one ended."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._partitions = sink, dict[str, list[Partition]]()
        self._layouts = list(product((True, False), repeat=2 if sink.topic else 3))
        self._kept = 0

    def read(self, decided: Sequence[Decided]) -> Visible:
        topics = sorted({topic for writer in decided for topic in writer.payload.get("topics", ())})
        with closing(Connections(self._sink.servers, self._sink.options)) as self._connections:
            for topic in topics:
                self._partitions.setdefault(topic, self._connections.ask(partial(_describe, topic), _soon()))
            with ThreadPoolExecutor(1, thread_name_prefix="penstock-audit") as ahead:
                for topic in topics:
                    for partition in self._partitions[topic]:
                        self._advance(partition, ahead)
        return self._attribute(decided, [part for topic in topics for part in self._partitions[topic]])

    def _attribute(self, decided: Sequence[Decided], partitions: Sequence[Partition]) -> Visible:
        visible = Visible()
        by_producer: dict[Producer, list[tuple[int, Decided]]] = {}
        for writer in decided:
            if "producer_id" in writer.payload:
                producer = writer.payload["producer_id"], writer.payload["producer_epoch"]
                by_producer.setdefault(producer, []).append((writer.payload["started"], writer))
            else:
                visible.gone[visible.group(writer)] = "it was decided without its producer's number"
        for begun in by_producer.values():
            begun.sort(key=lambda entry: entry[0])
        whole = not any(writer.epoch for writer in decided[:1])
        for partition in partitions:
            strangers, own = list[Segment](), list[int]()
            for segment in partition.committed:
                begun = by_producer.get(segment.producer, [])
                number = bisect_right(begun, segment.ended, key=lambda entry: entry[0]) - 1
                if number >= 0:
                    own.append(segment.first)
                    key = visible.group(begun[number][1])
                    visible.parts.setdefault(key, Part(str(partition), self._layouts)).merge(segment.part)
                elif not begun:
                    strangers.append(segment)
            # What precedes the first row of a decided writer may be of an epoch that the ledger has forgotten.
            since = partition.start if whole else min(own, default=partition.position)
            visible.others += [segment.part for segment in strangers if segment.first >= since]
            for writer in decided:
                if partition.topic in writer.payload.get("topics", ()) and (why := _gone(partition, writer)):
                    visible.gone[visible.group(writer)] = why
        return visible

    def _advance(self, partition: Partition, ahead: ThreadPoolExecutor) -> None:
        """Read to the end that the partition has now; the next bytes are fetched while these are hashed."""
        if partition.position < 0:
            partition.start = partition.position = self._first_offset(partition)
        answer, end = self._fetch(partition, partition.position), None
        waiting: list[tuple[Part, bytes, int]] = []
        while True:
            end = answer.high_watermark if end is None else end
            blob = bytes(answer.records or b"")
            batches = list(_batches(blob))
            following = max([partition.position, *(batch[0] + batch[3] + 1 for batch in batches)])
            more = following > partition.position and following < end
            fetched = ahead.submit(self._fetch, partition, following) if more else None
            for batch in batches:
                self._take(partition, batch, waiting)
                if sum(rows for _, _, rows in waiting) >= _TOGETHER:
                    self._hash(partition.topic, waiting)
            if fetched is None:
                break
            answer = fetched.result()
        self._hash(partition.topic, waiting)

    def _take(self, partition: Partition, batch: Any, waiting: list[tuple[Part, bytes, int]]) -> None:
        first, attributes, payload, last, stamp, producer, count = batch
        if first + last < partition.position:
            return  # a broker answers with the whole batch that holds an offset
        partition.gaps |= count <= last or first > partition.position
        partition.position, transactional = first + last + 1, bool(attributes & _TRANSACTIONAL)
        if attributes & _CONTROL:
            self._hash(partition.topic, waiting)
            partition.first_marker = stamp if partition.first_marker is None else partition.first_marker
            segment = partition.open.pop(producer, None)
            if segment is not None and int.from_bytes(payload[7:9], "big") == _COMMIT:
                segment.ended = stamp
                partition.committed.append(segment)
            return
        segment = partition.open.get(producer) if transactional else None
        if segment is None:
            who = f"producer {producer[0]}" if transactional else "a producer without transactions"
            segment = Segment(producer, Part(f"{partition} from offset {first}, {who}", self._layouts), first)
            if transactional:
                partition.open[producer] = segment
            else:
                partition.committed.append(segment)
        waiting.append((segment.part, _plain(payload, attributes & 7), count))

    def _hash(self, topic: str, waiting: list[tuple[Part, bytes, int]]) -> None:
        if not waiting:
            return
        blob = b"".join(payload for _, payload, _ in waiting)
        counts = [rows for _, _, rows in waiting]
        columns = _columns(blob, sum(counts))
        if not self._sink.topic:
            name = np.frombuffer(topic.encode(), np.uint8)
            zeros = np.zeros(sum(counts), np.int64)
            columns.append(Spans(name, zeros, zeros + len(name)))
        Part.add_all([part for part, _, _ in waiting], counts, columns, keep=self._kept < KEPT_HASHES)
        self._kept += sum(counts)
        waiting.clear()

    def _first_offset(self, partition: Partition) -> int:
        kind = kafka_python().ListOffsets
        wanted = kind.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition.number, current_leader_epoch=-1, timestamp=-2
        )
        return int(self._ask(partition, kind(isolation_level=0, topics=[(partition.topic, [wanted])]), "topics").offset)

    def _fetch(self, partition: Partition, offset: int) -> Any:
        fetch = kafka_python().Fetch
        wanted = fetch.FetchTopic.FetchPartition(
            partition=partition.number, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=_FETCH_BYTES,
        )  # fmt: skip
        request = fetch(
            replica_id=-1, max_wait_ms=100, min_bytes=0, max_bytes=_FETCH_BYTES, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[fetch.FetchTopic(topic=partition.topic, partitions=[wanted])],
            forgotten_topics_data=[], rack_id="", min_version=11, max_version=11,
        )  # fmt: skip
        return self._ask(partition, request, "responses")

    def _ask(self, partition: Partition, request: Any, topics: str) -> Any:
        [answer] = self._connections.send([(partition.node, request)], _soon())
        parts = [part for topic in getattr(answer, topics, ()) for part in topic.partitions]
        if parts and not parts[0].error_code:
            return parts[0]
        raise SystemUnavailable(
            f"The leader of {partition} gave no rows: {f'code {parts[0].error_code}' if parts else answer!r}.",
            safe="the audit only reads.",
            to_do="run it again once the brokers answer; the sink's user needs the right to read the topic.",
        )


def _soon() -> Deadline:
    return Deadline(_SECONDS)


def _gone(partition: Partition, writer: Decided) -> str:
    first = partition.first_marker
    if partition.start and (first is None or writer.payload.get("started", 0) <= first):
        return f"retention: {partition} begins at offset {partition.start}"
    return f"compaction: {partition} has gaps between its offsets" if partition.compacted and partition.gaps else ""


def _describe(topic: str, admin: Any) -> list[Partition]:
    resource = kafka_python().ConfigResource("TOPIC", topic, ["cleanup.policy"])
    answer = admin.describe_configs([resource], config_filter="all")
    policy = str(next(iter(next(iter(answer.values())).values()))["cleanup.policy"]["value"])
    parts = admin.describe_topics([topic])[0]["partitions"]
    return [Partition(topic, part["partition_index"], part["leader_id"], "compact" in policy) for part in parts]


def _batches(blob: bytes) -> Iterator[tuple[int, int, bytes, int, int, Producer, int]]:
    """First offset, attributes, records, number of the last, time, producer and count of each whole batch."""
    at = 0
    while at + _HEADER.size <= len(blob):
        first, length, _, _, _, attributes, last, _, stamp, producer, epoch, _, count = _HEADER.unpack_from(blob, at)
        end = at + 12 + length
        if end > len(blob):
            return
        yield first, attributes, blob[at + _HEADER.size : end], last, stamp, (producer, epoch), count
        at = end


def _plain(payload: bytes, codec: int) -> bytes:
    if codec == _SNAPPY:
        return _unsnapped(payload)
    return pa.input_stream(pa.py_buffer(payload), compression=_CODECS[codec]).read() if codec else payload


def _unsnapped(payload: bytes) -> bytes:
    """One block, or Java's frame: 16 bytes, then blocks, each behind its length."""
    blocks, at = [payload], 16
    if payload.startswith(b"\x82SNAPPY\x00"):
        blocks = []
        while at < len(payload):
            size = int.from_bytes(payload[at : at + 4], "big")
            blocks.append(payload[at + 4 : at + 4 + size])
            at += 4 + size
    sizes = [_varints(np.frombuffer(block[:5], np.uint8), np.zeros(1, np.int64))[0][0] for block in blocks]
    plain = (pa.decompress(b, int(size), "snappy", asbytes=True) for b, size in zip(blocks, sizes, strict=True))
    return b"".join(plain)


def _columns(blob: bytes, count: int) -> list[Values]:
    """Value and key of each record, in Spark's order."""
    starts, at = [0] * count, 0
    for number in range(count):
        length = blob[at]
        at += 1
        if length > 127:
            length, shift = length & 127, 7
            while True:
                byte = blob[at]
                at += 1
                length |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
        starts[number] = at
        at += length >> 1
    data = np.frombuffer(blob, np.uint8)
    _, place = _varints(data, np.array(starts, np.int64) + 1)  # behind the attributes: the time
    _, place = _varints(data, place)  # the offset
    length, place = _varints(data, place)
    keys = Spans(data, place, _signed(length))
    length, place = _varints(data, place + np.maximum(keys.lengths, 0))
    return [Spans(data, place, _signed(length)), keys]


def _varints(data: npt.NDArray[np.uint8], at: Any) -> tuple[Any, Any]:
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


def _signed(values: Any) -> npt.NDArray[np.int64]:
    return np.asarray((values >> 1) ^ -(values & 1), np.int64)
