"""Compares the columns of rows with those of a table, as Arrow types, before the first row is written: nothing is cut,
rounded or dropped silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConstraintViolated, SchemaMismatch
from penstock.sinks.files.encode import not_in_parquet
from penstock.sinks.files.text import column_problems, types_in
from penstock.sinks.sql.tables import Column, compare, hint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Types a table can be partitioned by: those with an unambiguous text.
PARTITION_TYPES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_signed_integer,
    pa.types.is_date32,
    pa.types.is_boolean,
)

#: Spark's metadata on a column of text with a limited length. To the formats it is a string.
VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_VARCHAR = re.compile(r"varchar\((\d+)\)")


def varchar_length(kind: str) -> int | None:
    """The limit in Spark's metadata of a column; None for other kinds, such as char(3)."""
    match = _VARCHAR.fullmatch(kind)
    return int(match[1]) if match else None


def of_frame(frame: DataFrame, forbidden: str, where: str) -> pa.Schema:
    """The Arrow columns of `frame`; `SchemaMismatch` for types and names that no table can have."""
    from pyspark.sql import types as t
    from pyspark.sql.pandas.types import to_arrow_type

    problems = column_problems(frame, not_in_parquet)
    structs = (part for part in types_in(frame.schema) if isinstance(part, t.StructType))
    for name in (field.name for struct in structs for field in struct.fields):
        odd = sorted({repr(letter) for letter in name if letter in forbidden})
        if odd or not name:
            problems.append(f"the name {name!r} has {', '.join(odd) or 'no letters'}")
    if problems:
        raise SchemaMismatch(
            f"The rows do not fit into {where}: {'; '.join(problems)}.",
            to_do="select, rename or cast the columns of the DataFrame.",
        )
    kinds = [(column.name, to_arrow_type(column.dataType, timezone="UTC")) for column in frame.schema.fields]
    return pa.schema(kinds)


def plain(schema: pa.Schema) -> pa.Schema:
    """`schema` for a new table: every column nullable, times with a zone in UTC, no metadata."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _plain(part.type)) for part in _fields(kind)])
    return kind


def fit(rows: pa.Schema, table: pa.Schema, where: str) -> pa.Schema:
    """The columns of `table` that `rows` fill, in the table's order; `SchemaMismatch` names all differences."""
    compare(
        types_of(rows).items(),
        [Column(name, kind, table.field(name).nullable) for name, kind in types_of(table).items()],
        where,
        lambda _, column: (
            None if widens(rows.field(column.name).type, table.field(column.name).type) else "not every value fits"
        ),
    )
    return pa.schema([field for field in table if field.name in rows.names])


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    narrow, wide = _plain(narrow), _plain(wide)
    if narrow.equals(wide):
        return True
    if pa.types.is_signed_integer(narrow) and pa.types.is_signed_integer(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_float32(narrow) and pa.types.is_float64(wide):
        return True
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale <= wide.scale and narrow.precision - narrow.scale <= wide.precision - wide.scale)
    if pa.types.is_list(narrow) and pa.types.is_list(wide):
        return widens(narrow.value_type, wide.value_type)
    if pa.types.is_map(narrow) and pa.types.is_map(wide):
        return widens(narrow.key_type, wide.key_type) and widens(narrow.item_type, wide.item_type)
    if pa.types.is_struct(narrow) and pa.types.is_struct(wide) and narrow.num_fields == wide.num_fields:
        pairs = zip(_fields(narrow), _fields(wide), strict=True)
        return all(part.name == other.name and widens(part.type, other.type) for part, other in pairs)
    return False


def strict_inside(table: pa.Schema) -> list[str]:
    """Columns with a nested part that may not be null: Spark's schemas are not reliable there."""

    def strict(kind: pa.DataType) -> bool:
        if pa.types.is_map(kind):
            return not kind.item_field.nullable or strict(kind.key_type) or strict(kind.item_type)
        if pa.types.is_nested(kind):
            return any(not part.nullable or strict(part.type) for part in _fields(kind))
        return False

    return [field.name for field in table if strict(field.type)]


def adapt(batch: pa.RecordBatch, target: pa.Schema, where: str) -> pa.RecordBatch:
    """`batch` as `target` has it. `ConstraintViolated` for a null where none may be, and for text that is too long."""
    columns = []
    for field in target:
        column = batch.column(batch.schema.get_field_index(field.name))
        if not field.nullable and column.null_count:
            raise ConstraintViolated(
                f"{column.null_count} rows have no value in column {field.name!r}, which may not be null in {where}.",
                to_do="filter or fill such rows, or let the column be null; then restart.",
            )
        most = varchar_length((field.metadata or {}).get(VARCHAR.encode(), b"").decode())
        if most is not None and (pc.max(pc.utf8_length(column)).as_py() or 0) > most:
            raise ConstraintViolated(
                f"A row has more than {most} letters in column {field.name!r}, which is varchar({most}) in {where}.",
                to_do="filter or shorten such rows, or widen the column; then restart.",
            )
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def check_partitions(by: Sequence[str], table: pa.Schema, where: str) -> None:
    wrong = []
    for name in by:
        if name not in table.names:
            wrong.append(f"there is no column {name!r}{hint(name, table.names)}")
        elif not any(fits(_plain(table.field(name).type)) for fits in PARTITION_TYPES):
            wrong.append(f"column {name!r} is {_type_name(table.field(name).type)}")
    if by and len(by) >= len(table.names):
        wrong.append("no column is left beside them")
    if wrong:
        raise SchemaMismatch(
            f"{where} cannot be partitioned by {', '.join(by)}: {'; '.join(wrong)}.",
            to_do="partition by text, whole numbers, dates or booleans; derive such a column if there is none.",
        )


def changed(written: Mapping[str, str], table: pa.Schema) -> str | None:
    """Why files whose columns had those types no longer fit into `table`; None if they do."""
    now = types_of(table)
    different = [name for name, kind in written.items() if now.get(name) != kind]
    different += [field.name for field in table if not field.nullable and field.name not in written]
    if not different:
        return None
    return f"columns {', '.join(sorted(different))} are not what they were when the rows were written"


def types_of(schema: pa.Schema) -> dict[str, str]:
    return {field.name: _type_name(field.type) for field in schema}


def _fields(kind: Any) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _type_name(kind: pa.DataType) -> str:
    return str(_plain(kind))
