"""A sink that falls behind: aligned against unaligned checkpoints, side by side in one run; and what the tee costs.

Pressure: rows come at a fixed rate; a Kafka sink keeps up, then takes a tenth of the rate, then is free again. How long
do checkpoints take, how many complete, how much waits in the in-flight log, how soon is all of it delivered, and is
every row in the topic once. Tee: Kafka → Kafka as fast as it goes, with the in-flight log off, beside the sink, and in
place of it. Prints tables and writes bench/results/backpressure.json.

    python bench/bench_backpressure.py [--pressure 120] [--aligned-timeout 200ms] [--only pressure|tee]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from bench_kafka import run as run_tee
from kafka_load import create_topics, feed
from neighbours import Neighbours
from penstock.testing.oracle import compare
from pressure_topic import ID
from servers import Broker
from topic_content import ids_in

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
MOST_RATIO = 1.5  # checkpoint duration p99, under pressure against without
MOST_TEE_COST = 0.15
OFF, TEE, LOG = "unaligned off", "tee: the log beside the sink", "everything through the log"
TEE_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    OFF: {},
    TEE: {"unaligned": True, "aligned_timeout": "30s"},
    LOG: {"unaligned": True, "aligned_timeout": 0},
}
PRESSURE_VARIANTS = ("aligned", "unaligned")
PRESSURE_SETTINGS = ("rate", "share", "interval", "warm_up", "calm", "pressure", "tail")
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pressure", type=float, default=120, help="seconds in which the sink takes its share only")
    parser.add_argument("--calm", type=float, default=40, help="seconds before it, measured")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds before those, not measured")
    parser.add_argument("--tail", type=float, default=5, help="seconds to go on after the relief, at least")
    parser.add_argument("--rate", type=float, default=10_000, help="rows a second that come in")
    parser.add_argument("--share", type=float, default=0.1, help="of the rate, what the sink takes under pressure")
    parser.add_argument("--interval", default="500ms", help="from checkpoint to checkpoint")
    parser.add_argument("--aligned-timeout", default="200ms", help="of the unaligned variant; 0 uses the log always")
    parser.add_argument("--rows", type=int, default=6_000_000, help="of the tee's run")
    parser.add_argument("--epoch", type=int, default=1_000_000, help="rows of an epoch of the tee's run")
    parser.add_argument("--repeat", type=int, default=2, help="rounds over the tee's variants; the median counts")
    parser.add_argument("--variants", nargs="+", choices=PRESSURE_VARIANTS, default=PRESSURE_VARIANTS)
    parser.add_argument("--only", choices=("pressure", "tee"))
    parser.add_argument("--results", type=Path, default=HERE / "results" / "backpressure.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"cores": os.cpu_count()}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
    ):
        if options.only in (None, "pressure"):
            results["pressure"] = pressure(broker.servers, Path(folder), options)
        if options.only in (None, "tee"):
            results["tee"] = tee(broker.servers, Path(folder), options)
    written: Path = options.results
    written.parent.mkdir(exist_ok=True)
    before = json.loads(written.read_text()) if written.exists() else {}
    written.write_text(json.dumps({**before, **results}, indent=2) + "\n")


def pressure(servers: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The variants one after the other on the same broker; each gets the machine to itself."""
    settings = {name: getattr(options, name) for name in PRESSURE_SETTINGS}
    unaligned = {"unaligned": True, "aligned_timeout": options.aligned_timeout}
    measured: dict[str, dict[str, Any]] = {}
    for name in options.variants:
        console.print(f"{name}: {settings['calm']:g} s without pressure, {settings['pressure']:g} s under it …")
        create_topics(servers, {name: 4})
        given = {
            **settings, "servers": servers, "target": name, "checkpoints": unaligned if name == "unaligned" else {},
            "checkpoint": str(folder / name), "valve": str(folder / f"{name}.valve"),
        }  # fmt: skip
        with Neighbours() as neighbours:
            one = measured[name] = run_pressure(given)
        one["other_cores"] = neighbours.cores
        verdict = compare(range(one["rows"]), ids_in(servers, name, ID))
        one["verdict"] = verdict.to_dict()
        console.print("  " + "; ".join(verdict.lines()) + neighbours.remark)
        if not verdict.ok:
            raise SystemExit(f"{name}: rows were lost or doubled")
    show_pressure(measured, options)
    found = {**settings, "aligned_timeout": options.aligned_timeout, **measured, "target_p99_ratio": MOST_RATIO}
    if "unaligned" in measured:
        ratio = measured["unaligned"]["p99_ratio"]
        found["met"] = ratio <= MOST_RATIO
        console.print(
            f"target: unaligned p99 under pressure at most {MOST_RATIO} times its value without: {ratio:.2f},"
            f" {'met' if found['met'] else 'MISSED'}"
        )
    return found


