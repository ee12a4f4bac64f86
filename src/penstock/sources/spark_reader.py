"""How sources reach Spark: by a stream reader, and registered with Spark where they are written in Python.

Sources are known by their uids, in Penstock's own records. Spark's names for sources are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.supply.pack import is_shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamReader


#: With this on, Spark keeps positions by the names of sources, in files of another format and in no order.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def stream_reader(spark: SparkSession, uid: str) -> DataStreamReader:
    """A stream reader for the source `uid`."""
    refuse_named_sources(spark, uid)
    return spark.readStream


def refuse_named_sources(spark: SparkSession, uid: str) -> None:
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        raise ConfigurationError(
            f"The session has {EVOLUTION} on, and source {uid!r} is known by its uid, not by Spark's names.",
            to_do="turn it off; sources are added, removed and reordered by a restore from a savepoint.",
        )


def _refuse_shipped(source: type[DataSource]) -> None:
    """Spark plans a source that is written in Python with the executors' Python, but on the driver's machine."""
    if is_shipped():
        raise ConfigurationError(
            f"The source {source.__name__} is planned by the driver with the Python that executors use, which"
            " comes out of an archive: executors have it, the driver's machine does not.",
            to_do="have Python and Penstock at one place on all machines, set PYSPARK_PYTHON to it, and say --no-pack.",
        )


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Like `spark.dataSource.register`, but safe for several queries that start at once. Makes `spark` this thread's
    session: Spark looks registered sources up there, whichever session it is asked through.

    Spark keeps one map of environment variables per registered class and writes to it whenever a query over it starts,
    from that query's thread. The map PySpark hands over is a plain `HashMap`. Two queries of one source that start at
    the same moment can break it for good: it then counts more entries than it has, and no task that carries it can be
    read any more (`OptionalDataException`), however often the queries restart. So it gets a map made for many threads.
    """
    _refuse_shipped(source)
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    context: Any = spark.sparkContext
    plain = context.environment
    shared = context._jvm.java.util.concurrent.ConcurrentHashMap()
    for name, value in plain.items():
        shared.put(name, value)
    context.environment = shared
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = plain
