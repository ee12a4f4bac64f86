"""Which columns of a Parquet file may have their least and largest value in its footer, and which get a dictionary.

A footer leaves NaN out, while to Spark NaN is larger than every number; and Spark skips row groups by the footer. So a
column that holds NaN must have no statistics, or rows would be missed by whoever looks for large numbers.

Arrow makes a dictionary for every column and gives it up only when it has grown to a megabyte, in every row group
anew. Where values hardly repeat that is most of the time of writing, and the file is larger for it. So the first rows
are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 10_000  # rows; counting them takes about a millisecond


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The names Parquet gives to the columns of values inside a column, and their types."""
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


def never_nan(schema: pa.Schema) -> list[str]:
    """The columns in which NaN cannot stand, whatever comes."""
    import pyarrow as pa

    found = (leaf for field in schema for leaf in leaves(field.name, field.type))
    return [path for path, kind in found if not pa.types.is_floating(kind)]


def repeating(batch: pa.RecordBatch) -> list[str]:
    """The columns of values, by Parquet's names, in which each value stands twice or more on average among the first
    rows; and all those inside others, which are not looked at."""
    return list(_repeating(batch.slice(0, SAMPLE)))


def _repeating(batch: pa.RecordBatch) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for number, field in enumerate(batch.schema):
        inside = [path for path, _ in leaves(field.name, field.type)]
        if inside == [field.name]:
            column = batch.column(number)
            try:
                distinct = pc.count_distinct(column).as_py()
            except pa.ArrowNotImplementedError:  # a type that Arrow cannot compare
                yield field.name
                continue
            if 2 * distinct <= len(column) - column.null_count:
                yield field.name
        else:
            yield from inside
