"""From a location to the ledger and the log of one query; and whether these and the program belong together."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.ledger import Ledger, Manifest
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.errors import LedgerCorrupt, LedgerError, StorageNotAtomic, StorageNotCoherent, UidChanged
from penstock.storage.durable import mount_of
from penstock.storage.local import LocalStorage, storage_at
from penstock.storage.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

ATOMIC_SCHEMES = frozenset({"hdfs", "s3a", "s3"})
"""Through Hadoop, the create of these is known to be one step; `penstock.storage.hadoop` says how."""


def ledger_at(location: str, spark: SparkSession | None, *, retained: int, trusted: Collection[str] = ()) -> Ledger:
    """The ledger. On storage that is not a local disk only where atomic creates are promised, by the storage
    itself or by the user with `trusted`, and only after a race of creates has had one winner."""
    storage = storage_at(location, spark)
    ledger = Ledger(storage, retained=retained)
    require_trust(storage, trusted)
    if not isinstance(storage, LocalStorage):
        ledger.prove_atomic()
    return ledger


def require_trust(storage: Storage, trusted: Collection[str]) -> None:
    """A race proves little: a store that checks first and writes then passes it on a quiet day. So
    only schemes whose way of creating is known to be one step are tried at all. Of a mounted folder the kind of its
    mount is what is to be trusted: a local disk, or one that shows what other machines create."""
    if isinstance(storage, LocalStorage):
        _require_fresh(storage, trusted)
        return
    if storage.scheme in ATOMIC_SCHEMES or storage.scheme in trusted:
        return
    raise StorageNotAtomic(
        f"{storage.location} does not promise that of two creates of one file only one succeeds.",
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


def spark_log_at(location: str, spark: SparkSession | None, *, known: bool = True, positions: int = 0) -> SparkLog:
    """`known` and `positions`: see `SparkLog`. Without a session the log is never completed, so its format does not
    matter."""
    state_format = "1" if spark is None else str(spark.conf.get(STATE_FORMAT, "1"))
    return SparkLog(storage_at(location, spark), state_format=state_format, known=known, positions=positions)


# Each of these checks raises before anything is touched.


def check_sources(ledger: Ledger, log: SparkLog, query: str, sources: tuple[str, ...]) -> None:
    """The program must have the sources the checkpoint was written with: Spark knows their positions by order. A run
    on another history says nothing: a restore has put the positions into the program's order."""
    newest = ledger.newest_generation()
    before = ledger.generation(newest) if newest else None
    if before is None or before["history"] != history_of(log):
        return
    if tuple(before["sources"]) != sources and log.query_id() is not None:
        raise UidChanged(
            f"Query {query!r} was last run with the sources {list(before['sources'])},"
            f" the program now reads {list(sources)}.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do="give the sources their former uids and order; take a savepoint with the former program and restore"
            " this one from it, which knows them by uid; or use another query uid to start over.",
        )


def history_of(log: SparkLog) -> str:
    """Which of the query's histories Spark's log belongs to: the name of its folder."""
    return log.location.rstrip("/").rpartition("/")[2]


def overwritten(log: SparkLog, epoch: int, manifest: Manifest | None) -> dict[str, str]:
    """What another driver has written over of the files that `manifest` was decided on, and what belongs there. Lost
    files are left out: they are written again."""
    originals: dict[str, str] = {}
    if manifest is None or manifest.barrier is None:
        return originals
    barrier = log.barrier(epoch) if log.has_barrier(epoch) else None
    if barrier is not None and barrier.digest != manifest.barrier:
        originals[layout.offsets(epoch)] = _kept(log, layout.offsets(epoch), epoch, manifest.file)
    for name, (digest, text) in manifest.notes.items():
        present = log.read(name)
        if present is not None and hashlib.sha256(present.encode()).hexdigest() != digest:
            originals[name] = _kept(log, name, epoch, text)
    return originals


def _kept(log: SparkLog, name: str, epoch: int, text: str | None) -> str:
    if text is None:
        raise LedgerCorrupt(
            f"{log.location}/{name} is not the file epoch {epoch} was decided on, and its decision holds no copy.",
            safe="nothing was started; what is committed stays committed.",
            to_do="see whether another program writes to this checkpoint, and stop it. Bring the file back from a copy"
            " of the checkpoint; or go on from a savepoint.",
        )
    return text


def mismatch(query: str, found: str) -> LedgerError:
    return LedgerError(
        f"Spark runs an epoch of query {query!r}, but {found}: ledger and checkpoint do not belong together.",
        safe="nothing was written.",
        to_do="give `checkpoint=` the same location as the query's checkpointLocation.",
    )
