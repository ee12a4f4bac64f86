"""The job that loses power: numbers through one plan into files or a topic, each number once.

python power.py CONFIG.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import (
    Checkpoints,
    FileSink,
    FileSource,
    Job,
    KafkaSink,
    RestartStrategy,
    Source,
    StateBackend,
    TwoPhaseSink,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = 1_767_225_600  # 2026-01-01, in seconds
BACKENDS = {
    "hashmap": StateBackend.hashmap(),
    "rocksdb": StateBackend.rocksdb(changelog=False),
    "changelog": StateBackend.rocksdb(changelog=True),
}


@dataclass(frozen=True)
class PowerJob:
    """`plan`:

    | | |
    |---|---|
    | copy | stateless |
    | files | stateless, from files |
    | distinct | every third number comes once more in the next epoch, and state keeps it from being written again |
    | join | two streams, each with a watermark of its own, joined by the number |
    """

    name: str
    root: str
    plan: str = "distinct"
    backend: str = "hashmap"
    rows: int = 600
    per_epoch: int = 20
    servers: str | None = None
    topic: str | None = None
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return Path(self.root) / "out"

    @property
    def input(self) -> Path:
        """Beside the disk: what a job reads is not its own."""
        return Path(self.root).with_name("input")

    @property
    def expected(self) -> list[int]:
        if self.plan != "distinct":
            return list(range(self.rows))
        return [number for number in range(self.rows) if number % 3 != 2 or number < self.per_epoch]

    def write(self, path: Path) -> Path:
        if self.plan == "files" and not self.input.exists():
            self.input.mkdir()
            for first in range(0, self.rows, self.per_epoch):
                lines = (json.dumps({"id": number}) for number in range(first, first + self.per_epoch))
                (self.input / f"{first:06d}.json").write_text("\n".join(lines))
        path.write_text(json.dumps(asdict(self)))
        return path


class Numbers(Source):
    """Made by Spark itself, so many an epoch, until there are `rows`. `columns` are expressions over `id`."""

    def __init__(self, rows: int, per_epoch: int, **columns: str) -> None:
        self._rows, self._per_epoch, self._columns = rows, per_epoch, columns

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        options = {"rowsPerBatch": self._per_epoch, "numPartitions": 2, "startTimestamp": 0}
        endless = spark.readStream.format("rate-micro-batch").options(**options).load()
        rows = endless.selectExpr("value AS id").where(f"id < {self._rows}")
        return rows.selectExpr(*(f"{expression} AS {name}" for name, expression in self._columns.items()))

    @property
    def bounded(self) -> bool:
        return True

    def finished(self, offset: Any) -> bool:
        return int(offset["offset"]) >= self._rows


def build(config: PowerJob) -> Job:
    job = Job(
        config.name,
        checkpoints=Checkpoints(storage=f"file://{config.root}/store", **config.checkpoints),
        state_backend=BACKENDS[config.backend],
        restart=RestartStrategy.fixed_delay(attempts=3, delay="50ms"),
        conf={
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            # Snapshots and removals, of which Spark's threads do some at any time.
            "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
            "spark.sql.streaming.minBatchesToRetain": "6",
            **config.conf,
        },
    )
    rows = _plan(job, config).selectExpr("CAST(id AS STRING) AS value")
    sink: TwoPhaseSink = FileSink(f"file://{config.out}", format="json")
    if config.topic is not None:
        assert config.servers is not None
        sink = KafkaSink(config.topic, servers=config.servers)
    job.write(rows, sink, uid="out")
    return job


def _plan(job: Job, config: PowerJob) -> DataFrame:
    from pyspark.sql import functions as f

    def numbers(uid: str = "rows", **columns: str) -> DataFrame:
        return job.read(Numbers(config.rows, config.per_epoch, **{"id": "id", **columns}), uid=uid)

    if config.plan == "files":
        files = FileSource(str(config.input), schema="id bigint", bounded=True, max_files_per_epoch=1)
        return job.read(files, uid="rows")
    if config.plan == "distinct":
        earlier = f"id - {config.per_epoch}"
        return numbers(id=f"IF(pmod(id, 3) = 2 AND id >= {config.per_epoch}, {earlier}, id)").dropDuplicates(["id"])
    if config.plan == "join":
        left = numbers("left", ts=f"timestamp_seconds({START} + id)").withWatermark("ts", "10 seconds")
        right = numbers("right", ts=f"timestamp_seconds({START} + div(id, 2))").withWatermark("ts", "1 minute")
        near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 1 HOUR AND l.ts + INTERVAL 1 HOUR"
        return left.alias("l").join(right.alias("r"), f.expr(near), "inner").select("l.id")
    assert config.plan == "copy", config.plan
    return numbers()


if __name__ == "__main__":
    build(PowerJob(**json.loads(Path(sys.argv[1]).read_text()))).run()
