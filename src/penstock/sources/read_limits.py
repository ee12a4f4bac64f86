"""Readers of PySpark data sources that are told where a query stands and how much to read, on every version of Spark.

From 4.2 on Spark hands both to `latestOffset`. Before, it asks for the latest offset and says nothing, so there the
reader remembers: Spark has always asked for the first position, or told the last one it has (as an empty range to be
planned), before it asks for a later one. The exception is a run over what is available now, which Spark plans ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.spark.versions import installed_text, installed_version

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
        _at: dict[str, Any] | None = None

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            self._at = super().initialOffset()
            return self._at

        def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            if self._at is None:
                return self._all()
            found: dict[str, Any] = super().latestOffset(self._at, self.getDefaultReadLimit())
            return found

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            self._at = end
            found: Sequence[InputPartition] = super().partitions(start, end)
            return found

        def _all(self) -> dict[str, Any]:
            everything: dict[str, Any] | None = self.everything()
            if everything is None:
                raise ConfigurationError(
                    f"An input without end cannot be read up to what is available now on PySpark {installed_text()}.",
                    safe="nothing was read.",
                    to_do="give it an end (`rows`), leave available_now out, or use PySpark 4.2 or newer.",
                )
            return everything

    return Remembering
