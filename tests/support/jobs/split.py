"""The job with three outputs that fault tests kill: each row, the first time that it comes, with the epoch's number
into a Kafka topic, a PostgreSQL table and a folder of Parquet files, under one decision. It remembers what it has seen.

python split.py CONFIG.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Checkpoints, Epoch, FileSink, Job, KafkaSink, KafkaSource, PostgresSink, RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Split:
    """All the job is told."""

    name: str
    servers: str
    source: str
    storage: str
    topic: str
    dsn: str
    table: str
    folder: str

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path


def build(config: Split) -> Job:
    from pyspark.sql import functions as f

    job = Job(
        config.name,
        checkpoints=Checkpoints(storage=config.storage),
        restart=RestartStrategy.none(),
        conf={
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    read = job.read(KafkaSource(config.source, servers=config.servers), uid="rows")
    number = f.get_json_object(f.col("value").cast("string"), "$.id").cast("bigint")
    rows = read.select("key", number.alias("id")).dropDuplicates(["id"])
    topic = KafkaSink(config.topic, servers=config.servers)
    table = PostgresSink(config.dsn, table=config.table, mode="two_phase")
    files = FileSink(config.folder)

    @job.epoch(rows, sinks={"topic": topic, "table": table, "files": files})
    def split(batch: DataFrame, epoch: Epoch) -> None:
        told = batch.withColumn("epoch", f.lit(epoch.id).cast("bigint"))
        epoch.write(told.select("key", f.to_json(f.struct("epoch", "id")).alias("value")), topic)
        epoch.write(told.select("epoch", "id"), table)
        epoch.write(told.select("epoch", "id"), files)

    return job


if __name__ == "__main__":
    build(Split(**json.loads(Path(sys.argv[1]).read_text()))).run()
