"""Two queries linked through a topic: orders → enriched → totals, and the check that a global checkpoint of theirs is a
consistent cut.

python chain.py CONFIG.json, or `build(config, spark=session)` inside a test.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Checkpoints, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.checkpoint.layout import unseal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Chain:
    """All the job is told."""

    name: str
    servers: str
    orders: str
    enriched: str
    totals: str
    storage: str
    rows_per_epoch: int = 100
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.storage) / self.name

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path


def build(config: Chain, spark: SparkSession | None = None) -> Job:
    """`enrich` copies each order and says where it stood; `total` counts and sums what `enrich` wrote, per key."""
    from pyspark.sql import functions as f

    job = Job(
        config.name,
        checkpoints=Checkpoints(storage=config.storage, num_retained=100, **config.checkpoints),
        restart=RestartStrategy.fixed_delay(attempts=5, delay="50ms"),
        conf=config.conf,
        spark=spark,
    )
    most = config.rows_per_epoch
    fields = "id bigint, key string, number bigint, amount bigint"
    orders = job.read(KafkaSource(config.orders, servers=config.servers, max_offsets_per_epoch=most), uid="orders")
    order = f.from_json(f.col("value").cast("string"), fields).alias("order")
    placed = orders.select(order, f.col("partition"), f.col("offset")).select("order.*", "partition", "offset")
    enriched = placed.select("key", f.to_json(f.struct(*placed.columns)).alias("value"))
    job.write(enriched, KafkaSink(config.enriched, servers=config.servers), uid="enrich")

    read = job.read(KafkaSource(config.enriched, servers=config.servers, max_offsets_per_epoch=most), uid="enriched")
    row = read.select(f.from_json(f.col("value").cast("string"), fields).alias("row"))
    totals = row.groupBy("row.key").agg(f.count("*").alias("n"), f.sum("row.amount").alias("total"))
    shaped = totals.select("key", f.to_json(f.struct("key", "n", "total")).alias("value"))
    job.write(shaped, KafkaSink(config.totals, servers=config.servers), uid="total", output_mode="update")
    return job


def records(config: Chain) -> list[dict[str, Any]]:
    """Every global checkpoint that is there, oldest first."""
    paths = sorted((config.folder / "global").glob("*.json"))
    return [unseal("global", path.read_bytes(), str(path)) for path in paths]


def assert_consistent(config: Chain, written: list[Any]) -> int:
    """Every record is a consistent cut; how many say something. `written` is all of the topic in the middle.

    Judged from the outside: the positions that `total` had consumed at its epoch lead to rows, each row says where its
    order stood, and the positions that `enrich` was cut at say in which of its epochs that order was."""
    telling = 0
    ends = {int(path.name): _positions(path, config.orders) for path in _barriers(config, "enrich")}
    for record in records(config):
        epochs = {uid: one["epoch"] for uid, one in record["queries"].items()}
        consumed = _positions(config.folder / "total" / "spark" / "offsets" / str(epochs["total"]), config.enriched)
        rows = [json.loads(one.value()) for one in written if one.offset() < consumed[one.partition()]]
        telling += bool(rows)
        wrote = {min(epoch for epoch, end in ends.items() if row["offset"] < end[row["partition"]]) for row in rows}
        assert max(wrote, default=-1) <= epochs["enrich"], f"{record}: downstream has rows of upstream's {max(wrote)}"
        assert len(rows) <= _decided_rows(config, "enrich", epochs["enrich"])
        for uid, epoch in epochs.items():
            assert (config.folder / uid / "spark" / "commits" / str(epoch)).exists(), f"{record}: not complete"
    return telling


def _barriers(config: Chain, query: str) -> list[Path]:
    folder = config.folder / query / "spark" / "offsets"
    return [path for path in folder.iterdir() if path.name.isdigit()]


def _positions(barrier: Path, topic: str) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    found.update({int(number): end for number, end in json.loads(barrier.read_text().splitlines()[2])[topic].items()})
    return found


def _decided_rows(config: Chain, query: str, last: int) -> int:
    """What the manifests say was written up to an epoch; of several for one epoch, the newest."""
    rows: dict[int, int] = {}
    for path in sorted((config.folder / query / "ledger" / "epochs").glob("*.json")):
        body = unseal("manifest", path.read_bytes(), str(path))
        rows[body["epoch"]] = sum(one[2] for one in body["committables"])
    return sum(count for epoch, count in rows.items() if epoch <= last)


if __name__ == "__main__":
    build(Chain(**json.loads(Path(sys.argv[1]).read_text()))).run()
