"""What a job can be restored from, by its path: a savepoint, a retained checkpoint, the newest checkpoint of a job. The
forms of a path: docs/concepts/savepoints.md.

And what of it goes where in a program: worked out before anything is copied, and shown. That is pure: it compares
descriptions. Queries, sources and sinks are matched by their uids. Stateful operators have no names in Spark, only
positions; they are matched in their order by what they are and by the columns they keep state under.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
from penstock.errors import LedgerCorrupt, LedgerError, NotRestorable, SavepointError, SavepointIncomplete
from penstock.progress import Progress, silent
from penstock.savepoints import savepoint
from penstock.savepoints.savepoint import METADATA, Kind, SavedQuery, Savepoint
from penstock.storage.local import tree_at
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


@dataclass(frozen=True, slots=True)
class ProgramQuery:
    """What the program has under a uid. `operators` as `describe_operator` shows them, None where the plan could
    not be looked at: then Spark compares, when it starts."""

    sources: Sequence[str | None]
    sinks: Sequence[str]
    operators: Sequence[Mapping[str, Any]] | None
    partitions: int | None = None  # asked for; None: as it was
    backend: str | None = None


class Fate(StrEnum):
    KEPT = "kept"
    NEW = "new"
    LEFT = "left behind"
    IMPOSSIBLE = "cannot be kept"


@dataclass(frozen=True, slots=True)
class ReportLine:
    query: str
    what: str
    fate: Fate
    detail: str = ""


@dataclass
class QueryMapping:
    """How one query is carried over. `sources`: for each position of the program, the saved position or None.
    `operators`: for each operator of the program its number in the savepoint; None: as they are."""

    sources: list[int | None] = field(default_factory=list)
    operators: list[int] | None = None
    partitions: int | None = None  # a change
    backend: str | None = None  # a change
    state_format: str | None = None  # a change


@dataclass
class RestoreMapping:
    """All of it. `queries` are those that are restored."""

    queries: dict[str, QueryMapping] = field(default_factory=dict)
    lines: list[ReportLine] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def report(self) -> str:
        details = [f" ({line.detail})" if line.detail else "" for line in self.lines]
        lines = zip(self.lines, details, strict=True)
        return "\n".join(f"  {line.query}: {line.what} {line.fate.value}{detail}" for line, detail in lines)

    def require(self, where: str) -> None:
        """Raise `NotRestorable`, with everything that prevents the restore, if anything does."""
        if self.problems:
            raise NotRestorable(
                f"The program cannot take over {where}:\n"
                + "\n".join(f"  - {problem}" for problem in self.problems)
                + f"\nWhat maps to what:\n{self.report()}",
                safe="nothing was started; the savepoint and the job's checkpoint are as they were.",
                to_do="change the lines named above, or leave behind on purpose what the program no longer has with"
                " --allow-non-restored-state.",
            )


def compare(saved: Savepoint, program: Mapping[str, ProgramQuery], *, allow: bool) -> RestoreMapping:
    """`allow`: what the program does not have any more is left behind."""
    found = RestoreMapping()
    for uid in saved.queries:
        if uid not in program:
            _leave(found, uid, "query", allow, f"the program has the queries {sorted(program)}: give one its uid back")
    for uid, query in program.items():
        before = saved.queries.get(uid)
        if before is None:
            found.lines.append(ReportLine(uid, "query", Fate.NEW, "starts from the beginning"))
            continue
        found.queries[uid] = _map_query(found, uid, before, query, allow)
    return found


def _map_query(found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool) -> QueryMapping:
    mapping = QueryMapping(sources=_map_sources(found, uid, saved, program, allow))
    found.lines.append(ReportLine(uid, "query", Fate.KEPT, f"from epoch {saved.epoch}"))
    for sink in program.sinks:
        found.lines.append(ReportLine(uid, f"sink {sink}", Fate.KEPT if sink in saved.sinks else Fate.NEW))
    for sink in saved.sinks:
        if sink not in program.sinks:
            # Nothing of it is open: all its rows up to the savepoint are committed.
            found.lines.append(ReportLine(uid, f"sink {sink}", Fate.LEFT, "all its rows so far are committed"))
    mapping.operators = _map_operators(found, uid, saved, program, allow)
    if saved.operators:
        if program.partitions is not None and program.partitions != saved.partitions:
            mapping.partitions = program.partitions
            found.lines.append(ReportLine(uid, "parallelism", Fate.KEPT, f"{saved.partitions} → {program.partitions}"))
        if program.backend is not None and program.backend != saved.backend:
            mapping.backend = program.backend
            found.lines.append(ReportLine(uid, "state backend", Fate.KEPT, f"{saved.backend} → {program.backend}"))
    return mapping


def _map_sources(
    found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool
) -> list[int | None]:
    free: dict[str | None, list[int]] = {}
    for position, name in enumerate(saved.sources):
        free.setdefault(name, []).append(position)
    chosen: list[int | None] = []
    for name in program.sources:
        positions = free.get(name)
        chosen.append(positions.pop(0) if positions else None)
        fate = Fate.KEPT if positions is not None and chosen[-1] is not None else Fate.NEW
        detail = "" if fate is Fate.KEPT else "read from its own start"
        found.lines.append(ReportLine(uid, f"source {_source_name(name)}", fate, detail))
    for name, positions in free.items():
        for _ in positions:
            reads = [_source_name(source) for source in program.sources]
            hint = f"the program reads {reads}: give the source its uid back"
            _leave(found, uid, f"source {_source_name(name)}", allow, hint)
    if None in program.sources and any(position is None for position in chosen) and len(saved.sources) > 1:
        found.problems.append(
            f"query {uid!r} reads a stream without a uid, and there are several: read it by job.read(…, uid=…)"
        )
    twice = any(len(set(names)) < len(names) for names in (saved.sources, program.sources))
    if twice and chosen != list(range(len(saved.sources))):
        found.problems.append(
            f"query {uid!r} uses a source twice, and then Spark numbers what sources keep otherwise than their"
            " positions: leave all its sources, and their order, as they were"
        )
    return chosen


def _map_operators(
    found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool
) -> list[int] | None:
    if program.operators is None:
        for operator in saved.operators:
            detail = "Spark compares its columns when it starts"
            found.lines.append(ReportLine(uid, _operator(operator), Fate.KEPT, detail))
        return None
    chosen: list[int] = []
    unmatched = list(saved.operators)
    for operator in program.operators:
        alike = [before for before in unmatched if before["name"] == operator["name"]]
        same = next((before for before in alike if not columns_changed(before, operator)), None)
        if same is None:
            if alike:
                similar = alike[0]
                unmatched.remove(similar)
                what = columns_changed(similar, operator)
                found.lines.append(ReportLine(uid, _operator(similar), Fate.IMPOSSIBLE, what))
                found.problems.append(
                    f"query {uid!r}: the state of operator {similar['id']} ({similar['name']}) was kept under other"
                    f" columns: {what}. Bring the columns of this operation back, or give the query another uid to"
                    " start over"
                )
            else:
                detail = "it has no state in the savepoint"
                found.lines.append(ReportLine(uid, _operator(operator), Fate.IMPOSSIBLE, detail))
                found.problems.append(
                    f"query {uid!r}: operator {operator['id']} ({operator['name']}) is new; Spark cannot add a"
                    " stateful operation to a query that goes on. Put it into a query of its own, with a uid of its own"
                )
            continue
        unmatched.remove(same)
        chosen.append(int(same["id"]))
        found.lines.append(ReportLine(uid, _operator(same), Fate.KEPT))
    for operator in unmatched:
        _leave(found, uid, _operator(operator), allow, "bring the operation back")
    return chosen if chosen != sorted(int(operator["id"]) for operator in saved.operators) else None


def columns_changed(saved: Mapping[str, Any], program: Mapping[str, Any]) -> str:
    """How the columns of two operators differ; empty if they do not, as far as is known."""
    stores = {store["name"]: store for store in program["stores"]}
    for before in saved["stores"]:
        now = stores.get(before["name"])
        if now is None:
            continue
        for part in ("key_schema", "value_schema"):
            old, new = before.get(part), now.get(part)
            if old is not None and new is not None and _columns(old) != _columns(new):
                return f"{part.partition('_')[0]} {_show_columns(old)} → {_show_columns(new)}"
    return ""


def _columns(schema: Mapping[str, Any]) -> list[Any]:
    """What must stay: the types, in their order. Spark does not look at the names of key columns either."""
    return [_plain(column["type"]) for column in schema.get("fields", [])]


def _plain(kind: Any) -> Any:
    if not isinstance(kind, Mapping):
        return kind
    if kind.get("type") == "struct":
        return ["struct", [_plain(column["type"]) for column in kind.get("fields", [])]]
    return {key: _plain(value) for key, value in kind.items() if key not in ("containsNull", "valueContainsNull")}


def _show_columns(schema: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{column['name']} {_type_name(column['type'])}" for column in schema.get("fields", []))
    return f"({columns})"


def _type_name(kind: Any) -> str:
    return str(kind.get("type", kind)) if isinstance(kind, Mapping) else str(kind)


def _leave(found: RestoreMapping, uid: str, what: str, allow: bool, hint: str) -> None:
    fate, detail = (Fate.LEFT, "") if allow else (Fate.IMPOSSIBLE, "not in the program")
    found.lines.append(ReportLine(uid, what, fate, detail))
    if not allow:
        found.problems.append(f"query {uid!r}: {what} is in the savepoint and not in the program; {hint}")


def _operator(operator: Mapping[str, Any]) -> str:
    return f"operator {operator['id']} ({operator['name']})"


def _source_name(uid: str | None) -> str:
    return uid or "without a uid"
