"""A join of two streams on a cluster, into every kind of sink under one decision.

python wide.py CONFIG.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import (
    Checkpoints,
    DeltaSink,
    Epoch,
    FileSink,
    IcebergSink,
    Job,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PostgresSink,
    RedisSink,
    RestartStrategy,
    TwoPhaseSink,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Wide:
    """All the job is told."""

    name: str
    servers: str
    source: str
    storage: str
    topic: str
    postgres: str
    mysql: Mapping[str, Any]
    redis: str
    folder: str
    table: str
    conf: Mapping[str, str]

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def catalog(self) -> dict[str, str]:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"type": "sql", "uri": uri, "warehouse": warehouse}


def sinks(config: Wide) -> dict[str, TwoPhaseSink]:
    return {
        "topic": KafkaSink(config.topic, servers=config.servers),
        "files": FileSink(f"{config.folder}/files"),
        "postgres": PostgresSink(config.postgres, table=config.table, mode="two_phase"),
        "mysql": MySqlSink(**config.mysql, database="test", table=config.table, mode="two_phase"),
        "redis": RedisSink(config.redis, mode="counter", key="id", prefix=f"{config.name}:"),
        "delta": DeltaSink(f"{config.folder}/delta"),
        "iceberg": IcebergSink("shop.rows", properties=config.catalog),
    }


def build(config: Wide) -> Job:
    from pyspark.sql import functions as f

    job = Job(
        config.name,
        checkpoints=Checkpoints(storage=config.storage),
        restart=RestartStrategy.fixed_delay(attempts=1000, delay="50ms"),
        conf=config.conf,
    )

    def read(uid: str) -> DataFrame:
        rows = job.read(KafkaSource(config.source, servers=config.servers), uid=uid)
        number = f.get_json_object(f.col("value").cast("string"), "$.id").cast("bigint")
        return rows.select(number.alias(f"{uid}_id"))

    left, right = read("left"), read("right")
    joined = left.join(right, left.left_id == right.right_id).select(f.col("left_id").alias("id"))
    made = sinks(config)

    @job.epoch(joined, uid="wide", sinks=made)
    def wide(batch: DataFrame, epoch: Epoch) -> None:
        for uid, sink in made.items():
            if uid == "topic":
                epoch.write(batch.select(f.col("id").cast("string").alias("value")), sink)
            elif uid == "redis":
                epoch.write(batch.select("id", f.lit(1).cast("bigint").alias("n")), sink)
            else:
                epoch.write(batch, sink)

    return job


if __name__ == "__main__":
    build(Wide(**json.loads(Path(sys.argv[1]).read_text()))).run()
