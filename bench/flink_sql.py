"""The work of the benchmark as Flink is given it: SQL, so that no Python runs where rows pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.sources.kafka import TUNED
from tasks import FIELDS, KEYS, Task

#: Larger fetches, as Penstock's source and Spark's are given. How long an empty fetch waits is left alone: Flink's
#: reader is never at the end of a range.
CONSUMER = {name: value for name, value in TUNED.items() if name != "fetch.max.wait.ms"}
PRODUCER: Mapping[str, str] = {
    "batch.size": str(512 << 10),
    "buffer.memory": str(128 << 20),
    "linger.ms": "5",
}

_TYPES = {"bigint": "BIGINT", "string": "STRING"}


def statements(task: Task, checkpoints: str) -> str:
    """Settings, tables and the one insertion."""
    parallelism = str(len(os.sched_getaffinity(0)))
    settings = {
        "parallelism.default": parallelism,
        "execution.checkpointing.interval": f"{round((task.interval or 1.0) * 1000)} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints,
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        "pipeline.name": task.target,
    }
    if task.work == "keys":
        # Counts of many rows at once, as an epoch of Spark has them, instead of one row out for each row in.
        settings |= {
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": f"{round((task.interval or 1.0) * 1000)} ms",
            "table.exec.mini-batch.size": "100000",
        }
    source, target, select = {"bytes": _bytes, "json": _json, "keys": _keys}[task.work]()
    return "\n".join(
        [
            *(f"SET '{name}' = '{value}';" for name, value in settings.items()),
            _table("source", source, {**_reading(task), **source["with"]}),
            _table("target", target, {**_writing(task), **target["with"]}),
            f"INSERT INTO target {select};",
            "",
        ]
    )


def _reading(task: Task) -> dict[str, str]:
    return {
        "connector": "kafka",
        "topic": task.source,
        "scan.startup.mode": "earliest-offset",
        "properties.bootstrap.servers": task.servers,
        "properties.group.id": task.target,
        "properties.isolation.level": "read_committed",
        **{f"properties.{name}": value for name, value in CONSUMER.items()},
    }


def _writing(task: Task) -> dict[str, str]:
    return {
        "connector": "kafka",
        "topic": task.target,
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": task.target,
        "properties.bootstrap.servers": task.servers,
        "properties.transaction.timeout.ms": "900000",  # the most that a broker allows by itself
        **{f"properties.{name}": value for name, value in PRODUCER.items()},
    }


_RAW = {"key.format": "raw", "key.fields": "key", "value.format": "raw", "value.fields-include": "EXCEPT_KEY"}


def _bytes() -> tuple[dict[str, Any], dict[str, Any], str]:
    columns = "`key` BYTES, `value` BYTES"
    return {"columns": columns, "with": _RAW}, {"columns": columns, "with": _RAW}, "SELECT `key`, `value` FROM source"


def _json() -> tuple[dict[str, Any], dict[str, Any], str]:
    columns = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in FIELDS.items())
    out = {"key.format": "raw", "key.fields": "account", "value.format": "json", "value.fields-include": "ALL"}
    select = f"SELECT {', '.join(FIELDS)} FROM source WHERE MOD(id, 2) = 0"
    return {"columns": columns, "with": {"format": "json"}}, {"columns": columns, "with": out}, select


def _keys() -> tuple[dict[str, Any], dict[str, Any], str]:
    columns = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in FIELDS.items())
    # One number as CSV is the number itself. A cast in the query would hide from Flink that the rows of a key are one.
    out = {
        "connector": "upsert-kafka",
        "key.format": "csv",
        "value.format": "csv",
        "value.fields-include": "EXCEPT_KEY",
    }
    select = f"SELECT number, COUNT(*) FROM (SELECT MOD(id, {KEYS}) AS number FROM source) GROUP BY number"
    target = "`key` BIGINT, `value` BIGINT, PRIMARY KEY (`key`) NOT ENFORCED"
    return {"columns": columns, "with": {"format": "json"}}, {"columns": target, "with": out}, select


def _table(name: str, one: Mapping[str, Any], options: Mapping[str, str]) -> str:
    given = ",\n  ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({one['columns']}) WITH (\n  {given}\n);"
