"""The work of a driver's start, done before it matters: classes are loaded, code is compiled, Python workers run. It
reads nothing of the user's and writes only to a temporary folder. `python -m penstock.spark.warm_up [JARS…]` does it in
a process of its own, whose JVM archives the classes that it has loaded: see `ClassArchive`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.session import class_archive, session
from penstock.storage.local import only_one, own_folder
from penstock.supply.jars import jar_set
from penstock.supply.java import TARGET

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
    passed: list[int] = []

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def write(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(same, batch.schema).collect()
        passed.append(number)

    stream = frame.writeStream.foreachBatch(write).outputMode("update")
    started = stream.option("checkpointLocation", (folder / "checkpoint").as_uri()).start()
    while len(passed) < _BATCHES and started.isActive:
        time.sleep(0.01)
    started.stop()


# In a process of its own


def make_archive(jars: Sequence[str]) -> Path | None:
    """Write the archive of drivers with these jars, unless it is there; None where Java allows none."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if (archive := class_archive({}, jars)) is None:
        return None
    with only_one(own_folder(archive.path.parent) / f"{archive.path.stem}.lock"):
        if not archive.usable:
            with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=archive.path.parent) as folder:
                aside = Path(folder) / "classes.jsa"
                _rehearse(aside, jars)
                archive.keep(aside)
    return archive.path


def _rehearse(aside: Path, jars: Sequence[str]) -> None:
    os.environ[TARGET] = str(aside)
    conf = {"spark.master": "local[2]", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    spark = session("rehearsal", conf=conf, jars=jars, local_storage=True)
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


if __name__ == "__main__":
    sys.stdout.write(str(make_archive(sys.argv[1:]) or ""))
