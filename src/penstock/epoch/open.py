"""From a location to the storage, ledger and log of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.epoch.ledger import Ledger
from penstock.epoch.spark_log import STATE_FORMAT, SparkLog
from penstock.epoch.storage import LocalStorage, Storage, local_path
from penstock.errors import StorageNotAtomic

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

ATOMIC_SCHEMES = frozenset({"hdfs", "s3a", "s3"})
"""Through Hadoop, the create of these is known to be one step; `penstock.epoch.hadoop` says how."""


def storage_at(location: str, spark: SparkSession) -> Storage:
    """Storage for any location: this machine's disk directly, everything else through Hadoop."""
    path = local_path(location)
    if path is not None and _default_is_local(location, spark):
        return LocalStorage(path)
    from penstock.epoch.hadoop import HadoopStorage

    return HadoopStorage(spark, location)


def ledger_at(location: str, spark: SparkSession, *, retained: int, trusted: Collection[str] = ()) -> Ledger:
    """The ledger. On storage that is not a local disk only where somebody answers for atomic creates, the storage
    itself or the user by `trusted`, and only after seeing that they seem to be."""
    storage = storage_at(location, spark)
    ledger = Ledger(storage, retained=retained)
    if not isinstance(storage, LocalStorage):
        require_trust(storage, trusted)
        ledger.prove_atomic()
    return ledger


def require_trust(storage: Storage, trusted: Collection[str]) -> None:
    """A race that nobody lost proves little: a store that looks first and writes then passes it on a quiet day. So
    only schemes whose way of creating is known to be one step are tried at all."""
    if storage.scheme in ATOMIC_SCHEMES or storage.scheme in trusted:
        return
    raise StorageNotAtomic(
        f"Nobody answers for {storage.location} that of two creates of one file only one succeeds.",
        safe="nothing was started.",
        to_do="keep checkpoints on a local or mounted disk, HDFS or S3; or, where its vendor promises a rename in one"
        f" step that never overwrites, say penstock.ledger.trusted-schemes={storage.scheme}.",
    )


def spark_log_at(location: str, spark: SparkSession) -> SparkLog:
    return SparkLog(storage_at(location, spark), state_format=str(spark.conf.get(STATE_FORMAT, "1")))


def _default_is_local(location: str, spark: SparkSession) -> bool:
    """A path without a scheme belongs to `fs.defaultFS`, for Spark and so for us."""
    if urlparse(location).scheme:
        return True
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return urlparse(str(default)).scheme in ("", "file")
