"""What a job can be restored from, by its path: a savepoint, a retained checkpoint, the newest checkpoint of a job. The
forms of a path: docs/concepts/savepoints.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import CheckpointState, honoured, next_epoch
from penstock.checkpoint.history import Histories
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import completed, query_of
from penstock.checkpoint.open import overwritten
from penstock.checkpoint.record import CheckpointRecord, global_numbers, read_global
from penstock.checkpoint.spark_files import needed
from penstock.checkpoint.spark_log import SparkLog
from penstock.errors import LedgerCorrupt, LedgerError, SavepointError, SavepointIncomplete
from penstock.progress import Progress, silent
from penstock.savepoints import savepoint
from penstock.savepoints.savepoint import METADATA, Kind, SavedQuery, Savepoint
from penstock.storage.open import tree_at
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.storage.tree import Tree


@dataclass(frozen=True)
class Restorable:
    """Something to restore from. `retained`: a checkpoint inside a job's own folder, which stays that job's."""

    path: str
    saved: Savepoint
    retained: bool
    folders: dict[str, Tree]  # Spark's checkpoint of each query
    root: Tree

    def verify(self, progress: Progress = silent) -> None:
        """See that all of it is there and whole, before anything is built on it."""
        if not self.retained:
            savepoint.verify(self.root, self.saved, progress)

    def files(self, uid: str) -> list[str]:
        """The files of a query's checkpoint that a copy needs, without the state of a canonical savepoint."""
        folder, query = self.folders[uid], self.saved.queries[uid]
        if self.retained:
            return needed(folder, query.epoch)
        start = f"{layout.saved_checkpoint(uid)}/"
        return [name.removeprefix(start) for name in self.saved.files if name.startswith(start)]


def require_path(path: str) -> None:
    """Raise `SavepointIncomplete` where a path of this machine names nothing to restore from. Needs no Spark."""
    path = path.strip().rstrip("/")
    named = layout.split_checkpoint(path)
    if not path or local_path(path) is None:
        return
    if named is not None:
        _epochs(path, *named, None, at_rest=True)
    elif job_folder(path, None) is None:
        savepoint.read(tree_at(path, None))


def job_folder(path: str, spark: SparkSession | None) -> str | None:
    """The folder of the job whose checkpoint the path names; None for a savepoint."""
    path = path.rstrip("/")
    named = layout.split_checkpoint(path)
    if named is not None:
        return (layout.split_query_checkpoints(named[0]) or named)[0]
    root = tree_at(path, spark)
    return path if METADATA not in root.names() and layout.query_uids(root.names(layout.QUERIES)) else None


def open_restorable(path: str, spark: SparkSession, *, at_rest: bool = False) -> Restorable:
    """Raises `SavepointIncomplete` where nothing complete is found under that path. `at_rest`: the job whose checkpoint
    it names is fenced and has finished what was decided, so that the newest epochs of its queries are a consistent
    cut. Otherwise it may be running."""
    path = path.rstrip("/")
    named = layout.split_checkpoint(path)
    if named is not None:
        return _retained(path, *named, spark, at_rest)
    root = tree_at(path, spark)
    if job_folder(path, spark) is not None:
        return _retained(path, path, None, spark, at_rest)
    saved = savepoint.read(root)
    return Restorable(path, saved, False, {uid: root.at(layout.saved_checkpoint(uid)) for uid in saved.queries}, root)


def _retained(path: str, rest: str, number: int | None, spark: SparkSession, at_rest: bool) -> Restorable:
    root, history, epochs = _epochs(path, rest, number, spark, at_rest=at_rest)
    folders = {uid: root.at(f"{uid}/{history}") for uid in epochs}
    for uid in epochs:
        _refuse_waiting(root, uid)
    queries = {uid: _query(root, uid, folders[uid], epoch, spark) for uid, epoch in epochs.items()}
    job = root.location.rpartition("/")[2]
    identity = f"{job}-{layout.checkpoint_name('-'.join(str(epoch) for epoch in epochs.values()))}-{history}"
    barriers = [SparkLog(folders[uid].storage).barrier(epoch) for uid, epoch in epochs.items()]
    drained = any(barrier is not None and barrier.drains is not None for barrier in barriers)
    saved = Savepoint(identity, Kind.NATIVE, job, 0.0, "", str(spark.version), queries, {}, drained)
    return Restorable(path, saved, True, folders, root)


def _epochs(
    path: str, rest: str, number: int | None, spark: SparkSession | None, *, at_rest: bool
) -> tuple[Tree, str, dict[str, int]]:
    """The folder of the job that a checkpoint belongs to; history and epochs that the path names."""
    rest = rest.rstrip("/")
    rest, only = layout.split_query_checkpoints(rest) or (rest, None)
    root = tree_at(rest, spark)
    uids = layout.query_uids(root.names(layout.QUERIES))
    if not uids:
        raise SavepointIncomplete(
            f"{path} names a checkpoint, but {root.location} is not the folder of a job.",
            to_do="give STORAGE/JOB/chk-N, with the storage and the name of the job it belongs to.",
        )
    if only is not None or len(uids) == 1:
        if number is None and not at_rest:
            _refuse_unfinished(root, uids[0])
        return root, *_query_epoch(root, only or uids[0], number, path)
    if number is None and at_rest:
        return root, *_newest_epochs(root, uids, path)
    return root, *global_epochs(root, number)


