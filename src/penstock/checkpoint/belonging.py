"""Whether ledger, Spark's checkpoint and program belong together. Each check raises before anything is touched."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.errors import LedgerCorrupt, LedgerError, UidChanged

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger, Manifest
    from penstock.checkpoint.spark_log import SparkLog


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
    """What another driver has written over of the files that `manifest` was decided on, and what belongs there. Of a
    file that is lost nothing is said here: it is written again."""
    found: dict[str, str] = {}
    if manifest is None or manifest.barrier is None:
        return found
    barrier = log.barrier(epoch) if log.has_barrier(epoch) else None
    if barrier is not None and barrier.digest != manifest.barrier:
        found[layout.offsets(epoch)] = _kept(log, layout.offsets(epoch), epoch, manifest.file)
    for name, (digest, text) in manifest.notes.items():
        there = log.read(name)
        if there is not None and hashlib.sha256(there.encode()).hexdigest() != digest:
            found[name] = _kept(log, name, epoch, text)
    return found


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
    """The error for a ledger and a checkpoint that are not each other's."""
    return LedgerError(
        f"Spark runs an epoch of query {query!r}, but {found}: ledger and checkpoint do not belong together.",
        safe="nothing was written.",
        to_do="give `checkpoint=` the same location as the query's checkpointLocation.",
    )
