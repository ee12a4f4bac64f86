"""From a location to the storage behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.storage.storage import LocalStorage, Storage, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def storage_at(location: str, spark: SparkSession) -> Storage:
    """Storage for any location: this machine's disk directly, everything else through Hadoop."""
    path = local_path(location)
    if path is not None and _default_is_local(location, spark):
        return LocalStorage(path)
    from penstock.storage.hadoop import HadoopStorage

    return HadoopStorage(spark, location)


def _default_is_local(location: str, spark: SparkSession) -> bool:
    """A path without a scheme belongs to `fs.defaultFS`, for Spark and so for us."""
    if urlparse(location).scheme:
        return True
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return urlparse(str(default)).scheme in ("", "file")
