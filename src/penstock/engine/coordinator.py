"""From Spark to the sinks: runs the epochs of one query. One of the two places that implement `foreachBatch`.

An epoch is an `Attempt`, as often as it takes. A coroutine says what is done: `protocol.run_epoch`, or that of a weaker
mode (`attempt`). `LedgerRun.drive` hands each of its actions to `Coordinator._perform`. Nothing else here decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import (
    CheckpointState,
    Committable,
    Decision,
    DecisionId,
    Outcome,
    WriterId,
    next_epoch,
)
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import finish, keep_state, look, query_of, refuse_lost_state, restore
from penstock.checkpoint.open import check_sources, history_of, mismatch
from penstock.checkpoint.spark_log import Barrier, SparkLog
from penstock.config import Checkpoints, Mode
from penstock.contracts.sink import TwoPhaseSink
from penstock.contracts.source import Body
from penstock.engine import protocol
from penstock.engine.attempt import AbortAll, Attempt, Begin, CommitOnce, Drop, Gate, at_least_once, at_most_once
from penstock.engine.committers import Stragglers
from penstock.engine.driver import LedgerRun
from penstock.engine.inflight import InFlight
from penstock.engine.observer import Observer
from penstock.engine.output_jobs import EachEpoch, Jobs
from penstock.engine.positions import Inputs, Positions, RunningEpoch
from penstock.engine.preparation import Preparation
from penstock.engine.protocol import Failed, PreCommit, Prepared, Replay, Resume
from penstock.engine.watermark import WatermarkTracker
from penstock.errors import BarrierOverwritten, PenstockError, RealTimeRefused
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.logs import bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("penstock")


class Coordinator:
    """One start of one query: its ledger, its sinks, its generation. Call `recover`, then start Spark. All parts of a
    query meet here; the arguments without a default are those that every query needs."""

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
        observer: Observer | None = None,
        previous: int = 0,
        run: str = "",
        preparation: type[Preparation] = Preparation,
    ) -> None:
        """`previous` is the generation of the last start in this process; `run` is the token of its generations."""
        limits = self._limits = checkpoints or Checkpoints()
        self.query, self._sources, self._log = query, tuple(sources), log
        self._previous, self._on_complete, self._inflight, self._observer = previous, on_complete, inflight, observer
        self._run = LedgerRun(
            job=job,
            query=query,
            sinks=sinks,
            ledger=ledger,
            events=events,
            where=log.location,
            query_id=log.query_id,
            limits=limits,
            token=run,
        )
        self._ledger, self.watermark = ledger, WatermarkTracker()
        self._positions = Positions(query, ledger, log, running)
        self._preparation = preparation(self._run, body, executed_plan, self.watermark, inflight, observer, inputs)
        self.gate = Gate(query)
        self._stragglers = Stragglers(query, self._run.abort_dangling, inflight)
        self._jobs: Jobs = EachEpoch()
        self._resume: Resume | None = None
        self._attempt: Attempt | None = None  # None: no epoch is under way, or its recovery is
        self._attempts = self._failed_in_row = 0
        self._last_completed, self._query_running = 0.0, False
        self._failure: BaseException | None = None
        self.completed = self.decided = -1
        self.barrier: Barrier | None = None  # of the newest epoch that this start completed
        self.drains_at: int | None = None  # the epoch that may close every window

    @property
    def generation(self) -> int:
        """This run's number; before it has registered, that of the run before it in this process."""
        return self._run.generation or self._previous

    @property
    def failure(self) -> BaseException | None:
        """What ended an epoch, or the delivery of one from the in-flight log."""
        return self._failure or (self._inflight.failure if self._inflight is not None else None)

    # The two entrances

    def recover(self, *, query_running: bool = False) -> Resume:
        """Finish what an earlier run decided. Call before Spark's query starts (`query_running`: it has started, so its
        log must not be completed here, and a decided epoch is proven by replay)."""
        started = time.monotonic()
        self._query_running = query_running
        check_sources(self._ledger, self._log, self.query, self._sources)
        resume = self._run.drive(protocol.recover(self.generation), self._perform)
        self._resume = resume
        self._stragglers.started(resume.generation)
        seconds = round(time.monotonic() - started, 4)
        self._run.emit("recovered", resume.epoch, action=resume.action, seconds=seconds)
        if self._inflight is not None:
            self._inflight.start()
        return resume

    def adopt(self, resume: Resume) -> None:
        """Go on from what `recover` has found in another process of this driver, while the query runs."""
        self._query_running, self._resume = True, resume
        self._run.adopt(resume.generation, resume.epoch)
        self._stragglers.started(resume.generation)

    def abort_undecided(self) -> None:
        """Register, and abort all that is open unless an epoch that comes next is decided."""
        self._query_running = True
        self._run.drive(protocol.abort_undecided(lambda _: True), self._perform)

    def hints(self, uid: str) -> dict[str, Any]:
        """What the sink tells the writers of the next epoch."""
        return dict(self._run.committers[uid].hints())

    def __call__(self, frame: DataFrame, epoch: int, jobs: Jobs | None = None) -> None:
        """`foreachBatch`: returns only when epoch `epoch` is visible in every sink, or safe in the in-flight log; then
        Spark writes its commit. `jobs` runs the tasks, if the writer is part of the streaming plan."""
        self._pass_gate(epoch, lambda: self._run_epoch(frame, epoch, jobs or self._jobs))

    def record(self, epoch: int, text: str, shares: Sequence[Committable] = ()) -> None:
        """Run an epoch whose rows lanes have made visible, or that has none: its positions alone are decided. `text` is
        its `offsets/N`, in place of one that is not decided; Spark's log is completed, too. `shares` is what to report
        of the rows. No query of Spark's may use this log meanwhile."""
        barrier = self._log.parse_barrier(epoch, text.encode())
        ids, watermark = self._log.no_ids(epoch), int(barrier.metadata["batchWatermarkMs"])
        if self._log.commit_text(epoch, watermark, ids) is None:
            raise RealTimeRefused(
                f"Spark's log of query {self.query!r} is in a format that is not known: positions of a real-time query"
                " cannot be added to it.",
                to_do="run it with the version of Spark that has written the log; or leave `latency` out.",
            )
        self._run.refuse_superseded()
        self._log.write_again(layout.offsets(epoch), text)
        self._pass_gate(epoch, lambda: self._run_epoch(None, epoch, self._jobs, barrier, tuple(shares)))
        finish(self._ledger, self._log, epoch, watermark, ids)

    def _pass_gate(self, epoch: int, run: Callable[[], None]) -> None:
        with self.gate, bound(**self._run.log_fields, epoch=epoch):
            try:
                self.gate.check()
                run()
            except BaseException as error:
                self._failure = error
                self._run.emit("failed", epoch, error=f"{type(error).__name__}: {error}")
                raise
            finally:
                self._attempt = None

    def tend(self) -> None:
        """Call now and then while the query runs: sweeps though no epoch comes."""
        if self.gate.try_enter():
            try:
                if self.failure is None and not self.gate.closed:
                    self._stragglers.sweep_again()
            finally:
                self.gate.leave()

    def drain(self, given_up: Callable[[], bool]) -> None:
        """Return when the in-flight log is delivered, or `given_up` returns True."""
        if self._inflight is not None:
            self._inflight.wait_empty(given_up)

    @property
    def delivered(self) -> bool:
        """Whether no row waits in the in-flight log."""
        return self._inflight is None or not self._inflight.pending

    def has_begun(self, epoch: int) -> bool:
        """Whether the epoch is marked as begun, at most once."""
        return self._ledger.has_begun(epoch, self._log.query_id())

    def refuse_superseded(self) -> None:
        self._run.refuse_superseded()

    def overwritten(self, epoch: int) -> BarrierOverwritten:
        """The error for a barrier that is another driver's."""
        return self._positions.overwritten(epoch)

    def close(self) -> None:
        """Free the sinks' connections. Waits for an epoch under way."""
        self.gate.close()
        if self._inflight is not None:
            self._inflight.close()
        self._run.committers.close()

    # One epoch

    def _run_epoch(
        self,
        frame: Any,
        epoch: int,
        jobs: Jobs,
        recorded: Barrier | None = None,
        shares: tuple[Committable, ...] | None = None,
    ) -> None:
        if self._resume is None:
            self.recover(query_running=True)
        replay = self._take_replay(epoch)
        try:
            barrier = recorded or self._positions.barrier(epoch, drains=self.drains_at == epoch)
        except BarrierOverwritten:
            self._run.refuse_superseded()  # then the other driver is the newer one
            raise
        self.gate.pause(self._last_completed + self._limits.min_pause_seconds - time.monotonic())
        self._open_inflight()
        mode = Mode.EXACTLY_ONCE if replay is not None else Mode(self._limits.mode)
        done, before = False, self._attempts
        while not done:
            self._attempts += 1
            self._attempt = attempt = Attempt(
                query=self.query,
                epoch=epoch,
                number=self._attempts,
                generation=self._run.generation,
                frame=frame,
                barrier=barrier,
                jobs=jobs,
                replay=replay,
                direct=mode is Mode.AT_LEAST_ONCE,
                shares=shares,
                once=self._attempts == before + 1,
            )
            done = self._exactly_once(attempt) if mode is Mode.EXACTLY_ONCE else self._weaker(attempt, mode)
        self.completed, self._run.next_epoch = epoch, epoch + 1
        self._last_completed = time.monotonic()
        self._ledger.prune(epoch)
        self._stragglers.remove_logs()
        self._stragglers.sweep_again()
        self.barrier = barrier
        if self._on_complete is not None:
            self._on_complete(epoch, barrier)
        self._run.emit("completed", epoch, seconds=round(self._last_completed - attempt.opened, 4))
        self._observe(attempt, None)

    def _exactly_once(self, attempt: Attempt) -> bool:
        """Whether it succeeded; False after a failure that is tolerated, and the epoch is tried again."""
        self.watermark.start(attempt.barrier)
        if self.watermark.needed and attempt.epoch:
            self.watermark.verify(self._log.committed_watermark(attempt.epoch - 1))
        self._run.emit("opened", attempt.epoch)
        steps = protocol.run_epoch(self._run.generation, attempt.epoch, attempt.replay)
        try:
            decision = self._run.drive(steps, self._perform)
        except BaseException as error:
            self._observe(attempt, error)
            if not self._tolerates(attempt, error):
                raise
            self.gate.check()
            return False
        self._failed_in_row = 0
        if decision is not None:
            self._stragglers.keep = decision.committables
        return True

    def _tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        """Whether the epoch is tried again: as many failures of a checkpoint in a row as the settings allow, as long as
        nothing is decided."""
        checkpoint_only = isinstance(error, PenstockError) and error.checkpoint_only
        if not checkpoint_only or not protocol.may_try_again(self._run.performed):
            return False
        self._stragglers.expect()
        self._failed_in_row += 1
        tolerated = self._failed_in_row <= self._limits.tolerable_failures
        counts = {"in_row": self._failed_in_row, "tolerable": self._limits.tolerable_failures, "tolerated": tolerated}
        self._run.emit("checkpoint_failed", attempt.epoch, error=f"{type(error).__name__}: {error}", **counts)
        return tolerated

    def _weaker(self, attempt: Attempt, mode: Mode) -> bool:
        self._run.refuse_superseded()  # no decision follows that would find it out
        self.watermark.start(attempt.barrier)
        epoch = attempt.epoch
        self._run.emit("opened", epoch)
        steps = at_least_once(epoch) if mode is Mode.AT_LEAST_ONCE else at_most_once(epoch)
        visible = self._run.drive(steps, self._perform)
        if visible is not None:
            self.decided = epoch
            self._emit_rows("committed", epoch, visible, commit_ms=0.0, recovery=False)
            failpoint("epoch.committed")
        return True

    def _take_replay(self, epoch: int) -> Replay | None:
        assert self._resume is not None
        try:
            replay = protocol.replay_of(self._resume, epoch)
        except protocol.LogBehind as stop:
            raise mismatch(self.query, f"{self._ledger.location} was recovered for epoch {stop.epoch}") from None
        self._resume = Resume(self._run.generation, epoch + 1, "none")
        return replay

    def _open_inflight(self) -> None:
        if self._inflight is not None:
            query_id = self._log.query_id()
            assert query_id is not None  # Spark has written its barrier
            self._inflight.open(query_id, self._run.generation)
            self._inflight.wait_for_room(self.gate)

    def _observe(self, attempt: Attempt, error: BaseException | None) -> None:
        if self._observer is not None:
            if self._inflight is not None:
                attempt.inflight_bytes = self._inflight.bytes
            self._observer.ended(attempt, error)

    def _emit_rows(self, event: str, epoch: int, committables: Sequence[Committable], **fields: Any) -> None:
        rows = [committable.rows for committable in committables if committable.rows]
        self._run.emit(event, epoch, rows=sum(rows), writers=len(rows), **fields)

    # The actions

    def _perform(self, action: Any) -> Any:
        match action:
            case protocol.Register():
                return self._register()
            case protocol.Look():
                return self._look()
            case protocol.RestoreLog(epoch, decided):
                return self._restore_log(epoch, decided)
            case PreCommit(_, only):
                return self._prepare(only)
            case protocol.Decide(decision):
                self._decide(decision)
            case protocol.Commit(decision):
                return self._commit(decision)
            case protocol.FinishLog(epoch, watermark, ids):
                fence = self._run.refuse_superseded
                finished = not self._query_running and finish(self._ledger, self._log, epoch, watermark, ids, fence)
                failpoint("recover.finished")
                return finished
            case protocol.Sweep(keep):
                self._stragglers.sweep(keep)
                failpoint("recover.swept" if self._attempt is None else "epoch.aborted")
            case Begin(epoch):
                return self._ledger.begin(epoch, self._log.query_id())
            case CommitOnce(epoch, committables):
                self.decided = epoch
                failpoint("epoch.confirmed")
                return self._run.commit(epoch, committables)
            case AbortAll():
                self._stragglers.abort_all_quietly()
            case Drop(epoch, why, committables):
                log.warning("query %s, at most once: epoch %d is skipped (%s)", self.query, epoch, why)
                rows = sum(committable.rows for committable in committables)
                self._run.emit("skipped", epoch, rows=rows, error=why)
        return None

    def _register(self) -> int:
        facts = {**self._run.facts(), "sources": self._sources, "history": history_of(self._log)}
        generation = self._run.register(facts)
        self._run.emit("started", None)
        return generation

    def _look(self) -> CheckpointState:
        state = look(self._ledger, self._log, running=self._query_running)
        refuse_lost_state(self._ledger, self._log, state, self.query, self._run.refuse_superseded)
        query_id = query_of(self._ledger, self._log)
        if query_id is not None and self._inflight is not None:
            self._inflight.open(query_id, self._run.generation)
        self._run.next_epoch = next_epoch(state)
        failpoint("recover.looked")
        return state

    def _restore_log(self, epoch: int, decided: DecisionId | None) -> bool:
        running = self._query_running
        behind = running and self._log.next_epoch()[0] < epoch  # and Spark has gone on from there
        fence = self._run.refuse_superseded
        changed = None if behind else restore(self._ledger, self._log, epoch, decided, running=running, fence=fence)
        if changed:
            log.warning("query %s: Spark's log is restored for epoch %d: %s", self.query, epoch, ", ".join(changed))
            self._run.emit("log_restored", epoch)
            failpoint("recover.restored")
            if running:
                raise self._positions.overwritten(epoch)  # Spark has read it as it was before
        return changed is not None

    def _prepare(self, only: frozenset[str] | None) -> Prepared | Failed:
        """Run the plan, with the writers of the sinks in `only` alone, if it is set; all others just count."""
        attempt = self._attempt
        assert attempt is not None
        unprepared = attempt.shares is None
        prepared = self._preparation.run(attempt, only) if unprepared else self._preparation.confirm(attempt)
        if isinstance(prepared, Failed):
            return prepared
        rows = prepared.committables if attempt.shares is None else attempt.shares
        if prepared.strays:
            self._stragglers.expect(logs=True)
        attempt.once &= not prepared.strays
        seconds = attempt.seconds
        attempt.committables, attempt.precommit_ms = rows, round(seconds * 1000, 2)
        self._emit_rows("precommitted", attempt.epoch, rows, seconds=round(seconds, 4))
        failpoint("epoch.sealed")
        ids = prepared.state_ids if attempt.shares is None else self._log.no_ids(attempt.epoch)
        return replace(prepared, strays=prepared.strays and not self._limits.unaligned, state_ids=ids)

    def _decide(self, decision: Decision) -> None:
        attempt = self._attempt
        assert attempt is not None
        # State and the sources' own logs are as much a part of the decision as the barrier, which the manifest holds.
        if self.decided < 0 and self._log.storage.forgetful:
            keep_state(self._log, decision.id.epoch + 1, decision.id.generation)
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
        attempt.decided = time.time()
        self._run.emit("decided", decision.id.epoch)
        failpoint("epoch.decided")

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        attempt = self._attempt
        if attempt is not None:
            failpoint("epoch.confirmed")
        started = time.monotonic()
        epoch = decision.id.epoch
        logged = [committable for committable in decision.to_commit if committable.logged]
        direct = [committable for committable in decision.to_commit if not committable.logged]
        outcomes = self._run.commit(epoch, direct)
        visible = True
        if logged:
            uids = {committable.sink for committable in logged}
            if self._inflight is None or uids - self._run.sinks.keys():
                raise self._run.committers.uids_changed(uids, f"epoch {epoch} is in the log for")
            visible = self._inflight.commit(epoch, logged, self._run.commit)
            outcomes.update({committable.id: Outcome.COMMITTED for committable in logged})
        commit_ms = round((time.monotonic() - started) * 1000, 2)
        if attempt is not None:
            attempt.commit_ms, attempt.logged = commit_ms, not visible
        if visible and all(outcomes.get(committable.id, Outcome.UNKNOWN).visible for committable in decision.to_commit):
            self._emit_rows("committed", epoch, decision.committables, commit_ms=commit_ms, recovery=attempt is None)
        failpoint("recover.committed" if attempt is None else "epoch.committed")
        return outcomes
