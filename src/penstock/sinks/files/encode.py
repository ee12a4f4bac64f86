"""Rows as bytes: Parquet by pyarrow; JSON lines and CSV rendered by Spark, as its own writers do, and only joined here.

A Parquet footer leaves NaN out, while Spark sorts NaN above every number and skips row groups by the footer. So columns
that may hold NaN get no statistics, or a search for large numbers would miss rows.

Arrow makes a dictionary for every column and gives it up only at a megabyte, in every row group anew. For values that
hardly repeat, this takes most of the writing time and makes the file larger. So the first rows decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from penstock.errors import SchemaMismatch
from penstock.sinks.files.text import column_problems, keys_as_text, refuse_keys, rendering, types_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

#: Each format's compressions, with the file ending that readers recognise. Parquet names it inside the file.
COMPRESSIONS: Mapping[str, Mapping[str, str]] = {
    "parquet": dict.fromkeys(("none", "snappy", "gzip", "zstd", "lz4", "brotli"), ""),
    "json": {"none": "", "gzip": ".gz", "bz2": ".bz2"},
    "csv": {"none": "", "gzip": ".gz", "bz2": ".bz2"},
}

#: A row group of Parquet: large enough to compress and skip well, small enough for a task's memory.
ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1 << 20
#: Rows that decide whether a column gets a dictionary; counting them takes about a millisecond.
SAMPLE = 10_000


class ParquetEncoder:
    """Buffers rows into row groups. `options` are those of `pyarrow.parquet.ParquetWriter`."""

    def __init__(self, stream: Any, compression: str, schema: pa.Schema | None = None, **options: Any) -> None:
        self._stream, self._schema = stream, schema
        self._options = {"compression": compression, **options}
        self._writer: Any = None
        self._batches: list[pa.RecordBatch] = []
        self.buffered = 0  # bytes
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.buffered += batch.nbytes
        self._rows += batch.num_rows
        if self.buffered >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write a row group from the buffer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._batches:
            return
        if self._writer is None:
            schema = self._batches[0].schema if self._schema is None else self._schema
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                coerce_timestamps="us",  # Spark's own precision
                store_schema=False,  # Arrow's schema would carry this session's time zone into every reader
                write_statistics=self.with_statistics(schema),
                use_dictionary=repeating(self._batches[0]),
                **self._options,
            )
        self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=ROW_GROUP_ROWS)
        self._batches, self.buffered, self._rows = [], 0, 0

    def with_statistics(self, schema: pa.Schema) -> list[str]:
        """The value columns that get statistics, asked before the first row group: those that cannot hold NaN."""
        import pyarrow as pa

        columns = (leaf for field in schema for leaf in leaves(field.name, field.type))
        return [path for path, kind in columns if not pa.types.is_floating(kind)]

    def close(self) -> None:
        """Write buffered rows and the end of the file; close the stream."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


class LinesEncoder:
    """One string column, one line each. Null lines are empty lines."""

    def __init__(self, stream: Any, compression: str, *, header: bool, separator: str) -> None:
        import pyarrow as pa

        self._stream = stream if compression == "none" else pa.CompressedOutputStream(stream, compression)
        self._header = header
        self._separator = separator

    def write(self, batch: pa.RecordBatch) -> None:
        if self._header:
            self._stream.write((unquote(batch.schema.names[0]) + self._separator).encode())
            self._header = False
        self._stream.write(joined(batch.column(0), self._separator))

    def close(self) -> None:
        self._stream.close()


Encoder: TypeAlias = ParquetEncoder | LinesEncoder


