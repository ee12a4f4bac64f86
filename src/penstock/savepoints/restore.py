"""Restoring: a copy of a savepoint or checkpoint, made to fit the program, becomes the job's checkpoint in one step.

What is restored from is seen to be whole and mapped to the program. Then the restore registers: it reserves a number
and fences the job's last run, which may only be believed dead; from here on that adds nothing to what is visible. Then
it builds a copy beside the job's checkpoint, under a new name. The last step sees that the copy is whole and that no
other restore or run has begun since, and records the restore: from here on it is the job's checkpoint. See `history`.

What is restored from is only ever read, unless it is the job's own checkpoint: then registering comes first and
recovers it, as a start would, since Spark's log as it is may lack what is decided. Killed before the record, the job is
what it was.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.checkpoint import layout
from penstock.checkpoint.history import Histories, Restored
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import query_of
from penstock.checkpoint.spark_files import needed
from penstock.checkpoint.spark_log import SparkLog, join_offsets, split_offsets
from penstock.config.state import Backend
from penstock.errors import NotRestorable
from penstock.failpoints import failpoint
from penstock.progress import Progress, silent
from penstock.savepoints import restorable as restorables
from penstock.savepoints.restorable import Fate, ProgramQuery, QueryMapping, ReportLine, Restorable, RestoreMapping
from penstock.savepoints.savepoint import Kind
from penstock.spark.settings import wanted_format
from penstock.spark_state.metadata import plan_operators, read_metadata, relocate
from penstock.storage.local import tree_at
from penstock.storage.storage import same_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.operations import Recovery
    from penstock.contracts.source import QueryPlan
    from penstock.events import Events
    from penstock.storage.tree import Tree

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class RestoreResult:
    """What a restore came to. `beyond`: for each query the epochs after the savepoint whose output is visible."""

    restored: Restored
    mapped: RestoreMapping | None  # None: it was carried out by an earlier start
    beyond: Mapping[str, tuple[int, int]]
    drained: bool = False


class Predecessor(Protocol):
    """The last run of the job that is restored, which may only be believed dead."""

    def fence(self, *, finish: bool) -> None:
        """It decides nothing from here on. `finish`: what it has decided is visible and in Spark's log."""

    def refuse_superseded(self) -> None:
        """Raise where another run has begun since."""


