"""The work of a driver's start, done before it matters, in a session that waits for its turn: classes are loaded, code
is compiled, Python workers run. It reads nothing of the user's and writes only to a temporary folder."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_BATCHES = 3
_PREFIX = "penstock-rehearsal-"
_TOGETHER_SECONDS = 0.2  # so that each task of a wave finds the workers of the others busy


def warm_up(spark: SparkSession, modules: Sequence[str] = ()) -> None:
    """Run a small query as a job's queries run, in a session of its own. Python workers import `modules` too."""
    warm_workers(spark, modules)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        _run(_rows(spark.newSession()), Path(folder))


def warm_workers(spark: SparkSession, modules: Sequence[str] = ()) -> None:
    """Have a Python worker for each core; Spark ends those that had nothing to do for a minute."""
    names, cores = list(modules), spark.sparkContext.defaultParallelism

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        time.sleep(_TOGETHER_SECONDS)
        yield from batches

    spark.newSession().range(0, cores, 1, cores).mapInArrow(load, "id long").collect()


def _rows(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").option("numPartitions", "2")
    return reader.load().selectExpr("value % 3 AS key", "CAST(value AS STRING) AS text", "timestamp")


def _run(frame: DataFrame, folder: Path) -> None:
    """A few micro-batches through `foreachBatch` and Python workers, into nothing."""
    passed: list[int] = []

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def write(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(same, batch.schema).collect()
        passed.append(number)

    started = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", (folder / "checkpoint").as_uri())
        .outputMode("update")
        .start()
    )
    while len(passed) < _BATCHES and started.isActive:
        time.sleep(0.01)
    started.stop()
