"""Whether ledger, Spark's checkpoint and program belong together. Each check raises before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.layout import COMMITS, FIRST, OFFSETS
from penstock.errors import LedgerCorrupt, LedgerError, UidChanged

if TYPE_CHECKING:
    from penstock.checkpoint.decision import DecisionId
    from penstock.checkpoint.ledger import Ledger
    from penstock.checkpoint.spark_log import Barrier, SparkLog


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


def check_barrier(ledger: Ledger, log: SparkLog, epoch: int, query_id: str, decided: DecisionId | None = None) -> None:
    """Positions are decided with the epoch: if `offsets/N` is no longer the file that was decided on (by `decided`; by
    any decision, where the epoch is complete), stop. A file that is lost is not checked: it is written again."""
    if epoch < 0 or not log.has_barrier(epoch):
        return
    manifests = [one for one in ledger.manifests(epoch) if one.query == query_id and decided in (None, one.decision.id)]
    barrier = log.barrier(epoch) if manifests else None
    if barrier and all(one.barrier not in (None, barrier.digest) for one in manifests):
        raise LedgerCorrupt(
            f"{log.location}/{layout.offsets(epoch)} is not the file epoch {epoch} was decided on.",
            safe="nothing was started; what is committed stays committed.",
            to_do="see whether another program writes to this checkpoint. The ledger has the right file: stop that"
            f" program, remove {layout.offsets(epoch)} and every later file of {OFFSETS} and {COMMITS}, and start"
            " the job again.",
        )


def barrier_to_run(log: SparkLog, epoch: int, query: str, *, drains: bool) -> Barrier:
    """The barrier of the epoch that Spark runs now. `drains`: it may be one at the end of time; otherwise a drain that
    was superseded has written it after the recovery, and the epoch must not run."""
    barrier = log.barrier(epoch)
    if barrier is None:
        # Spark writes it before it calls us: the checkpoint we read is not the one it writes.
        raise mismatch(query, f"{log.location} has no {layout.offsets(epoch)}")
    if not drains and log.drained(epoch):
        raise LedgerError(
            f"A drain of an earlier run has replaced the barrier of epoch {epoch} of query {query!r}.",
            safe="the epoch was not run; no window was closed.",
            to_do="let the job restart: its recovery removes that barrier.",
        )
    return barrier


def mismatch(query: str, found: str) -> LedgerError:
    """The error for a ledger and a checkpoint that are not each other's."""
    return LedgerError(
        f"Spark runs an epoch of query {query!r}, but {found}: ledger and checkpoint do not belong together.",
        safe="nothing was written.",
        to_do="give `checkpoint=` the same location as the query's checkpointLocation.",
    )
