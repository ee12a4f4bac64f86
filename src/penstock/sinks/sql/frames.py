"""DataFrames for SQL tables: what has no column type of its own becomes JSON text, rendered by Spark.

Times keep their microseconds, which Spark's own format for JSON cuts to milliseconds. Decimals are numbers with all
their digits; a database whose JSON would make doubles of them asks for text instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.sinks.files.encode import LOSSLESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def with_json(frame: DataFrame, as_json: Callable[[DataType], bool], *, decimals_as_text: bool = False) -> DataFrame:
    """`frame` with every column whose type `as_json` picks turned into JSON text; null stays null, and fields that are
    null are kept. A variant's own numbers are as it holds them."""
    from pyspark.sql import functions as f

    chosen = []
    for field in frame.schema.fields:
        column = f.col(f"`{field.name.replace('`', '``')}`")
        if as_json(field.dataType):
            exact = _with_text(field.dataType) if decimals_as_text else field.dataType
            if exact != field.dataType:
                column = column.cast(exact)
            column = f.to_json(column, {**LOSSLESS["json"], "ignoreNullFields": "false"}).alias(field.name)
        chosen.append(column)
    return frame.select(*chosen)


def _with_text(kind: DataType) -> DataType:
    """`kind` with strings in the place of decimals, however deep."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_with_text(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_with_text(kind.keyType), _with_text(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [StructField(one.name, _with_text(one.dataType), one.nullable, one.metadata) for one in kind.fields]
        return StructType(fields)
    return kind
