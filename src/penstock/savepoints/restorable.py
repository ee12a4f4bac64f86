"""What a job can be restored from, told by its path.

| path | what it is |
|---|---|
| `…/savepoint-payments-3f2a9c41d07e` | a savepoint: the folder with `_metadata`, under whatever name |
| `STORAGE/JOB/chk-175` | a retained checkpoint: epoch 175 of a job of one query, global checkpoint 175 of several |
| `STORAGE/JOB/QUERY/checkpoints/chk-175` | epoch 175 of one query |
| `STORAGE/JOB` | the newest checkpoint of that job |
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.history import FIRST, Histories
from penstock.checkpoint.ledger import Ledger, unseal
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.spark_files import needed
from penstock.checkpoint.spark_log import SparkLog
from penstock.config.spark_conf import PARTITIONS
from penstock.config.state import backend_of
from penstock.errors import LedgerError, SavepointError, SavepointIncomplete
from penstock.savepoints import savepoint
from penstock.savepoints.savepoint import METADATA, Kind, SavedQuery, Savepoint
from penstock.storage.folder import folder_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from penstock.storage.folder import Folder

_CHECKPOINT = re.compile(r"^(?P<rest>.+)/chk-(?P<number>\d+)(?:\.json)?/?$")


@dataclass(frozen=True)
class Restorable:
    """Something to restore from. `retained`: a checkpoint inside a job's own folder, which stays that job's."""

    path: str
    saved: Savepoint
    retained: bool
    folders: dict[str, Folder]  # Spark's checkpoint of each query
    root: Folder

    def verify(self) -> None:
        """See that all of it is there and whole, before anything is built on it."""
        if not self.retained:
            savepoint.verify(self.root, self.saved)

    def files(self, uid: str) -> list[str]:
        """The files of a query's checkpoint that a copy needs, without the state of a canonical savepoint."""
        folder, query = self.folders[uid], self.saved.queries[uid]
        if self.retained:
            return needed(folder, query.epoch)
        start = f"queries/{uid}/spark/"
        return [name.removeprefix(start) for name in self.saved.files if name.startswith(start)]


def open_restorable(path: str, spark: SparkSession) -> Restorable:
    """Raises `SavepointIncomplete` where nothing complete is found under that path."""
    path = path.rstrip("/")
    match = _CHECKPOINT.match(path)
    if match:
        return _retained(path, match["rest"], int(match["number"]), spark)
    root = folder_at(path, spark)
    names = root.names()
    if METADATA not in names and "queries" in names and any(name.endswith(".json") for name in root.names("queries")):
        return _retained(path, path, None, spark)
    saved = savepoint.read(root)
    return Restorable(path, saved, False, {uid: root.at(f"queries/{uid}/spark") for uid in saved.queries}, root)


def _retained(path: str, rest: str, number: int | None, spark: SparkSession) -> Restorable:
    rest = rest.rstrip("/")
    only = None
    if rest.endswith("/checkpoints"):
        rest, _, only = rest.removesuffix("/checkpoints").rpartition("/")
    root = folder_at(rest, spark)
    uids = sorted(name.removesuffix(".json") for name in root.names("queries") if name.endswith(".json"))
    if not uids:
        raise SavepointIncomplete(
            f"{path} names a checkpoint, but {root.location} is not the folder of a job.",
            safe="nothing was started or changed.",
            to_do="give STORAGE/JOB/chk-N, with the storage and the name of the job it belongs to.",
        )
    if only is not None or len(uids) == 1:
        history, epochs = _query_epoch(root, only or uids[0], number, path)
    else:
        history, epochs = _global_epochs(root, number)
    folders = {uid: root.at(f"{uid}/{history}") for uid in epochs}
    for uid in epochs:
        _refuse_waiting(root, uid)
    queries = {uid: _query(root, uid, folders[uid], epoch, spark) for uid, epoch in epochs.items()}
    job = root.location.rpartition("/")[2]
    identity = f"{job}-chk-{'-'.join(str(one) for one in epochs.values())}-{history}"
    saved = Savepoint(identity, Kind.NATIVE, job, 0.0, "", str(spark.version), queries, {})
    return Restorable(path, saved, True, folders, root)


