"""Which columns of a Parquet file may have their least and largest value in its footer.

A footer leaves NaN out, while to Spark NaN is larger than every number; and Spark skips row groups by the footer. So a
column that holds NaN must have no statistics, or rows would be missed by whoever looks for large numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


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
