"""Whether ledger, Spark's checkpoint and program belong together. Each check raises before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.layout import FIRST
from penstock.errors import LedgerCorrupt, LedgerError, UidChanged

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger, Manifest
    from penstock.checkpoint.spark_log import SparkLog


def check_sources(ledger: Ledger, log: SparkLog, query: str, sources: tuple[str, ...]) -> None:
    """The program must have the sources the checkpoint was written with: Spark knows their positions by order. A run
    on another history says nothing: a restore has put the positions into the program's order."""
    newest = ledger.newest_generation()
    before = ledger.generation(newest) if newest else None
    if before is None or before.get("history", FIRST) != history_of(log):  # earlier versions did not say
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


def is_decided(log: SparkLog, epoch: int, manifest: Manifest | None) -> bool:
    """Whether `offsets/N` is the file that `manifest` was decided on: False where another driver has written over it,
    and the manifest has the right one. A file that is lost is not compared: it is written again."""
    if manifest is None or manifest.barrier is None or not log.has_barrier(epoch):
        return True
    barrier = log.barrier(epoch)
    if barrier is None or barrier.digest == manifest.barrier:
        return True
    if manifest.file is None:
        raise LedgerCorrupt(
            f"{log.location}/{layout.offsets(epoch)} is not the file epoch {epoch} was decided on, and the decision,"
            " of an earlier version of Penstock, holds no copy of it.",
            safe="nothing was started; what is committed stays committed.",
            to_do="see whether another program writes to this checkpoint, and stop it. Bring the file back from a copy"
            " of the checkpoint; or go on from a savepoint.",
        )
    return False


def mismatch(query: str, found: str) -> LedgerError:
    """The error for a ledger and a checkpoint that are not each other's."""
    return LedgerError(
        f"Spark runs an epoch of query {query!r}, but {found}: ledger and checkpoint do not belong together.",
        safe="nothing was written.",
        to_do="give `checkpoint=` the same location as the query's checkpointLocation.",
    )
