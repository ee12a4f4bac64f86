"""The work that Flink, Penstock and Spark are given side by side, and how Spark's frames do it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Of the JSON rows that `kafka_load.messages` makes.
FIELDS: Mapping[str, str] = {"id": "bigint", "account": "string", "amount": "bigint", "pad": "string"}
KEYS = 1_000_000
WORKS = ("bytes", "json", "keys")
#: Of `json_ways`: what docs/how-to/parse.md shows. The real-time mode runs no Python, and takes the plain one.
JSON_WAY = "parsed"


@dataclass(frozen=True)
class Task:
    """One topic to another. `work`: bytes as they are; JSON parsed, every second row written as JSON; counts of a
    million keys. `interval`: seconds from checkpoint to checkpoint; None: as often as suits the system when it works at
    full speed, for those who cut epochs by rows then `epoch_rows` of them. `latency`: of Penstock's real-time mode.
    `one_task`: for all source partitions, in Penstock's epochs."""

    work: str
    servers: str
    source: str
    target: str
    folder: str
    interval: float | None = None
    epoch_rows: int | None = None
    json_way: str = JSON_WAY
    latency: str | None = None
    one_task: bool = False

    def write(self) -> Path:
        """Into its own folder, for the process that does it."""
        path = Path(self.folder) / "task.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str) -> Task:
        return cls(**json.loads(Path(path).read_text()))


def shape(task: Task, rows: DataFrame) -> DataFrame:
    """The frame to write, of what Spark's Kafka source gives: the same for Penstock and for Spark's own sink."""
    from pyspark.sql import functions as f

    from json_ways import SCHEMA, WAYS

    if task.work == "bytes":
        return rows.select("key", "value")
    if task.work == "json":
        return WAYS[task.json_way](rows)
    parsed = rows.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
    counts = parsed.groupBy((f.col("id") % KEYS).alias("number")).count()
    return counts.selectExpr("cast(number AS string) AS key", "cast(count AS string) AS value")
