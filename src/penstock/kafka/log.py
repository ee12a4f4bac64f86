"""The log of a topic as its leaders keep it, read batch by batch without isolation: every batch names its producer, and
the end of a transaction is a batch of its own, a marker."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.deadline import Deadline
from penstock.kafka.connections import Connections, kafka_python

_HEADER = struct.Struct(">qiibIhiqqqhii")
_FETCH_BYTES = 8 << 20
_EARLIEST = -2
_CONTROL, _COMMIT = 0x20, 1


class Batch(NamedTuple):
    first: int
    last: int
    attributes: int
    time: int  # of the newest record
    producer: tuple[int, int]  # id and epoch
    rows: int
    records: bytes

    @property
    def is_marker(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def commits(self) -> bool:
        """Of a marker: its key is a version and a kind, two bytes each, behind five small numbers."""
        return int.from_bytes(self.records[7:9], "big") == _COMMIT


class Place(NamedTuple):
    """A partition, the broker that leads it, and the first offset that is left."""

    topic: str
    number: int
    node: int
    start: int


def find_leaders(topic: str, admin: Any) -> dict[int, int]:
    """The broker that leads each of the topic's partitions; none where there is no such topic."""
    return {part["partition_index"]: part["leader_id"] for part in admin.describe_topics([topic])[0]["partitions"]}


def find_places(topic: str, admin: Any) -> list[Place]:
    from kafka import TopicPartition

    if not (leaders := find_leaders(topic, admin)):
        return []
    starts = admin.list_partition_offsets({TopicPartition(topic, number): _EARLIEST for number in leaders})
    return [Place(topic, part.partition, leaders[part.partition], start.offset) for part, start in starts.items()]


def fetch(connections: Connections, place: Place, offset: int, deadline: Deadline) -> tuple[Any, str]:
    """The leader's answer, with `records` and `high_watermark`; or None, and why."""
    kind = kafka_python().Fetch
    wanted = kind.FetchTopic.FetchPartition(
        partition=place.number, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
        log_start_offset=-1, partition_max_bytes=_FETCH_BYTES,
    )  # fmt: skip
    request = kind(
        replica_id=-1, max_wait_ms=100, min_bytes=0, max_bytes=_FETCH_BYTES, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[kind.FetchTopic(topic=place.topic, partitions=[wanted])],
        forgotten_topics_data=[], rack_id="", min_version=11,
        max_version=11,  # from 13 on topics have numbers
    )  # fmt: skip
    [answer] = connections.send([(place.node, request)], deadline)
    parts = [part for topic in getattr(answer, "responses", ()) for part in topic.partitions]
    if parts and not parts[0].error_code:
        return parts[0], ""
    return None, f"code {parts[0].error_code}" if parts else type(answer).__name__


def batches(answer: Any) -> Iterator[Batch]:
    """Every whole batch of an answer."""
    blob, at = bytes(answer.records or b""), 0
    while at + _HEADER.size <= len(blob):
        first, length, _, _, _, attributes, last, _, time, producer, epoch, _, count = _HEADER.unpack_from(blob, at)
        end = at + 12 + length
        if end <= len(blob):
            yield Batch(first, first + last, attributes, time, (producer, epoch), count, blob[at + _HEADER.size : end])
        at = end
