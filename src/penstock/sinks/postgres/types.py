"""Which values a PostgreSQL column takes, and in which Arrow type they travel.

Rows go as binary COPY, whose bytes the server takes as they are: an int32 for a bigint would be refused, or misread. So
every column is cast to the exact type of its target, and a cast that is not safe is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaMismatch
from penstock.sinks.files.text import is_nested
from penstock.sinks.sql.tables import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: Types whose binary form is their text.
TEXTUAL = ("text", "varchar", "bpchar", "name", "citext", "json", "xml")


@dataclass(frozen=True, slots=True)
class PgColumn(Column):
    """A column of a PostgreSQL table. `base` is the type's name below any domain, `element` that of an array."""

    base: str = ""
    element: str = ""
    enum: bool = False
    scale: int | None = None  # of a numeric that has one
    collation: str = ""  # by which it compares, as in a statement
    width: int | None = None  # characters, of a varchar that has a limit

    @property
    def definition(self) -> str:
        """Type and collation of the same column in another table, which then compares values in the same way."""
        return f"{self.type} COLLATE {self.collation}" if self.collation else self.type


class Refused(Exception):
    """Why a type cannot go into a column."""


class Unstorable(Exception):
    """Why one value cannot be stored."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a column travels: its values for COPY's binary form, and for its text form, which may be the only one."""

    as_binary: Callable[[pa.Array], pa.Array]
    as_text: Callable[[pa.Array], pa.Array]
    text_only: bool = False


def route(kind: pa.DataType, column: PgColumn) -> Route:
    """The way from an Arrow type into a column; `Refused` if there is none."""
    if pa.types.is_dictionary(kind):
        return route(kind.value_type, column)
    if column.element:
        if pa.types.is_null(kind):
            return _cast(pa.list_(_simple(pa.null(), column.element, None) or pa.string()), column)
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise Refused("an array is wanted")
        inner = _simple(kind.value_type, column.element, column.scale)
        if inner is None:
            raise Refused(f"its elements are {kind.value_type}")
        return _cast(pa.list_(inner), column)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.base == "jsonb" and (is_text or pa.types.is_null(kind)):
        return Route(_as_jsonb, _same)
    if column.base == "uuid" and is_text:
        return Route(lambda values: _as_uuid(values, column.name), _same)
    if column.enum and (is_text or pa.types.is_null(kind)):
        return _cast(pa.string(), column)
    simple = _simple(kind, column.base, column.scale)
    if simple is not None:
        return _cast(simple, column)
    if is_text and column.base not in _FIXED:
        return Route(_same, _same, text_only=True)  # inet, ranges, geometry …: the server reads the text
    if pa.types.is_null(kind):
        return _cast(pa.string(), column)
    raise Refused(_why(kind, column))


def refusal(kind: pa.DataType, column: PgColumn) -> str | None:
    try:
        route(kind, column)
    except Refused as reason:
        return str(reason)
    return None


def _same(values: pa.Array) -> pa.Array:
    return values


def _cast(wanted: pa.DataType, column: PgColumn) -> Route:
    def change(values: pa.Array) -> pa.Array:
        values = values if values.type == wanted else values.cast(wanted)
        _require_storable(values.flatten() if pa.types.is_list(wanted) else values, column)
        return values

    return Route(change, _span_text if pa.types.is_duration(wanted) else change)


def _require_storable(values: pa.Array, column: PgColumn) -> None:
    """`Unstorable` for values that the client refuses without a reason, and for those that the server would change
    silently: a varchar cuts blanks beyond its limit, a date before 4714 BC means -infinity."""
    if column.width is not None:
        longest = pc.max(pc.utf8_length(values)).as_py()
        if longest is not None and longest > column.width:
            raise Unstorable(
                f"value too long: column {column.name!r} is {column.type}, a value has {longest} characters."
            )
    if pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type):
        days = pa.types.is_date32(values.type)
        first, last = (_FIRST_DAY, _LAST_DAY) if days else (_FIRST_DAY * _DAY, None)
        span = pc.min_max(values.cast(pa.int32() if days else pa.int64())).as_py()
        if span["min"] is not None and (span["min"] < first or (last is not None and span["max"] > last)):
            raise Unstorable(f"out of range: column {column.name!r} is {column.type}, which begins in 4714 BC.")


_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905  # that a date can hold, from 1970
_DAY = 86_400_000_000  # microseconds

#: Types with a binary form, into which the server does not read text, and the Arrow types for it.
_FIXED: dict[str, Any] = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(),
    "float4": pa.float32(), "float8": pa.float64(), "bytea": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"), "interval": pa.duration("us"), "numeric": pa.decimal128(38, 0),
}  # fmt: skip


