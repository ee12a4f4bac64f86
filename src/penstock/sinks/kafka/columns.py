"""The columns a Kafka row is made of: Spark's own Kafka sink's, and `timestamp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: In the order the writer takes them, with what the user may give.
ACCEPTED = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}
_TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz"),
}
_CAST = {"value": "binary", "key": "binary", "partition": "int"}


def shape_frame(frame: DataFrame, topic: str | None) -> DataFrame:
    """The accepted columns of `frame` in fixed order and type, others dropped as Spark does; `SchemaMismatch` with the
    column, its type and what is accepted where that cannot be. Strings become their UTF-8 bytes."""
    from pyspark.sql import functions as f

    types = {field.name.lower(): field for field in frame.schema.fields}
    if "value" not in types:
        raise _mismatch("value", "missing", list(types))
    if topic is None and "topic" not in types:
        raise SchemaMismatch(
            "The Kafka sink has no topic: neither KafkaSink(topic) nor a column 'topic' names one.",
            safe="nothing was written.",
            to_do="write KafkaSink('topic', …), or add a column 'topic' of type string.",
        )
    chosen = []
    for name in ACCEPTED:
        if name not in types or (name == "topic" and topic is not None):
            continue
        kind = types[name].dataType.simpleString()
        base = "string" if kind.startswith(("string", "varchar", "char")) else kind
        column = f.col(f"`{types[name].name}`")
        if name == "headers":
            if not _headers(kind):
                raise _mismatch(name, kind, list(types))
            column = f.transform(
                column, lambda h: f.struct(h["key"].alias("key"), h["value"].cast("binary").alias("value"))
            )
        elif base not in _TYPES[name]:
            raise _mismatch(name, kind, list(types))
        chosen.append(column.cast(_CAST[name]).alias(name) if name in _CAST else column.alias(name))
    return frame.select(*chosen)


def _headers(kind: str) -> bool:
    return kind.lower() in (
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    )


def _mismatch(name: str, kind: str, there: list[str]) -> SchemaMismatch:
    return SchemaMismatch(
        f"The Kafka sink cannot take column {name!r}: it is {kind}, accepted is {ACCEPTED[name]}"
        f" (columns given: {', '.join(there) or 'none'}).",
        safe="nothing was written.",
        to_do='for example df.selectExpr("to_json(struct(*)) AS value"), or cast the column.',
    )