class Restorer:
    """Restores one job; `location` is its folder."""

    def __init__(
        self, job: str, location: str, spark: SparkSession, predecessor: Predecessor, progress: Progress = silent
    ) -> None:
        self._job, self._spark, self._progress = job, spark, progress
        self._predecessor = predecessor
        self._folder = tree_at(location, spark)
        self._histories = Histories(self._folder.storage)

    def restore(self, recovery: Recovery, plans: Mapping[str, QueryPlan], asked: Mapping[str, Any]) -> RestoreResult:
        """Do what `recovery` says, once: a start with the same restore id, or from the same savepoint where none is
        given, goes on from the job's own checkpoint. `asked`: `partitions` and `backend`, where they are set."""
        assert recovery.path is not None
        done = self._histories.find(recovery.restore_id) if recovery.restore_id else None
        if done is not None:
            return RestoreResult(done, None, {})
        job_path = restorables.job_folder(recovery.path, self._spark)
        if job_path is not None and same_place(job_path, self._folder.location):
            number, history = self._register(finish=True)
            restorable = restorables.open_restorable(recovery.path, self._spark, at_rest=True)
        else:
            restorable, number, history = restorables.open_restorable(recovery.path, self._spark), 0, ""
        restore_id = recovery.restore_id or f"savepoint-{restorable.saved.id}"
        done = self._histories.find(restore_id)
        if done is not None:
            log.warning("%s was restored before; the job goes on from its own checkpoint", recovery.path)
            return RestoreResult(done, None, {})
        restorable.verify(self._progress)
        program = {uid: self._program(plan, asked) for uid, plan in plans.items()}
        mapped = restorables.compare(restorable.saved, program, allow=recovery.allow_non_restored)
        self._choose_formats(restorable, mapped)
        mapped.require(recovery.path)
        if not number:
            number, history = self._register(finish=False)
        beyond = self._epochs_beyond(restorable)
        failpoint("restore.verified")
        restored = Restored(
            id=restore_id,
            source=recovery.path,
            savepoint=restorable.saved.id,
            time=time.time(),
            history=history,
            epochs={uid: restorable.saved.queries[uid].epoch for uid in mapped.queries},
            claim=recovery.claim == "claim" and not restorable.retained,
            number=number,
        )
        try:
            self._carry_out(restorable, mapped, restored)
        except Exception:
            self._histories.refuse_newer(number)  # the cause of everything else: it has removed what this one built
            raise
        failpoint("restore.recorded")
        self._tidy(plans, number)
        return RestoreResult(restored, mapped, beyond, restorable.saved.drained)

    def _register(self, *, finish: bool) -> tuple[int, str]:
        """The number of this restore, and the name of the folders that it builds."""
        history = layout.history(secrets.token_hex(6))
        number = self._histories.reserve(history)
        self._predecessor.fence(finish=finish)
        return number, history

    def _carry_out(self, restorable: Restorable, mapped: RestoreMapping, restored: Restored) -> None:
        targets = {uid: self._folder.at(f"{uid}/{restored.history}") for uid in mapped.queries}
        for uid, mapping in mapped.queries.items():
            self._build(restorable, uid, mapping, targets[uid])
            # Before it counts: Spark has synced neither the state that was linked nor what it wrote.
            targets[uid].sync_all(self._progress)
        for uid, target in targets.items():
            needed(target, restored.epochs[uid])
        self._predecessor.refuse_superseded()
        self._histories.record(restored)
        self._predecessor.refuse_superseded()

    def _program(self, plan: QueryPlan, asked: Mapping[str, Any]) -> ProgramQuery:
        operators: tuple[dict[str, Any], ...] | None = None
        try:
            operators = plan_operators(plan.frame, plan.output_mode)
        except Exception as error:
            log.warning("query %s: its stateful operators could not be read beforehand: %s", plan.uid, error)
        parallelism, backend = asked.get("partitions"), asked.get("backend")
        return ProgramQuery(list(plan.positions), list(plan.sinks), operators, parallelism, backend)

    def _choose_formats(self, restorable: Restorable, mapped: RestoreMapping) -> None:
        """The session names the format of Spark's state, where it does; that of hashmap is always 1."""
        wanted = wanted_format(self._spark)
        for uid, mapping in mapped.queries.items():
            saved = restorable.saved.queries[uid]
            was = SparkLog(restorable.folders[uid].storage).commit(saved.epoch)
            goal = "1" if wanted is None and mapping.backend == Backend.HASHMAP else wanted
            if was is not None and goal not in (None, was.format):
                mapping.state_format = goal
                mapped.lines.append(ReportLine(uid, "format of state", Fate.KEPT, f"{was.format} → {goal}"))

    def _build(self, restorable: Restorable, uid: str, mapping: QueryMapping, target: Tree) -> None:
        saved, source = restorable.saved.queries[uid], restorable.folders[uid]
        names = restorable.files(uid)
        rewrites = any(change is not None for change in (mapping.partitions, mapping.backend, mapping.state_format))
        stateful, canonical = bool(saved.operators), restorable.saved.kind is Kind.CANONICAL
        if mapping.operators is not None and (rewrites or canonical):
            raise NotRestorable(
                f"Query {uid!r} leaves some of its stateful operators behind and changes its parallelism or backend"
                " at once, or comes from a canonical savepoint.",
                to_do="do it in two steps: restore the changed program first, take a savepoint, then rescale.",
            )
        if canonical or rewrites:
            logs = {name: name for name in names if not name.startswith(f"{layout.STATE}/")}
            target.take(source, logs, self._progress)
        else:
            target.take(source, _renumber(names, mapping.operators), self._progress)
            self._describe(source, target, saved.epoch, mapping.operators)
        failpoint("restore.copied")
        if stateful and canonical:
            from penstock.savepoints.canonical import load

            wanted = (mapping.partitions or saved.partitions, mapping.backend or saved.backend)
            state = f"{restorable.root.location}/{layout.saved_state(uid)}"
            load(self._spark, state, target.location, saved.epoch, *wanted, mapping.state_format, self._progress)
            failpoint("restore.rewritten")
        elif rewrites:
            from penstock.spark_state.rewrite import rewrite

            rewrite(
                self._spark,
                source.location,
                saved.epoch,
                target.location,
                partitions=mapping.partitions,
                backend=mapping.backend,
                state_format=mapping.state_format,
                progress=self._progress,
            )
            failpoint("restore.rewritten")
        self._make_own(target, mapping, len(saved.sources))

    def _make_own(self, target: Tree, mapping: QueryMapping, positions: int) -> None:
        """An id of its own, so that the original may run beside it; positions in the program's order."""
        target.put(layout.QUERY_ID, json.dumps({"id": str(uuid.uuid4())}).encode())
        if mapping.sources == list(range(positions)):
            return
        for epoch in target.names(layout.OFFSETS):
            data = target.storage.read(layout.offsets(epoch))
            assert data is not None
            version, metadata, offsets = split_offsets(data)
            lines = dict(enumerate(offsets))
            chosen = ["-" if position is None else lines.get(position, "-") for position in mapping.sources]
            target.put(layout.offsets(epoch), join_offsets(version, metadata, chosen))
        notes = target.files(layout.SOURCES)
        if notes:
            moved = {}
            for new, old in enumerate(mapping.sources):
                start = f"{layout.source(str(old))}/"
                moved.update({name: f"moved/{new}/{name[len(start) :]}" for name in notes if name.startswith(start)})
            target.take(target, moved)
            target.delete(layout.SOURCES)
            target.take(target, {name: layout.source(name.removeprefix("moved/")) for name in target.files("moved")})
            target.delete("moved")

    def _describe(self, source: Tree, target: Tree, epoch: int, chosen: list[int] | None) -> None:
        """Spark's description of an operator carries its number, and some carry full paths: those of the copy."""
        if chosen is None:
            relocate(target, epoch)
            return
        before = {operator.id: operator for operator in read_metadata(source, epoch)}
        for new, old in enumerate(chosen):
            replace(before[old], id=new).write(target)

    def _epochs_beyond(self, restorable: Restorable) -> dict[str, tuple[int, int]]:
        """Output of this very job after the savepoint: it is visible already, and the restored job makes it again. The
        ledger is asked, too: after a power cut Spark's log may lack what is visible."""
        beyond = {}
        current = self._histories.current()
        for uid, saved in restorable.saved.queries.items():
            spark_log = SparkLog(self._folder.at(f"{uid}/{current}").storage)
            ledger = Ledger(self._folder.at(f"{uid}/{layout.LEDGER}").storage)
            query = query_of(ledger, spark_log)
            if query is None:
                continue
            epoch, pending = spark_log.next_epoch()
            decided = [decision.id.epoch for decision in ledger.decisions_since(min(saved.epoch + 1, epoch - 1), query)]
            begun = epoch if pending and not decided else epoch - 1  # without decisions, what is begun may be visible
            newest = max([begun, *decided])
            if newest > saved.epoch:
                beyond[uid] = (saved.epoch + 1, newest)
        return beyond

    def _tidy(self, plans: Mapping[str, QueryPlan], number: int) -> None:
        """Remove histories that a restore has replaced long ago, and what restores before this one have left: they were
        killed, or end with an error."""
        for uid in plans:
            for name in self._histories.unneeded(uid, number):
                try:
                    self._folder.delete(name)
                except Exception as error:
                    log.warning("%s is not needed any more and could not be deleted: %s", name, error)


