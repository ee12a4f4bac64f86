"""The rows of a state store as Spark keeps them: key and value as bytes, and the columns they are spread by.

| column | what it is |
|---|---|
| `partition_key` | a struct; rows with the same one belong into the same partition |
| `key_bytes`, `value_bytes` | the rows, in the bytes of Spark's own row format, the same with every backend |
| `column_family_name` | the kind of rows, where a store holds several |

For RocksDB Spark has such a reader, for its own repartitioning. For hashmap it refuses; there the typed reader is used
and its structs are taken as the bytes that they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark_state.metadata import DEFAULT
from penstock.spark_state.working import java_schema, option, reinterpret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_state.metadata import OperatorMetadata, Store

PARTITION, KEY, VALUE, FAMILY = "partition_key", "key_bytes", "value_bytes", "column_family_name"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_OPERATORS = "org.apache.spark.sql.execution.streaming.operators.stateful"


def raw_rows(
    work: SparkSession,
    checkpoint: str,
    batch: int,
    operator: OperatorMetadata,
    store: Store,
    *,
    hashmap: bool,
    join_format: int | None,
) -> DataFrame:
    """One task reads one partition, in their order. Of a hashmap store a task holds its whole partition in memory, as
    the job does."""
    if not hashmap:
        options = _jvm(work).org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
        everything = str(options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES())
        whole: DataFrame = reader(work, checkpoint, batch, operator.id, store.name).option(everything, "true").load()
        return whole
    typed = reader(work, checkpoint, batch, operator.id, store.name).load()
    return as_bytes(work, typed, partition_columns(work, operator, store, join_format), store)


def reader(work: SparkSession, checkpoint: str, batch: int, operator: int, store: str) -> Any:
    return (
        work.read.format("statestore")
        .option("path", checkpoint)
        .option("batchId", batch)
        .option("operatorId", operator)
        .option("storeName", store)
    )


def as_bytes(work: SparkSession, typed: DataFrame, columns: int, store: Store) -> DataFrame:
    """Rows with a `key` and a `value` struct as their bytes; the first `columns` of the key spread them."""
    from pyspark.sql import functions as f

    key = store.families[0].key
    keyed = reinterpret(
        work,
        typed.select("key", "key", "value"),
        struct_of([("key", numbered(key)), (KEY, "binary"), (VALUE, "binary")]),
    )
    whole = columns == len(key["fields"])
    spread_by = f.col("key") if whole else f.struct(*(f.col("key").getField(f"c{i}") for i in range(columns)))
    return keyed.select(spread_by.alias(PARTITION), KEY, VALUE, f.lit(DEFAULT).alias(FAMILY))


def partition_columns(work: SparkSession, operator: OperatorMetadata, store: Store, join_format: int | None) -> int:
    """How many columns of a store's key, from the left, decide to which partition a row belongs."""
    package: Any = _jvm(work)
    for name in _OPERATORS.split("."):
        package = getattr(package, name)
    extractor = package.StatePartitionKeyExtractorFactory.create(
        operator.name,
        java_schema(work, store.families[0].key),
        store.name,
        DEFAULT,
        option(work, join_format),
        option(work),
    )
    return int(extractor.partitionKeySchema().length())


def spread(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows in the partitions where the query will look for them."""
    if not frame.schema[PARTITION].dataType.fieldNames():  # type: ignore[attr-defined]
        return frame.coalesce(1)  # nothing to spread by: one row, which the query's only task looks for in partition 0
    return frame.repartition(partitions, PARTITION)


def numbered(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with columns named by their position: names may be odd, or there twice."""
    fields = [{**one, "name": f"c{index}"} for index, one in enumerate(schema["fields"])]
    return {**schema, "fields": fields}


def struct_of(columns: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns]
    return {"type": "struct", "fields": fields}


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
