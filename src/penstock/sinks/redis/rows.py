"""Rows as the byte strings that Redis holds, column by column, without a Python loop over values.

| type | in Redis |
|---|---|
| string, binary | as it is |
| integers, decimals | digits, never in scientific notation |
| float, double | the shortest text that reads back to the same number; `nan`, `inf`, `-inf` |
| boolean | `true`, `false` |
| date | `2024-12-31` |
| timestamp | `2024-12-31T23:59:59.000001Z`, always in UTC; without time zone: the same without `Z` |
| array, map, struct, variant | JSON, times in UTC; keys of maps as `sinks.files.text` says |
| interval | as Spark writes it |
| null | the field, in string mode the key, is removed; a counter is left as it is |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import DataError, SchemaMismatch
from penstock.sinks.files.text import LOSSLESS, digits_of, keys_as_text, refuse_keys
from penstock.sinks.redis.scripts import AHEAD, COUNTER_LIMIT, RESERVED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NOTHING = "nothing of this epoch is visible."


def _mismatch(happened: str, to_do: str) -> SchemaMismatch:
    return SchemaMismatch(happened, safe="nothing was written.", to_do=to_do)


def shape(frame: DataFrame, mode: str, key: str) -> DataFrame:
    """The key and then the values, with types that `Rows` renders."""
    from pyspark.sql import functions as f

    fields = frame.schema.fields
    names = [field.name for field in fields]
    if names.count(key) != 1:
        raise _mismatch(
            f"The Redis sink takes its keys from the column {key!r}, and the columns are {names}.",
            "name the column with RedisSink(key=…), once.",
        )
    if len(names) == 1:
        raise _mismatch(
            f"There is no column besides the key {key!r}, so there is nothing to write.",
            "add a column with the value.",
        )
    if len({*names}) < len(names):
        raise _mismatch(f"Two columns have the same name in {names}.", "give every column a name of its own.")
    keyed = next(field for field in fields if field.name == key)
    rest = [field for field in fields if field.name != key]
    if _is_nested(keyed.dataType):
        raise _mismatch(f"The key {key!r} is a {keyed.dataType.simpleString()}.", "make it a string first.")
    if mode == "counter":
        for field in rest:
            if field.dataType.simpleString() not in _WHOLE:
                raise _mismatch(
                    f"The column {field.name!r} is a {field.dataType.simpleString()}, and counters are whole numbers.",
                    f"cast it to bigint, or leave it out: .select({key!r}, …).",
                )
    refuse_keys(rest, "The Redis sink")
    if mode == "string" and len(rest) > 1:
        fields_of_one = [keys_as_text(f.col(_quoted(field.name)), field.dataType).alias(field.name) for field in rest]
        columns = [f.to_json(f.struct(*fields_of_one), dict(LOSSLESS["json"])).alias("value")]
    else:
        columns = [_plain(f.col(_quoted(field.name)), field.dataType).alias(field.name) for field in rest]
    return frame.select(_plain(f.col(_quoted(key)), keyed.dataType).alias(key), *columns)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _is_nested(kind: DataType) -> bool:
    return kind.simpleString().startswith(("array", "map", "struct", "variant"))


def _plain(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f

    if _is_nested(kind):
        # Inside a struct, because to_json takes no plain array of everything; the wrapping is cut off again.
        text = f.to_json(
            f.struct(keys_as_text(column, kind).alias("v")), {**LOSSLESS["json"], "ignoreNullFields": "false"}
        )
        return f.when(column.isNotNull(), f.substring(text, f.lit(6), f.length(text) - f.lit(6)))
    return column.cast("string") if kind.simpleString().startswith("interval") else column


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows laid out as the scripts take them: nulls, key, values; row after row. Nulls are `""` where a row has none,
    else a `1` or `0` for each value."""

    elements: list[Any]
    width: int

    @property
    def count(self) -> int:
        return len(self.elements) // self.width