def _renumber(names: list[str], chosen: list[int] | None) -> dict[str, str]:
    if chosen is None:
        return {name: name for name in names}
    new = {str(old): str(number) for number, old in enumerate(chosen)}
    renumbered = {}
    for name in names:
        top, *rest = name.split("/")
        if top != layout.STATE:
            renumbered[name] = name
        elif rest[0] in new:
            renumbered[name] = "/".join([layout.STATE, new[rest[0]], *rest[1:]])
    return renumbered


def report_restore(result: RestoreResult, events: Events) -> None:
    restored = result.restored
    assert result.mapped is not None
    log.info("restored from %s; what maps to what:\n%s", restored.source, result.mapped.report())
    for uid, (first, last) in sorted(result.beyond.items()):
        log.warning(
            "query %s goes on from epoch %d, but output of the epochs %d to %d is visible already and will be made a"
            " second time, where the sink does not replace it",
            uid,
            restored.epochs[uid],
            first,
            last,
        )
    if result.drained:
        late = "%s was made by a stop with --drain: all windows are closed, and rows that come now are late for them"
        log.warning(late, restored.source)
    events.emit(
        "restored",
        query=None,
        path=restored.source,
        epochs=dict(restored.epochs),
        beyond={uid: list(one) for uid, one in result.beyond.items()},
        report=[[line.query, line.what, line.fate.value, line.detail] for line in result.mapped.lines],
        claim=restored.claim,
        drained=result.drained,
    )
