"""A task's side of both table sinks: data files in their final place, invisible until the table's log names them.

Before a data file is opened a marker for it is written under `_penstock`; it is removed when the file is committed or
aborted. So undecided files are found by listing the markers, never the whole table.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import DataError, PreCommitFailed
from penstock.sinks.files.encode import ParquetEncoder, leaves
from penstock.sinks.tables import target as targets
from penstock.sinks.tables.target import Known, Target, Written
from penstock.storage.tree import StagedFile

#: Bytes that all open files of a writer may buffer before their row groups are written.
BUFFER_BYTES = 256 << 20
#: Open files of a writer; the least recently used is completed when another partition comes.
OPEN_FILES = 64


class TableWriter(Writer):
    def __init__(self, target: Target, scope: WriterScope, compression: str, create: bool) -> None:
        self._target, self._scope, self._compression, self._create = target, scope, compression, create
        self._token = secrets.token_hex(10)
        self._plan: tuple[Known, pa.Schema] | None = None  # the table, and its columns that the rows fill
        self._open: dict[tuple[Any, ...], DataFile] = {}
        self._done: list[Written] = []
        self._names: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        with self._target.translate_errors():
            if self._plan is None:
                self._plan = self._begin(batch.schema)
            known, columns = self._plan
            rows = targets.adapt(batch, columns, self._target.where)
            for values, part in by_partition(rows, known.partition_by):
                self._put(values, part.select(self._stored(known, columns)))
            if sum(file.buffered for file in self._open.values()) > BUFFER_BYTES:
                for file in self._open.values():
                    file.flush()

    def _begin(self, schema: pa.Schema) -> tuple[Known, pa.Schema]:
        hint = self._scope.hints.get("table")
        known = Known.from_json(hint) if hint else self._target.look()
        if known is None and self._create:
            self._target.create(targets.plain(schema))
            known = self._target.look()
        if known is None:
            raise PreCommitFailed(
                f"{self._target.where} does not exist any more.",
                to_do="create the table again, or let the sink create it.",
            )
        columns = targets.fit(schema, known.schema, self._target.where)
        targets.check_partitions(known.partition_by, columns, self._target.where)
        self._storage = self._target.storage(known)
        return known, columns

    def _stored(self, known: Known, columns: pa.Schema) -> list[str]:
        kept = known.extra.get("partitions_in_files", True)
        return [name for name in columns.names if kept or name not in known.partition_by]

    def _put(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None)
        if file is not None and not file.takes(rows):
            self._finish(file)
            file = None
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._finish(self._open.pop(next(iter(self._open))))
            file = self._start(values)
            file.takes(rows)
        self._open[values] = file  # most recently used last
        file.write(rows)

    def _start(self, values: tuple[Any, ...]) -> DataFile:
        assert self._plan is not None
        known, columns = self._plan
        if "" in values:
            raise DataError(
                f"A row has empty text in column {known.partition_by[values.index('')]!r}, by which "
                f"{self._target.where} is partitioned: tables cannot distinguish it from null.",
                to_do="turn empty text into null or into a word, for example with nullif.",
            )
        name = targets.data_name(self._scope, self._token, len(self._names))
        self._names.append(name)
        self._storage.write_durably(
            targets.marker_name(self._scope.sink, name), targets.marker_body(known.position, values)
        )
        stored = pa.schema([columns.field(column) for column in self._stored(known, columns)])
        return DataFile(name, self._storage.stage(name), stored, self._compression, values)

    def _finish(self, file: DataFile) -> None:
        try:
            written = file.finish()
            if self._storage.size(targets.marker_name(self._scope.sink, file.name)) is None:
                raise FileNotFoundError(file.name)
        except FileNotFoundError as error:
            file.discard()
            raise PreCommitFailed(
                f"The file {file.name} of {self._target.where} was removed while it was written: a newer run has taken "
                "over, or another program cleaned the folder.",
                to_do="nothing if the job was restarted; otherwise keep other programs out of _penstock.",
            ) from error
        except BaseException:
            file.discard()
            raise
        self._done.append(written)

    def pre_commit(self) -> Mapping[str, Any]:
        assert self._plan is not None
        known, columns = self._plan
        with self._target.translate_errors():
            while self._open:
                self._finish(self._open.pop(next(iter(self._open))))
        return {
            "token": self._token,
            "generation": self._scope.sink.generation,
            "position": dict(known.position),
            "columns": targets.types_of(columns),
            "partition_by": list(known.partition_by),
            # No statistics and no partition values: the ledger holds no row's values. See `TableCommitter._described`.
            "files": [{"name": file.name, "bytes": file.size} for file in self._done],
        }

    def abort(self) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.discard()
        self._open, self._done = {}, []
        for name in self._names:
            with contextlib.suppress(OSError):
                self._storage.remove(name)
                self._storage.remove(targets.marker_name(self._scope.sink, name))


class DataFile(ParquetEncoder):
    """Columns with NaN have no statistics in the footer, see `sinks.files.encode`. They are chosen when the first row
    group is written; later rows with NaN in another column go into a new file (`takes`)."""

    def __init__(
        self, name: str, file: StagedFile, schema: pa.Schema, compression: str, values: tuple[Any, ...]
    ) -> None:
        # Decimals as in Iceberg's specification and Spark's writer.
        super().__init__(file.stream, compression, schema, store_decimal_as_integer=True)
        self.name, self.values, self._file = name, values, file
        self._floats = [
            field.name
            for field in schema
            if any(pa.types.is_floating(kind) for _, kind in leaves(field.name, field.type))
        ]
        self._with_nan: set[str] = set()

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the statistics of this file stay right with those rows; only then may they be written."""
        with_nan = {path for name in self._floats for path in _nans(name, batch.column(name))}
        if self._writer is not None:
            return with_nan <= self._with_nan
        self._with_nan |= with_nan
        return True

    def with_statistics(self, schema: pa.Schema) -> list[str]:
        paths = (path for field in schema for path, _ in leaves(field.name, field.type))
        return [path for path in paths if path not in self._with_nan]

    def finish(self) -> Written:
        """Complete it durably. `FileNotFoundError` if it was removed meanwhile."""
        self.flush()
        self._writer.close()
        written = self._stream.tell()
        self._stream.close()
        size = self._file.finish()
        if size != written:
            raise OSError(f"{self.name} has {size} bytes where it is kept, but {written} were written")
        return Written(self.name, size, self._writer.writer.metadata, self.values)

    def discard(self) -> None:
        self._batches = []
        if self._writer is not None:
            self._writer.is_open = False  # or it would write the footer when it is collected
        self._file.discard()


