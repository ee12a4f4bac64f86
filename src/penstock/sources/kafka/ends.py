"""Where topics end now, for whoever looks at a job's lag. No epoch waits for this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from penstock.deadline import Deadline


def end_offsets(client: AdminClient, read: Mapping[str, Mapping[str, Any]], deadline: Deadline) -> dict[str, int]:
    """The end of each partition that `read` names, up to which committed rows can be read, as `TOPIC-PARTITION`; those
    that did not answer in time are left out."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {
        TopicPartition(topic, int(partition)): latest for topic, partitions in read.items() for partition in partitions
    }
    if not asked:
        return {}
    patience = max(0.1, deadline.remaining())
    found = {}
    try:
        answers = client.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=patience)
    except KafkaException:
        return {}
    for place, future in answers.items():
        try:
            found[f"{place.topic}-{place.partition}"] = int(future.result(timeout=patience).offset)
        except (KafkaException, TimeoutError):
            continue
    return found
