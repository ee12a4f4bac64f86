"""The job that fault tests kill: Kafka → Kafka, a copy and a running count and sum per key.

python pipeline.py CONFIG.json, or `build(config, spark=session)` inside a test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Checkpoints, Epoch, Job, KafkaSink, KafkaSource, RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Pipeline:
    """All the job is told."""

    name: str
    servers: str
    source: str
    storage: str
    copy_to: str | None = None
    also_to: str | None = None  # the copy goes there, too, under the same decision, and one task writes both
    count_to: str | None = None
    rows_per_epoch: int | None = None
    transaction_timeout: str = "5min"
    timeout: str = "2min"
    commit_timeout: str = "60s"
    master: str = "local[2]"
    random: bool = False
    restarts: int = 20
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    sink_servers: str | None = None
    partitions: int | None = 2  # None: as the options say
    conf: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def queries(self) -> Sequence[str]:
        return [uid for uid, topic in (("copy", self.copy_to), ("count", self.count_to)) if topic]


def build(config: Pipeline, spark: SparkSession | None = None) -> Job:
    from pyspark.sql import functions as f

    job = Job(
        config.name,
        checkpoints=Checkpoints(
            **{
                "storage": config.storage,
                "timeout": config.timeout,
                "commit_timeout": config.commit_timeout,
                **config.checkpoints,
            }
        ),
        restart=RestartStrategy.fixed_delay(attempts=config.restarts, delay="50ms"),
        conf={
            "spark.master": config.master,
            "spark.driver.memory": "512m",
            "spark.sql.streaming.minBatchesToRetain": "100",  # tests look back at every epoch
            **({"spark.sql.shuffle.partitions": str(config.partitions)} if config.partitions else {}),
            **config.conf,
        },
        spark=spark,
    )
    source = KafkaSource(config.source, servers=config.servers, max_offsets_per_epoch=config.rows_per_epoch)
    rows = job.read(source, uid="rows")
    servers = config.sink_servers or config.servers
    if config.copy_to:
        value = f.col("value").cast("string")
        if config.random:
            value = f.concat(f.regexp_replace(value, "}$", ""), f.lit(', "random": "'), f.uuid(), f.lit('"}'))
        sink = KafkaSink(config.copy_to, servers=servers, transaction_timeout=config.transaction_timeout)
        copied = rows.select("key", value.alias("value"))
        if config.also_to:
            also = KafkaSink(config.also_to, servers=servers, transaction_timeout=config.transaction_timeout)
            _write_in_one_task(job, copied, {"copy": sink, "also": also})
        else:
            job.write(copied, sink, uid="copy")
    if config.count_to:
        parsed = rows.select(f.from_json(f.col("value").cast("string"), "key string, amount bigint").alias("row"))
        counts = parsed.groupBy("row.key").agg(f.count("*").alias("n"), f.sum("row.amount").alias("total"))
        shaped = counts.select("key", f.to_json(f.struct("key", "n", "total")).alias("value"))
        sink = KafkaSink(config.count_to, servers=servers, transaction_timeout=config.transaction_timeout)
        job.write(shaped, sink, uid="count", output_mode="update")
    return job


def _write_in_one_task(job: Job, rows: DataFrame, sinks: Mapping[str, KafkaSink]) -> None:
    @job.epoch(rows.coalesce(1), sinks=sinks)
    def copy(batch: DataFrame, epoch: Epoch) -> None:
        for uid in sinks:
            epoch.write(batch, uid)


if __name__ == "__main__":
    build(Pipeline(**json.loads(Path(sys.argv[1]).read_text()))).run()
