"""A savepoint of a job with a million keys, while it runs: how long its queries stand still, and how it goes on.

A generator feeds a count per key into files, on both backends; after the state is full, savepoints are taken beside
epochs that go on. Then a job is restored from the last one. Prints a table and writes bench/results/savepoint.json.

    python bench/bench_savepoint.py [--keys 1000000] [--savepoints 5] [--backends hashmap rocksdb]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy, StateBackend
from penstock.config.levels import OPTIONS_VARIABLE

MOST_HELD_MS = 1000.0
HERE = Path(__file__).parent
console = Console()


class Run:
    """A job in a thread, and what its events tell."""

    def __init__(self, folder: Path, keys: int, rows: int, backend: str, output: str) -> None:
        made = StateBackend.rocksdb(changelog=True) if backend == "rocksdb" else StateBackend.hashmap()
        self.job = Job(
            "keys",
            checkpoints=Checkpoints(storage=str(folder / output / "checkpoints")),
            state_backend=made,
            restart=RestartStrategy.none(),
            conf={"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "4"},
        )
        source = DataGenSource(columns={"key": f"id % {keys}"}, max_rows_per_epoch=rows)
        counts = self.job.read(source, uid="in").groupBy("key").count()
        self.job.write(counts, FileSink(str(folder / output / "files")), uid="out", output_mode="update")
        self.events: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.job.run(on_event=lambda event: self.events.append({**event, "heard": time.monotonic()}))
        except BaseException as error:
            self.error = error

    def all(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["event"] == name]

    def wait_epochs(self, more: int) -> None:
        until = len(self.all("completed")) + more
        while len(self.all("completed")) < until:
            if self.error is not None:
                raise self.error
            time.sleep(0.05)

    def epoch_ms(self, newest: int) -> float:
        return 1000 * statistics.median(float(event["seconds"]) for event in self.all("completed")[-newest:])

    def stop(self) -> None:
        self.job.stop()
        self._thread.join()
        if self.error is not None:
            raise self.error


def measure(folder: Path, backend: str, keys: int, savepoints: int, per_epoch: int, epochs: int) -> dict[str, Any]:
    """`epochs` are timed before, after and once more after the restore."""
    run = Run(folder, keys, per_epoch, backend, "first")
    run.wait_epochs(-(-keys // per_epoch) + 2)
    run.wait_epochs(epochs)
    before = run.epoch_ms(epochs)
    path = ""
    for _ in range(savepoints):
        path = run.job.savepoint(str(folder / "savepoints"))
        run.wait_epochs(min(2, epochs))
    run.wait_epochs(epochs)
    after = run.epoch_ms(epochs)
    told = run.all("savepoint")
    canonical = time.monotonic()
    run.job.savepoint(str(folder / "savepoints"), kind="canonical")
    canonical_s = time.monotonic() - canonical
    canonical_held = run.all("savepoint")[-1]["held_ms"]
    run.stop()
    os.environ[OPTIONS_VARIABLE] = json.dumps({"execution.state-recovery.path": path})
    began = time.monotonic()
    again = Run(folder, keys, per_epoch, backend, "second")
    del os.environ[OPTIONS_VARIABLE]
    again.wait_epochs(1)
    restored_s = again.all("completed")[0]["heard"] - began
    again.wait_epochs(epochs + 1)
    resumed = again.epoch_ms(epochs)
    again.stop()
    pauses = [event["held_ms"] - event["waited_ms"] for event in told]
    return {
        "keys": keys,
        "savepoints": len(told),
        "bytes": told[-1]["bytes"],
        "stood_still_ms": {"median": statistics.median(pauses), "max": max(pauses)},
        "with_the_wait_ms": {
            "median": statistics.median(e["held_ms"] for e in told),
            "max": max(e["held_ms"] for e in told),
        },
        "total_ms": {"median": statistics.median(e["total_ms"] for e in told), "max": max(e["total_ms"] for e in told)},
        "epoch_ms": {"before": before, "after": after, "resumed": resumed},
        "canonical": {"held_ms": canonical_held, "seconds": round(canonical_s, 2)},
        "restore_to_first_epoch_s": round(restored_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--per-epoch", type=int, default=100_000, help="rows of an epoch")
    parser.add_argument("--savepoints", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="epochs whose median counts")
    parser.add_argument("--backends", nargs="+", default=["hashmap", "rocksdb"], choices=["hashmap", "rocksdb"])
    parser.add_argument("--results", type=Path, default=HERE / "results" / "savepoint.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"cores": os.cpu_count()}
    for backend in options.backends:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            results[backend] = measure(
                Path(folder), backend, options.keys, options.savepoints, options.per_epoch, options.epochs
            )
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps(results, indent=2) + "\n")
    table = Table(title=f"Savepoints of a job with {options.keys:,} keys, taken while it runs")
    for title in (
        "backend",
        "bytes",
        "stood still ms (max)",
        "with the wait ms (max)",
        "epoch ms before/after/resumed",
    ):
        table.add_column(title)
    for backend in options.backends:
        one = results[backend]
        still, waited, epoch = one["stood_still_ms"], one["with_the_wait_ms"], one["epoch_ms"]
        table.add_row(
            backend,
            f"{one['bytes']:,}",
            f"{still['median']:.0f} ({still['max']:.0f})",
            f"{waited['median']:.0f} ({waited['max']:.0f})",
            f"{epoch['before']:.0f} / {epoch['after']:.0f} / {epoch['resumed']:.0f}",
        )
        verdict = "held" if still["max"] < MOST_HELD_MS else "MISSED"
        console.print(f"{backend}: longest pause {still['max']:.0f} ms against {MOST_HELD_MS:.0f}: {verdict}")
    console.print(table)


if __name__ == "__main__":
    main()
