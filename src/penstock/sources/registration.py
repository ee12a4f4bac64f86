"""Registers a data source written in Python with Spark, safe for several queries that start at once.

Spark keeps one map of environment variables per registered class and writes to it whenever a query over it starts, from
that query's thread. The map PySpark hands over is a plain `HashMap`. Two queries of one source that start at the same
moment can break it for good: it then counts more entries than it has, and no task that carries it can be read any
more (`OptionalDataException`), however often the queries restart. So it gets a map made for several threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Like `spark.dataSource.register`. Makes `spark` this thread's session: Spark looks registered sources up there,
    whichever session it is asked through."""
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
