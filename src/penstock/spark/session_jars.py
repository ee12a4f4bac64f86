"""The jars that a session gets from us: which, on which way, and which the user brings himself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.masters import runs_tasks_itself
from penstock.spark.versions import KAFKA_JARS
from penstock.supply.jars import has_connector, is_present, jar_set
from penstock.supply.launch import conf_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BY_SUBMIT = "PYSPARK_GATEWAY_PORT"
_KAFKA_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_KAFKA_NAME = "spark-sql-kafka-0-10"
#: Where users name jars of their own.
_NAMED = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
#: What tells that they have some, or an order in which classes are to be found.
_SIGNS = ("spark.jars", "spark.driver.userClassPathFirst")


def sets_to_bring(jars: Iterable[str]) -> list[str]:
    """Of the sets that are asked for, those that there are. A connector that the lock lacks may be in Spark's own
    folder; whether it is there shows in the session."""
    return [jar for jar in jars if (has_connector() if jar == KAFKA_JARS else is_present(jar))]


def brings_jars(conf: Mapping[str, str]) -> bool:
    """Whether the user has jars, which may be others of the same connector: those must come before ours, as they do
    where ours are given to Spark, and not where ours stand on the class path. Taken to be so under spark-submit: its
    Java runs already, and a container of YARN has no folder of Spark's to look into."""
    if _BY_SUBMIT in os.environ or any(key.startswith(_SIGNS) for key in conf):
        return True
    defaults = conf_folder() / "spark-defaults.conf"
    try:
        return defaults.is_file() and any(key in defaults.read_text(errors="replace") for key in _SIGNS)
    except OSError:
        return True


def paths_to_give(sets: Sequence[str], master: str, setting: Callable[[str], str]) -> list[str]:
    """What Spark has to be given, once Java runs: not what the user has named, nor what stands on the class path of a
    driver that runs tasks itself."""
    named = " ".join(map(setting, _NAMED))
    paths = [str(path) for jar in sets if not _is_brought(jar, named) for path in jar_set(jar)]
    return _not_on_class_path(paths) if runs_tasks_itself(master) else paths


def ensure_jars(spark: SparkSession, sets: Iterable[str]) -> None:
    """See that a running session has the jars too: under spark-submit, and where a job adds a source later."""
    for name in sets:
        if name == KAFKA_JARS and not _loads(spark._jvm, _KAFKA_CLASS):
            _add(spark, jar_set(name))


def _is_brought(jars: str, named: str) -> bool:
    """Whether the user has brought what is in a set of ours, by a setting or with spark-submit. It is used as it is:
    the driver may be in a container of the cluster, which has neither our cache nor a way to fill one."""
    from pyspark import SparkContext

    if jars != KAFKA_JARS:
        return False
    return _KAFKA_NAME in named or (_BY_SUBMIT in os.environ and _loads(SparkContext._jvm, _KAFKA_CLASS))


def _not_on_class_path(paths: Sequence[str]) -> list[str]:
    """Those that Spark has to be given: none where Java was started with them."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    there = set(str(jvm.java.lang.System.getProperty("java.class.path")).split(os.pathsep))
    return [path for path in paths if path not in there]


def _loads(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _loader(jvm).loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _add(spark: SparkSession, jars: Iterable[Path]) -> None:
    jvm: Any = spark._jvm
    loader = _loader(jvm)
    for jar in jars:
        spark.sparkContext._jsc.addJar(str(jar))  # for the executors
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())  # for the driver


def _loader(jvm: Any) -> Any:
    return jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