def lay_out(batch: pa.RecordBatch, mode: str, key: str, prefix: str) -> Rows:
    """`batch` for Redis. `DataError` for what can never be written: a row without key or with one of a sink's own, a
    counter out of range."""
    if batch.column(key).null_count:
        raise DataError(
            f"A row has no key: the column {key!r} is null.",
            safe=_NOTHING,
            to_do="leave such rows out before they are written.",
        )
    if mode == "counter":
        batch = _summed(batch, key)
    names = [name for name in batch.schema.names if name != key]
    values = [batch.column(name) for name in names]
    width = AHEAD + len(names)
    elements: list[Any] = [b""] * (width * batch.num_rows)
    elements[1::width] = _keys(batch.column(key), prefix)
    for number, (name, column) in enumerate(zip(names, values, strict=True)):
        elements[AHEAD + number :: width] = _rendered(column, name)
    if any(column.null_count for column in values):
        elements[0::width] = _nulls(values)
    return Rows(elements, width)


def _summed(batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """One row for each key; null counts as nothing, and stays null where there is nothing else."""
    import pyarrow as pa

    names = [name for name in batch.schema.names if name != key]
    for name in names:
        if not pa.types.is_integer(batch.schema.field(name).type):
            raise _mismatch(
                f"The column {name!r} is {batch.schema.field(name).type}, and counters are whole numbers.",
                "cast it to bigint.",
            )
        if _largest_sum(batch.column(key), batch.column(name)) > COUNTER_LIMIT:
            raise DataError(
                f"The increments in column {name!r} add up to more than a counter holds.",
                safe=_NOTHING,
                to_do="keep such numbers in mode='string', as decimals.",
            )
    wide = [batch.column(name).cast(pa.int64()) for name in names]
    table = pa.Table.from_arrays([batch.column(key), *wide], names=["key", *(f"v{n}" for n in range(len(names)))])
    summed = table.group_by("key").aggregate([(f"v{n}", "sum") for n in range(len(names))])
    columns = [summed["key"], *(summed[f"v{n}_sum"] for n in range(len(names)))]
    arrays = [column.combine_chunks() for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[key, *names])


def _largest_sum(keys: pa.Array, column: pa.Array) -> float:
    """What the numbers of one key may add up to, without their signs; Arrow's own sums would overflow silently."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.abs(column.cast(pa.float64(), safe=False))
    total: float = pc.sum(sizes).as_py() or 0.0
    if total <= COUNTER_LIMIT:
        return total
    grouped = pa.Table.from_arrays([keys, sizes], names=["key", "size"]).group_by("key").aggregate([("size", "sum")])
    largest: float = pc.max(grouped["size_sum"]).as_py()
    return largest


def _keys(column: pa.Array, prefix: str) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = _text(column, "key").cast(pa.large_binary())
    ahead, between = (pa.scalar(part, pa.large_binary()) for part in (prefix.encode(), b""))
    whole = pc.binary_join_element_wise(ahead, plain, between)
    if pc.any(pc.match_substring_regex(whole, RESERVED)).as_py():
        raise DataError(
            "A row has a key that begins with 'penstock:', as those do under which sinks keep their own books.",
            safe=_NOTHING,
            to_do="leave such rows out, or give the sink a prefix.",
        )
    joined: list[Any] = whole.to_numpy(zero_copy_only=False).tolist()
    return joined


def _rendered(column: pa.Array, name: str) -> list[Any]:
    text = _text(column, name)
    if text.null_count:
        text = text.fill_null(b"" if str(text.type).endswith("binary") else "")
    values: list[Any] = text.to_numpy(zero_copy_only=False).tolist()
    return values


def has_lengths(kind: pa.DataType) -> bool:
    """Whether a type is text or bytes already."""
    from pyarrow import types

    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _text(column: pa.Array, name: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_a = pa.types
    if has_lengths(kind):
        return column
    if is_a.is_timestamp(kind):
        text = column.cast(pa.timestamp("us", "UTC" if kind.tz else None)).cast(pa.string())
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    if is_a.is_decimal(kind):
        return digits_of(column)
    if is_a.is_nested(kind) or is_a.is_dictionary(kind):
        raise _mismatch(f"The column {name!r} is {kind}, which Redis has no text for.", "make it a string first.")
    return column.cast(pa.string())


def _nulls(values: list[pa.Array]) -> list[bytes]:
    import numpy as np

    there = np.column_stack([column.is_valid().to_numpy(zero_copy_only=False) for column in values])
    complete: list[bool] = np.logical_and.reduce(there, axis=1).tolist()
    digits, width = (there + ord("0")).astype(np.uint8).tobytes(), len(values)
    return [b"" if whole else digits[at * width : (at + 1) * width] for at, whole in enumerate(complete)]