def _nans(path: str, values: Any) -> Iterator[str]:
    """The value columns inside `path` that hold NaN, by Parquet's names."""
    kind = values.type
    if pa.types.is_struct(kind):
        for number, part in enumerate(values.flatten()):
            yield from _nans(f"{path}.{kind.field(number).name}", part)
    elif pa.types.is_map(kind):
        yield from _nans(f"{path}.key_value.key", values.keys)
        yield from _nans(f"{path}.key_value.value", values.items)
    elif pa.types.is_nested(kind):
        yield from _nans(f"{path}.list.element", values.flatten())
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        yield path


def by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of `batch`, in their order, by the values of `columns`."""
    if not columns:
        yield (), batch
        return
    keys = [f"key{number}" for number in range(len(columns))]  # a column may have any name
    numbered = pa.table([*map(batch.column, columns), np.arange(batch.num_rows)], names=[*keys, "row"])
    # In one thread: only then do rows stay in their order.
    groups = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    try:
        values = list(zip(*(groups[key].to_pylist() for key in keys), strict=True))
    except (OverflowError, ValueError) as error:
        raise DataError(
            f"A row has a date outside the years 1 to 9999 in {', '.join(columns)}, by which the table is partitioned.",
            to_do="filter or correct such rows, or partition by a column of text.",
        ) from error
    for group, rows in zip(values, groups["row_list"], strict=True):
        yield group, batch if len(values) == 1 else batch.take(rows.values)