def run_pressure(given: Mapping[str, Any]) -> dict[str, Any]:
    """One variant in a process of its own; its last line is JSON. Its workers must find the sink's module too."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(HERE / "pressure_variant.py"), json.dumps(given)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode != 0:
        raise SystemExit(f"{given['target']} failed:\n{done.stderr[-4000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def show_pressure(measured: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> None:
    table = Table(
        title=f"{options.rate:,.0f} rows/s, a checkpoint every {options.interval};"
        f" the sink takes {options.share:.0%} of them for {options.pressure:g} s"
    )
    for column in ("", *measured):
        table.add_column(column)

    def row(what: str, *path: str, form: str = "{:,.0f}") -> None:
        shown = []
        for one in measured.values():
            value: Any = one
            for key in path:
                value = value[key]
            shown.append(form.format(value))
        table.add_row(what, *shown)

    for title, phase in (("without pressure", "without_pressure"), ("under pressure", "under_pressure")):
        row(f"checkpoints {title}", phase, "checkpoints")
        row("  duration p50", phase, "p50_ms", form="{:,.0f} ms")
        row("  duration p99", phase, "p99_ms", form="{:,.0f} ms")
        row("  longest", phase, "max_ms", form="{:,.0f} ms")
    row("p99 under pressure against without", "p99_ratio", form="{:,.2f} times")
    row("completed while the sink was slow", "completed_under_pressure")
    row("longest time without a checkpoint", "longest_without_checkpoint_seconds", form="{:,.1f} s")
    row("to catch up after the relief", "catch_up_seconds", form="{:,.1f} s")
    row("in-flight log at its peak", "inflight_peak_bytes", form="{:,.0f} bytes")
    row("epochs in it", "inflight_peak_epochs")
    row("rows lost", "verdict", "lost")
    row("rows doubled", "verdict", "duplicated")
    row("peak memory", "peak_megabytes", form="{:,.0f} MB")
    console.print(table)


def tee(servers: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    create_topics(servers, {"in": 4})
    console.print(f"writing {options.rows:,} rows of 100 bytes …")
    feed(servers, "in", options.rows)
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.repeat):
        for place, (name, checkpoints) in enumerate(TEE_VARIANTS.items()):
            topic = f"tee-{place}-{number}"
            create_topics(servers, {topic: 4})
            with Neighbours() as neighbours:
                one = run_tee(
                    "penstock", "tuned", servers=servers, source="in", target=topic, rows=options.rows,
                    epoch=options.epoch, checkpoint=str(folder / topic), checkpoints=checkpoints,
                )  # fmt: skip
            rounds.setdefault(name, []).append({**one, "other_cores": neighbours.cores})
            console.print(f"  {name}: {one['rows_per_second']:,.0f} rows/s{neighbours.remark}")
    speed = {name: statistics.median(one["rows_per_second"] for one in own) for name, own in rounds.items()}
    cost = 1 - speed[TEE] / speed[OFF]
    table = Table(title=f"Kafka → Kafka, {options.rows:,} rows of 100 bytes, 4 partitions, the sink keeps up")
    for column in ("in-flight log", "rows/s", "against off", "peak memory"):
        table.add_column(column)
    for name, own in rounds.items():
        peak = max(one["peak_megabytes"] for one in own)
        table.add_row(name, f"{speed[name]:,.0f}", f"{speed[name] / speed[OFF]:.2f}", f"{peak:,.0f} MB")
    console.print(table)
    console.print(
        f"target: the tee costs at most {MOST_TEE_COST:.0%} of the throughput: {cost:.1%},"
        f" {'met' if cost <= MOST_TEE_COST else 'MISSED'}"
    )
    return {
        "rows": options.rows, "row_bytes": 100, "partitions": 4, "epoch_rows": options.epoch,
        "variants": {
            name: {"rows_per_second": speed[name], "against_off": speed[name] / speed[OFF], "rounds": own}
            for name, own in rounds.items()
        },
        "tee_cost": cost, "target_tee_cost": MOST_TEE_COST, "met": cost <= MOST_TEE_COST,
    }  # fmt: skip


if __name__ == "__main__":
    main()
