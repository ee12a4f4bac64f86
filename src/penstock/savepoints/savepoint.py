"""A savepoint: the whole job between two epochs, in one folder that can be moved anywhere: docs/concepts/savepoints.md.

`_metadata` is one sealed line of JSON, created in one step, after everything else. A folder without it is no savepoint,
however much is in it: nothing ever reads one. No path inside is absolute.

`Taker` takes one. It holds every query after a complete epoch, so that what is complete is a consistent cut: none has
read a row that is not in the savepoint's past. The queries pause only while files are linked or copied; the rest runs
beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.checkpoint import layout
from penstock.checkpoint.layout import SAVEPOINT, known_fields, seal, unseal
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import restore_barrier
from penstock.checkpoint.spark_files import needed
from penstock.checkpoint.spark_log import Barrier, SparkLog
from penstock.config.state import PARTITIONS, backend_of
from penstock.contracts.sink import SinkScope
from penstock.errors import PenstockError, SavepointCorrupt, SavepointError, SavepointIncomplete
from penstock.failpoints import failpoint
from penstock.naming import safe_name, safe_part
from penstock.progress import Progress, silent
from penstock.spark_state.metadata import read_metadata, read_operators
from penstock.storage.local import storage_at, tree_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.contracts.source import QueryPlan
    from penstock.storage.tree import Tree

METADATA = SAVEPOINT
_KIND = "savepoint"
_TRIES = 3  # Spark may delete a file between listing and linking
_NAME = re.compile(r"^savepoint-.+-[0-9a-f]{12}$")


class Kind(StrEnum):
    """`native`: Spark's own files, as they are: quick, for the same backend and parallelism at no cost.
    `canonical`: state as Parquet with its schema, whatever backend, parallelism or version wrote it."""

    NATIVE = "native"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class SavedSink:
    """Where a sink's rows went. `prefix` names what it may have left in the other system."""

    kind: str
    where: str
    prefix: str


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """One query at its epoch. `sources` are the uids behind Spark's positions, in their order; `backend` and
    `partitions` are None for a query that keeps no state. `operators` as
    `spark_state.metadata.describe_operator` shows them."""

    epoch: int
    query_id: str
    generation: int
    sources: tuple[str | None, ...]
    sinks: Mapping[str, SavedSink]
    watermark: int | None
    backend: str | None
    partitions: int | None
    output_mode: str
    operators: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What `_metadata` says. `files` are all others, with size and SHA-256. `drained`: made by a stop that emitted
    the final results of all windows, so that rows which come later are late."""

    id: str
    kind: Kind
    job: str
    created: float
    penstock: str
    spark: str
    queries: Mapping[str, SavedQuery]
    files: Mapping[str, tuple[int, str]] = field(repr=False)
    drained: bool = False
    mode: str = "exactly_once"

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    def to_bytes(self) -> bytes:
        return seal(_KIND, dataclasses.asdict(self))

    @classmethod
    def of(cls, data: bytes, where: str) -> Savepoint:
        """What is in `data`, whichever version wrote it; a field that this version does not know is passed over."""
        body = unseal(_KIND, data, where)
        queries = {safe_part(uid, where): _query(one) for uid, one in body["queries"].items()}
        files = {safe_name(name, where): (int(size), str(digest)) for name, (size, digest) in body["files"].items()}
        return cls(**known_fields(cls, {**body, "kind": Kind(body["kind"]), "queries": queries, "files": files}))


def read(folder: Tree) -> Savepoint:
    """The savepoint in `folder`; `SavepointIncomplete` where there is none."""
    data = folder.storage.read(METADATA)
    if data is None:
        raise _no_savepoint(folder)
    return Savepoint.of(data, f"{folder.location}/{METADATA}")


def _no_savepoint(folder: Tree) -> SavepointIncomplete:
    place, names = folder.location, folder.names()
    happened = f"{place} has no {METADATA}, so it is not a savepoint."
    to_do = "give the folder that holds `_metadata`, or a retained checkpoint as STORAGE/JOB/chk-N."
    inside = []
    for name in sorted(names)[:1000]:
        with contextlib.suppress(PenstockError, OSError):  # a link, for example
            inside += [name] if folder.storage.read(f"{name}/{METADATA}") is not None else []
    if not names:
        happened = f"{place} does not exist, or is empty."
    elif inside:
        happened, to_do = f"{place} is not a savepoint; these are in it: {', '.join(inside)}.", "name one of them."
    elif _NAME.match(place.rstrip("/").rpartition("/")[2]) and folder.files():
        happened = f"{place} has no {METADATA}, so it is a savepoint that was never finished."
        to_do = "use another savepoint; this one can be removed by `penstock savepoint --dispose`."
    return SavepointIncomplete(happened, to_do=to_do)


def verify(folder: Tree, saved: Savepoint, progress: Progress = silent) -> None:
    """See that every file is there and unaltered; `SavepointCorrupt` names the first that is not."""
    present = folder.files()
    for name, (size, _) in saved.files.items():
        if present.get(name) != size:
            damage = f"has {present[name]} bytes instead of {size}" if name in present else "is missing"
            raise _damaged(folder, f"{name} {damage}")
    sizes = {name: size for name, (size, _) in saved.files.items()}
    for name, digest in folder.digests(sizes, progress).items():
        if digest != saved.files[name][1]:
            raise _damaged(folder, f"{name} does not match its checksum")


def dispose(path: str, spark: SparkSession | None = None) -> int:
    """Delete a savepoint, finished or not, and say how many files it had. `_metadata` goes first: from then on it is
    none. A folder that is not one is refused."""
    folder = tree_at(path, spark)
    files = folder.files()
    unfinished = METADATA not in files and files and _NAME.match(folder.location.rstrip("/").rpartition("/")[2])
    if not unfinished:
        read(folder)  # raises for what is not one, of a newer version, or altered: not ours to delete
    folder.storage.delete(METADATA)
    folder.delete()
    return len(files)


def read_state(spark: SparkSession, checkpoint: Tree, epoch: int, barrier: Barrier) -> dict[str, Any]:
    """`backend`, `partitions` and `operators` of a query, as `SavedQuery` has them."""
    if not checkpoint.names(layout.STATE):
        return {"backend": None, "partitions": None}
    conf: dict[str, Any] = barrier.metadata.get("conf", {})
    operators = read_operators(spark, checkpoint.location, epoch)
    return {"backend": backend_of(conf), "partitions": int(conf[PARTITIONS]), "operators": operators}


def _damaged(folder: Tree, what: str) -> SavepointCorrupt:
    return SavepointCorrupt(
        f"The savepoint {folder.location} is damaged: {what}.",
        to_do="copy the savepoint again from where it was made, or use another.",
    )


def _query(body: Mapping[str, Any]) -> SavedQuery:
    sinks = {uid: SavedSink(**known_fields(SavedSink, one)) for uid, one in body["sinks"].items()}
    fields = {**body, "sinks": sinks, "sources": tuple(body["sources"]), "operators": tuple(body["operators"])}
    return SavedQuery(**known_fields(SavedQuery, fields))


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """A paused query: where Spark's checkpoint is, and the newest complete epoch there."""

    plan: QueryPlan
    location: str
    epoch: int
    generation: int


