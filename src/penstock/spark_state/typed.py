"""The rows of a state store for people: key and value as the columns they have.

Spark's own names and types, but for what a file of Parquet cannot hold: a column name that is there twice gets a
number, columns without a type of Parquet's (`void`, intervals of days and months together) are left out, and so is a
key or a value of which nothing remains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark_state.raw import FAMILY, KEY, PARTITION, VALUE, numbered, struct_of
from penstock.spark_state.working import reinterpret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_state.metadata import Family

_NOT_IN_PARQUET = ("void", "null", "interval", "calendarinterval")


def typed_rows(work: SparkSession, raw: DataFrame, family: Family, extra: tuple[str, ...] = ()) -> DataFrame:
    """Of the rows of `penstock.spark_state.raw` those of one kind, with `key` and `value` before the raw columns, and
    `extra` columns of theirs after."""
    from pyspark.sql import functions as f

    partition: Any = raw.schema[PARTITION].dataType.jsonValue()
    mine = raw.where(f.col(FAMILY) == family.name).select(KEY, VALUE, PARTITION, KEY, VALUE, *extra)
    kinds = {one.name: one.dataType.jsonValue() for one in raw.schema if one.name in extra}
    whole = reinterpret(
        work,
        mine,
        struct_of(
            [
                ("key", numbered(family.key)),
                ("value", numbered(family.value)),
                (PARTITION, numbered(partition)),
                (KEY, "binary"),
                (VALUE, "binary"),
                *kinds.items(),
            ]
        ),
    )
    columns = [
        f.struct(*(f.col(side).getField(f"c{at}").alias(name) for at, name in names)).alias(side)
        for side, schema in (("key", family.key), ("value", family.value))
        if (names := shown(schema))
    ]
    spread_by = [PARTITION] if partition["fields"] else []
    return whole.select(*columns, *spread_by, KEY, VALUE, *extra)


def shown(schema: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The columns that can be shown, by position, each with a name of its own."""
    taken: set[str] = set()
    found = []
    for at, one in enumerate(schema["fields"]):
        if not _holds(one["type"]):
            continue
        name, number = one["name"], 2
        while name.lower() in taken:
            name, number = f"{one['name']}_{number}", number + 1
        taken.add(name.lower())
        found.append((at, name))
    return found


def _holds(kind: Any) -> bool:
    """Whether Parquet can hold a value of Spark's type."""
    if not isinstance(kind, dict):
        return str(kind) not in _NOT_IN_PARQUET
    if kind["type"] == "struct":
        names = [one["name"].lower() for one in kind["fields"]]
        return bool(names) and len(set(names)) == len(names) and all(_holds(one["type"]) for one in kind["fields"])
    if kind["type"] == "array":
        return _holds(kind["elementType"])
    if kind["type"] == "map":
        return _holds(kind["keyType"]) and _holds(kind["valueType"])
    return _holds(kind.get("sqlType", "string"))
