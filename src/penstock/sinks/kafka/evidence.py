"""What stands in the topics of a transaction that its coordinator has forgotten: for a person to judge by.

Every batch of a partition's log names the producer that wrote it, and the end of a transaction is a batch of its own, a
marker. Both outlive the coordinator's memory. They are read as they are, without isolation. A kept producer has ended
many transactions; ours is what ended after the moment at which it began. Rows that retention or compaction has removed
leave no trace, and brokers' clocks differ, so what is found here is shown and never taken for proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.kafka.connections import kafka_python

if TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable
    from penstock.deadline import Deadline
    from penstock.kafka.connections import Connections

_EARLIEST = -2
_FETCH_BYTES = 32 * 1024 * 1024
_COMMIT = 1


@dataclass
class Evidence:
    """Rows of one transaction, by how it ended where they are."""

    rows: int  # as many as were decided

    committed: int = 0
    aborted: int = 0
    open: int = 0
    gaps: list[str] = field(default_factory=list)  # where not all could be read

    def __str__(self) -> str:
        counts = f"of {self.rows} rows {self.committed} committed, {self.aborted} aborted, {self.open} without an end"
        return f"{counts}; not seen: {', '.join(self.gaps)}" if self.gaps else counts


def collect_evidence(connections: Connections, committable: Committable, deadline: Deadline) -> Evidence:
    """Read the topics of a sealed committable from their beginning; what cannot be read is named in `gaps`."""
    payload, found = committable.payload, Evidence(committable.rows)
    for topic in payload.get("topics", ()):
        try:
            leaders = connections.ask(partial(_leaders, topic=topic), deadline)
        except (PenstockError, kafka_python().errors.KafkaError) as error:
            found.gaps.append(f"topic {topic} ({type(error).__name__})")
            continue
        if not leaders:
            found.gaps.append(f"topic {topic} (it is not there)")
        for partition, leader in leaders.items():
            why = _read(connections, leader, topic, partition, payload, found, deadline)
            if why:
                found.gaps.append(f"{topic}-{partition} ({why})")
    return found


def _leaders(admin: Any, topic: str) -> dict[int, int]:
    return {part["partition_index"]: part["leader_id"] for part in admin.describe_topics([topic])[0]["partitions"]}


def _read(
    connections: Connections,
    node: int,
    topic: str,
    partition: int,
    payload: Mapping[str, Any],
    found: Evidence,
    deadline: Deadline,
) -> str:
    """Add what the partition holds; why something may be missing, if so."""
    first = _first_offset(connections, node, topic, partition, deadline)
    if first is None:
        return "no answer"
    offset, pending = first, 0
    while True:
        answer = _fetch(connections, node, topic, partition, offset, deadline)
        if answer is None:
            return f"read up to offset {offset}"
        data, end = answer
        start = offset
        for batch in _batches(data):
            offset = max(offset, batch.next_offset)
            if batch.producer_id != payload["producer_id"]:
                continue
            if not batch.is_control_batch:
                pending += batch.records_count
                continue
            if batch.max_timestamp >= payload["started"]:
                if _ends(batch) == _COMMIT:
                    found.committed += pending
                else:
                    found.aborted += pending
            pending = 0
        if offset >= end or offset == start:
            break
    found.open += pending
    return "" if first == 0 else f"begins at offset {first}"


def _first_offset(connections: Connections, node: int, topic: str, partition: int, deadline: Deadline) -> int | None:
    kind = kafka_python().ListOffsets
    wanted = kind.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=-1, timestamp=_EARLIEST
    )
    request = kind(isolation_level=0, topics=[(topic, [wanted])], min_version=4)
    [answer] = connections.send([(node, request)], deadline)
    for topic_answer in getattr(answer, "topics", ()):
        for part in topic_answer.partitions:
            return int(part.offset) if part.error_code == 0 else None
    return None


def _fetch(
    connections: Connections, node: int, topic: str, partition: int, offset: int, deadline: Deadline
) -> tuple[bytes, int] | None:
    """Bytes from `offset` on, and the offset at which the partition's readable part ends."""
    fetch = kafka_python().Fetch
    wanted = fetch.FetchTopic.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=_FETCH_BYTES,
    )
    request = fetch(
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=11,
        max_version=11,  # from 13 on topics have numbers
    )
    [answer] = connections.send([(node, request)], deadline)
    for topic_answer in getattr(answer, "responses", ()):
        for part in topic_answer.partitions:
            return (bytes(part.records or b""), int(part.high_watermark)) if part.error_code == 0 else None
    return None


def _batches(data: bytes) -> Sequence[Any]:
    records = kafka_python().MemoryRecords(data)
    found = []
    while records.has_next():
        batch = records.next_batch()
        if batch is None:
            break
        found.append(batch)
    return found


def _ends(batch: Any) -> int:
    """What a marker says: its key is a version and a kind, two bytes each."""
    for record in batch:
        return int.from_bytes(record.key[2:4], "big")
    return 1 - _COMMIT
