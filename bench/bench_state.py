"""State with many keys: switched between backends and spread over other partitions, and written out as Parquet.

A real query makes the state: one batch that counts every key. Then each step reads what the one before wrote, so the
last one proves them all: a look at some keys, and a count. Prints a table and writes bench/results/state.json.

    python bench/bench_state.py [--keys 10000000] [--partitions 16] [--memory 6g] [--steps 6]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from memory import PeakMemory
from neighbours import Neighbours
from penstock.config.state import PROVIDER, PROVIDERS, Backend
from penstock.savepoints.canonical import export, load
from penstock.spark.session import session
from penstock.spark_state.rewrite import rewrite
from penstock.storage.local import LocalTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=16, help="of the state, to begin with")
    parser.add_argument("--memory", default="6g", help="of Spark's JVM")
    parser.add_argument("--steps", type=int, default=6, help="only the first so many after the query")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "state.json")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-state-"))
    try:
        with Neighbours() as others:
            results = Bench(root, given.keys, given.partitions, given.memory).run(given.steps)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    table = Table(title=f"{given.keys:,} keys, {given.memory} of memory for the JVM")
    for name in ("step", "seconds", "rows/s", "peak MB", "size MB"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for one in results:
        table.add_row(
            one["step"], f"{one['seconds']:.1f}", f"{one['rows_per_second']:,}", str(one["peak_mb"]), str(one["mb"])
        )
    console.print(table)
    console.print(f"other processes took {others.cores:.2f} cores meanwhile")
    body = {"keys": given.keys, "partitions": given.partitions, "memory": given.memory}
    body |= {"other_cores": round(others.cores, 2), "steps": results}
    given.results.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


class Bench:
    def __init__(self, root: Path, keys: int, partitions: int, memory: str) -> None:
        self._root, self._keys, self._partitions = root, keys, partitions
        conf = {
            "spark.driver.memory": memory,
            "spark.local.dir": str(root / "local"),
            "spark.sql.shuffle.partitions": str(partitions),
            PROVIDER: PROVIDERS[Backend.HASHMAP],
        }
        self._spark: SparkSession = session("bench-state", conf=conf, jars=[], local_storage=True)
        # Python's workers are started while Spark is still small: a process that forks is counted twice for a moment.
        self._spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
        self._results: list[dict[str, Any]] = []

    def run(self, steps: int) -> list[dict[str, Any]]:
        more, fewer = self._partitions * 3 // 2, self._partitions * 3 // 4
        chain: list[tuple[str, Callable[[str], None]]] = [
            ("query", self._query),
            ("hashmap → rocksdb", lambda to: self._rewrite("0", to, backend="rocksdb")),
            (f"rocksdb, {self._partitions} → {fewer} partitions", lambda to: self._rewrite("1", to, partitions=fewer)),
            ("rocksdb → hashmap", lambda to: self._rewrite("2", to, backend="hashmap")),
            (f"hashmap, {fewer} → {more} partitions", lambda to: self._rewrite("3", to, partitions=more)),
            ("hashmap → Parquet", lambda to: export(self._spark, self._at("4"), 0, to)),
            ("Parquet → rocksdb", self._load),
        ]
        for number, (name, work) in enumerate(chain[: steps + 1]):
            self._step(name, work, str(number))
        self._prove(str(steps) if steps != 5 else "4")
        self._spark.stop()
        return self._results

    def _step(self, name: str, work: Callable[[str], None], target: str) -> None:
        began = time.monotonic()
        with PeakMemory() as memory:
            work(self._at(target))
        seconds = time.monotonic() - began
        size = sum(LocalTree(self._root / target).files().values())
        one = {
            "step": name,
            "seconds": round(seconds, 1),
            "rows_per_second": int(self._keys / seconds),
            "peak_mb": int(memory.megabytes),
            "mb": size // 1_000_000,
        }
        console.print(one)
        self._results.append(one)

    def _query(self, target: str) -> None:
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self._keys)
        counted = source.option("numPartitions", 4).load().groupBy("value").count()
        writer = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", target)
        writer.trigger(once=True).start().awaitTermination()

    def _rewrite(self, source: str, target: str, **change: Any) -> None:
        rewrite(self._spark, self._at(source), 0, target, **change)
        shutil.rmtree(self._root / source)

    def _load(self, target: str) -> None:
        logs = [name for name in LocalTree(self._root / "4").files() if not name.startswith("state/")]
        LocalTree(Path(target)).take(LocalTree(self._root / "4"), {name: name for name in logs})
        load(self._spark, self._at("5"), target, 0, partitions=self._partitions, backend="rocksdb")

    def _prove(self, target: str) -> None:
        state = self._spark.read.format("statestore").load(self._at(target))
        assert state.count() == self._keys
        for key in (0, self._keys // 2, self._keys - 1):
            [row] = state.where(f"key.value = {key}").select("value.count").collect()
            assert row["count"] == 1, row

    def _at(self, name: str) -> str:
        return str(self._root / name)


if __name__ == "__main__":
    main()