def joined(column: pa.Array, separator: str) -> pa.Buffer:
    """The strings of a column, each followed by `separator`, as one buffer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.cast(pa.large_string())  # 64-bit offsets: a batch of long lines may pass 2 GiB
    nothing, between = (pa.scalar(part, pa.large_string()) for part in ("", separator))
    ended = pc.binary_join_element_wise(text, nothing, between, null_handling="replace", null_replacement="")
    if len(ended) == 0:
        return pa.py_buffer(b"")
    offsets, data = ended.buffers()[1:3]
    edges = pa.Array.from_buffers(pa.int64(), ended.offset + len(ended) + 1, [None, offsets])
    first, last = edges[ended.offset].as_py(), edges[ended.offset + len(ended)].as_py()
    return data.slice(first, last - first)


def shape(kind: str, frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """The columns that a writer of this format takes."""
    from pyspark.sql import functions as f

    _refuse_columns(kind, frame)
    if kind == "parquet":
        return frame
    how, select = rendering(kind, options), frame.select
    # Backticks: a dot in a column's name must not select a field of a struct.
    columns = [f.col("`" + name.replace("`", "``") + "`") for name in frame.columns]
    if kind == "json":
        refuse_keys(frame.schema.fields, "FileSink")
        texts = [
            keys_as_text(column, field.dataType).alias(field.name)
            for column, field in zip(columns, frame.schema.fields, strict=True)
        ]
        return select(f.to_json(f.struct(*texts), how).alias("value"))
    row = f.struct(*columns)
    # The only column's name carries the header to the tasks; without dots, which would select a field of a struct.
    header = quote(csv_header(frame.columns, how), safe="").replace(".", "%2E")
    line = f.to_csv(row, how)
    if len(frame.columns) == 1:
        line = _never_blank(row.getField(frame.columns[0]), line, how)
    return select(line.alias(header))


def _never_blank(only: Column, line: Column, options: Mapping[str, str]) -> Column:
    """Quotes around a blank line of one column: `to_csv` fails on it, Spark drops it, and readers skip it."""
    from pyspark.sql import functions as f

    text, mark = only.cast("string"), f.lit(options.get("quote", '"'))
    blank = f.trim(text) == ""
    if options.get("emptyValue", "shown").strip():
        blank = blank & (text != "")
    if not options.get("nullValue", "").strip():
        blank = only.isNull() | blank
    return f.when(blank, f.concat(mark, f.coalesce(text, f.lit("")), mark)).otherwise(line)


def csv_header(names: list[str], options: Mapping[str, str]) -> str:
    """The names as one line of CSV, quoted where necessary."""
    separator = options.get("sep", ",")
    mark = options.get("quote", '"')
    escape = options.get("escape", "\\")
    always = options.get("quoteAll", "false").lower() == "true"

    def field(name: str) -> str:
        if not always and not any(special in name for special in (separator, mark, "\n", "\r")):
            return name
        return mark + name.replace(mark, escape + mark) + mark

    return separator.join(field(name) for name in names)


def _refuse_columns(kind: str, frame: DataFrame) -> None:
    from pyspark.sql import types as t

    def unfit(whole: DataType) -> bool:
        if kind == "csv":
            return isinstance(whole, (t.ArrayType, t.MapType, t.StructType, t.BinaryType))
        if kind == "json":
            return any(isinstance(part, t.StructType) and not part.fields for part in types_in(whole))
        return not_in_parquet(whole)

    if problems := column_problems(frame, unfit):
        raise SchemaMismatch(
            f"FileSink cannot write these rows as {kind}: {'; '.join(problems)}.",
            to_do="select, rename or cast the columns, for example with to_json for nested ones.",
        )


def not_in_parquet(kind: DataType) -> bool:
    """Whether Parquet has no column for `kind`, or for a part of it."""
    from pyspark.sql import types as t

    known = (
        t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
        t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType, t.ArrayType, t.MapType,
    )  # fmt: skip
    parts = types_in(kind)
    return not all(part.fields if isinstance(part, t.StructType) else isinstance(part, known) for part in parts)


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet's names and the types of the value columns inside a column."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from leaves(f"{path}.{kind.field(number).name}", kind.field(number).type)
    elif pa.types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def repeating(batch: pa.RecordBatch) -> list[str]:
    """The value columns, by Parquet's names, whose first values occur twice on average; and all nested ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths: list[str] = []
    for field, column in zip(batch.schema, batch.slice(0, SAMPLE).columns, strict=True):
        inside = [path for path, _ in leaves(field.name, field.type)]
        if inside == [field.name]:
            try:
                distinct = pc.count_distinct(column).as_py()
            except pa.ArrowNotImplementedError:  # a type that Arrow cannot compare
                distinct = 0
            if 2 * distinct > len(column) - column.null_count:
                continue
        paths += inside
    return paths
