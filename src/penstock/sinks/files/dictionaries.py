"""Which columns of a Parquet file are worth a dictionary.

Arrow makes one for every column and gives it up only when it has grown to a megabyte, in every row group anew. Where
values hardly repeat that is most of the time of writing, and the file is larger for it. So the first rows are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.sinks.files.statistics import leaves

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 10_000  # rows; counting them takes about a millisecond


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
