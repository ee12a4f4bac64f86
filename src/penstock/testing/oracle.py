"""Judges a run: is every expected row there, exactly once? In plain Python, without Spark. Order is for `anomalies`.

A verdict is a value: `ok` for programs, `lines()` for people, `to_dict()` for files. A bad run raises nothing; only a
question without sense does.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaMismatch

Column: TypeAlias = "np.ndarray[Any, Any]"

EXAMPLES = 5  # how many offending values a verdict names; the counts are always complete


@dataclass(frozen=True, slots=True)
class Verdict:
    """How two multisets differ. `lost + found - duplicated - unexpected == expected`, always. A copy too many is
    `duplicated` if the value was expected at all, otherwise `unexpected`."""

    expected: int
    found: int
    lost: int
    duplicated: int
    unexpected: int
    examples: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)

    def lines(self) -> list[str]:
        head = f"{self.expected:,} rows expected, {self.found:,} found"
        if self.ok:
            return [f"{head}: each exactly once"]
        counts = {"lost": self.lost, "duplicated": self.duplicated, "unexpected": self.unexpected}
        return [head] + [
            f"{count:,} {kind}, such as {', '.join(map(repr, self.examples[kind]))}"
            for kind, count in counts.items()
            if count
        ]

    def to_dict(self) -> dict[str, Any]:
        examples = {kind: list(map(str, values)) for kind, values in self.examples.items()}
        return {"ok": self.ok, **{name: getattr(self, name) for name in self.__slots__}, "examples": examples}


def compare(expected: Any, actual: Any) -> Verdict:
    """Compare two multisets of rows.

    Each side is a mapping from value to count, any iterable of hashable values, or columns: a numpy or Arrow array, or
    an Arrow table, whose rows are then the values. Columns on both sides need no Python object per row and so handle
    millions of rows. Nulls are equal.

    Values of different kinds differ: the text '1' is not the number 1, and neither are True, 1.0 and Decimal('1').
    Between columns of one kind the width does not count (int and bigint, float and double, text and large text), nor
    does the unit of a time; columns of different kinds are a `SchemaMismatch`."""
    left, right = _columns(expected), _columns(actual)
    if left is not None and right is not None:
        return _compare_tables(left, right)
    counts = _counter(expected), _counter(actual)
    keys = list({**counts[0], **counts[1]})
    wanted, seen = (np.array([side[key] for key in keys], dtype=np.int64) for side in counts)
    return _judge(wanted, seen, lambda rows: [keys[row][1] for row in rows])


def _columns(side: Any) -> pa.Table | None:
    if isinstance(side, pa.Table):
        return side
    if isinstance(side, pa.RecordBatch):
        return pa.Table.from_batches([side])
    if isinstance(side, range):
        side = np.arange(side.start, side.stop, side.step, dtype=np.int64)
    if isinstance(side, np.ndarray):
        side = pa.array(side)
    if isinstance(side, (pa.Array, pa.ChunkedArray)):
        return pa.table({"value": side})
    return None


def _counter(side: Any) -> Counter[Any]:
    if isinstance(side, Mapping):
        return Counter({(_kind(value), value): count for value, count in side.items()})
    table = _columns(side)
    return Counter((_kind(value), value) for value in (side if table is None else _rows(table)))


def _rows(table: pa.Table) -> list[Any]:
    columns = [column.to_pylist() for column in table.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


#: Python's classes for values that numpy and others have their own classes for, most special first.
_KINDS = (bool, int, float, str, bytes, dt.datetime)


def _kind(value: Any) -> Any:
    """In Python 1, True and 1.0 are equal; their kinds are not."""
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    value = value.item() if isinstance(value, np.generic) else value
    return next((known for known in _KINDS if isinstance(value, known)), type(value))


def _compare_tables(expected: pa.Table, actual: pa.Table) -> Verdict:
    left, right = expected.schema, actual.schema
    if left.names != right.names or not all(map(_same_kind, left.types, right.types)):
        raise _mismatch(left, right)
    try:
        schemas = [pa.schema([column.with_type(_plain(column.type)) for column in side]) for side in (left, right)]
        common = pa.unify_schemas(schemas, promote_options="permissive")
        expected, actual = expected.cast(common), actual.cast(common)
    except pa.ArrowException as error:
        raise _mismatch(left, right) from error
    keys = [f"c{number}" for number in range(expected.num_columns)]
    marked = [
        table.rename_columns(keys).append_column("wanted", pa.array(np.full(len(table), wanted, dtype=np.int64)))
        for table, wanted in ((expected, 1), (actual, 0))
    ]
    groups = pa.concat_tables(marked).group_by(keys).aggregate([("wanted", "sum"), ("wanted", "count")])
    wanted, both = groups["wanted_sum"].to_numpy(), groups["wanted_count"].to_numpy()
    return _judge(wanted, both - wanted, lambda rows: _rows(groups.select(keys).take(pa.array(rows))))


_TEXT, _BYTES = {pa.string(), pa.large_string(), pa.string_view()}, {pa.binary(), pa.large_binary(), pa.binary_view()}
_SAME_KIND: tuple[Callable[[pa.DataType], bool], ...] = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date, pa.types.is_time),
    *(pa.types.is_duration, pa.types.is_timestamp, _TEXT.__contains__, _BYTES.__contains__),
)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without details that change no value: a dictionary, the zone in which times are shown."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _same_kind(left: pa.DataType, right: pa.DataType) -> bool:
    left, right = _plain(left), _plain(right)
    if left == right or pa.types.is_null(left) or pa.types.is_null(right):
        return True
    if pa.types.is_nested(left) and pa.types.is_nested(right) and left.num_fields == right.num_fields:
        inner = [(left.field(at), right.field(at)) for at in range(left.num_fields)]
        named = not pa.types.is_struct(left) or all(part.name == other.name for part, other in inner)
        return named and all(_same_kind(part.type, other.type) for part, other in inner)
    zones = getattr(left, "tz", None), getattr(right, "tz", None)  # a time of a zone is none on a wall's clock
    return zones[0] == zones[1] and any(is_kind(left) and is_kind(right) for is_kind in _SAME_KIND)


def _judge(wanted: Column, seen: Column, name: Callable[[Column], list[Any]]) -> Verdict:
    surplus = seen - wanted
    rows = {
        "lost": np.flatnonzero(surplus < 0),
        "duplicated": np.flatnonzero((surplus > 0) & (wanted > 0)),
        "unexpected": np.flatnonzero((surplus > 0) & (wanted == 0)),
    }
    return Verdict(
        expected=int(wanted.sum()),
        found=int(seen.sum()),
        lost=int(-surplus[rows["lost"]].sum()),
        duplicated=int(surplus[rows["duplicated"]].sum()),
        unexpected=int(surplus[rows["unexpected"]].sum()),
        examples={kind: name(where[:EXAMPLES]) for kind, where in rows.items() if len(where)},
    )


def _mismatch(expected: pa.Schema, actual: pa.Schema) -> SchemaMismatch:
    def show(schema: pa.Schema) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in schema)

    return SchemaMismatch(
        f"Rows of ({show(expected)}) cannot be compared with rows of ({show(actual)}).",
        safe="nothing was changed.",
        to_do="give both sides the same columns, of the same kinds: text and numbers, say, are never equal.",
    )