def _newest_epochs(root: Tree, uids: Sequence[str], path: str) -> tuple[str, dict[str, int]]:
    """History and newest complete epoch of every query that has one."""
    history = Histories(root.storage).current()
    newest = {uid: SparkLog(root.at(f"{uid}/{history}").storage).next_epoch()[0] - 1 for uid in uids}
    epochs = {uid: epoch for uid, epoch in newest.items() if epoch >= 0}
    if not epochs:
        raise SavepointIncomplete(f"{path} has no complete epoch yet.", to_do="start the job.")
    return history, epochs


def _refuse_unfinished(root: Tree, uid: str) -> None:
    """The newest checkpoint is the newest decided epoch. Where Spark's log lacks that one, a copy of the log would have
    the job make its rows again; and the job, which may run, is not ours to recover."""
    spark_log = SparkLog(root.at(f"{uid}/{Histories(root.storage).current()}").storage)
    ledger = Ledger(root.at(f"{uid}/{layout.LEDGER}").storage)
    query, (epoch, barrier) = query_of(ledger, spark_log), spark_log.next_epoch()
    state = CheckpointState(epoch, barrier, ledger.decisions_since(epoch, query), ledger.claims(query))
    if honoured(state) is not None or next_epoch(state) > epoch:
        raise SavepointError(
            f"Epoch {next_epoch(state)} of query {uid!r} in {root.location} is decided, but not in Spark's"
            f" log, which goes on with epoch {epoch}.",
            to_do="if that job runs, ask again in a moment; if it does not, start it once as it is, which finishes the"
            " epoch; or name an epoch that is complete, as STORAGE/JOB/chk-N.",
        )


def global_epochs(root: Tree, number: int | None) -> tuple[str, dict[str, int]]:
    """History and epochs of a global checkpoint, the newest where none is named."""
    known = global_numbers(root.storage)
    number = known[-1] if number is None and known else number
    body = None if number is None else read_global(root.storage, number)
    if body is None:
        raise SavepointIncomplete(
            f"There is no global checkpoint {number} in {root.location}; there are {known}.",
            to_do="name one of those, or take a savepoint.",
        )
    return str(body["history"]), {uid: int(query["epoch"]) for uid, query in body["queries"].items()}


def _query_epoch(root: Tree, uid: str, number: int | None, path: str) -> tuple[str, dict[str, int]]:
    """History and epoch of one query: in the history that counts, or else in the one before it."""
    histories = Histories(root.storage).kept()
    if number is None:
        number = SparkLog(root.at(f"{uid}/{histories[0]}").storage).next_epoch()[0] - 1
    for history in histories:
        if root.storage.read(f"{uid}/{history}/{layout.commits(number)}") is not None:
            return history, {uid: number}
    complete = [name for name in root.names(f"{uid}/{histories[0]}/{layout.COMMITS}") if name.isdigit()]
    raise SavepointIncomplete(
        f"{path} is not there: epoch {number} of query {uid!r} is not complete, or not kept any more.",
        to_do=f"name one of {', '.join(sorted(complete, key=int)) or 'those that will come'}.",
    )


def _refuse_waiting(root: Tree, uid: str) -> None:
    waiting = [name for name in root.files(f"{uid}/{layout.INFLIGHT}") if f"/{layout.BACKLOG}/" in name]
    if waiting:
        raise SavepointError(
            f"Query {uid!r} in {root.location} has {len(waiting)} epochs in its in-flight log that are not delivered"
            " yet; a restore would leave them behind.",
            to_do="start that job as it is and let it deliver them, or take a savepoint, which waits for them.",
        )


def _query(root: Tree, uid: str, folder: Tree, epoch: int, spark: SparkSession) -> SavedQuery:
    spark_log = SparkLog(folder.storage)
    barrier, query_id = spark_log.barrier(epoch), spark_log.query_id()
    if barrier is None or query_id is None:
        needed(folder, epoch)  # says what is missing
        raise AssertionError("unreachable")
    ledger = Ledger(root.at(f"{uid}/{layout.LEDGER}").storage)
    if overwritten(spark_log, epoch, completed(ledger, epoch, query_id)):
        raise LedgerCorrupt(
            f"{folder.location}/{layout.offsets(epoch)} is not what epoch {epoch} of query {uid!r} was decided on:"
            " another driver has written over it.",
            to_do="name another checkpoint, or a savepoint. Where this is the newest one, start the job as it is: its"
            " recovery takes the right positions from the ledger.",
        )
    return SavedQuery(
        epoch=epoch,
        query_id=query_id,
        generation=ledger.newest_generation(),
        sources=_sources(root, uid, epoch, ledger, barrier.offsets),
        sinks={},
        watermark=spark_log.committed_watermark(epoch),
        output_mode="",
        **savepoint.read_state(spark, folder, epoch, barrier),
    )


def _sources(root: Tree, uid: str, epoch: int, ledger: Ledger, offsets: Sequence[Any]) -> tuple[str | None, ...]:
    """The uids behind the positions: from the checkpoint's record, or from the facts that the last run registered."""
    name = f"{uid}/{layout.record_file(epoch)}"
    data = root.storage.read(name)
    with contextlib.suppress(LedgerError):  # a record is never needed; the ledger says it too
        positions = CheckpointRecord.of(data, name).positions if data is not None else ()
        if data is not None and [offset for _, offset in positions] == list(offsets):  # else of another history
            return tuple(source for source, _ in positions)
    newest = ledger.newest_generation()
    facts = ledger.generation(newest) if newest else None
    known = tuple(facts["sources"]) if facts is not None else ()
    if len(known) == len(offsets):
        return known
    raise SavepointError(
        f"It is not known which source of query {uid!r} each position of epoch {epoch} belongs to.",
        to_do="restore a checkpoint whose record (checkpoints/chk-N.json) is still there, or a savepoint.",
    )
