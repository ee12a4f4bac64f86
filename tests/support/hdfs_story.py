"""Run by test_hdfs.py: HDFS inside Spark's JVM; a job dies after a decision and recovers. Tells it all as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.checkpoint.open import ledger_at
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.failpoints import InjectedFault, hooked
from penstock.savepoints.savepoint import Savepoint, dispose
from penstock.spark.session import session
from penstock.storage.hadoop import hsync
from penstock.storage.local import storage_at, tree_at
from penstock.storage.storage import AlreadyExists
from penstock.supply.jars import jar_set
from tests.support.fault_case import Running
from tests.support.run_job import Numbers

ROWS = 3_000


def main(folder: Path) -> dict[str, Any]:
    (jar,) = jar_set("hdfs")
    conf = {"spark.master": "local[2]", "spark.driver.extraClassPath": str(jar), "penstock.log.level": "OFF"}
    spark = session("hdfs", conf=conf, jars=(), local_storage=False)
    jvm: Any = spark._jvm
    builder = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(
        jvm.org.apache.hadoop.conf.Configuration(), jvm.java.io.File(str(folder / "hdfs"))
    )
    cluster = builder.numDataNodes(1).build()
    cluster.waitActive()
    try:
        return story(spark, str(cluster.getURI().toString()), folder)
    finally:
        cluster.shutdown()


def story(spark: Any, hdfs: str, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"rows": ROWS}
    ledger_at(f"{hdfs}/probe", spark, retained=10).prove_atomic()
    storage = storage_at(f"{hdfs}/names", spark)
    storage.create("a/one.json", b"1")
    told["second_create"] = outcome_of(lambda: storage.create("a/one.json", b"2"))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: outcome_of(lambda: storage.create("a/race.json", b"x")), range(8)))
    told["winners_of_a_race"] = outcomes.count("created")
    hsync(f"{hdfs}/names/a/one.json")
    told["synced"] = (storage.read("a/one.json") or b"").decode()

    def die() -> None:
        raise InjectedFault("dies after the decision")

    with hooked("epoch.decided", die):
        told["first_run"] = outcome_of(lambda: run(spark, hdfs, folder, []))
    events: list[Any] = []
    run(spark, hdfs, folder, events)
    told["recovered"] = next(event["action"] for event in events if event["event"] == "recovered")
    files = [pq.read_table(path, columns=["id"])["id"].to_pylist() for path in (folder / "out").glob("part-*")]
    told["ids"] = sorted(number for ids in files for number in ids)
    told.update(savepoints(spark, hdfs, folder))
    return told


def savepoints(spark: Any, hdfs: str, folder: Path) -> dict[str, Any]:
    """From HDFS to HDFS, to a local disk, and back with other partitions; a count that must go on over all of it."""
    told: dict[str, Any] = {}
    first = counting(spark, hdfs, folder, {})
    there = first.job.savepoint(f"{hdfs}/savepoints")
    here = first.job.stop_with_savepoint(str(folder / "savepoints"))
    first.join()
    told["savepoint_on_hdfs"] = sorted(Savepoint.of(tree_at(there, spark).storage.read("_metadata") or b"", "").queries)
    again = counting(spark, hdfs, folder, {"execution.state-recovery.path": here, "parallelism.default": "3"})
    again.job.stop()
    again.join()
    told["restored"] = next(event["epochs"] for event in again.events if event["event"] == "restored")
    fork = {"penstock.fork.name": "fork", "penstock.fork.suffix": "-v2", "execution.state-recovery.path": there}
    forked = counting(spark, hdfs, folder, fork)
    forked.job.stop()
    forked.join()
    dispose(there, spark)
    told["left"] = tree_at(f"{hdfs}/savepoints", spark).files()
    told["counts"] = sorted(row["count"] for row in rows_in(folder / "counts"))
    told["forked"] = min(row["count"] for row in rows_in(folder / "counts-v2"))
    return told


def rows_in(folder: Path) -> list[Any]:
    return [row for path in folder.glob("part-*") for row in pq.read_table(path).to_pylist()]


def counting(spark: Any, hdfs: str, folder: Path, options: dict[str, str]) -> Running:
    """A count over 1,000 rows an epoch, with three more epochs complete."""
    os.environ[OPTIONS_VARIABLE] = json.dumps(options)
    job = Job("counts", checkpoints=Checkpoints(storage=f"{hdfs}/ck"), spark=spark, restart=RestartStrategy.none())
    del os.environ[OPTIONS_VARIABLE]
    rows = job.read(Numbers(10**9, {"id": "id"}, per_epoch=1_000), uid="numbers")
    job.write(rows.groupBy().count(), FileSink(str(folder / "counts")), uid="counts", output_mode="update")
    run = Running(job)
    while sum(event["event"] == "completed" for event in run.events) < 3:
        if not run.alive:
            run.join()
        time.sleep(0.05)
    return run


def run(spark: Any, hdfs: str, folder: Path, events: list[Any]) -> None:
    job = Job("hdfs", checkpoints=Checkpoints(storage=f"{hdfs}/ck"), spark=spark, restart=RestartStrategy.none())
    rows = job.read(Numbers(ROWS, {"id": "id"}, per_epoch=1_000), uid="numbers")
    job.write(rows, FileSink(str(folder / "out")), uid="files")
    job.run(on_event=events.append)


def outcome_of(call: Any) -> str:
    try:
        call()
    except (AlreadyExists, InjectedFault) as error:
        return type(error).__name__
    return "created"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
