"""Which sources a streaming DataFrame reads, in the order in which Spark logs their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


class Lineage:
    """Remembers the streams of every source that was read, and finds them again in what users make of them."""

    def __init__(self) -> None:
        self._uids: dict[frozenset[int], str] = {}
        self._origins: dict[int, str] = {}
        self._kept: list[Any] = []  # JVM objects that must live as long as their identity is remembered

    def remember(self, uid: str, frame: DataFrame) -> None:
        for stream in _streams(frame):
            self._uids[_columns(stream)] = uid
            self._origins[_identity(frame, stream)] = uid
            self._kept.append(stream)

    def positions(self, frame: DataFrame) -> list[str | None]:
        """The uid behind each position of a barrier; None for a stream that was not read through the job. A source
        that a plan uses twice has two positions: for a join with itself Spark even makes a second stream of it."""
        return [
            self._uids.get(_columns(stream)) or self._origins.get(_identity(frame, stream))
            for stream in _streams(frame)
        ]


def _streams(frame: DataFrame) -> Iterator[Any]:
    """The streaming leaves of the analysed plan, from left to right."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming():
            yield leaf


def _columns(stream: Any) -> frozenset[int]:
    output = stream.output()
    return frozenset(output.apply(column).exprId().id() for column in range(output.size()))


def _identity(frame: DataFrame, stream: Any) -> int:
    """What stays the same where Spark gives a stream new columns, so that a plan can hold it twice."""
    origin = stream.table() if stream.getClass().getSimpleName().endswith("V2") else stream.dataSource()
    jvm: Any = frame.sparkSession._jvm
    return int(jvm.java.lang.System.identityHashCode(origin))
