"""The rows of a state store as Spark keeps them: `key_bytes` and `value_bytes` in the bytes of Spark's own row format,
the same with every backend, `partition_key`, a struct by which they are spread, and `column_family_name`.

For RocksDB Spark has such a reader from 4.2 on, for its own repartitioning. Where it has none, and for hashmap, the
typed reader is used and its structs are taken as the bytes that they are: stores of one kind of rows can be read so.

`typed_rows` shows the same rows to people, with Spark's own names and types, but for what a file of Parquet cannot
hold: a column name that is there twice gets a number, columns without a type of Parquet's (`void`, intervals of days
and months together) are left out, and so is a key or a value of which nothing remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.config.state import Backend, backend_of
from penstock.spark_state.metadata import DEFAULT, Family, OperatorMetadata, Store
from penstock.spark_state.work_session import java_schema, reinterpret, scala_option
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_NOT_IN_PARQUET = ("void", "null", "interval", "calendarinterval")

PARTITION, KEY, VALUE, FAMILY = "partition_key", "key_bytes", "value_bytes", "column_family_name"
JOIN, JOIN_FORMAT = "symmetricHashJoin", "spark.sql.streaming.join.stateFormatVersion"
#: Where Spark cannot be asked: how many columns at the end of a key do not decide its partition.
_BESIDE = {"sessionWindowStateStoreSaveExec": 1}  # where the session begins
_BESIDE_IN_JOINS = "keyWithIndexToValue"  # and there the index of a row among those of its key


def join_format(conf: Mapping[str, str], operator: OperatorMetadata) -> int | None:
    return int(conf.get(JOIN_FORMAT, "1")) if operator.name == JOIN else None


def raw_rows(
    work: SparkSession, checkpoint: str, batch: int, conf: Mapping[str, str], operator: OperatorMetadata, store: Store
) -> DataFrame:
    """One task reads one partition, in their order. Of a hashmap store a task holds its whole partition in memory, as
    the job does. `conf` are the checkpoint's settings."""
    if backend_of(conf) != Backend.HASHMAP and version_of(work).rewrites_rocksdb:
        jvm: Any = work._jvm
        options = jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
        everything = str(options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES())
        return reader(work, checkpoint, batch, operator.id, store.name).option(everything, "true").load()
    typed = reader(work, checkpoint, batch, operator.id, store.name).load()
    return as_bytes(work, typed, partition_columns(work, operator, store, join_format(conf, operator)), store)


def reader(work: SparkSession, checkpoint: str, batch: int, operator: int, store: str) -> DataFrameReader:
    options: dict[str, str | int] = {"path": checkpoint, "batchId": batch, "operatorId": operator, "storeName": store}
    return work.read.format("statestore").options(**options)


def as_bytes(work: SparkSession, typed: DataFrame, columns: int, store: Store) -> DataFrame:
    """Rows with a `key` and a `value` struct as their bytes; the first `columns` of the key spread them."""
    from pyspark.sql import functions as f

    key = store.families[0].key
    schema = struct_of([("key", number_columns(key)), (KEY, "binary"), (VALUE, "binary")])
    keyed = reinterpret(work, typed.select("key", "key", "value"), schema)
    whole = columns == len(key["fields"])
    spread_by = f.col("key") if whole else f.struct(*(f.col("key").getField(f"c{i}") for i in range(columns)))
    return keyed.select(spread_by.alias(PARTITION), KEY, VALUE, f.lit(DEFAULT).alias(FAMILY))


def partition_columns(work: SparkSession, operator: OperatorMetadata, store: Store, form: int | None) -> int:
    """How many columns of a store's key, from the left, decide to which partition a row belongs."""
    version = version_of(work)
    if not version.rewrites_rocksdb:
        return known_partition_columns(operator.name, store)
    key, none = java_schema(work, store.families[0].key), scala_option(work)
    factory = version.java_class(work, "StatePartitionKeyExtractorFactory")
    extractor = factory.create(operator.name, key, store.name, DEFAULT, scala_option(work, form), none)
    return int(extractor.partitionKeySchema().length())


def known_partition_columns(operator: str, store: Store) -> int:
    """The same without Spark's help, for stores of one kind of rows."""
    beside = 1 if _BESIDE_IN_JOINS in store.name else _BESIDE.get(operator, 0)
    return len(store.families[0].key["fields"]) - beside


def spread_over(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows in the partitions where the query will look for them."""
    if not frame.schema[PARTITION].dataType.fieldNames():  # type: ignore[attr-defined]
        return frame.coalesce(1)  # nothing to spread by: one row, which the query's only task looks for in partition 0
    return frame.repartition(partitions, PARTITION)


def number_columns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with columns named by their position: names may be odd, or there twice."""
    fields = [{**field, "name": f"c{index}"} for index, field in enumerate(schema["fields"])]
    return {**schema, "fields": fields}


def struct_of(columns: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns]
    return {"type": "struct", "fields": fields}


def typed_rows(work: SparkSession, raw: DataFrame, family: Family, extra: tuple[str, ...] = ()) -> DataFrame:
    """Of the rows that `raw_rows` gives those of one kind, with `key` and `value` before the raw columns, and `extra`
    columns of theirs after."""
    from pyspark.sql import functions as f

    partition: Any = raw.schema[PARTITION].dataType.jsonValue()
    mine = raw.where(f.col(FAMILY) == family.name).select(KEY, VALUE, PARTITION, KEY, VALUE, *extra)
    kinds = {field.name: field.dataType.jsonValue() for field in raw.schema if field.name in extra}
    structs = {"key": family.key, "value": family.value, PARTITION: partition}
    numbered = [(name, number_columns(schema)) for name, schema in structs.items()]
    whole = reinterpret(work, mine, struct_of([*numbered, (KEY, "binary"), (VALUE, "binary"), *kinds.items()]))
    columns = [
        f.struct(*(f.col(side).getField(f"c{at}").alias(name) for at, name in names)).alias(side)
        for side, schema in (("key", family.key), ("value", family.value))
        if (names := visible_columns(schema))
    ]
    spread_by = [PARTITION] if partition["fields"] else []
    return whole.select(*columns, *spread_by, KEY, VALUE, *extra)


def visible_columns(schema: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The columns that can be shown, by position, each with a name of its own."""
    taken: set[str] = set()
    columns = []
    for at, field in enumerate(schema["fields"]):
        if not _holds(field["type"]):
            continue
        name, number = field["name"], 2
        while name.lower() in taken:
            name, number = f"{field['name']}_{number}", number + 1
        taken.add(name.lower())
        columns.append((at, name))
    return columns


def _holds(kind: Any) -> bool:
    """Whether Parquet can hold a value of Spark's type."""
    if not isinstance(kind, dict):
        return str(kind) not in _NOT_IN_PARQUET
    if kind["type"] == "struct":
        names = [field["name"].lower() for field in kind["fields"]]
        return bool(names) and len(set(names)) == len(names) and all(_holds(field["type"]) for field in kind["fields"])
    if kind["type"] == "array":
        return _holds(kind["elementType"])
    if kind["type"] == "map":
        return _holds(kind["keyType"]) and _holds(kind["valueType"])
    return _holds(kind.get("sqlType", "string"))
