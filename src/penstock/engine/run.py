"""One run of a job: whether everything it needs is there, then its queries, run as one until the last has ended.

When one query fails, the others finish the epoch under way and stop; then the job's one restart strategy decides, and
all start again. So linked queries never run against a neighbour that is down. Everything here happens in the thread
that called `Job.run`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.checkpoint.layout import QUERIES, query_uids
from penstock.config import Checkpoints, Retention
from penstock.config.resolve import Settings
from penstock.contracts.guarantees import Chain
from penstock.contracts.sink import Finding, TwoPhaseSink
from penstock.contracts.source import QueryPlan, Source, reading
from penstock.deadline import Deadline
from penstock.engine.global_checkpoint import GlobalCheckpoints
from penstock.engine.query import QueryRunner
from penstock.engine.real_time import RealTimeRunner
from penstock.engine.restarts import ErrorClass, Restarts, classify
from penstock.engine.restore_point import RestorePoint
from penstock.engine.retention import JobFolder, retain_batches
from penstock.engine.steering import EndRequest, Steering
from penstock.errors import PenstockError, TopicMissing
from penstock.events import Events
from penstock.storage.local import storage_at, tree_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_TICK_SECONDS = 0.5  # how often the job looks around when nothing wakes it
_CANCEL_SECONDS = 10.0  # for an epoch to fail once its tasks are cancelled; Spark gives a Python worker 2 s of these
_TASK_SECONDS = 10.0  # for tasks that Spark has given up to be gone, so that nothing is opened after the last look
_JOINING_SECONDS = 10.0  # for a restarted broker to know its topics
LATELY_SECONDS = 90.0  # a standby checks again and again; a start notices by itself what has changed since


@dataclass
class JobRun:
    """What a job describes, and one run of it. `check` asks every source and sink, and raises what cannot work."""

    name: str
    spark: SparkSession
    settings: Settings
    checkpoints: Checkpoints
    sources: Mapping[str, Source]
    sinks: Mapping[str, TwoPhaseSink]
    plans: Mapping[str, QueryPlan]
    chains: Mapping[str, Chain]
    check: Callable[[], Sequence[Finding]]
    steering: Steering
    allow_non_restored: bool = False
    events: Events = field(default_factory=Events)
    runners: list[QueryRunner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.name, self.check, self._has_run)
        self.restarts = Restarts(self.settings.restart)

    @property
    def location(self) -> str:
        return f"{self.checkpoints.storage.rstrip('/')}/{self.name}"

    def _has_run(self) -> bool:
        return bool(query_uids(storage_at(self.location, self.spark).list(QUERIES)))

    def run(self) -> None:
        """Until every query is done, an end is asked for, or the job fails for good: raises what made it fail."""
        asked, wake = lambda: self.steering.request is not EndRequest.NONE, self.steering.wake
        with retain_batches(self.spark, self.checkpoints.num_retained):
            if self.readiness.wait(self.events, self.restarts, asked, wake):
                self._run_queries()

    def _run_queries(self) -> None:
        storage, steering = storage_at(self.location, self.spark), self.steering
        folder = JobFolder(storage, tree_of(storage))
        folder.finish_deletion(self.plans)
        restore_point = RestorePoint(self.name, self.plans, self.settings, storage, self.spark, self.allow_non_restored)
        history = restore_point.history(self.events)
        restore_point.check_uids()
        common = (self.spark, self.checkpoints, self.events)
        looks = (folder.refuse_marked, restore_point.refuse_replaced)
        self.runners = [
            (RealTimeRunner if plan.latency else QueryRunner)(
                self.name, plan, *common, steering.wake.set, looks, history
            )
            for plan in self.plans.values()
        ]
        watcher = GlobalCheckpoints(self.runners, storage, self.checkpoints, self.events, history=history)
        steering.begin(self.runners, self.spark, self.events, watcher)

        def before_round() -> None:
            if folder.finish_deletion(self.plans):
                restore_point.check_uids()

        group = QueryGroup(
            self.runners,
            restarts=self.restarts,
            events=self.events,
            wake=steering.wake,
            asked=lambda: steering.request,
            before_round=before_round,
            watcher=watcher,
        )
        with reading(self.name, self.sources, self.plans.values()):
            try:
                group.run()
            except BaseException as error:
                steering.end(error)
                raise
            steering.end(None)
        if steering.request is EndRequest.CANCEL and self.checkpoints.retention is Retention.DELETE:
            generations = {runner.plan.uid: runner.generation for runner in self.runners}
            folder.delete_cancelled(generations, group.abandoned)


@dataclass
class Readiness:
    """Whether everything that a job needs is there, checked before anything starts. `has_run`: whether the job has run
    before, so that the topics it names were there."""

    job: str
    check: Callable[[], Sequence[Finding]]
    has_run: Callable[[], bool] = lambda: False
    _seen: float | None = None  # when all was well

    def look(self) -> None:
        """Check, and note the time if all is well. Raises what is not."""
        for finding in self.check():
            if self._seen is None:
                log.warning("%s: %s", finding.sink, finding.message)
        self._seen = time.monotonic()

    def wait(self, events: Events, restarts: Restarts, stopped: Callable[[], bool], wake: threading.Event) -> bool:
        """Return when everything is there, at once where that was so a moment ago. Where another system is away, retry
        as the restart strategy says; False if a stop was asked for meanwhile. A broker that has just restarted reports
        topics as missing until it has read its log: a job that has run before gives it some seconds."""
        joining = Deadline(_JOINING_SECONDS)
        while not stopped():
            try:
                if self._seen is None or time.monotonic() - self._seen > LATELY_SECONDS:
                    self.look()
                return True
            except PenstockError as error:
                if isinstance(error, TopicMissing) and not joining.passed() and self.has_run():
                    wake.wait(_TICK_SECONDS)
                    continue
                if (wait := restarts.delay(error)) is None:
                    raise
                log.warning("job %s cannot start yet and retries in %.1f s: %s", self.job, wait, error)
                verdict = str(classify(error).value)
                events.emit("restarting", query=None, seconds=wait, verdict=verdict, error=str(error))
                wake.wait(wait)
        return False


@dataclass
class QueryGroup:
    """Runs the queries of one job to their end. `asked`: whether the job is to end; `wake` is set when it changes."""

    runners: Sequence[QueryRunner]
    restarts: Restarts
    events: Events
    wake: threading.Event
    asked: Callable[[], EndRequest]
    before_round: Callable[[], None]
    watcher: GlobalCheckpoints | None = None
    abandoned: list[str] = field(default_factory=list)
    """Queries that were cancelled in an epoch which has not ended since."""

    def __post_init__(self) -> None:
        self._reported: set[str] = set()

    def run(self) -> None:
        """Until all are done, an end is asked for, or the job fails for good: raises what made it fail. After a cancel
        nothing is left open at the sinks; raises where that could not be achieved."""
        try:
            error = self._run()
        finally:
            for runner in self.runners:
                self._report_stopped(runner)
        if error is not None:
            raise error

    def _run(self) -> BaseException | None:
        while self.asked() is EndRequest.NONE:
            error = self._round()
            if self.asked() is EndRequest.CANCEL:
                break
            if error is None or self.asked() is not EndRequest.NONE:
                return error  # a failed epoch is no clean end, even after a stop
            if not self._pause(error):
                return error
        return self._finish_cancelled() if self.asked() is EndRequest.CANCEL else None

    def _round(self) -> BaseException | None:
        self.restarts.started()
        try:
            self.before_round()
        except PenstockError as error:
            return error
        for runner in self.runners:
            if not runner.done:
                runner.start()
        if self.watcher is not None:
            self.watcher.began()
        self._wait()
        if self.watcher is not None:
            self.watcher.ended()
        return failure_of(self.runners)

    def _wait(self) -> None:
        patience: Deadline | None = None
        while any(runner.alive for runner in self.runners):
            asked = self.asked()
            if asked is EndRequest.CANCEL and patience is None:
                patience = Deadline(_CANCEL_SECONDS)
                for runner in self.runners:
                    runner.cancel()
            elif asked is not EndRequest.NONE or any(runner.error is not None for runner in self.runners):
                for runner in self.runners:
                    runner.stop()
            if patience is not None and patience.passed():
                return
            self.wake.wait(_TICK_SECONDS)
            self.wake.clear()
            for runner in self.runners:
                if runner.done:
                    self._report_stopped(runner)
            if self.watcher is not None:
                self.watcher.look()

    def _pause(self, error: BaseException) -> bool:
        failed = next((runner.plan.uid for runner in self.runners if runner.error is error), None)
        if (seconds := self.restarts.delay(error)) is None:
            return False
        log.warning("query %s failed and the job restarts in %.1f s: %s", failed, seconds, error)
        verdict = str(classify(error).value)
        self.events.emit("restarting", query=failed, seconds=seconds, verdict=verdict, error=str(error))
        pause = Deadline(seconds)
        while self.asked() is EndRequest.NONE and not pause.passed():
            self.wake.wait(pause.remaining())
            self.wake.clear()
        return True

    def _finish_cancelled(self) -> BaseException | None:
        """A run of its own recovers each query that failed or hangs. The errors that the cancel caused do not count."""
        error = failure_of(self.runners)
        if is_fatal(error):
            return error
        for runner in self.runners:
            if runner.at_rest:
                continue
            if runner.alive:
                self.abandoned.append(runner.plan.uid)
                log.warning("query %s is cancelled, but its epoch does not end; it is fenced", runner.plan.uid)
            try:
                runner.finish_cancelled(_TASK_SECONDS)
                runner.error = None
            except BaseException as failed:
                runner.error = failed
        return failure_of(self.runners)

    def _report_stopped(self, runner: QueryRunner) -> None:
        if runner.plan.uid not in self._reported:
            self._reported.add(runner.plan.uid)
            error = None if runner.error is None else str(runner.error)
            self.events.emit("stopped", query=runner.plan.uid, error=error)


def failure_of(runners: Sequence[QueryRunner]) -> BaseException | None:
    """The error that counts: the first fatal one, otherwise the first. The others become its notes."""
    failed = sorted((runner for runner in runners if runner.error is not None), key=lambda runner: runner.failed_at)
    if not failed:
        return None
    first = next((runner for runner in failed if is_fatal(runner.error)), failed[0])
    assert first.error is not None
    notes = getattr(first.error, "__notes__", ())
    for other in failed:
        note = f"Query {other.plan.uid!r} failed too: {type(other.error).__name__}: {other.error}"
        if other is not first and note not in notes:
            first.error.add_note(note)
    return first.error


def is_fatal(error: BaseException | None) -> bool:
    """Whether no retry can cure it; above all `Superseded`: to restart would be to take over from the newer run."""
    return error is not None and classify(error) is ErrorClass.FATAL
