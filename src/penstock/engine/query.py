"""One query of a job: recovered, started, watched, stopped or cancelled. `run.QueryGroup` says when it restarts."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import FIRST, INFLIGHT, LEDGER
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import ledger_at, spark_log_at
from penstock.checkpoint.record import sums_of
from penstock.checkpoint.spark_log import Barrier, SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import TwoPhaseSink
from penstock.contracts.source import QueryPlan, QueryProgress, Source, reader_name
from penstock.deadline import Deadline
from penstock.engine import streaming
from penstock.engine.coordinator import Coordinator
from penstock.engine.inflight import InFlight
from penstock.engine.lane_set import end_lanes
from penstock.engine.observer import Observer, Sums
from penstock.engine.positions import Inputs
from penstock.engine.protocol import Resume
from penstock.engine.steering import cut_final, final_epoch, is_due, not_held, refuse_drained
from penstock.engine.watermark import WatermarkTracker
from penstock.errors import JobStopped, PenstockError, PreCommitFailed
from penstock.events import Events
from penstock.logs import bound
from penstock.savepoints.savepoint import HeldQuery
from penstock.spark.executors import fault_in
from penstock.spark.lane_plan import row_changes
from penstock.spark.query import (
    Liveness,
    RunningQuery,
    callback_server,
    current_execution,
    give_up,
    short_text,
    stop_query,
    wait_for_tasks,
)
from penstock.spark.settings import require_same_state
from penstock.spark_state.metadata import plan_operators
from penstock.storage.local import storage_at
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1  # how soon a failed or finished query is noticed
#: How long Spark may take to log an epoch that is committed; without the log, recovery finishes it.
_DRAIN_SECONDS = 10.0


class QueryRunner:
    """Runs one plan, each start in a thread of its own. `ended` is called at the end of each."""

    def __init__(
        self,
        job: str,
        plan: QueryPlan,
        spark: SparkSession,
        checkpoints: Checkpoints,
        events: Events,
        ended: Callable[[], None],
        before_start: Iterable[Callable[[], None]] = (),
        history: str = FIRST,
    ) -> None:
        self._job, self.plan, self._spark = job, plan, spark
        self._checkpoints, self._events, self._ended = checkpoints, events, ended
        self._before_start, self._history = before_start, history
        self._until: int | None = None  # the last epoch of this start, if one is set
        self._draining = False  # this start closes all windows
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._cancelled = False
        self._query: StreamingQuery | None = None
        self.run_id: str | None = None  # Spark's name for the jobs of the last start
        self._coordinator: Coordinator | None = None  # of the last start
        self._generation = 0  # of the last start in this process
        self._token = secrets.token_hex(8)  # names this process in the generations of all its starts
        self._resume: Resume | None = None  # the result of this start's recovery
        self.alive = False  # whether a start is under way
        self.error: BaseException | None = None
        self._failure: BaseException | None = None  # of the start before
        self.failed_at = 0.0
        self.done = False  # ended by itself, with nothing left to do
        self.barrier: Barrier | None = None  # of the newest epoch that this process completed

    @property
    def folder(self) -> str:
        return f"{self._checkpoints.storage.rstrip('/')}/{self._job}/{self.plan.uid}"

    @property
    def checkpoint(self) -> str:
        """Spark's own checkpoint of the query, see `checkpoint.history`."""
        return f"{self.folder}/{self._history}"

    @property
    def at_rest(self) -> bool:
        """Whether the last start, if any, ended between two epochs. Otherwise something may be open."""
        failed = self._coordinator is not None and self._coordinator.failure is not None
        return not self.alive and self.error is None and not failed

    @property
    def generation(self) -> int:
        """Of the last start that registered; 0 before the first."""
        return self._coordinator.generation if self._coordinator is not None else self._generation

    @property
    def watermark(self) -> WatermarkTracker | None:
        """Of the last start."""
        return self._coordinator.watermark if self._coordinator is not None else None

    @property
    def progress(self) -> QueryProgress | None:
        """None before this start has recovered. It never goes back within a start."""
        coordinator, resume = self._coordinator, self._resume
        if coordinator is None or resume is None:
            return None
        # An epoch that recovery found decided and has to replay may be visible, all of it or in part.
        recovered = resume.epoch - 1 if resume.replay is None else resume.epoch
        completed = max(resume.epoch - 1, coordinator.completed)
        return QueryProgress(resume.generation, completed, max(recovered, completed, coordinator.decided))

    def start(self) -> None:
        """Begin one start; once `ended` is called, `done` or `error` say how it went."""
        self._failure, self.error, self.failed_at = self.error, None, 0.0
        self._resume = self._until = None
        self._stopping.clear()
        self._wake.clear()
        self.alive = True
        threading.Thread(target=self._run, name=f"penstock-query-{self.plan.uid}", daemon=True).start()

    def stop(self) -> None:
        """Let the epoch under way finish, begin no other, end. Returns at once."""
        self._stopping.set()
        self._wake.set()

    def cancel(self) -> None:
        """End without waiting for the epoch under way: Spark cancels its tasks, so that it fails and what it
        prepared is aborted. A decided epoch is carried out. Returns at once; call `finish_cancelled` then."""
        self._cancelled = True
        self.stop()
        if self._query is not None:
            give_up(self._query, self.plan.uid)

    @property
    def busy(self) -> bool:
        return self._coordinator is not None and self._coordinator.gate.busy

    def hurry(self) -> None:
        """Complete an epoch soon, where that takes more than rows to read. Returns at once."""

    @property
    def lanes(self) -> Mapping[str, Mapping[str, float]]:
        """Of a real-time query, by lane: rows a second, and how long its newest commit took."""
        return {}

    @contextmanager
    def hold(self, patience: Deadline, *, final: bool = False) -> Iterator[HeldQuery]:
        """Pause the query after a complete epoch that Spark has logged, all its rows delivered; it begins no other
        meanwhile. `final`: no row may become visible before `shut`, or before this ends. Raises `SavepointError` where
        it cannot be held."""
        if self.done:
            yield self.at_end()
            return
        coordinator = self._running(patience)
        with coordinator.gate.held(patience):
            coordinator.drain(lambda: patience.passed() or self._stopping.is_set())
            log = self._spark_log()
            while not (logged := log.next_epoch()[0] > self._completed_epoch()) and not patience.passed():
                if self._query is None or not self._query.isActive:
                    break  # it failed, and its end waits for this hold
                time.sleep(_POLL_SECONDS / 20)
            if not logged or coordinator.failure is not None or not coordinator.delivered:
                raise not_held(self.plan.uid, "it failed meanwhile, or its in-flight log is not delivered")
            yield HeldQuery(self.plan, self.checkpoint, self._completed_epoch(), coordinator.generation)

    def at_end(self) -> HeldQuery:
        """A query that has ended between two epochs. Where Spark stopped before it logged the last one, the log is
        completed now: a savepoint of the epoch before would make the rows of the last one again."""
        completed = self._completed_epoch()
        if self._spark_log().next_epoch()[0] <= completed:
            self._recover_alone()
        epoch = self._spark_log().next_epoch()[0] - 1
        if epoch < max(completed, 0):
            raise not_held(self.plan.uid, "it has no complete epoch yet, or Spark has not logged it")
        return HeldQuery(self.plan, self.checkpoint, epoch, self.generation)

    def shut(self) -> None:
        """No epoch begins any more; the one under way, if any, ends. Returns at once."""
        if self._coordinator is not None:
            self._coordinator.gate.shut()

    def prepare_final(self) -> None:
        """After a stop: finish what is decided, and refuse where `emit_final` could not work."""
        self._recover_alone()
        assert self._resume is not None
        final_epoch(self.plan.uid, self._spark_log(), self._resume)

    def emit_final(self) -> None:
        """After a stop: one more epoch, in which windows emit what they hold, see `steering`. If it fails before its
        decision, the checkpoint is as it was."""
        self._stopping.clear()
        self._wake.clear()
        self._cancelled, self._draining = False, True
        try:
            self._run_once()
            if self._until is not None and not self._closed_windows:
                raise not_held(self.plan.uid, f"epoch {self._until}, which emits what windows hold, was not completed")
        except BaseException as error:
            self._draining = False
            if not self._recovered_from_drain() or not self._closed_windows:
                raise
            log.warning(
                "query %s: its drain failed after the decision, and recovery finished it: %s", self.plan.uid, error
            )
        finally:
            self._draining, self._until = False, None

    @property
    def _closed_windows(self) -> bool:
        """Whether the final epoch is complete, and not that of a newer run in its place."""
        epoch, log = self._until, self._spark_log()
        return epoch is not None and log.next_epoch()[0] > epoch and log.drained(epoch)

    def _recovered_from_drain(self) -> bool:
        """Recover: that finishes the final epoch if it is decided, and otherwise removes its barrier."""
        try:
            with bound(job=self._job, query=self.plan.uid):
                self._recover_alone()
        except Exception as failed:
            log.warning("query %s: the next start cleans up after its drain: %s", self.plan.uid, failed)
            return False
        return True

    def _run_final(self, coordinator: Coordinator, resume: Resume, inputs: Inputs) -> None:
        self._until = final_epoch(self.plan.uid, self._spark_log(), resume)
        if self._until is not None:
            cut_final(coordinator, self._spark_log(), self._until)
            self._watch(coordinator, inputs)

    def _refuse_drained(self, coordinator: Coordinator, resume: Resume, inputs: Inputs) -> None:
        """Finish a drain that is decided and has to be written again, or has begun at most once; then refuse to start
        behind it."""
        log = self._spark_log()
        if (is_due(resume) or coordinator.has_begun(resume.epoch)) and log.drained(resume.epoch):
            self._until = coordinator.drains_at = resume.epoch
            self._watch(coordinator, inputs)
        refuse_drained(self.plan.uid, log, self.folder.rpartition("/")[0])

    def _running(self, patience: Deadline) -> Coordinator:
        """The coordinator, once its query runs and has a complete epoch."""
        while not patience.passed() and self.alive and not self._stopping.is_set():
            coordinator = self._coordinator
            if coordinator is not None and self._query is not None and self._completed_epoch() >= 0:
                return coordinator
            time.sleep(_POLL_SECONDS)
        raise not_held(self.plan.uid, "it does not run" if not self.alive else "it has no complete epoch yet")

    def _completed_epoch(self) -> int:
        return -1 if (progress := self.progress) is None else progress.completed

    def finish_cancelled(self, patience: float) -> None:
        """After a cancel: leave nothing open. Another run, of a generation of its own, starts no query: it carries out
        what is decided and aborts the rest, also what a hanging epoch or a cancelled task might still open or decide.
        Raises where it cannot."""
        wait_for_tasks(self._spark, self.run_id, Deadline(patience))
        self._recover_alone()

    def _recover_alone(self) -> None:
        """Another start that begins no query, while nothing else works on the checkpoint: it completes Spark's log of a
        decided epoch."""
        self._generation = self.generation
        self._stopping.set()
        self._run_once()

    def _run(self) -> None:
        try:
            with bound(job=self._job, query=self.plan.uid):
                self._run_once()
            self.done = not self._stopping.is_set()
        except BaseException as error:
            self.error, self.failed_at = error, time.monotonic()
        finally:
            self.alive = False
            self._ended()

    def _run_once(self) -> None:
        """One start of the query: recover, then run until it ends. Raises what made it fail."""
        plan = streaming.with_verification(self.plan, self.checkpoint, self._spark, self._spark_log)
        storage = storage_at(self.checkpoint, self._spark)
        inputs = Inputs(plan, storage, final_checkpoint=self._checkpoints.final_checkpoint)
        common = (self._spark, storage_at(self.folder, self._spark), self._checkpoints, self._events)
        observer = Observer(plan.uid, plan.positions, *common, self._reporting, counting(plan))
        self._coordinator = coordinator = self._new_coordinator(plan, inputs, observer)
        try:
            keeps_state = lambda: plan_operators(plan.frame, plan.output_mode)  # noqa: E731
            require_same_state(self._spark, self._spark_log(), plan.uid, keeps_state)
            resume = coordinator.recover()
            for look in self._before_start:
                look()
            parts: tuple[Source | TwoPhaseSink, ...] = (*plan.sources.values(), *plan.sinks.values())
            for part in parts:
                part.resolve(common[1], self._failure)
            self._resume = resume
            if not self._checkpoints.logged:
                coordinator.drain(self._stopping.is_set)  # first deliver what an earlier run left in the in-flight log
            self._recovered(coordinator, resume)
            if self._draining:
                self._run_final(coordinator, resume, inputs)
            elif not self._stopping.is_set():
                self._refuse_drained(coordinator, resume, inputs)
                if not self._already_finished(resume.epoch):
                    self._watch(coordinator, inputs)
            coordinator.drain(self._stopping.is_set)
            if (failure := coordinator.failure) is not None and not isinstance(failure, JobStopped):
                raise failure
        finally:
            self._generation = coordinator.generation
            coordinator.close()
            observer.close()
            self._query = None

    def _reporting(self) -> StreamingQuery | None:
        """The query whose reports are of these epochs."""
        return self._query

    def _recovered(self, coordinator: Coordinator, resume: Resume) -> None:
        """Recovery is over, and what it left in the in-flight log is delivered."""

    def _watch(self, coordinator: Coordinator, inputs: Inputs) -> None:
        if self._stopping.is_set():
            return
        # Recovery took time to commit and sweep; Spark's query would write into the log of a run that is newer by now.
        coordinator.refuse_superseded()
        inputs.start(self._spark_log().newest_barrier())
        run = (coordinator.generation, coordinator.refuse_superseded, coordinator.record)
        end_lanes(self._job, self.plan, self._spark_log(), *run)
        interval = self._checkpoints.interval_seconds
        replay = None if self._resume is None else self._resume.replay
        query = streaming.start(self._job, self.plan, self.checkpoint, interval, coordinator, replay)
        self._query, self.run_id = query, str(query.runId)
        timeout, written = self._checkpoints.timeout_seconds, lambda: self._spark_log().next_epoch()
        alive = Liveness(self.plan.uid, lambda: callback_server(self._spark), written, timeout)
        fault: PenstockError | None = None
        while query.isActive and not self._wake.is_set() and coordinator.failure is None and fault is None:
            self._wake.wait(_POLL_SECONDS)
            coordinator.tend()
            fault = alive.fault(busy=coordinator.gate.busy)
        self._drain(coordinator, query)
        if fault is not None:
            raise fault
        failure = coordinator.failure
        if failure is None and not self._wake.is_set():
            self._refuse_ended(query)
        if failure is not None and not isinstance(failure, JobStopped):
            raise failure

    def _refuse_ended(self, query: StreamingQuery) -> None:
        """Raise why Spark has ended the query by itself, unless it has read all there is."""
        if (exception := query.exception()) is not None:
            fault = fault_in(str(exception))  # an error of a source, from Spark's planner
            raise PreCommitFailed(
                f"Spark ended query {self.plan.uid!r}: {short_text(fault or exception)}",
                safe="no epoch was decided in the meantime; it resumes from its last complete epoch.",
                to_do="see the cause above.",
            ) from (fault or exception)
        if not self.plan.ends_with_what_is_there:
            raise PreCommitFailed(
                f"Spark ended query {self.plan.uid!r} without an error, though nothing asked it to.",
                safe="its last complete epoch stays; no epoch was under way.",
                to_do="see what in this process stops Spark's queries; the job restarts as its strategy says.",
            )

    def _drain(self, coordinator: Coordinator, query: StreamingQuery) -> None:
        """Stop between two epochs: after Spark has logged the last one, before the next has begun."""
        if self._cancelled:
            give_up(query, self.plan.uid)
        coordinator.gate.close()
        patience = Deadline(_DRAIN_SECONDS)
        log = self._spark_log()
        while query.isActive and log.next_epoch()[0] <= coordinator.completed and not patience.passed():
            time.sleep(_POLL_SECONDS / 5)
        if query.isActive:
            stop_query(query, self.plan.uid)

    def _spark_log(self) -> SparkLog:
        known, positions = version_of(self._spark).log_known, len(self.plan.positions)
        return spark_log_at(self.checkpoint, self._spark, known=known, positions=positions)

    def _on_complete(self, epoch: int, barrier: Barrier | None) -> None:
        if barrier is None:
            return
        self.barrier = barrier
        self.plan.publish(self._job, barrier)
        for index, (uid, offset) in enumerate(zip(self.plan.positions, barrier.offsets, strict=False)):
            if uid is not None and offset is not None:
                self.plan.sources[uid].completed(uid, reader_name(self.plan.uid, index), offset)
        last = self._until is not None and epoch >= self._until
        if last:
            self.shut()  # before `_watch` stops Spark, which would read rows behind the drain and drop them as late
        if last or (self.plan.bounded and self.plan.finished_at(barrier)):
            self._wake.set()

    def _already_finished(self, next_epoch: int) -> bool:
        """Whether a bounded job was killed after its last commit."""
        if not self.plan.bounded or next_epoch == 0:
            return False
        log = self._spark_log()
        epoch, pending = log.next_epoch()
        barrier = None if pending else log.barrier(epoch - 1)
        return barrier is not None and self.plan.finished_at(barrier)

    def _new_coordinator(self, plan: QueryPlan, inputs: Inputs, observer: Observer) -> Coordinator:
        session = plan.frame.sparkSession  # the one that starts the query, and so knows it
        running = RunningQuery(session, lambda: current_execution(session))
        ledger = self._ledger_at(f"{self.folder}/{LEDGER}")
        return Coordinator(
            job=self._job,
            query=plan.uid,
            sinks=plan.sinks,
            sources=list(plan.sources),
            ledger=ledger,
            log=self._spark_log(),
            events=self._events,
            body=plan.body,
            executed_plan=running.executed_plan,
            running=running,
            checkpoints=self._checkpoints,
            inflight=self._inflight(ledger),
            on_complete=self._on_complete,
            inputs=inputs,
            observer=observer,
            previous=self._generation,
            run=self._token,
        )

    def _inflight(self, ledger: Ledger) -> InFlight | None:
        """None where no epoch needs the log and no earlier run left one."""
        location = f"{self.folder}/{INFLIGHT}"
        storage = storage_at(location, self._spark)
        if not self._checkpoints.logged and not storage.list(""):
            return None
        return InFlight(
            job=self._job,
            query=self.plan.uid,
            sinks=self.plan.sinks,
            location=location,
            storage=storage,
            ledger=ledger,
            ledger_of=self._ledger_at,
            events=self._events,
            checkpoints=self._checkpoints,
        )

    def _ledger_at(self, location: str) -> Ledger:
        limits = self._checkpoints
        retained = max(limits.retained, limits.num_retained)
        return ledger_at(location, self._spark, retained=retained, trusted=limits.trusted_schemes)


def counting(plan: QueryPlan) -> Sums | None:
    """How the rows of `plan` are counted, from Spark's reports; None where nothing is set aside."""
    if plan.aside is None:
        return None
    aside, (why, filters) = plan.aside.uid, row_changes(plan.frame)
    names = [uid or str(number) for number, uid in enumerate(plan.positions)]

    def sums(shares: Any, report: Any) -> Mapping[str, Any]:
        read = [int(source["numInputRows"]) for source in report.get("sources") or ()]
        known = dict(zip(names, read, strict=True)) if len(read) == len(names) == len(set(names)) else None
        return sums_of(shares, known, aside, why, filters)

    return sums
