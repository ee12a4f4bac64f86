"""The rows of the back-pressure benchmark, 100 bytes with the id in front, and those of a topic that are committed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

ID_DIGITS = 16
VALUE_BYTES = 100
COLUMNS = {
    "key": "lpad(cast(pmod(id, 10000) AS string), 8, '0')",
    # lz4 finds nothing to shorten in hexadecimal digits, so the in-flight log is as large as it can be.
    "value": f"concat(lpad(cast(id AS string), {ID_DIGITS}, '0'),"
    f" substr(sha2(cast(id AS string), 512), 1, {VALUE_BYTES - ID_DIGITS}))",
}

_AT_ONCE = 10_000
_WAIT = 0.1  # `consume` waits so long for as many as it was asked for, even when it has some


def ids_in(servers: str, topic: str) -> npt.NDArray[np.int64]:
    """The id of every visible row, copies included."""
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
        left, found = set(partitions), bytearray()
        while left:
            for message in reader.consume(_AT_ONCE, _WAIT):
                problem = message.error()
                if problem is None:
                    found += message.value() or b""
                elif problem.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(problem)
    finally:
        reader.close()
    return ids_of(bytes(found))


def ids_of(values: bytes) -> npt.NDArray[np.int64]:
    """Each value is of `VALUE_BYTES` bytes and begins with its id."""
    rows = np.frombuffer(values, dtype=[("id", f"S{ID_DIGITS}"), ("rest", f"S{VALUE_BYTES - ID_DIGITS}")])
    return rows["id"].astype(np.int64)
