"""From a location to the storage, ledger and log of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.epoch.ledger import Ledger
from penstock.epoch.spark_log import STATE_FORMAT, SparkLog
from penstock.epoch.storage import LocalStorage, Storage, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def storage_at(location: str, spark: SparkSession) -> Storage:
    """Storage for any location: this machine's disk directly, everything else through Hadoop."""
    path = local_path(location)
    if path is not None and _default_is_local(location, spark):
        return LocalStorage(path)
    from penstock.epoch.hadoop import HadoopStorage

    return HadoopStorage(spark, location)


def ledger_at(location: str, spark: SparkSession, *, retained: int) -> Ledger:
    """The ledger; on storage that is not a local disk, only after seeing that its creates are atomic."""
    storage = storage_at(location, spark)
    ledger = Ledger(storage, retained=retained)
    if not isinstance(storage, LocalStorage):
        ledger.prove_atomic()
    return ledger


def spark_log_at(location: str, spark: SparkSession) -> SparkLog:
    return SparkLog(storage_at(location, spark), state_format=str(spark.conf.get(STATE_FORMAT, "1")))


def _default_is_local(location: str, spark: SparkSession) -> bool:
    """A path without a scheme belongs to `fs.defaultFS`, for Spark and so for us."""
    if urlparse(location).scheme:
        return True
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return urlparse(str(default)).scheme in ("", "file")
