"""Where the time of a short epoch goes: Kafka to Kafka at a steady, small rate, and what a reader sees of it.

One process sends rows of 100 bytes, with the time in them; a job with a short interval carries them on; another one
reads what is committed, and never waits to fill a batch. Steps are from Spark's own report of each epoch, from the
job's events and from the times of its tasks. Prints medians and draws them.

    python bench/bench_epoch.py [--interval 0.1] [--rate 2000] [--seconds 40] [--label after] [--svg docs/assets/…svg]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epoch_picture import STEPS, draw, profile_of
from kafka_load import create_topics
from servers import Broker

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
PARTITIONS = 4
SHARES = ("p50", "p90", "p99")
WARM_UP = 15.0  # seconds; Java is not compiled before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--master", default="")
    parser.add_argument("--conf", nargs="*", default=[], help="settings of Spark's, key=value")
    parser.add_argument("--label", default="now")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "epoch.json")
    parser.add_argument("--svg", type=Path, help="draw every label of the results")
    options = parser.parse_args()
    rounds = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
    ):
        for number in range(options.rounds):
            rounds.append(measure(broker.servers, Path(folder), number, options))
            shown = rounds[-1]["latency_ms"]
            print(f"round {number}: latency p50 {shown['p50']:.0f}, p99 {shown['p99']:.0f} ms")
    result = {
        "interval": options.interval,
        "rate": options.rate,
        "latency_ms": {
            key: statistics.median(one["latency_ms"][key] for one in rounds) for key in ("p50", "p90", "p99")
        },
        "epochs": sum(one["epochs"] for one in rounds),
        "steps_ms": {step: statistics.median(one["steps_ms"][step] for one in rounds) for step in STEPS},
        "cpu_seconds": statistics.median(one["cpu_seconds"] for one in rounds),
    }
    for step, text in STEPS.items():
        print(f"{result['steps_ms'][step]:8.1f} ms  {text}")
    print(f"{sum(result['steps_ms'].values()):8.1f} ms  together; {result['epochs']} epochs")
    print("latency, ms:", {key: round(value) for key, value in result["latency_ms"].items()})
    print(f"CPU of the job's processes while measured: {result['cpu_seconds']:.1f} s")
    written: Path = options.results
    written.parent.mkdir(exist_ok=True)
    kept = json.loads(written.read_text()) if written.exists() else {}
    kept[options.label] = result
    written.write_text(json.dumps(kept, indent=2) + "\n")
    if options.svg is not None:
        options.svg.write_text(draw(kept))


def measure(servers: str, folder: Path, number: int, options: argparse.Namespace) -> dict[str, Any]:
    source, target = f"in-{number}", f"out-{number}"
    create_topics(servers, {source: PARTITIONS, target: PARTITIONS})
    given = {
        "servers": servers,
        "source": source,
        "target": target,
        "checkpoint": str(folder / f"job-{number}"),
        "interval": options.interval,
        "rate": options.rate,
        "warm_up": WARM_UP,
        "seconds": options.seconds,
        "master": options.master,
        "conf": dict(one.split("=", 1) for one in options.conf),
    }
    child = [sys.executable, str(HERE / "epoch_parts.py")]
    with subprocess.Popen([*child, "job", json.dumps(given)], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        if not job.stdout.readline():
            raise SystemExit("the job did not start")
        reader = subprocess.Popen([*child, "read", json.dumps(given)], stdout=subprocess.PIPE, text=True)
        with subprocess.Popen([*child, "send", json.dumps(given)]):
            seen = last_line(reader.communicate()[0])
        told = last_line(job.stdout.read())
    begin, end = seen["begin"], seen["end"]
    steps = profile_of(told["epochs"], begin, end)
    return {
        "latency_ms": seen["latency_ms"],
        "rows": seen["rows"],
        "epochs": len(steps),
        "cpu_seconds": told["cpu_seconds"],
        "steps_ms": {step: median([one[step] for one in steps]) for step in STEPS},
    }


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s in all")
