"""From a location to the ledger and log of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.errors import StorageNotAtomic
from penstock.storage.local import LocalStorage
from penstock.storage.open import storage_at
from penstock.storage.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

ATOMIC_SCHEMES = frozenset({"hdfs", "s3a", "s3"})
"""Through Hadoop, the create of these is known to be one step; `penstock.storage.hadoop` says how."""


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


def spark_log_at(location: str, spark: SparkSession, *, known: bool = True) -> SparkLog:
    """`known`: see `SparkLog`."""
    return SparkLog(storage_at(location, spark), state_format=str(spark.conf.get(STATE_FORMAT, "1")), known=known)
