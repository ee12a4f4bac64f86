"""The Spark session a job needs: what every job wants set, and nothing the user has set already."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.config.levels import LOG_LEVEL
from penstock.config.spark_conf import PARTITIONS
from penstock.spark.jars import is_present, jar_set
from penstock.spark.java import find_java
from penstock.spark.launch import java_environment
from penstock.spark.python_daemon import MODULE as _DAEMON
from penstock.spark.settings import remember_defaults, warn_overridden

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_FAST_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PROGRESS = "spark.ui.showConsoleProgress"
_KAFKA_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

#: Why each: see docs/reference/settings.md.
DEFAULTS: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.python.worker.reuse": "true",
    _PROGRESS: "false",
}


def session(
    name: str,
    *,
    conf: Mapping[str, str],
    jars: Iterable[str],
    local_storage: bool,
    file: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session if there is one, otherwise a new one. `conf` is the user's and wins over everything here;
    so does whatever spark-submit, spark-defaults or a running session says. `file` is from a configuration file: it
    gives way to spark-submit, and wins over defaults."""
    from pyspark.sql import SparkSession

    # A worker must be this very interpreter, or it lacks the packages the job imports.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    running = running_session()
    if running is None:
        os.environ["JAVA_HOME"] = str(find_java().home)
        given = _given({**(file or {}), **conf})
        wanted = {**_not_given(file or {}, given), **conf}
        if not given.contains("spark.master") and "spark.master" not in wanted:
            wanted["spark.master"] = "local[*]"
        master = wanted.get("spark.master", given.get("spark.master", ""))
        defaults = {
            key: value
            for key, value in _defaults(master, local_storage).items()
            if not given.contains(key) and key not in wanted
        }
        wanted.update(defaults)
        paths = [str(path) for jar in jars if (jar == "spark-kafka" or is_present(jar)) for path in jar_set(jar)]
        if paths:
            listed = wanted.get("spark.jars", given.get("spark.jars", ""))
            wanted["spark.jars"] = ",".join(filter(None, [listed or "", *paths]))
        builder = SparkSession.builder.appName(name)
        for key, value in wanted.items():
            builder = builder.config(key, value)
        running = builder.getOrCreate()
        remember_defaults(running, {key: value for key, value in defaults.items() if key == PARTITIONS})
        running.sparkContext.setLogLevel({**(file or {}), **conf}.get(LOG_LEVEL, "ERROR"))
    ensure_jars(running, jars)
    return running


def running_session() -> SparkSession | None:
    """The session of this process, if it has one."""
    from pyspark.sql import SparkSession

    # "Active" is a matter of threads; in another one the session that was made first is still there.
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def _given(conf: Mapping[str, str]) -> SparkConf:
    """What is set already, by the user, spark-submit or spark-defaults. Only the JVM knows it all, so it is started
    here, with the user's settings: some, such as its memory, count only then. Secrets come by a file: see `launch`."""
    from pyspark import SparkConf, SparkContext

    # Started from here, Spark takes itself for a shell and would turn its progress bar on as if the user had said so.
    wanted = {_PROGRESS: DEFAULTS[_PROGRESS], **conf}
    with java_environment(wanted) as plain:
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(plain.items())))
    return SparkConf()


def _not_given(file: Mapping[str, str], given: SparkConf) -> dict[str, str]:
    """What a configuration file says and spark-submit does not say otherwise."""
    left = {}
    for key, value in file.items():
        current = given.get(key)
        if current is None or current == value:
            left[key] = value
        else:
            warn_overridden(key, value, current)
    return left


def ensure_jars(spark: SparkSession, sets: Iterable[str]) -> None:
    """See that a running session has the jars too: under spark-submit, and where a job adds a source later."""
    for name in sets:
        if name == "spark-kafka" and not _loads(spark, _KAFKA_CLASS):
            _add(spark, jar_set(name))


def _defaults(master: str | None, local_storage: bool) -> dict[str, str]:
    defaults = dict(DEFAULTS)
    cores = _local_cores(master or "")
    if cores:
        # 200 shuffle partitions, Spark's default, are 200 state stores and 200 tasks an epoch on one machine.
        defaults[PARTITIONS] = str(cores)
        defaults["spark.ui.enabled"] = "false"
        defaults["spark.driver.host"] = "127.0.0.1"
        defaults["spark.driver.bindAddress"] = "127.0.0.1"
        # Where workers are processes of this machine they can import what the job can.
        defaults["spark.python.daemon.module"] = _DAEMON
    if local_storage:
        # The other manager starts a `readlink` process for every file it renames.
        defaults[_FILE_MANAGER] = _FAST_FILE_MANAGER
    return defaults


def _local_cores(master: str) -> int:
    """The cores of a local master, 0 for a cluster, whose shuffle partitions are its owner's business."""
    if not master.startswith("local"):
        return 0
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    if inside == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def _loads(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _loader(spark).loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _add(spark: SparkSession, jars: Iterable[Path]) -> None:
    jvm: Any = spark._jvm
    loader = _loader(spark)
    for jar in jars:
        spark.sparkContext._jsc.addJar(str(jar))  # for the executors
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())  # for the driver


def _loader(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()  # type: ignore[union-attr]
