"""Kafka → Kafka: Penstock's exactly-once sink against Spark's own at-least-once one, side by side in one run.

Each variant is a fresh process that reads the same topic (100-byte rows, 4 partitions) in epochs of equal size on the
same broker; the first epochs warm the JVM up and are not counted. Then: what a commit costs, memory over 1,000 epochs,
and 1,000 open writers committed at once. Prints a table and writes bench/results/kafka.json.

    python bench/bench_kafka.py [--rows 8000000] [--epoch 1000000] [--only throughput memory writers]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from kafka_load import create_topics, feed, open_writers_and_commit
from servers import Broker

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
PARTS = ("throughput", "memory", "writers")
VARIANTS = (
    ("spark", "defaults"),
    ("penstock", "defaults"),
    ("spark", "tuned"),
    ("penstock", "tuned"),
)
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--epoch", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1_000, help="small epochs of the memory run")
    parser.add_argument("--writers", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=2, help="rounds over all variants; the median counts")
    parser.add_argument("--tuned-only", action="store_true", help="leave the variants with default consumers out")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "kafka.json")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
    ):
        if "throughput" in options.only:
            throughput(broker.servers, Path(folder), options, results)
        if "memory" in options.only:
            memory(broker.servers, Path(folder), options, results)
        if "writers" in options.only:
            create_topics(broker.servers, {"writers": 4})
            results["writers"] = open_writers_and_commit(broker.servers, options.writers, "writers")
            seconds = results["writers"]["commit_seconds"]
            console.print(f"{options.writers:,} open writers committed after one decision in {seconds:.2f} s")
    written: Path = options.results
    written.parent.mkdir(exist_ok=True)
    before = json.loads(written.read_text()) if written.exists() else {}
    written.write_text(json.dumps({**before, **results}, indent=2) + "\n")


def throughput(servers: str, folder: Path, options: argparse.Namespace, results: dict[str, Any]) -> None:
    create_topics(servers, {"in": 4})
    console.print(f"writing {options.rows:,} rows of 100 bytes …")
    feed(servers, "in", options.rows)
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.repeat):
        for engine, settings in VARIANTS[2:] if options.tuned_only else VARIANTS:
            name = f"{engine}, {settings}"
            topic = f"out-{engine}-{settings}-{number}"
            create_topics(servers, {topic: 4})
            measured = run(
                engine, settings, servers=servers, source="in", target=topic, rows=options.rows, epoch=options.epoch,
                checkpoint=str(folder / topic),
            )  # fmt: skip
            rounds.setdefault(name, []).append(measured)
            console.print(f"  {name}: {measured['rows_per_second']:,.0f} rows/s")
    best = {name: statistics.median(one["rows_per_second"] for one in own) for name, own in rounds.items()}
    results.update(rows=options.rows, row_bytes=100, partitions=4, epoch_rows=options.epoch)
    results["throughput"] = {name: {"rows_per_second": best[name], "rounds": own} for name, own in rounds.items()}
    ratios = {
        "ratio_defaults": ("penstock, tuned", "spark, defaults", "Penstock as installed against Spark's as installed"),
        "ratio_both_default_consumers": ("penstock, defaults", "spark, defaults", "both with default consumers"),
        "ratio_both_tuned": ("penstock, tuned", "spark, tuned", "both with tuned consumers"),
    }
    ratios = {key: one for key, one in ratios.items() if one[0] in best and one[1] in best}
    results.update({key: best[ours] / best[theirs] for key, (ours, theirs, _) in ratios.items()})
    commits = [
        ms
        for name, own in rounds.items()
        if name.startswith("penstock")
        for one in own
        for ms in one["decided_to_visible_ms"]
    ]
    results["decided_to_visible_ms"] = {"p50": statistics.median(commits), "max": max(commits), "epochs": len(commits)}
    table = Table(title=f"Kafka → Kafka, {options.rows:,} rows of 100 bytes, 4 partitions, steady state")
    for column in ("sink", "guarantee", "rows/s", "peak memory (driver, JVM and workers)"):
        table.add_column(column)
    for name, own in rounds.items():
        guarantee = "exactly once" if name.startswith("penstock") else "at least once"
        peak = max(one["peak_megabytes"] for one in own)
        table.add_row(name, guarantee, f"{best[name]:,.0f}", f"{peak:,.0f} MB")
    console.print(table)
    for key, (_, _, said) in ratios.items():
        console.print(f"{said}: {results[key]:.2f} times")
    shown = results["decided_to_visible_ms"]
    console.print(
        f"decided to visible, 4 writers, {shown['epochs']} epochs: p50 {shown['p50']:.1f} ms, max {shown['max']:.1f} ms"
    )


def memory(servers: str, folder: Path, options: argparse.Namespace, results: dict[str, Any]) -> None:
    create_topics(servers, {"memory": 4})
    measured = run(
        "penstock", "memory", servers=servers, source="", target="memory", rows=options.epochs * 200, epoch=200,
        checkpoint=str(folder / "memory"),
    )  # fmt: skip
    results["memory"] = {name: value for name, value in measured.items() if name != "epoch_ms"}
    console.print(
        f"driver over {measured['epochs']:,} epochs: Python {measured['python_megabytes'][0]:.0f} → "
        f"{measured['python_megabytes'][-1]:.0f} MB, JVM heap after collection {measured['heap_megabytes'][0]:.0f} → "
        f"{measured['heap_megabytes'][-1]:.0f} MB; decision to visible p50 {measured['visible_p50_ms']:.1f} ms"
    )


def run(engine: str, settings: str, *, seconds: float = 1800, **arguments: Any) -> dict[str, Any]:
    """One variant in a process of its own; its last line is JSON."""
    command = [sys.executable, str(HERE / "kafka_variant.py"), engine, settings, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{engine}, {settings} failed:\n{done.stderr[-4000:]}")
    measured: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return dict(measured)


if __name__ == "__main__":
    main()
