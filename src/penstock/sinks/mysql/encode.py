"""Rows of Arrow as the text that the server reads, column by column, without a Python object per row.

Two dialects of one thing: lines for `LOAD DATA LOCAL INFILE`, and tuples for a multi-row INSERT where the server does
not allow that. Both are built by Arrow's own kernels; the joined column's buffer is what goes to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import DataError
from penstock.sinks.files.text import digits_of
from penstock.sinks.mysql.types import of_arrow
from penstock.sinks.sql.names import quoted

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of Arrow that one statement takes at most, about; text is larger by a half.
CHUNK = 8 << 20

_NULL_LINE, _NULL_TUPLE = "\\N", "NULL"
_LINE_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))
_TUPLE_ESCAPES = (("\\", "\\\\"), ("'", "\\'"))


@dataclass(frozen=True, slots=True)
class Statement:
    """How rows of one schema go into one table."""

    table: str  # quoted
    columns: tuple[str, ...]  # as the table spells them
    kinds: tuple[str, ...]

    def load(self) -> str:
        taken, made = [], []
        for number, (name, kind) in enumerate(zip(self.columns, self.kinds, strict=True)):
            if kind == "binary":  # bytes travel as hexadecimal digits: the text's character set is not theirs
                taken.append(f"@b{number}")
                made.append(f"{quoted(name, '`')} = UNHEX(@b{number})")
            else:
                taken.append(quoted(name, "`"))
        return (
            f"LOAD DATA LOCAL INFILE 'penstock' INTO TABLE {self.table} CHARACTER SET utf8mb4"
            " FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'"
            f" ({', '.join(taken)})" + (f" SET {', '.join(made)}" if made else "")
        )

    def insert(self) -> bytes:
        """Rows come behind it."""
        names = ", ".join(quoted(name, "`") for name in self.columns)
        return f"INSERT INTO {self.table} ({names}) VALUES ".encode()

    def prepared(self) -> bytes:
        """One row of parameters."""
        return self.insert() + f"({', '.join('?' * len(self.columns))})".encode()


def chunks(batch: pa.RecordBatch, most: int = CHUNK) -> Iterator[pa.RecordBatch]:
    """`batch` in pieces of about `most` bytes; a single row is never cut."""
    step = max(1, int(batch.num_rows * most // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def lines(batch: pa.RecordBatch) -> memoryview:
    """Fields ended by tabs, rows by newlines, null as `\\N`."""
    import pyarrow.compute as pc

    fields = [_line_field(batch.column(number), name) for number, name in enumerate(batch.schema.names)]
    fields[-1] = pc.binary_join_element_wise(fields[-1], "", "\n")
    return _bytes_of(pc.binary_join_element_wise(*fields, "\t"))


def tuples(batch: pa.RecordBatch) -> memoryview:
    """`(1,'a',NULL),(2,'b',x'00'),`: each row with a comma behind it."""
    import pyarrow.compute as pc

    fields = [_tuple_field(batch.column(number), name) for number, name in enumerate(batch.schema.names)]
    row = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    return _bytes_of(pc.binary_join_element_wise("(", row, "),", ""))


def _bytes_of(joined: pa.Array) -> memoryview:
    import numpy as np

    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[int(bounds[joined.offset]) : int(bounds[joined.offset + len(joined)])]


def _line_field(column: pa.Array, name: str) -> pa.Array:
    text, kind = _text(column, name)
    if kind == "string":
        text = _escaped(text, _LINE_ESCAPES)
    return text.fill_null(_NULL_LINE) if text.null_count else text


def _tuple_field(column: pa.Array, name: str) -> pa.Array:
    import pyarrow.compute as pc

    text, kind = _text(column, name)
    if kind == "binary":
        text = pc.binary_join_element_wise("x'", text, "'", "")
    elif kind in ("string", "date", "timestamp", "time"):
        text = pc.binary_join_element_wise("'", _escaped(text, _TUPLE_ESCAPES), "'", "")
    return text.fill_null(_NULL_TUPLE) if text.null_count else text


def _text(column: pa.Array, name: str) -> tuple[pa.Array, str]:
    """A column as strings that the server understands, nulls still null; and its kind."""
    import pyarrow as pa

    kind, column = of_arrow(name, column.type), plain(column, name)
    return (_hexadecimal(column.cast(pa.binary())) if kind == "binary" else column.cast(pa.string())), kind


def plain(column: pa.Array, name: str) -> pa.Array:
    """A column in the one Arrow type that its kind has here; `DataError` for a value that no server takes."""
    import pyarrow as pa

    kind = of_arrow(name, column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        return digits_of(column)
    match kind:
        case "boolean":
            column = column.cast(pa.uint8())
        case "double" | "float":
            _refuse_not_finite(column, name)
            if pa.types.is_float16(column.type):
                column = column.cast(pa.float32())
        case "date":
            column = column.cast(pa.date32())
        case "timestamp":
            # The zone is a label; the number behind it is UTC already.
            zone = None if column.type.tz is None else "UTC"
            column = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.timestamp("us"))
        case "time":
            column = column.cast(pa.time64("us"), safe=False)
    return column


def _refuse_not_finite(column: pa.Array, name: str) -> None:
    import pyarrow.compute as pc

    bad = pc.invert(pc.is_finite(column))
    if pc.any(bad).as_py():
        value = column.filter(bad)[0].as_py()
        raise DataError(
            f"Column {name!r} holds {value}, which MySQL cannot store.",
            safe="nothing of this epoch is visible.",
            to_do=f"replace it in the query, for instance with null: nullif({name}, double('{value}')).",
        )


def _escaped(text: pa.Array, escapes: tuple[tuple[str, str], ...]) -> pa.Array:
    """Looking for a character is far cheaper than replacing none."""
    import numpy as np
    import pyarrow.compute as pc

    data = text.buffers()[2]
    if data is None or not data.size:
        return text
    there = np.frombuffer(data, np.uint8)
    for plain, escape in escapes:
        if (there == ord(plain)).any():
            text = pc.replace_substring(text, pattern=plain, replacement=escape)
    return text


def _hexadecimal(column: pa.Array) -> Any:
    """Two digits for every byte: the same offsets, doubled."""
    import numpy as np
    import pyarrow as pa

    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    pairs = np.stack([np.repeat(digits, 16), np.tile(digits, 16)], axis=1)  # byte → its two digits
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    text = pairs[raw[bounds[0] : bounds[-1]]].tobytes()
    doubled = ((bounds - bounds[0]) * 2).astype(np.int64)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    valid = pa.py_buffer(np.packbits(there, bitorder="little").tobytes()) if column.null_count else None
    large = pa.Array.from_buffers(
        pa.large_string(), len(column), [valid, pa.py_buffer(doubled.tobytes()), pa.py_buffer(text)]
    )
    return large.cast(pa.string())
