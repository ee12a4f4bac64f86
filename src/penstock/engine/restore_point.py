"""What a start of a job resumes from, its own checkpoint or a savepoint to restore; and whether the program fits it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.checkpoint.history import Histories, Restored
from penstock.checkpoint.layout import FIRST, LEDGER, QUERIES, QUERY_VERSION, query_file, query_uids
from penstock.checkpoint.ledger import Ledger
from penstock.config.resolve import Settings
from penstock.contracts.source import QueryPlan
from penstock.engine import protocol, settlement
from penstock.engine.driver import explain_stop
from penstock.engine.lane_set import end_lanes
from penstock.engine.settlement import JobLedgers, QueryLedger
from penstock.events import Events
from penstock.progress import throttled
from penstock.savepoints import savepoint
from penstock.savepoints.restore import Restorer, report_restore
from penstock.spark.settings import require_same_parallelism
from penstock.storage.local import tree_at, tree_of
from penstock.storage.storage import AlreadyExists, Storage
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_REPORT_SECONDS = 1.0


@dataclass
class RestorePoint:
    """One start of a job. `storage` is the job's folder; `allow`: drop queries that only the checkpoint knows."""

    job: str
    plans: Mapping[str, QueryPlan]
    settings: Settings
    storage: Storage
    spark: SparkSession
    allow: bool
    _current: str = FIRST

    def history(self, events: Events) -> str:
        """Restore if that is asked for and not done yet; the name of the history that the job resumes from."""
        recovery, result = self.settings.recovery, None
        if recovery.path is not None:
            report = throttled(lambda step: events.emit("restoring", query=None, **asdict(step)), _REPORT_SECONDS)
            last = LastRun(tree_of(self.storage), self.plans, self.spark)
            restorer = Restorer(self.job, self.storage.location, self.spark, last, report)
            wanted = replace(recovery, allow_non_restored=self.allow)
            result = restorer.restore(wanted, self.plans, self.settings.state_request)
        histories = Histories(self.storage)
        current = self._current = histories.current()
        if result is not None and result.mapped is not None:
            for name in self.storage.list(QUERIES):
                self.storage.delete(f"{QUERIES}/{name}")  # the restore has settled what the program takes over
            report_restore(result, events)
        else:
            require_same_parallelism(self.spark, self.storage.location, current, self.plans, self.settings)
        claim = Claim.of(next(reversed(histories.all()), None), self.plans, self.spark)
        if claim is not None:
            events.listen(claim)
        return current

    def refuse_replaced(self) -> None:
        """Call after a run has registered: where a restore was recorded meanwhile, its history counts; one that is not
        recorded yet never will be. As in the epoch protocol, each side first writes and then looks."""
        histories = Histories(self.storage)
        histories.void_unrecorded()
        if histories.current() != self._current:
            raise errors.Superseded(
                f"Job {self.job!r} was restored while this run started.",
                safe="this run has started no query; what is restored counts.",
                to_do="nothing if the restored job runs; otherwise start it again.",
            )

    def check_uids(self) -> None:
        """Refuse to lose a query that only the checkpoint knows, or to start a renamed one over."""
        known = set(query_uids(self.storage.list(QUERIES)))
        gone = sorted(known - self.plans.keys())
        if gone and not self.allow:
            new = sorted(self.plans.keys() - known)
            raise errors.UidChanged(
                f"The checkpoint of job {self.job!r} has the queries {sorted(known)}, the program has"
                f" {sorted(self.plans)}: {gone} would be left behind"
                + (f" and {new} start from the beginning." if new else "."),
                safe="nothing was started; the checkpoint is as it was.",
                to_do="give the query its former uid, or leave it behind on purpose by allow_non_restored_state=True.",
            )
        for uid in gone:
            self.storage.delete(query_file(uid))  # allowed once and for all; its folder stays
        for uid, plan in self.plans.items():
            with suppress(AlreadyExists):
                facts = {"version": QUERY_VERSION, "sources": list(plan.sources), "sinks": sorted(plan.sinks)}
                self.storage.create(query_file(uid), json.dumps(facts).encode())


