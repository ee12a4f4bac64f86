"""Kafka → Kafka on a Spark standalone cluster beside local mode, in one run: what separate executors cost, and what one
more worker costs and brings.

All of it runs on this machine, so more workers than cores show the cost only. Each variant is a fresh process that
reads the same topic (100-byte rows, 4 partitions) in epochs of equal size. Prints a table and writes
bench/results/cluster.json.

    python bench/bench_cluster.py [--rows 4000000] [--epoch 500000] [--repeat 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a benchmark is started as a script, and some helpers are the tests'

from bench_kafka import HERE, run  # noqa: E402
from kafka_load import create_topics, feed  # noqa: E402
from tests.support.servers.broker import Broker  # noqa: E402
from tests.support.servers.spark import SparkCluster  # noqa: E402

console = Console()
MEMORY = "1g"
#: Cores of a local master, or workers of one core each.
VARIANTS: tuple[tuple[str, int], ...] = (("local", 1), ("local", 2), ("workers", 1), ("workers", 2), ("workers", 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--epoch", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=2, help="rounds over all variants; the median counts")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "cluster.json")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
    ):
        create_topics(broker.servers, {"in": 4})
        feed(broker.servers, "in", options.rows)
        rounds: dict[str, list[dict[str, Any]]] = {}
        for number in range(options.repeat):
            for kind, size in VARIANTS:
                name = f"local[{size}]" if kind == "local" else f"{size} workers of 1 core"
                measured = measure(kind, size, broker.servers, Path(folder) / f"{kind}-{size}-{number}", options)
                rounds.setdefault(name, []).append(measured)
                console.print(f"  {name}: {measured['rows_per_second']:,.0f} rows/s")
    show(rounds, options)
    options.results.parent.mkdir(exist_ok=True)
    facts = {"rows": options.rows, "epoch_rows": options.epoch, "row_bytes": 100, "partitions": 4}
    options.results.write_text(json.dumps({**facts, "throughput": rounds}, indent=2) + "\n")


def measure(kind: str, size: int, servers: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    create_topics(servers, {folder.name: 4})
    given = {"servers": servers, "source": "in", "target": folder.name, "rows": options.rows, "epoch": options.epoch}
    if kind == "local":
        conf = {"spark.master": f"local[{size}]"}
        return run("penstock", "tuned", **given, checkpoint=str(folder / "checkpoint"), conf=conf)
    with SparkCluster.start(folder / "cluster", workers=size, memory=MEMORY) as cluster:
        conf = {"spark.master": cluster.url, "spark.executor.memory": MEMORY}
        return run("penstock", "tuned", **given, checkpoint=str(folder / "checkpoint"), conf=conf)


def show(rounds: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    table = Table(title=f"Kafka → Kafka, {options.rows:,} rows of 100 bytes, epochs of {options.epoch:,}, exactly once")
    for column in ("tasks run in", "rows/s", "decided to visible, p50"):
        table.add_column(column)
    for name, own in rounds.items():
        visible = statistics.median(ms for one in own for ms in one["decided_to_visible_ms"])
        rate = statistics.median(one["rows_per_second"] for one in own)
        table.add_row(name, f"{rate:,.0f}", f"{visible:.1f} ms")
    console.print(table)


if __name__ == "__main__":
    main()
