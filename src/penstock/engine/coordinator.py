"""From Spark to the sinks: drives the pure protocol for one query. One of the two places that implement `foreachBatch`.

An epoch here is an `Attempt`, as often as it takes, that a `Delivery` of the job's mode runs. Every action of
`protocol.py` has one method here or in `driver.py`, named after it. Nothing else in this file decides anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import (
    CheckpointState,
    Committable,
    Decision,
    DecisionId,
    Outcome,
    WriterId,
    next_epoch,
)
from penstock.checkpoint.log_repair import finish, look, query_of, refuse_lost_state, restore
from penstock.checkpoint.open import check_sources, history_of, mismatch
from penstock.config import Checkpoints
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.attempt import Attempt, EpochObserver, Gate
from penstock.engine.committers import Stragglers
from penstock.engine.driver import ProtocolDriver, Timing, explain_stop
from penstock.engine.modes import ExactlyOnce, delivery_of
from penstock.engine.positions import Positions
from penstock.engine.preparation import Preparation
from penstock.engine.protocol import Replay, Resume
from penstock.engine.watermark import WatermarkTracker
from penstock.errors import BarrierOverwritten, PenstockError
from penstock.failpoints import failpoint
from penstock.logs import bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.checkpoint.ledger import Ledger
    from penstock.checkpoint.spark_log import Barrier, SparkLog
    from penstock.contracts.plan import Body
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.engine.inflight import InFlight
    from penstock.engine.positions import Inputs, RunningEpoch
    from penstock.events import Events

logger = logging.getLogger("penstock")


class Coordinator(ProtocolDriver):
    """One start of one query: its ledger, its sinks, its generation. Call `recover`, then start Spark. All parts of a
    query meet here; the arguments without a default are what none can do without."""

    def __init__(
        self,
        *,
        job: str,
        query: str,
        sinks: Mapping[str, TwoPhaseSink],
        sources: Sequence[str],
        ledger: Ledger,
        log: SparkLog,
        events: Events,
        body: Body,
        executed_plan: Callable[[], Any],
        running: RunningEpoch | None = None,
        checkpoints: Checkpoints | None = None,
        inflight: InFlight | None = None,
        on_complete: Callable[[int, Barrier | None], None] | None = None,
        inputs: Inputs | None = None,
        observer: EpochObserver | None = None,
        previous: int = 0,
        run: str = "",
    ) -> None:
        limits = self._limits = checkpoints or Checkpoints()
        timing = Timing(limits.commit_timeout_seconds, limits.abort_timeout_seconds)
        super().__init__(
            job=job, query=query, sinks=sinks, ledger=ledger, events=events, timing=timing, where=log.location, run=run
        )
        self.query = query
        self._sources, self._log, self._previous = tuple(sources), log, previous
        self._on_complete, self._inflight, self._observer = on_complete, inflight, observer
        self._positions = Positions(query, ledger, log, running)
        self._watermark = WatermarkTracker()
        self.preparation = Preparation(
            job=job,
            sinks=sinks,
            committers=self._committers,
            body=body,
            executed_plan=executed_plan,
            watermark=self._watermark,
            limits=limits,
            inflight=inflight,
            observer=observer,
            inputs=inputs,
        )
        self._gate = Gate(query)
        self.stragglers = Stragglers(query, self._abort_dangling, inflight)
        self._exactly_once = ExactlyOnce(self, limits.tolerable_failures)
        self._delivery = delivery_of(limits.mode, self._exactly_once, self)
        self._resume: Resume | None = None
        self._query_running = False
        self._attempt: Attempt | None = None  # None: no epoch is under way, or its recovery is
        self._attempts = 0
        self._last_completed = 0.0
        self._failure: BaseException | None = None
        self.completed = self.decided = -1
        self.drains_at: int | None = None  # the epoch that may close every window

    @property
    def generation(self) -> int:
        """This run's number; before it has registered, that of the run before it in this process."""
        return self._generation or self._previous

    @property
    def failure(self) -> BaseException | None:
        """What ended an epoch, or the delivery of one from the in-flight log."""
        return self._failure or (self._inflight.failure if self._inflight is not None else None)

    # The two entrances

    def recover(self, *, query_running: bool = False) -> Resume:
        """Finish what an earlier run decided. Call before Spark's query starts (`query_running`: it has, so its log is
        not ours to complete, and a decided epoch is proven by replay)."""
        started = time.monotonic()
        self._query_running = query_running
        check_sources(self._ledger, self._log, self._query, self._sources)
        resume = self._drive(protocol.recover(self._last_own(self.generation)))
        self._resume, self._generation = resume, resume.generation
        self.stragglers.started(resume.generation)
        self._events.emit(
            "recovered",
            query=self._query,
            generation=resume.generation,
            epoch=resume.epoch,
            action=resume.action,
            seconds=round(time.monotonic() - started, 4),
        )
        if self._inflight is not None:
            self._inflight.start()
        return resume

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """`foreachBatch`: returns only when epoch `epoch` is visible in every sink, or safe in the in-flight log; then
        Spark writes its commit."""
        with self._gate, bound(**self._log_fields(), epoch=epoch):
            try:
                self._gate.check()
                self._run(frame, epoch)
            except BaseException as error:
                self._failure = error
                self.emit("failed", epoch, error=f"{type(error).__name__}: {error}")
                raise
            finally:
                self._attempt = None

    def tend(self) -> None:
        """Call now and then while the query runs: what has to be done though no epoch comes."""
        if self._gate.try_enter():
            try:
                if self.failure is None and not self._gate.closed:
                    self.stragglers.sweep_again()
            finally:
                self._gate.leave()

    def drain(self, given_up: Callable[[], bool]) -> None:
        """Return when the in-flight log is delivered, or `given_up` says so."""
        if self._inflight is not None:
            self._inflight.wait_empty(given_up)

    def held(self, patience: Deadline) -> AbstractContextManager[None]:
        """While this lasts no epoch is under way and none begins. `SavepointError` where one does not end in time."""
        return self._gate.held(patience)

    @property
    def delivered(self) -> bool:
        """Whether no row waits in the in-flight log."""
        return self._inflight is None or not self._inflight.pending

    @property
    def busy(self) -> bool:
        """Whether an epoch is under way."""
        return self._gate.busy

    def shut_gate(self) -> None:
        """From now on no epoch begins; returns at once."""
        self._gate.shut()

    def close_gate(self) -> None:
        """From now on no epoch begins; returns when none is under way. Stop Spark's query after this."""
        self._gate.close()

    def close(self) -> None:
        """Free the sinks' connections. Waits for an epoch under way."""
        self.close_gate()
        if self._inflight is not None:
            self._inflight.close()
        self._committers.close()

    # One epoch

    def _run(self, frame: DataFrame, epoch: int) -> None:
        if self._resume is None:
            self.recover(query_running=True)
        replay = self._take_replay(epoch)
        try:
            barrier = self._positions.barrier(epoch, drains=self.drains_at == epoch)
        except BarrierOverwritten:
            self.refuse_superseded()  # then the other driver is the newer one
            raise
        self._gate.pause(self._last_completed + self._limits.min_pause_seconds - time.monotonic())
        self._open_inflight()
        delivery = self._delivery if replay is None else self._exactly_once
        over = False
        while not over:
            self._attempts += 1
            self._attempt = attempt = Attempt(
                self._query, epoch, self._attempts, self._generation, frame, barrier, replay, delivery.direct
            )
            over = delivery.run(attempt)
        self.completed, self._next = epoch, epoch + 1
        self._last_completed = time.monotonic()
        self._ledger.prune(epoch)
        self.stragglers.remove_logs()
        self.stragglers.sweep_again()
        if self._on_complete is not None:
            self._on_complete(epoch, barrier)
        self.emit("completed", epoch, seconds=round(self._last_completed - attempt.opened, 4))
        self.observe(attempt, None)

    def _take_replay(self, epoch: int) -> Replay | None:
        assert self._resume is not None
        try:
            replay = protocol.replay_of(self._resume, epoch)
        except protocol.LogBehind as stop:
            raise mismatch(self._query, f"{self._ledger.location} was recovered for epoch {stop.epoch}") from None
        self._resume = Resume(self._generation, epoch + 1, "none")
        return replay

    def _open_inflight(self) -> None:
        if self._inflight is not None:
            query_id = self._log.query_id()
            assert query_id is not None  # Spark has written its barrier
            self._inflight.open(query_id, self._generation)
            self._inflight.wait_for_room(self._gate)

    # What a delivery asks for

    def open(self, attempt: Attempt, *, verify: bool = False) -> None:
        """The attempt begins. `verify`: compare our watermark with the one that Spark wrote for the epoch before."""
        self._watermark.start(attempt.barrier)
        if verify and self._watermark.needed and attempt.epoch:
            self._watermark.verify(self._log.committed_watermark(attempt.epoch - 1))
        self.emit("opened", attempt.epoch)

    def carry_out(self, attempt: Attempt) -> None:
        """All of it by the protocol."""
        decision = self._drive(protocol.run_epoch(self._generation, attempt.epoch, attempt.replay))
        if decision is not None:
            self.stragglers.keep = decision.committables

    @property
    def may_try_again(self) -> bool:
        """Whether the attempt that failed may be followed by another one."""
        return protocol.may_try_again(self._performed)

    def begin(self, attempt: Attempt) -> bool:
        """Mark the epoch as begun, durably; False where it was before."""
        return self._ledger.begin(attempt.epoch, self._log.query_id())

    def has_begun(self, epoch: int) -> bool:
        """Whether the epoch is marked as begun."""
        return self._ledger.has_begun(epoch, self._log.query_id())

    def commit_at_sinks(self, epoch: int, committables: Sequence[Committable]) -> Mapping[WriterId, Outcome]:
        """What is proven of each within the time for a commit."""
        return self._commit_at_sinks(epoch, committables, Deadline(self._timing.commit_seconds))

    def check_gate(self) -> None:
        """`JobStopped` once no epoch may begin."""
        self._gate.check()

    def not_prepared(self, attempt: Attempt, failed: protocol.Failed) -> PenstockError:
        """The error that ends such an attempt."""
        return explain_stop(protocol.NotPrepared(attempt.epoch, failed.error), self._query, self._where)

    def observe(self, attempt: Attempt, error: BaseException | None) -> None:
        """The attempt has ended."""
        if self._observer is not None:
            if self._inflight is not None:
                attempt.notes.inflight_bytes = self._inflight.bytes
            self._observer.ended(attempt.epoch, self._generation, attempt.barrier, attempt.notes, error)

    # The actions

    def _register(self) -> int:
        generation = super()._register()
        self.emit("started", None)
        return generation

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "sources": self._sources, "history": history_of(self._log)}

    def _query_id(self) -> str | None:
        return self._log.query_id()

    def _look(self) -> CheckpointState:
        found = look(self._ledger, self._log, running=self._query_running)
        refuse_lost_state(self._ledger, self._log, found, self._query)
        query = query_of(self._ledger, self._log)
        if query is not None and self._inflight is not None:
            self._inflight.open(query, self._generation)
        self._next = next_epoch(found)
        failpoint("recover.looked")
        return found

    def _restore_log(self, epoch: int, decided: DecisionId | None) -> bool:
        behind = self._query_running and self._log.next_epoch()[0] < epoch  # and Spark has gone on from there
        running = self._query_running
        changed = None if behind else restore(self._ledger, self._log, epoch, decided, running=running)
        if changed:
            logger.warning("query %s: Spark's log is mended for epoch %d: %s", self._query, epoch, ", ".join(changed))
            self.emit("log_restored", epoch)
            failpoint("recover.restored")
            if running:
                raise self._positions.overwritten(epoch)  # Spark has read it as it was before
        return changed is not None

    def _pre_commit(self, epoch: int, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        assert self._attempt is not None
        return self.prepare(self._attempt, only)

    def prepare(self, attempt: Attempt, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        """Run the plan, with the writers of the sinks in `only` alone, if it is given; all others just count."""
        prepared = self.preparation.run(attempt, only)
        if isinstance(prepared, protocol.Failed):
            return prepared
        if prepared.strays:
            self.stragglers.expect(logs=True)
        seconds, rows = attempt.seconds, sum(committable.rows for committable in prepared.committables)
        attempt.notes.committables, attempt.notes.precommit_ms = prepared.committables, round(seconds * 1000, 2)
        writers = sum(bool(committable.rows) for committable in prepared.committables)
        self.emit("precommitted", attempt.epoch, rows=rows, writers=writers, seconds=round(seconds, 4))
        failpoint("epoch.sealed")
        return replace(prepared, strays=prepared.strays and not self._limits.unaligned)

    def _decide(self, decision: Decision) -> None:
        attempt = self._attempt
        assert attempt is not None
        # State and the sources' own logs are as much a part of the decision as the barrier, which the manifest holds.
        self._log.sync()
        self._ledger.decide(
            decision,
            query=self._log.query_id(),
            barrier=attempt.barrier.digest,
            offsets=attempt.barrier.text,
            history=history_of(self._log),
            stateful=self._log.stateful(),
            notes=attempt.barrier.notes,
        )
        self.decided = decision.id.epoch
        attempt.notes.decided = time.time()
        self.emit("decided", decision.id.epoch)
        failpoint("epoch.decided")

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        attempt = self._attempt
        if attempt is not None:
            failpoint("epoch.confirmed")
        started = time.monotonic()
        epoch = decision.id.epoch
        logged = [committable for committable in decision.to_commit if committable.logged]
        direct = [committable for committable in decision.to_commit if not committable.logged]
        outcomes = dict(self.commit_at_sinks(epoch, direct))
        visible = True
        if logged:
            uids = {committable.sink for committable in logged}
            if self._inflight is None or uids - self._sinks.keys():
                raise self._committers.uids_changed(uids, f"epoch {epoch} is in the log for")
            visible = self._inflight.commit(epoch, logged, self._commit_at_sinks)
            outcomes.update({committable.id: Outcome.COMMITTED for committable in logged})
        commit_ms = round((time.monotonic() - started) * 1000, 2)
        if attempt is not None:
            attempt.notes.commit_ms, attempt.notes.logged = commit_ms, not visible
        if visible and all(outcomes.get(committable.id, Outcome.UNKNOWN).visible for committable in decision.to_commit):
            self.emit(
                "committed",
                epoch,
                rows=sum(committable.rows for committable in decision.committables),
                writers=len(decision.to_commit),
                commit_ms=commit_ms,
                recovery=attempt is None,
            )
        failpoint("recover.committed" if attempt is None else "epoch.committed")
        return outcomes

    def _finish_log(self, epoch: int, watermark: int | None) -> bool:
        finished = not self._query_running and finish(self._ledger, self._log, epoch, watermark)
        failpoint("recover.finished")
        return finished

    def _sweep(self, keep: Sequence[Committable]) -> None:
        self.stragglers.sweep(keep)
        failpoint("recover.swept" if self._attempt is None else "epoch.aborted")

    def _passed(self, point: str) -> None:
        failpoint(point)
