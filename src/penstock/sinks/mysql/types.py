"""Column types, and rows as the text that `LOAD DATA LOCAL INFILE` reads.

A kind is a short word for what Spark and Arrow call a type, such as `bigint` or `decimal(p,s)`. Rows become text column
by column, by Arrow's own kernels, without a Python object per row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, SchemaMismatch
from penstock.sinks.files.text import digits_of, is_nested
from penstock.sinks.sql.tables import Column, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_TYPES = {
    "bigint": "BIGINT", "int": "INT", "smallint": "SMALLINT", "tinyint": "TINYINT", "ubigint": "BIGINT UNSIGNED",
    "boolean": "TINYINT(1)", "double": "DOUBLE",
    "float": "DOUBLE",  # the server's FLOAT shows six digits to most readers
    "string": "LONGTEXT", "json": "JSON", "binary": "LONGBLOB",
    "date": "DATE", "timestamp": "DATETIME(6)", "time": "TIME(6)",
}  # fmt: skip
#: Columns of a key: an index takes no text without a length.
_IN_KEY = {"string": "VARCHAR(255)", "json": "VARCHAR(255)", "binary": "VARBINARY(255)"}

_INTS = {"tinyint", "smallint", "mediumint", "int", "integer", "bigint"}
_WHOLE = {*_INTS, "decimal"}
_WHOLE_OR_DOUBLE = {*_WHOLE, "double"}  # which holds 53 bits
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set", "uuid"}
_TEXT |= {"inet4", "inet6", "nchar", "nvarchar"}
_TAKES = {
    **dict.fromkeys(("bigint", "ubigint"), _WHOLE),
    **dict.fromkeys(("int", "smallint", "tinyint"), _WHOLE_OR_DOUBLE),
    "boolean": _INTS,
    "double": {"double"},
    "float": {"float", "double"},
    "string": _TEXT,
    "json": _TEXT,
    "binary": {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
    "date": {"date", "datetime", "timestamp"},
    "timestamp": {"datetime", "timestamp"},
    "time": {"time"},
}
_ROUNDING = re.compile(r"(double|float|real)\(\d+,\d+\)")  # to so many digits behind the point
_MEMBER = re.compile(r"'((?:[^']|'')*)'")  # of an ENUM or a SET
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")

#: Bytes of Arrow that one statement takes at most, about; text is larger by a half.
CHUNK = 8 << 20
_NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))


def of_spark(name: str, kind: DataType) -> str:
    """`SchemaMismatch` for what no column takes."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    if is_nested(kind):
        return "json"
    if kind.typeName() in ("char", "varchar"):
        return "string"
    try:
        return of_arrow(name, to_arrow_type(kind, timezone="UTC"))
    except (PySparkException, SchemaMismatch):
        raise unsupported(name, kind.simpleString()) from None


def of_arrow(name: str, kind: pa.DataType) -> str:
    """As `of_spark`, of what reaches a writer."""
    t = pa.types
    if t.is_dictionary(kind):
        kind = kind.value_type
    if t.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    tests = (
        (t.is_boolean, "boolean"), (t.is_int8, "tinyint"), (t.is_int16, "smallint"), (t.is_int32, "int"),
        (t.is_int64, "bigint"), (t.is_uint8, "smallint"), (t.is_uint16, "int"), (t.is_uint32, "bigint"),
        (t.is_uint64, "ubigint"), (t.is_float64, "double"), (t.is_floating, "float"),
        (t.is_string, "string"), (t.is_large_string, "string"), (t.is_string_view, "string"), (t.is_null, "string"),
        (t.is_binary, "binary"), (t.is_large_binary, "binary"), (t.is_fixed_size_binary, "binary"),
        (t.is_binary_view, "binary"), (t.is_date, "date"), (t.is_timestamp, "timestamp"), (t.is_time, "time"),
    )  # fmt: skip
    for test, word in tests:
        if test(kind):
            return word
    raise unsupported(name, str(kind))


def unsupported(name: str, kind: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Column {name!r} is {kind}, for which MySQL has no column.",
        to_do="cast it in the query, for instance to a string or to a number of seconds.",
    )


def column_type(kind: str, *, in_key: bool = False) -> str:
    if in_key and kind in _IN_KEY:
        return _IN_KEY[kind]
    return _TYPES.get(kind) or kind.upper()


def _base(column: Column) -> str:
    return re.split(r"[ (]", column.type.lower(), maxsplit=1)[0]


