"""A hash of every row, computed by Spark, and the rule it was made by.

A checksum is the sum of a writer's hashes, modulo 2**64, with the number of its rule above those 64 bits. A replay is
compared by the rule of the decision it must equal, so one that an earlier version decided is still proven.

| rule | |
|---|---|
| 0 | `xxhash64` of the columns and of which are null. Right for flat rows, and what they always get. `xxhash64` passes over nulls inside a column and over where an inner array ends, so before rule 1 nested rows could differ unseen |
| 1 | nested columns are hashed from the inside out: every value with whether it is null, every array with its length, the entries of a map in whatever order |
| 2 | as 0, with nested columns as text, computed over Arrow's bytes where Spark cannot be asked, see `hashing` |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import MODULO as MODULO
from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import TRACE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


HASH_COLUMN = "__penstock_hash"
FLAT, NESTED, ARROW = 0, 1, 2


def checksum_of(total: int, rule: int) -> int:
    """A sum of hashes as committables hold it, with its rule."""
    return total % MODULO + rule * MODULO


def rules_of(committables: Iterable[Committable]) -> Mapping[str, int]:
    """By which rule the rows of each sink were summed; sinks without rows are left out."""
    return {committable.sink: committable.checksum // MODULO for committable in committables if committable.rows}


def rule_for(frame: DataFrame) -> int:
    return NESTED if any(_is_nested(field.dataType) for field in frame.schema.fields) else FLAT


def with_hashes(frame: DataFrame, rule: int) -> DataFrame:
    from pyspark.sql import functions as f

    hashable = _flatly if rule == FLAT else _inside_out
    fields = [field for field in frame.schema.fields if field.name not in TRACE]
    columns = [hashable(f.col(_quoted(field.name)), field.dataType) for field in fields]
    nulls = [f.col(_quoted(field.name)).isNull() for field in fields if field.nullable]
    return frame.withColumn(HASH_COLUMN, f.xxhash64(*columns, *nulls))


def sum_of_hashes(batch: pa.RecordBatch) -> int:
    """Of the rows of a batch, modulo 2**64."""
    import numpy as np

    # None is null; from its bytes, because Arrow imports pandas to make objects of numpy's.
    hashes = batch.column(batch.num_columns - 1)
    values = np.frombuffer(hashes.buffers()[1], np.uint64)[hashes.offset : hashes.offset + len(hashes)]
    return int(np.sum(values, dtype=np.uint64))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _is_nested(kind: Any) -> bool:
    from pyspark.sql import types as t

    return isinstance(kind, t.ArrayType | t.MapType | t.StructType)


def _flatly(column: Column, kind: Any) -> Column:
    """Spark refuses to hash maps and variants; those are hashed as JSON."""
    from pyspark.sql import functions as f

    text = kind.simpleString()
    return f.to_json(f.struct(column)) if "map<" in text or "variant" in text else column


def _inside_out(column: Column, kind: Any) -> Column:
    """`column` itself where it is flat, else one number for all that is in it; null where a flat column is."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        fields = [(column.getField(field.name), field.dataType) for field in kind.fields]
        return f.xxhash64(f.lit(len(fields)), *(part for inner, of in fields for part in _with_null(inner, of)))
    if isinstance(kind, t.ArrayType):
        return _listed(f.transform(column, lambda element: f.xxhash64(*_with_null(element, kind.elementType))))
    if isinstance(kind, t.MapType):

        def entry(element: Column) -> Column:
            key, value = _with_null(element["key"], kind.keyType), _with_null(element["value"], kind.valueType)
            return f.xxhash64(*key, *value)

        return _listed(f.array_sort(f.transform(f.map_entries(column), entry)))
    return _flatly(column, kind)


def _with_null(column: Column, kind: Any) -> tuple[Column, Column]:
    return _inside_out(column, kind), column.isNull()


def _listed(hashes: Column) -> Column:
    from pyspark.sql import functions as f

    return f.xxhash64(f.size(hashes), hashes)