def _global_epochs(root: Folder, number: int | None) -> tuple[str, dict[str, int]]:
    """History and epochs of a global checkpoint, the newest where none is named."""
    from penstock.checkpoint.global_record import FOLDER, recorded

    there = recorded(root.storage)
    number = there[-1] if number is None and there else number
    data = None if number is None else root.storage.read(f"{FOLDER}/{number:010d}.json")
    if data is None:
        raise SavepointIncomplete(
            f"There is no global checkpoint {number} in {root.location}; there are {there}.",
            safe="nothing was started or changed.",
            to_do="name one of those, or take a savepoint.",
        )
    body = unseal("global", data, f"{root.location}/{FOLDER}")
    epochs = {uid: int(one["epoch"]) for uid, one in body["queries"].items()}
    return str(body.get("history", FIRST)), epochs


def _query_epoch(root: Folder, uid: str, number: int | None, path: str) -> tuple[str, dict[str, int]]:
    """History and epoch of one query: in the history that counts, or else in the one before it."""
    histories = Histories(root.storage).kept()
    if number is None:
        number = SparkLog(root.at(f"{uid}/{histories[0]}").storage).next_epoch()[0] - 1
    for history in histories:
        if root.storage.read(f"{uid}/{history}/commits/{number}") is not None:
            return history, {uid: number}
    complete = [name for name in root.names(f"{uid}/{histories[0]}/commits") if name.isdigit()]
    raise SavepointIncomplete(
        f"{path} is not there: epoch {number} of query {uid!r} is not complete, or not kept any more.",
        safe="nothing was started or changed.",
        to_do=f"name one of {', '.join(sorted(complete, key=int)) or 'those that will come'}.",
    )


def _refuse_waiting(root: Folder, uid: str) -> None:
    waiting = [name for name in root.files(f"{uid}/inflight") if "/backlog/" in name]
    if waiting:
        raise SavepointError(
            f"Query {uid!r} in {root.location} has {len(waiting)} epochs in its in-flight log that are not delivered"
            " yet; a restore would leave them behind.",
            safe="nothing was started or changed.",
            to_do="start that job as it is and let it deliver them, or take a savepoint, which waits for them.",
        )


def _query(root: Folder, uid: str, folder: Folder, epoch: int, spark: SparkSession) -> SavedQuery:
    from penstock.spark_state.operators import read_operators

    spark_log = SparkLog(folder.storage)
    barrier, query_id = spark_log.barrier(epoch), spark_log.query_id()
    if barrier is None or query_id is None:
        needed(folder, epoch)  # says what is missing
        raise AssertionError("unreachable")
    conf: dict[str, Any] = barrier.metadata.get("conf", {})
    stateful = bool(folder.names("state"))
    found = read_operators(spark, folder.location, epoch) if stateful else ()
    ledger = Ledger(root.at(f"{uid}/ledger").storage)
    return SavedQuery(
        epoch=epoch,
        query_id=query_id,
        generation=ledger.newest_generation(),
        sources=_sources(root, uid, epoch, ledger, barrier.offsets),
        sinks={},
        watermark=spark_log.committed_watermark(epoch),
        backend=backend_of(conf) if stateful else None,
        partitions=int(conf[PARTITIONS]) if stateful else None,
        output_mode="",
        operators=tuple(json.loads(json.dumps(dataclasses.asdict(operator))) for operator in found),
    )


def _sources(root: Folder, uid: str, epoch: int, ledger: Ledger, offsets: Sequence[Any]) -> tuple[str | None, ...]:
    """The uids behind the positions: from the checkpoint's record, or from what the last run said of itself."""
    name = f"{uid}/checkpoints/chk-{epoch}.json"
    data = root.storage.read(name)
    if data is not None:
        try:
            positions = CheckpointRecord.of(data, name).positions
            if [offset for _, offset in positions] == list(offsets):  # otherwise it is of another history
                return tuple(source for source, _ in positions)
        except LedgerError:
            pass  # a record is never needed; the ledger says it too
    newest = ledger.newest_generation()
    facts = ledger.generation(newest) if newest else None
    known = tuple(facts["sources"]) if facts is not None else ()
    if len(known) == len(offsets):
        return known
    raise SavepointError(
        f"It is not known which source of query {uid!r} stands at which position of epoch {epoch}.",
        safe="nothing was started or changed.",
        to_do="restore a checkpoint whose record (checkpoints/chk-N.json) is still there, or a savepoint.",
    )
