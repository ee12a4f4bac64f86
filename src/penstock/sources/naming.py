"""How sources are known: by their uids, in Penstock's own records. Spark's names for sources are not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

#: With this on, Spark keeps positions by the names of sources, in files of another format and in no order.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def reader(spark: SparkSession, uid: str) -> DataStreamReader:
    """A stream reader for the source `uid`."""
    refuse_named_sources(spark, uid)
    return spark.readStream


def refuse_named_sources(spark: SparkSession, uid: str) -> None:
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        raise ConfigurationError(
            f"The session has {EVOLUTION} on, and source {uid!r} is known by its uid, not by Spark's names.",
            safe="nothing was started.",
            to_do="turn it off; sources are added, removed and reordered by a restore from a savepoint.",
        )
