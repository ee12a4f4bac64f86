"""The work of a driver's start, done before it matters: classes are loaded, code is compiled, Python workers run. It
reads nothing of the user's and writes only to a temporary folder.

`warm_up` does it in a session that waits for its turn. `python -m penstock.spark.warm_up ARCHIVE JARS [FLAGS]` does it
in a process of its own, whose JVM archives the classes that it has loaded: see `ClassArchive`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.session import session
from penstock.storage.private import only_one
from penstock.supply.jars import jar_set
from penstock.supply.java import TARGET, keep_archive, tried_file, was_tried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MAKING_SECONDS = 1800  # after which something hangs; on a busy machine others come first
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


# In a process of its own


def make_archive(target: Path, jars: Sequence[str], flags: Sequence[str]) -> None:
    """Write `target`, unless it is there or an attempt has failed lately."""
    with only_one(target.with_suffix(".lock")):
        if target.exists() or was_tried(target):
            return
        tried_file(target).touch()
        for leftover in target.parent.glob(f"{target.stem}.[0-9]*"):  # of a rehearsal that was killed
            leftover.unlink(missing_ok=True)
        aside = target.with_suffix(f".{os.getpid()}")
        try:
            _rehearse(aside, jars, flags)
            if aside.exists():
                keep_archive(aside, target)
        finally:
            aside.unlink(missing_ok=True)


def _rehearse(aside: Path, jars: Sequence[str], flags: Sequence[str]) -> None:
    os.environ[TARGET] = str(aside)
    conf = {"spark.master": "local[2]", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    if flags:
        conf["spark.driver.extraJavaOptions"] = " ".join(flags)
    spark = session("rehearsal", conf=conf, jars=jars, local_storage=True, class_archive=True)
    process: Any = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        warm_up(spark)
        _run(_rows(spark).groupBy("key").count(), Path(folder))
        load_classes(spark, [path for name in jars for path in jar_set(name)])
        spark.stop()
    process.stdin.close()  # Java ends, and archives what it has loaded
    process.wait()


def load_classes(spark: SparkSession, jars: Sequence[Path]) -> None:
    """Load the classes of connectors, without running anything of theirs; those that need absent ones are left out."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    for jar in jars:
        with zipfile.ZipFile(jar) as opened:
            names = [name for name in opened.namelist() if name.endswith(".class") and "-" not in name]
        for name in names:
            with contextlib.suppress(Py4JJavaError):
                loader.loadClass(name.removesuffix(".class").replace("/", "."))


def _give_way() -> None:
    """Give way to all other processes: for the processor, and for memory where there is too little."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.alarm(_MAKING_SECONDS)


if __name__ == "__main__":
    _give_way()
    make_archive(Path(sys.argv[1]), [name for name in sys.argv[2].split(",") if name], sys.argv[3:])