def bent(values: pa.Array, column: Column) -> str | None:
    """What the server would make of one of `values`, without an error or a warning; None if it keeps them all."""
    base = _base(column)
    if base == "timestamp" and not column.nullable and values.null_count:
        return "null would become the present moment"
    if base not in ("enum", "set", "binary", "char"):
        return None
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if base == "binary":
        width = int((re.search(r"\d+", column.type) or ["1"])[0])
        shortest = pc.min(pc.binary_length(values)).as_py()
        return "shorter values would be filled with zero bytes" if shortest is not None and shortest < width else None
    if base == "char":
        return "blanks at the end would be cut" if pc.any(pc.ends_with(values, " ")).as_py() else None
    members = {_unescaped(found) for found in _MEMBER.findall(column.type)}
    for value in pc.unique(values).to_pylist():
        if value is not None and value not in members and (base == "enum" or not members.issuperset(value.split(","))):
            return None if base == "set" and not value else f"{value!r:.60} is none of its values, but might name one"
    return None


def _unescaped(member: str) -> str:
    shown = {"n": "\n", "r": "\r", "0": "\0"}
    return re.sub(r"\\(.)", lambda found: shown.get(found[1], found[1]), member.replace("''", "'"))


def refusal(kind: str, column: Column) -> str | None:
    """Why rows of `kind` cannot go into `column`; None if they can. Values that are too large show when loaded."""
    base = _base(column)
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        if kind in ("double", "float") and _ROUNDING.match(column.type.lower()):
            return "it would be rounded"
        if kind in ("bigint", "ubigint") and base == "double":
            return "beyond 2^53 its digits would be lost; cast it to double if that is meant"
        return None if base in _TAKES[kind] else "another sort of value"
    there = _DECIMAL.match(column.type.lower().replace(" ", ""))
    if there is None:
        return None if base in _INTS and int(decimal[2]) <= 0 else "it would be rounded"
    return "digits behind the point would be cut" if int(there[2]) < int(decimal[2]) else None


# Rows as text


def load_statement(table: str, columns: Sequence[str], kinds: Sequence[str]) -> str:
    """The LOAD DATA for rows of `kinds` into a quoted `table`, with `columns` as the table spells them."""
    targets, settings = [], []
    for number, (name, kind) in enumerate(zip(columns, kinds, strict=True)):
        if kind == "binary":  # bytes travel as hexadecimal digits: the text's character set is not theirs
            targets.append(f"@b{number}")
            settings.append(f"{quoted(name, '`')} = UNHEX(@b{number})")
        else:
            targets.append(quoted(name, "`"))
    return (
        f"LOAD DATA LOCAL INFILE 'penstock' INTO TABLE {table} CHARACTER SET utf8mb4"
        " FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'"
        f" ({', '.join(targets)})" + (f" SET {', '.join(settings)}" if settings else "")
    )


def chunks(batch: pa.RecordBatch, most: int = CHUNK) -> Iterator[pa.RecordBatch]:
    """`batch` in pieces of about `most` bytes; a single row is never cut."""
    step = max(1, int(batch.num_rows * most // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def lines(batch: pa.RecordBatch) -> memoryview:
    """Fields ended by tabs, rows by newlines, null as `\\N`."""
    fields = [_field(batch.column(number), name) for number, name in enumerate(batch.schema.names)]
    fields[-1] = pc.binary_join_element_wise(fields[-1], "", "\n")
    joined = pc.binary_join_element_wise(*fields, "\t")
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[int(bounds[joined.offset]) : int(bounds[joined.offset + len(joined)])]


def _field(column: pa.Array, name: str) -> pa.Array:
    text = _text(column, name)
    if of_arrow(name, column.type) == "string":
        text = _escaped(text)
    return text.fill_null(_NULL) if text.null_count else text


def _text(column: pa.Array, name: str) -> pa.Array:
    """A column as strings that the server understands; `DataError` for a value that no server takes."""
    kind = of_arrow(name, column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        return digits_of(column).cast(pa.string())
    match kind:
        case "binary":
            # One by one, because Arrow has no such function.
            return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
        case "boolean":
            column = column.cast(pa.uint8())
        case "double" | "float":
            bad = column.filter(pc.invert(pc.is_finite(column)))
            if len(bad):
                value = bad[0].as_py()
                raise DataError(
                    f"Column {name!r} holds {value}, which MySQL cannot store.",
                    to_do=f"replace it in the query, for instance with null: nullif({name}, double('{value}')).",
                )
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
    return column.cast(pa.string())


def _escaped(text: pa.Array) -> pa.Array:
    """Searching for a character is far cheaper than replacing none."""
    data = text.buffers()[2]
    if data is None or not data.size:
        return text
    characters = np.frombuffer(data, np.uint8)
    for plain, escape in _ESCAPES:
        if (characters == ord(plain)).any():
            text = pc.replace_substring(text, pattern=plain, replacement=escape)
    return text
