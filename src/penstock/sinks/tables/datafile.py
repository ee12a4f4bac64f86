"""One Parquet file of a table while it is written, and the rows of a batch by partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import DataError
from penstock.sinks.files.encode import ROW_GROUP_BYTES, ROW_GROUP_ROWS, leaves, repeating
from penstock.sinks.tables.target import Written

if TYPE_CHECKING:
    from penstock.storage.tree import StagedFile


class DataFile:
    """Open from its first rows on.

    A column in which NaN was seen has no statistics in the footer, see `sinks.files.statistics`.
    They are chosen when the first row group is written; a file that `takes` no NaN any more is completed, and the rows
    go into another.
    """

    def __init__(
        self, name: str, file: StagedFile, schema: pa.Schema, compression: str, values: tuple[Any, ...]
    ) -> None:
        self.name, self.values = name, values
        self._file, self._schema, self._compression = file, schema, compression
        self._writer: Any = None
        self._floats = [field.name for field in schema if _has_floats(field.type)]
        self._with_nan: set[str] = set()
        self._batches: list[pa.RecordBatch] = []
        self.buffered = 0
        self._rows = 0

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the statistics of this file stay right with those rows."""
        found = {path for name in self._floats for path in _nans(name, batch.column(name))}
        if self._writer is not None:
            return found <= self._with_nan
        self._with_nan |= found
        return True

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows that it `takes`."""
        # Spark sends batches of some thousand rows; a row group for each would make tiny, slow files.
        self._batches.append(batch)
        self.buffered += batch.nbytes
        self._rows += batch.num_rows
        if self.buffered >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write a row group from what is buffered."""
        if self._writer is None:
            paths = [path for field in self._schema for path, _ in leaves(field.name, field.type)]
            self._writer = pq.ParquetWriter(
                self._file.stream,
                self._schema,
                compression=self._compression,
                coerce_timestamps="us",
                store_schema=False,  # Arrow's own schema would carry this session's time zone into every reader
                store_decimal_as_integer=True,  # as the Iceberg specification wants it, and Spark writes it
                write_statistics=[path for path in paths if path not in self._with_nan],
                use_dictionary=repeating(self._batches[0]) if self._batches else False,
            )
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=ROW_GROUP_ROWS)
            self._batches, self.buffered, self._rows = [], 0, 0

    def finish(self) -> Written:
        """Complete and durable. `FileNotFoundError` if somebody removed it meanwhile."""
        self.flush()
        self._writer.close()
        written = self._file.stream.tell()
        self._file.stream.close()
        size = self._file.finish()
        if size != written:
            raise OSError(f"{self.name} has {size} bytes where it is kept, but {written} were written")
        return Written(self.name, size, self._writer.writer.metadata, self.values)

    def discard(self) -> None:
        self._batches = []
        if self._writer is not None:
            self._writer.is_open = False  # it would write the footer when it is forgotten
        self._file.discard()


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _nans(path: str, values: Any) -> Iterator[str]:
    """Those of them that hold NaN."""
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
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    dictionaries = []
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        # Renumbered after every column, so that the product of many columns cannot overflow.
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64).reshape(-1)
        dictionaries.append((encoded.dictionary, encoded.indices))
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    if len(first) == 1:
        groups = [batch]
    else:
        order = np.argsort(inverse, kind="stable")
        ends = np.cumsum(np.bincount(inverse))
        sorted_rows = batch.take(pa.array(order))
        groups = [sorted_rows.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    for row, rows in zip(first, groups, strict=True):
        try:
            values = tuple(dictionary[indices[int(row)].as_py()].as_py() for dictionary, indices in dictionaries)
        except (OverflowError, ValueError) as error:
            raise DataError(
                f"A row has a date outside the years 1 to 9999 in {', '.join(columns)}, by which the table is"
                " partitioned.",
                safe="nothing of this epoch is visible.",
                to_do="filter or correct such rows, or partition by a column of text.",
            ) from error
        yield values, rows
