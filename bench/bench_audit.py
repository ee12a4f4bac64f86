"""How fast `penstock audit` reads a topic: rows a second by the clock and per CPU second, over what a job has written.

python bench/bench_audit.py --rows 6000000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from kafka_load import create_topics, feed
from measures import PARTITIONS, Place
from neighbours import Neighbours
from penstock import KafkaSink
from penstock.audit.report import Audit
from penstock.engine.settlement import JobLedgers
from rounds import console
from servers import Broker
from systems import Penstock
from visible import VisibleRows

_STILL = 4.0  # seconds without a new row, after which all are there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--epoch", type=int, default=500_000, help="rows of an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
    ):
        ledgers = write(Place(broker, Path(folder), "audited"), options.rows, options.epoch)
        rates = [audited(ledgers, broker.servers, options.rows) for _ in range(options.rounds)]
    console.print(f"median: {median(rates):,.0f} rows/s by the clock, on {len(os.sched_getaffinity(0))} cores")


def write(place: Place, rows: int, epoch_rows: int) -> JobLedgers:
    """By a job, as `make bench-flink` has it; what it has decided is in the ledgers."""
    create_topics(place.servers, {"in": PARTITIONS, place.name: PARTITIONS})
    console.print(f"writing {rows:,} rows of 100 bytes …")
    feed(place.servers, "in", rows)
    task = place.task("bytes", "in", epoch_rows=epoch_rows)
    with Penstock().start(task) as run, VisibleRows(place.servers, place.name, PARTITIONS, tuple) as visible:
        run.wait_until(lambda: visible.rows >= rows and visible.is_still(_STILL), 900, "not all rows are written")
    return JobLedgers.at(f"{task.folder}/checkpoints/{place.name}", None)


def audited(ledgers: JobLedgers, servers: str, rows: int) -> float:
    """One reading from the beginning; rows a second."""
    sinks = {"out": KafkaSink(ledgers.job, servers=servers)}
    with Neighbours() as neighbours:
        began, used = time.monotonic(), time.process_time()
        report = Audit(ledgers, sinks, {}).run()
        seconds, cpu = time.monotonic() - began, time.process_time() - used
    found = sum(sink["rows"] for sink in report.sinks)
    if report.findings or found != rows:
        raise SystemExit(f"{found:,} rows of {rows:,}, and findings: {report.findings[:3]}")
    rate = f"{rows / seconds:,.0f} rows/s by the clock, {rows / cpu:,.0f} per CPU second"
    console.print(f"  {rate}; nothing unaccounted for{neighbours.remark}")
    return rows / seconds


if __name__ == "__main__":
    main()
