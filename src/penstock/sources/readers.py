"""The PySpark data sources under `DataGenSource` and `SocketSource`, apart from these so that describing a job does not
import Spark. Workers import this module by name."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import namedtuple
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.errors import PenstockError
from penstock.sources.journal import Frame, JournalReader
from penstock.spark.executors import TaskFault
from penstock.supply.versions import installed_version

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
elif installed_version().read_limits:
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
else:  # Spark's names, where it has none
    ReadMaxRows, ReadMaxBytes = namedtuple("ReadMaxRows", "max_rows"), namedtuple("ReadMaxBytes", "max_bytes")
    ReadLimit = SupportsTriggerAvailableNow = object


def for_this_spark(reader: type[Any]) -> type[Any]:
    """The reader as the installed Spark can use it: one whose `latestOffset` takes a position and a limit."""
    return reader if installed_version().read_limits else remembering(reader)


def remembering(reader: type[Any]) -> type[Any]:
    """The reader for a Spark before 4.2, which asks `latestOffset` without a position and a limit.

    The reader keeps the position itself: a query that resumes plans an empty range at its last position before it asks
    for a later one, and plans each range that it reads before it asks again. Only a run over what is available now asks
    for the end first: there such a run is refused (`Source.paced_by_position`)."""

    class Remembering(reader):  # type: ignore[misc]
        _first: dict[str, Any] | None = None
        _at: dict[str, Any] | None = None

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            if self._first is None:
                self._first = super().initialOffset()
            return self._first

        def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            start = self._at if self._at is not None else self.initialOffset()
            return dict(super().latestOffset(start, self.getDefaultReadLimit()))

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            self._at = end
            return list(super().partitions(start, end))

    return Remembering


BATCH_ROWS = 131_072  # a megabyte: large enough that the cost per batch disappears

_NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False)])


class DataGen(DataSource):
    """Format `penstock-datagen`, one column `id bigint`. Options: rows, rate, partitions, most."""

    @classmethod
    def name(cls) -> str:
        return "penstock-datagen"

    def schema(self) -> str:
        return "id BIGINT NOT NULL"

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        return for_this_spark(NumberReader)(self.options)


class NumberReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the driver's planner process, reads in tasks.

    A run's first question fixes where and when its rate began, so a job that was down does not have to catch up."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._rows = int(options["rows"]) if "rows" in options else None
        self._rate = float(options["rate"]) if "rate" in options else None
        self._partitions = int(options["partitions"])
        self._most = int(options["most"])
        self._began: tuple[int, float] | None = None
        self._available_now = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # An input without end takes `most` rows even where Spark asks for all there is.
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else (self._rows or self._most)
        begin = int(start["next"])
        end = begin + most
        if self._rate is not None:
            now = time.monotonic()
            position, moment = self._began = self._began or (begin, now)
            end = min(end, position + int((now - moment) * self._rate))
        if self._rows is not None:
            end = min(end, self._rows)
        end = max(begin, end)
        if self._available_now and self._rows is None:
            self._rows = end  # what is there now is one epoch, and then no more
        return {"next": end}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # The rate says how fast rows come to be; a run over what is there has no use for it.
        self._available_now, self._rate = True, None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, rows = int(start["next"]), int(end["next"]) - int(start["next"])
        parts = min(rows, self._partitions)
        edges = [first + rows * part // parts for part in range(parts + 1)] if parts else []
        return [InputPartition(ends) for ends in itertools.pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        for begin in range(start, end, BATCH_ROWS):
            ids = pa.array(np.arange(begin, min(begin + BATCH_ROWS, end), dtype=np.int64))
            yield pa.RecordBatch.from_arrays([ids], schema=_NUMBERS)


TASK_BYTES = 512 << 10  # of lines: Spark warns of larger task descriptions

_LINES = pa.schema(
    [pa.field("value", pa.string(), nullable=False), pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False)]
)


class JournalledLines(DataSource):
    """Format `penstock-lines`. Options: folder, strict, most."""

    @classmethod
    def name(cls) -> str:
        return "penstock-lines"

    def schema(self) -> str:
        return "value STRING NOT NULL, received TIMESTAMP NOT NULL"

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        return for_this_spark(LineReader)(self.options)


class LineReader(DataSourceStreamReader):
    """Plans in the driver's planner process, decodes in tasks. Lines travel with the task, each frame's with the moment
    of receipt, so tasks need not reach the journal."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._most = int(options["most"])
        self._journal = JournalReader(Path(options["folder"]), strict=options["strict"] == "true")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with _keep_error_name():
            return {"position": self._journal.extent()[0]}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxBytes(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._most
        with _keep_error_name():
            return {"position": self._journal.bounded(int(start["position"]), most)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with _keep_error_name():
            return pack(self._journal.frames(int(start["position"]), int(end["position"])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield decode(partition.value)


def pack(frames: Iterable[Frame]) -> list[InputPartition]:
    """One partition for about `TASK_BYTES` of lines; none is empty."""
    tasks: list[list[tuple[int, bytes]]] = []
    size = TASK_BYTES
    for frame in frames:
        if size >= TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append((frame.received, frame.lines))
        size += len(frame.lines)
    return [InputPartition(parts) for parts in tasks]


def decode(parts: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Lines without their ends (`\\n` or `\\r\\n`), as UTF-8; bytes that are none become U+FFFD."""
    values: list[str] = []
    moments: list[int] = []
    for received, payload in parts:
        lines = payload.replace(b"\r\n", b"\n").decode(errors="replace").split("\n")[:-1]
        values += lines
        moments += [received] * len(lines)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(moments, pa.timestamp("us", tz="UTC"))], schema=_LINES
    )


@contextlib.contextmanager
def _keep_error_name() -> Iterator[None]:
    """Lets a Penstock error keep its name on its way through Spark."""
    try:
        yield
    except PenstockError as error:
        raise TaskFault(error) from error
