"""Readers of PySpark data sources that are told where a query stands and how much to read, on every version of Spark.

From 4.2 on Spark hands both to `latestOffset`. Before, it asks for the latest offset and says nothing, so there the
reader remembers: a query that goes on has told the last position it has, as an empty range to be planned, before it
asks for a later one, and each range it reads is planned before it asks again. Only of a run over what is available now
is the end asked first: such a run is refused there (`Source.paced_by_position`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.supply.versions import installed_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
elif installed_version().read_limits:
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """Spark's names, where it has none."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        pass


__all__ = ["ReadLimit", "ReadMaxBytes", "ReadMaxRows", "SupportsTriggerAvailableNow", "for_this_spark"]


def for_this_spark(reader: type[Any]) -> type[Any]:
    """The reader as the installed Spark can use it: one whose `latestOffset` takes a position and a limit."""
    return reader if installed_version().read_limits else remembering(reader)


def remembering(reader: type[Any]) -> type[Any]:
    """The reader, with a `latestOffset` that is told nothing."""

    class Remembering(reader):  # type: ignore[misc]
        _first: dict[str, Any] | None = None
        _at: dict[str, Any] | None = None

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            if self._first is None:
                self._first = super().initialOffset()
            return self._first

        def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            start = self._at if self._at is not None else self.initialOffset()
            found: dict[str, Any] = super().latestOffset(start, self.getDefaultReadLimit())
            return found

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            self._at = end
            found: Sequence[InputPartition] = super().partitions(start, end)
            return found

    return Remembering