class LastRun:
    """See `savepoints.restore.Predecessor`. `folder` is the job's."""

    def __init__(self, folder: Tree, plans: Mapping[str, QueryPlan], spark: SparkSession) -> None:
        self._folder, self._plans, self._spark = folder, plans, spark
        self._generations = dict.fromkeys(plans, 0)

    def fence(self, *, finish: bool) -> None:
        """Register as the newest run of every query. `finish`: recover those of the program, as a start would, by the
        same protocol; raises `SavepointError` where that takes the plan, and so a start."""
        try:
            ledgers = JobLedgers.at(self._folder.location, self._spark)
        except errors.ConfigurationError:
            return  # the job has never run
        for query in ledgers.queries:
            recovers = finish and query.uid in self._plans
            register = self._finish if recovers else settlement.fence
            self._generations[query.uid] = register(ledgers, query)
            if query.uid in self._plans:
                self._end_lanes(ledgers.job, query, finish=finish)

    def refuse_superseded(self) -> None:
        """Raise `Superseded` where a run has registered since: the copy lacks what it does."""
        for uid in self._generations:
            self._refuse_newer(uid)

    def _refuse_newer(self, uid: str) -> None:
        generation = self._generations[uid]
        newest = Ledger(self._folder.at(f"{uid}/{LEDGER}").storage).newest_generation()
        if newest > generation:
            raise explain_stop(protocol.Fenced(generation, newest), uid, self._folder.location)

    def _end_lanes(self, job: str, query: QueryLedger, *, finish: bool) -> None:
        """A real-time query decides in its sink: fence it there. `finish`: what became visible is in the copy."""
        plan, generation, look = (
            self._plans[query.uid],
            self._generations[query.uid],
            partial(self._refuse_newer, query.uid),
        )
        record = partial(settlement.record, job, query, generation) if finish else None
        try:
            end_lanes(job, plan, query.log, generation, look, record, keep=True)
        except errors.MarksLost as error:  # a restore is what a person does about it
            log.warning("rows that became visible after the newest checkpoint are written again: %s", error.happened)

    def _finish(self, ledgers: JobLedgers, query: QueryLedger) -> int:
        try:
            return settlement.finish(ledgers, query, self._plans[query.uid].sinks)
        except (errors.TransactionRefused, errors.WritersLost) as error:
            raise errors.SavepointError(
                f"The newest checkpoint of query {query.uid!r} cannot be finished without its plan: {error.happened}",
                safe="nothing was restored; what is decided is kept.",
                to_do="start the job once without -s and let it complete an epoch; then restore.",
            ) from error


class Claim:
    """Claim mode: a savepoint that a job was restored from belongs to it, and is deleted when no longer needed.

    It is needed until every query of the job has completed an epoch after the restore: until then a restart might need
    it. A job that dies before finds the claim in its record of the restore. An event listener; it disposes of the
    savepoint once, in a thread of its own.
    """

    def __init__(self, restored: Restored, queries: Iterable[str], spark: SparkSession) -> None:
        self._restored, self._spark = restored, spark
        self._waiting = set(queries)
        self.thread: threading.Thread | None = None

    @classmethod
    def of(cls, restored: Restored | None, queries: Iterable[str], spark: SparkSession) -> Claim | None:
        """None where nothing is claimed, or it is gone already: another savepoint in its place does not count."""
        if restored is None or not restored.claim:
            return None
        try:
            claimed = savepoint.read(tree_at(restored.source, spark))
        except errors.SavepointIncomplete:
            return None
        return cls(restored, queries, spark) if claimed.id == restored.savepoint else None

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "completed" or self.thread is not None:
            return
        self._waiting.discard(str(event["query"]))
        if not self._waiting:
            self.thread = threading.Thread(target=self._dispose, name="penstock-claim", daemon=True)
            self.thread.start()

    def _dispose(self) -> None:
        source = self._restored.source
        try:
            savepoint.dispose(source, self._spark)
            log.info("deleted %s, which this job had claimed and no longer needs", source)
        except Exception as error:
            log.warning("could not delete %s, which this job had claimed: %s", source, error)
