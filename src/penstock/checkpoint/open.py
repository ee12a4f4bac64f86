"""From a location to the ledger and log of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.errors import StorageNotAtomic, StorageNotCoherent
from penstock.storage.durable import mount_of
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
    require_trust(storage, trusted)
    if not isinstance(storage, LocalStorage):
        ledger.prove_atomic()
    return ledger


def require_trust(storage: Storage, trusted: Collection[str]) -> None:
    """A race that nobody lost proves little: a store that looks first and writes then passes it on a quiet day. So
    only schemes whose way of creating is known to be one step are tried at all. Of a mounted folder the kind of its
    mount is what is to be trusted: a local disk, or one that shows what other machines create."""
    if isinstance(storage, LocalStorage):
        _require_fresh(storage, trusted)
        return
    if storage.scheme in ATOMIC_SCHEMES or storage.scheme in trusted:
        return
    raise StorageNotAtomic(
        f"Nobody answers for {storage.location} that of two creates of one file only one succeeds.",
        safe="nothing was started.",
        to_do="keep checkpoints on a local or mounted disk, HDFS or S3; or, where its vendor promises a rename in one"
        f" step that never overwrites, say penstock.ledger.trusted-schemes={storage.scheme}.",
    )


def _require_fresh(storage: LocalStorage, trusted: Collection[str]) -> None:
    mount = mount_of(storage.root)
    if mount is None or not mount.keeps_listings or mount.kind in trusted:
        return
    remount = "" if mount.kind.startswith("fuse.") else "mount it with the option actimeo=0 on every machine; or "
    raise StorageNotCoherent(
        f"{storage.location} is on a mount of {mount.kind} at {mount.point} that may show listings of up to a minute"
        " ago: a run that was superseded would not learn of it, and commit its rows beside those of the newer one.",
        safe="nothing was started.",
        to_do=f"{remount}keep checkpoints on a local disk, HDFS or S3; or, where every driver of the job only ever runs"
        f" on this one machine, say penstock.ledger.trusted-schemes={mount.kind}.",
    )


def spark_log_at(location: str, spark: SparkSession, *, known: bool = True) -> SparkLog:
    """`known`: see `SparkLog`."""
    return SparkLog(storage_at(location, spark), state_format=str(spark.conf.get(STATE_FORMAT, "1")), known=known)
