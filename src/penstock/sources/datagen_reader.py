"""The PySpark data source under `DataGenSource`: numbers as Arrow batches, positions as one integer.

Apart from it so that describing a job does not import Spark. Workers import it by name: wherever tasks run, penstock
must be installed or on the Python path, as every sink needs anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.sources.datagen import Pace, split
from penstock.sources.read_limits import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow, for_this_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Rows of one Arrow batch: a megabyte, large enough that the cost per batch disappears.
BATCH_ROWS = 131_072

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


class DataGen(DataSource):
    """Format `penstock-datagen`, one column `id bigint`. Options: rows, rate, partitions, most."""

    @classmethod
    def name(cls) -> str:
        return "penstock-datagen"

    def schema(self) -> str:
        return "id BIGINT NOT NULL"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        reader: DataSourceStreamReader = for_this_spark(NumberReader)(self.options)
        return reader


class Range(InputPartition):
    """The numbers `start..end-1`."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class NumberReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the driver's planner process, reads in tasks."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._rows = int(options["rows"]) if "rows" in options else None
        self._rate = float(options["rate"]) if "rate" in options else None
        self._partitions = int(options["partitions"])
        self._most = int(options["most"])
        self._pace = Pace(self._rows, self._rate)
        self._available_now = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # An input without end takes `most` rows even where Spark asks for all there is.
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else (self._rows or self._most)
        begin = int(start["next"])
        end = self._pace.until(begin, time.monotonic(), most)
        if self._available_now and self._rows is None:
            self._pace = Pace(end, None)  # what is there now is one epoch, and then no more
        return {"next": end}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # The rate says how fast rows come to be; a run over what is there has no use for it.
        self._available_now = True
        self._pace = Pace(self._rows, None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Range(*edges) for edges in split(int(start["next"]), int(end["next"]), self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        for begin in range(partition.start, partition.end, BATCH_ROWS):
            yield numbers(begin, min(begin + BATCH_ROWS, partition.end))


def numbers(start: int, end: int) -> pa.RecordBatch:
    """One batch of the column `id` with `start..end-1`."""
    import numpy as np

    return pa.RecordBatch.from_arrays([pa.array(np.arange(start, end, dtype=np.int64))], schema=_SCHEMA)