def _simple(kind: pa.DataType, base: str, scale: int | None) -> pa.DataType | None:
    """The Arrow type in which a value of `kind` goes into a column of type `base`; None if it cannot."""
    kinds = pa.types
    if base in TEXTUAL:
        fits = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind)
        return pa.string() if fits else None
    wanted = _FIXED.get(base)
    if wanted is None:
        return None
    if kinds.is_null(kind):
        return wanted
    if base == "numeric":
        if kinds.is_decimal(kind):
            return kind if scale is None or kind.scale <= scale else None
        return pa.decimal128(20, 0) if kinds.is_integer(kind) and (scale is None or scale >= 0) else None
    if kinds.is_integer(wanted):
        return wanted if kinds.is_integer(kind) and kind.bit_width <= wanted.bit_width else None
    if kinds.is_floating(wanted):
        narrow = kinds.is_floating(kind) and kind.bit_width <= wanted.bit_width
        exact = kinds.is_integer(kind) and kind.bit_width <= wanted.bit_width // 2
        return wanted if narrow or exact else None
    if kinds.is_timestamp(wanted):
        return wanted if kinds.is_timestamp(kind) and (kind.tz is None) == (wanted.tz is None) else None
    same = {
        "bool": kinds.is_boolean,
        "bytea": lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind),
        "date": kinds.is_date,
        "time": kinds.is_time,
        "interval": kinds.is_duration,
    }[base]
    return wanted if same(kind) else None


def _why(kind: pa.DataType, column: PgColumn) -> str:
    if column.base in ("timestamp", "timestamptz") and pa.types.is_timestamp(kind):
        return "one has a time zone and the other has not; cast it to the one that is meant"
    if column.base == "numeric" and pa.types.is_decimal(kind):
        return "digits behind the point would be cut off"
    if column.base == "numeric" and pa.types.is_floating(kind):
        return "cast it to a decimal, so that it is plain how it is rounded"
    if pa.types.is_integer(kind) and column.base in ("int2", "int4"):
        return "it is too narrow"
    return "the types do not fit"


def _as_jsonb(values: pa.Array) -> pa.Array:
    """The binary form of jsonb: a version byte, then the text."""
    version = pa.scalar(b"\x01", pa.binary())
    return pc.binary_join_element_wise(version, values.cast(pa.string()).cast(pa.binary()), b"")


def _span_text(values: pa.Array) -> pa.Array:
    counted = values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(counted, pa.scalar("microseconds"), " ")


def _as_uuid(values: pa.Array, name: str) -> pa.Array:
    """The sixteen bytes of each uuid, from its usual text with or without dashes."""
    plain = pc.replace_substring(values.cast(pa.string()), "-", "")
    wrong = pc.invert(pc.match_substring_regex(plain, "^[0-9a-fA-F]{32}$"))
    if pc.any(wrong).as_py():
        raise Unstorable(f"column {name!r} is a uuid, and {values.filter(wrong)[0].as_py()!r:.60} is none.")
    digits = "".join(plain.fill_null("0" * 32).to_pylist())
    buffers = [None, pa.py_buffer(bytes.fromhex(digits))]
    sixteen = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(values), buffers)
    return pc.if_else(pc.is_valid(values), sixteen, pa.scalar(None, pa.binary(16)))


_ATOMIC = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "string": "text", "binary": "bytea", "date": "date",
    "timestamp": "timestamptz", "timestamp_ntz": "timestamp", "void": "text",
}  # fmt: skip


def column_type(kind: DataType) -> str:
    """The type of a column made for values of a Spark type; `SchemaMismatch` where there is none."""
    from pyspark.sql.types import ArrayType

    inner = _atomic(kind.elementType) if isinstance(kind, ArrayType) else None
    if inner is not None:
        return f"{inner}[]"
    if (atomic := _atomic(kind)) is not None:
        return atomic
    if is_nested(kind):
        return "jsonb"
    raise SchemaMismatch(
        f"PostgreSQL has no type for values of Spark's type {kind.simpleString()}.",
        to_do="cast the column to a string or a number.",
    )


def goes_as_json(kind: DataType) -> bool:
    return is_nested(kind) and column_type(kind) == "jsonb"


def _atomic(kind: DataType) -> str | None:
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    if name.startswith(("interval day", "interval hour", "interval minute", "interval second")):
        return "interval"
    if name.startswith("time("):
        return "time"
    if name.startswith(("varchar", "char")):
        return name
    return _ATOMIC.get(name.partition(" collate")[0])