Hold = Callable[[], AbstractContextManager[Sequence[HeldQuery]]]  # pauses the queries; they go on when it is left


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """A finished savepoint. The queries paused for `held_ms`, `waited_ms` of it for the epoch under way to end."""

    path: str
    savepoint: Savepoint
    held_ms: float
    waited_ms: float
    total_ms: float


class Taker:
    def __init__(self, job: str, spark: SparkSession, hold: Hold, *, mode: str) -> None:
        self._job, self._spark, self._hold, self._mode = job, spark, hold, mode

    def take(self, directory: str, kind: Kind, *, drained: bool = False, progress: Progress = silent) -> TakenSavepoint:
        """Raises `SavepointError`, or what storage and state refuse with; then there is no savepoint, and the job is
        as it was."""
        id_ = secrets.token_hex(6)
        path = f"{directory.rstrip('/')}/savepoint-{self._job}-{id_}"
        folder = tree_at(path, self._spark)
        began = time.monotonic()
        try:
            with self._hold() as held_queries:
                held = time.monotonic()
                failpoint("savepoint.held")
                for held_query in held_queries:
                    self._copy(held_query, folder, progress)
                released = time.monotonic()
            failpoint("savepoint.copied")
            queries = {held_query.plan.uid: self._describe(held_query, folder) for held_query in held_queries}
            if kind is Kind.CANONICAL:
                for held_query in held_queries:
                    self._write_out(held_query, folder, progress)
            files = folder.files()
            digests = folder.digests(files, progress)
            folder.sync_all(progress)
            checked = {file: (size, digests[file]) for file, size in files.items()}
            versions = (__version__, str(self._spark.version))
            saved = Savepoint(id_, kind, self._job, time.time(), *versions, queries, checked, drained, self._mode)
            failpoint("savepoint.checked")
            folder.storage.create(METADATA, saved.to_bytes())
            failpoint("savepoint.written")
        except BaseException as error:
            with contextlib.suppress(Exception):
                folder.delete()
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            raise SavepointError(
                f"The savepoint of job {self._job!r} in {directory} could not be made: {type(error).__name__}: {error}",
                safe="the job goes on as it was; earlier savepoints are untouched.",
                to_do="see the cause, then ask for the savepoint again.",
            ) from error
        held_ms, waited_ms, total_ms = (round((at - began) * 1000, 1) for at in (released, held, time.monotonic()))
        return TakenSavepoint(path, saved, held_ms, waited_ms, total_ms)

    def _copy(self, held_query: HeldQuery, folder: Tree, progress: Progress) -> None:
        source = tree_at(held_query.location, self._spark)
        target = folder.at(layout.saved_checkpoint(held_query.plan.uid))
        for attempt in range(1, _TRIES + 1):
            try:
                target.take(source, {name: name for name in needed(source, held_query.epoch)}, progress)
                return
            except (FileNotFoundError, PenstockError) as error:
                vanished = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
                if not vanished or attempt == _TRIES:
                    raise
                target.delete()

    def _describe(self, held_query: HeldQuery, folder: Tree) -> SavedQuery:
        copy = folder.at(layout.saved_checkpoint(held_query.plan.uid))
        spark_log = SparkLog(copy.storage)
        ledger = storage_at(f"{held_query.location.rstrip('/').rpartition('/')[0]}/{layout.LEDGER}", self._spark)
        restore_barrier(Ledger(ledger), spark_log, held_query.epoch)
        barrier, query_id = spark_log.barrier(held_query.epoch), spark_log.query_id()
        assert barrier is not None
        assert query_id is not None
        state = read_state(self._spark, copy, held_query.epoch, barrier)
        for described in read_metadata(copy, held_query.epoch):
            if described.version > 1:  # Spark names schema files by full paths; a savepoint has none
                copy.put(layout.operator_description(described.id, described.number), described.body("."))
        return SavedQuery(
            epoch=held_query.epoch,
            query_id=query_id,
            generation=held_query.generation,
            sources=tuple(held_query.plan.positions),
            sinks={
                uid: SavedSink(type(sink).__name__, sink.describe(), SinkScope(self._job, uid, 0).prefix)
                for uid, sink in held_query.plan.sinks.items()
            },
            watermark=spark_log.committed_watermark(held_query.epoch),
            output_mode=held_query.plan.output_mode,
            **state,
        )

    def _write_out(self, held_query: HeldQuery, folder: Tree, progress: Progress) -> None:
        from penstock.savepoints.canonical import export

        uid = held_query.plan.uid
        checkpoint, state = layout.saved_checkpoint(uid), layout.saved_state(uid)
        if folder.names(copied := f"{checkpoint}/{layout.STATE}"):
            source, target = f"{folder.location}/{checkpoint}", f"{folder.location}/{state}"
            export(self._spark, source, held_query.epoch, target, progress)
            folder.delete(copied)
