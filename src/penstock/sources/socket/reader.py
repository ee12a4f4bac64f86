"""The PySpark data source under `SocketSource`: positions in a journal, which the driver's machine reads.

The lines of an epoch are read where Spark plans it, beside the driver, and travel to the tasks with their
descriptions. So tasks need not reach the journal, wherever they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.errors import PenstockError
from penstock.sources.read_limits import ReadLimit, ReadMaxBytes, for_this_spark
from penstock.sources.socket.journal_format import Frame
from penstock.sources.socket.journal_reader import JournalReader
from penstock.spark.executors import TaskFault

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Bytes of lines in one task: Spark warns of larger task descriptions.
TASK_BYTES = 512 << 10

_SCHEMA = pa.schema(
    [
        pa.field("value", pa.string(), nullable=False),
        pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


class JournalledLines(DataSource):
    """Format `penstock-lines`. Options: folder, strict, most."""

    @classmethod
    def name(cls) -> str:
        return "penstock-lines"

    def schema(self) -> str:
        return "value STRING NOT NULL, received TIMESTAMP NOT NULL"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        reader: DataSourceStreamReader = for_this_spark(LineReader)(self.options)
        return reader


class Lines(InputPartition):
    """Payloads of frames, in order, each with the moment it was received."""

    def __init__(self, parts: Sequence[tuple[int, bytes]]) -> None:
        super().__init__(None)
        self.parts = parts


class LineReader(DataSourceStreamReader):
    """Plans in the driver's planner process, decodes in tasks."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._most = int(options["most"])
        self._journal = JournalReader(Path(options["folder"]), strict=options["strict"] == "true")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with _keep_error_name():
            return {"position": self._journal.start()}

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
        assert isinstance(partition, Lines)
        yield decode(partition.parts)


def pack(frames: Iterable[Frame]) -> list[Lines]:
    """One partition for about `TASK_BYTES` of lines; none is empty."""
    found: list[Lines] = []
    parts: list[tuple[int, bytes]] = []
    size = 0
    for frame in frames:
        parts.append((frame.received, frame.payload))
        size += len(frame.payload)
        if size >= TASK_BYTES:
            found.append(Lines(parts))
            parts, size = [], 0
    return [*found, Lines(parts)] if parts else found


def decode(parts: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Lines without their ends (`\\n` or `\\r\\n`), as UTF-8; bytes that are none become U+FFFD."""
    values: list[str] = []
    moments: list[int] = []
    for received, payload in parts:
        lines = payload.replace(b"\r\n", b"\n").decode(errors="replace").split("\n")[:-1]
        values += lines
        moments += [received] * len(lines)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(moments, pa.timestamp("us", tz="UTC"))], schema=_SCHEMA
    )


class _keep_error_name:  # noqa: N801 - reads as a word where it is used
    """Lets a Penstock error keep its name on its way through Spark."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PenstockError):
            raise TaskFault(error) from error
