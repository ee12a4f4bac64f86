"""DataFrames for SQL tables: what has no column type of its own becomes JSON text, rendered by Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def with_json(frame: DataFrame, as_json: Callable[[DataType], bool]) -> DataFrame:
    """`frame` with every column whose type `as_json` picks turned into JSON text; null stays null, and fields that are
    null are kept."""
    from pyspark.sql import functions as f

    chosen = []
    for field in frame.schema.fields:
        column = f.col(f"`{field.name.replace('`', '``')}`")
        if as_json(field.dataType):
            column = f.to_json(column, {"ignoreNullFields": "false"}).alias(field.name)
        chosen.append(column)
    return frame.select(*chosen)
