"""What differs between the versions of Spark that Penstock runs on: all of it, in one table.

A version that is not in the table has the names of the newest one known, and none of what would be a guess (the format
of a log that holds no example yet, the jars of a connector). What ran on which: docs/reference/versions.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

KAFKA_JARS = "spark-kafka"  # the set of jars that a source or session asks for; which one that is, the version says

_STREAMING = "org.apache.spark.sql.execution.streaming"
#: Classes that have moved, by the package they are in.
_ROOMS: Mapping[str, str] = {
    "FileSystemBasedCheckpointFileManager": f"{_STREAMING}.checkpointing",
    "OffsetSeqMetadata": f"{_STREAMING}.checkpointing",
    "IncrementalExecution": f"{_STREAMING}.runtime",
    "WatermarkPropagator": f"{_STREAMING}.runtime",
}
_FLAT: Mapping[str, str] = dict.fromkeys(_ROOMS, _STREAMING)
#: Spark's own tools for moving state into other partitions.
_REPARTITION: Mapping[str, str] = {
    "StateRewriter": f"{_STREAMING}.state",
    "StatePartitionKeyExtractorFactory": f"{_STREAMING}.operators.stateful",
    "StreamingUtils": f"{_STREAMING}.utils",
}


@dataclass(frozen=True, slots=True)
class SparkVersion:
    """One minor version, all patches of which are alike in what is here. `patch` is the one that the matrix runs."""

    minor: tuple[int, int]
    patch: str
    packages: Mapping[str, str]
    kafka_jars: str | None  # the locked set of the Kafka connector's jars; None: the user brings them
    read_limits: bool  # whether Spark passes the start and limits of a read to a source in Python
    plan_flags: int  # that the plan of a batch takes at its end: for triggers that end by themselves, for real time
    #: What decides the format of a query's state: the session, and commits of the other format cannot be read
    #: ("strict"); the session ("session"); the log, once it has a commit ("log"). None: there is no format 2.
    state_format: str | None
    #: Whether `commits/N` may be written where the log holds no example of it: its format is known to be v1, with a
    #: watermark and nothing else, or v2 with the ids of the state's files, where its format is 2.
    log_known: bool = True
    tried: bool = True  # whether the core of the suite has passed on it: docs/reference/versions.json

    @property
    def name(self) -> str:
        return ".".join(map(str, self.minor))

    @property
    def rewrites_rocksdb(self) -> bool:
        """Whether Spark has what writes rows into RocksDB's files, and what reads every row of them."""
        return "StateRewriter" in self.packages

    def class_name(self, simple: str) -> str:
        """The full name; that of a Scala object ends in a dollar, as its class does."""
        return f"{self.packages[simple.rstrip('$')]}.{simple}"

    def java_class(self, spark: SparkSession, simple: str) -> Any:
        """The class, as py4j has it."""
        java: Any = spark._jvm
        for part in self.class_name(simple).split("."):
            java = getattr(java, part)
        return java


_OLD = {"read_limits": False}
_NEW = {"read_limits": True}

VERSIONS = (  # oldest first
    SparkVersion((4, 0), "4.0.5", _FLAT, "spark-kafka-4.0", **_OLD, plan_flags=0, state_format=None),
    SparkVersion((4, 1), "4.1.4", _ROOMS, "spark-kafka-4.1", **_OLD, plan_flags=1, state_format="strict"),
    SparkVersion((4, 2), "4.2.1", {**_ROOMS, **_REPARTITION}, KAFKA_JARS, **_NEW, plan_flags=1, state_format="session"),
    # The repositories have no connector of 4.3 yet: it gets that of 4.2.
    SparkVersion((4, 3), "4.3.0", {**_ROOMS, **_REPARTITION}, KAFKA_JARS, **_NEW, plan_flags=2, state_format="log"),
)

_warned: set[str] = set()


def version_of(spark: SparkSession) -> SparkVersion:
    """What the session's Spark has: the JVM's, which need not be that of the Python package."""
    return find_version(str(spark.version))


def installed_version() -> SparkVersion:
    """What the installed PySpark has. Does not import it where it need not."""
    return find_version(installed_text())


def installed_text() -> str:
    if "pyspark" in sys.modules:
        return str(sys.modules["pyspark"].__version__)
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # from Spark's folder, which is no package to pip
        import pyspark

        return str(pyspark.__version__)


def find_version(text: str) -> SparkVersion:
    """The version's entry; of a later one than was tried the newest entry, without what would be a guess."""
    minor = _minor(text)
    if minor is not None:
        for known in VERSIONS:
            if known.minor == minor:
                return known
        if minor < VERSIONS[0].minor:
            raise ConfigurationError(
                f"This is Spark {text}, and Penstock needs {VERSIONS[0].name} or newer.",
                to_do=f'install "pyspark>={VERSIONS[0].name},<5", and see that SPARK_HOME does not name an older one.',
            )
    newest = VERSIONS[-1]
    return replace(newest, minor=minor or newest.minor, patch="", kafka_jars=None, log_known=False, tried=False)


def warn_if_untried(text: str) -> None:
    known = find_version(text)
    if known.tried or text in _warned:
        return
    _warned.add(text)
    log.warning(
        "The core of Penstock's tests has not passed on Spark %s yet, only on %s. What is not recognised is not "
        "guessed: recovery then replays and compares.",
        text,
        ", ".join(version.name for version in VERSIONS if version.tried),
    )


def _minor(text: str) -> tuple[int, int] | None:
    first, _, rest = text.partition(".")
    second = rest.partition(".")[0]
    return (int(first), int(second)) if first.isdigit() and second.isdigit() else None
