"""A job that counts, run under one version of Spark and then under another. Started as

    python -m tests.support.jobs.upgraded leave FOLDER     counts, dies after a decision, and leaves savepoints
    python -m tests.support.jobs.upgraded go-on FOLDER     goes on from all of it
    python -m tests.support.jobs.upgraded survive FOLDER   dies after a decision, goes on to the end of its rows

For each backend `FOLDER/<backend>` has a checkpoint whose last epoch is decided and not committed, and native and
canonical savepoints of it. What comes out in the end is looked at by whoever started both.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy, StateBackend, failpoints
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.spark.session import session
from penstock.supply.versions import version_of
from tests.support.run_job import Event, Watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKENDS = {"hashmap": StateBackend.hashmap(), "rocksdb": StateBackend.rocksdb()}
KEYS, PER_EPOCH, EPOCHS = 10, 100, 5
KINDS = ("native", "canonical")


def build(spark: SparkSession, folder: Path, backend: str, out: str, rows: int | None = None) -> Job:
    job = Job(
        "upgraded",
        checkpoints=Checkpoints(storage=str(folder / f"checkpoints-{out}"), interval="100ms"),
        state_backend=BACKENDS[backend],
        restart=RestartStrategy.none(),
        spark=spark,
    )
    source = DataGenSource(rows, columns={"key": f"id % {KEYS}"}, max_rows_per_epoch=PER_EPOCH)
    counts = job.read(source, uid="rows").groupBy("key").count()
    job.write(counts, FileSink(str(folder / out)), uid="counts", output_mode="update")
    return job


def leave(spark: SparkSession, folder: Path) -> None:
    for backend in BACKENDS:
        place = folder / backend
        with Watched(build(spark, place, backend, "main")) as run:
            run.committed(2)
            for kind in KINDS:
                (place / kind).write_text(run.job.savepoint(str(place / "savepoints"), kind=kind))
        die(build(spark, place, backend, "main"), "epoch.decided=raise")


def die(job: Job, point: str) -> None:
    """Run the job until it fails there."""
    os.environ[failpoints.VARIABLE] = point
    failpoints.reload()
    try:
        job.run()
    except failpoints.InjectedFault:
        return
    finally:
        del os.environ[failpoints.VARIABLE]
        failpoints.reload()
    raise AssertionError(f"the job did not pass {point}")


def survive(spark: SparkSession, folder: Path) -> None:
    for backend in BACKENDS:
        rows = EPOCHS * PER_EPOCH
        die(build(spark, folder / backend, backend, "main", rows), "epoch.decided=raise@2")
        events: list[Event] = []
        build(spark, folder / backend, backend, "main", rows).run(on_event=events.append)
        keep_recovery(folder / backend, events)


def keep_recovery(place: Path, events: list[Event]) -> None:
    """What recovery came to, and the epoch that it went on with."""
    (recovered,) = [one for one in events if one["event"] == "recovered"]
    (place / "recovered").write_text(json.dumps([recovered["action"], recovered["epoch"]]))


def go_on(spark: SparkSession, folder: Path) -> None:
    for backend in BACKENDS:
        place = folder / backend
        with Watched(build(spark, place, backend, "main")) as run:
            run.committed(2)
        keep_recovery(place, run.events)
        for kind in KINDS:
            if kind == "canonical" and backend == "rocksdb" and not version_of(spark).rewrites_rocksdb:
                continue  # refused, in so many words: tests/unit/supply/test_versions.py
            os.environ[OPTIONS_VARIABLE] = json.dumps({"execution.state-recovery.path": (place / kind).read_text()})
            job = build(spark, place, backend, f"from-{kind}")
            del os.environ[OPTIONS_VARIABLE]
            with Watched(job) as run:
                run.committed(2)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    conf = {"spark.master": "local[2]", "spark.sql.streaming.minBatchesToRetain": "100"}
    spark = session("upgraded", conf=conf, jars=(), local_storage=True)
    {"leave": leave, "go-on": go_on, "survive": survive}[what](spark, folder)
    spark.stop()


if __name__ == "__main__":
    main()
