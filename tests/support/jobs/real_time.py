"""The job that the real-time chaos kills: Kafka → Kafka in real time, a query for each plan.

    python real_time.py CONFIG.json GO

Makes its session, and runs the job as soon as the file GO is there: one that waits takes over at once. A source row is
`PARTITION:NUMBER`. Each row that a plan makes of it is `PARTITION:NUMBER:K`, with more behind it perhaps, in partition
`NUMBER % SPREAD` of the sink.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Checkpoints, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.engine import real_time
from penstock.engine.real_time import RealTimeQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPREAD = 3
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Plan:
    """`shape` takes the columns `text` and `number` and gives `value` and `number`. `count`: how many rows a source row
    with that number becomes."""

    shape: Callable[[DataFrame], DataFrame]
    count: Callable[[int], int]


def _exploded(rows: DataFrame) -> DataFrame:
    several = rows.selectExpr("text", "number", "explode(sequence(0, 2)) AS k").where("k < number % 4")
    return several.selectExpr("concat(text, ':', k) AS value", "number")


PLANS = {
    "plain": Plan(lambda rows: rows.selectExpr("concat(text, ':0') AS value", "number"), lambda number: 1),
    "filtered": Plan(
        lambda rows: rows.where("number % 7 < 3").selectExpr("concat(text, ':0') AS value", "number"),
        lambda number: int(number % 7 < 3),
    ),
    "exploding": Plan(_exploded, lambda number: number % 4),
    "random": Plan(
        lambda rows: rows.selectExpr("concat(text, ':0:', rand()) AS value", "number"),
        lambda number: 1,
    ),
}


@dataclass(frozen=True)
class Config:
    """`sinks`: a topic for each plan. `batch`: how long Spark's batches last."""

    name: str
    servers: str
    source: str
    sinks: Mapping[str, str]
    storage: str
    master: str
    batch: str
    conf: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path


def build(config: Config) -> Job:
    job = Job(
        config.name,
        checkpoints=Checkpoints(storage=config.storage, interval="1s"),
        restart=RestartStrategy.fixed_delay(attempts=1_000_000, delay="50ms"),
        conf={"spark.master": config.master, "spark.driver.memory": "512m", **config.conf},
    )
    for name, topic in config.sinks.items():
        source = job.read(KafkaSource(config.source, servers=config.servers), uid=f"{name}-rows")
        rows = source.selectExpr("CAST(value AS string) AS text")
        numbered = rows.selectExpr("text", "CAST(split_part(text, ':', 2) AS bigint) AS number")
        shaped = PLANS[name].shape(numbered).selectExpr("value", f"CAST(number % {SPREAD} AS int) AS partition")
        job.write(shaped, KafkaSink(topic, servers=config.servers), uid=name, latency="20ms")
    return job


def built(go: Path) -> Path:
    """The file that says that the session is there."""
    return go.with_suffix(".built")


def main() -> None:
    config, go = Config(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
    setattr(real_time, "RealTimeQuery", functools.partial(RealTimeQuery, batch=config.batch))  # noqa: B010
    job = build(config)
    built(go).touch()
    while not go.exists():
        time.sleep(_POLL_SECONDS)
    job.run()


if __name__ == "__main__":
    main()
