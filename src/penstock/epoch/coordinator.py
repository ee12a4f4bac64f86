"""From Spark to the sinks: drives the pure protocol for one query. One of the two places that implement `foreachBatch`.

Every action of `protocol.py` has one method here or in `conductor.py`, named after it. Nothing else in this file
decides anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.backlog import is_logged, prepared_of
from penstock.checkpoint.belonging import check_sources, history_of, mismatch
from penstock.checkpoint.decision import Committable, Decision, DecisionId, Outcome, WriterId
from penstock.config import Checkpoints
from penstock.deadline import Deadline
from penstock.epoch import protocol
from penstock.epoch.channel import How, Writing
from penstock.epoch.checksum import rules_of
from penstock.epoch.driver import Conductor, Timing, log
from penstock.epoch.limits import Gate, Watchdog
from penstock.epoch.log_repair import look, query_of, restore
from penstock.epoch.notes import EpochNotes, EpochObserver
from penstock.epoch.outputs import EpochOutputs
from penstock.epoch.protocol import Replay, Resume
from penstock.epoch.row_sizes import RowSizes
from penstock.epoch.watermark import WatermarkTracker
from penstock.errors import JobStopped, PenstockError, SavepointError
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.checkpoint.ledger import Ledger
    from penstock.checkpoint.spark_log import Barrier, SparkLog
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.epoch.inflight.manager import InFlight
    from penstock.events import Events

Body = Callable[["DataFrame", EpochOutputs], None]
"""What a query does with an epoch: call `outputs.write` for each of its sinks."""

_SWEEP_AGAIN_FOR = 60.0  # seconds after a start, or after tasks raced: those given up may still open something
_SWEEP_AGAIN_EVERY = 5.0

__all__ = ["Body", "Coordinator", "Timing"]


class Coordinator(Conductor):
    """One start of one query: its ledger, its sinks, its generation. Call `recover`, then start Spark."""

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
        watermark_policy: str = "min",
        checkpoints: Checkpoints | None = None,
        inflight: InFlight | None = None,
        on_complete: Callable[[int, Barrier | None], None] | None = None,
        ends_at: Callable[[Barrier], bool] | None = None,
        observer: EpochObserver | None = None,
        previous: int = 0,
    ) -> None:
        limits = self._limits = checkpoints or Checkpoints()
        timing = Timing(limits.commit_timeout_seconds, limits.abort_timeout_seconds)
        super().__init__(
            job=job, query=query, sinks=sinks, ledger=ledger, events=events, timing=timing, where=log.location
        )
        self._sources = tuple(sources)
        self._log, self._body = log, body
        self._executed_plan = executed_plan
        self._query_running = False
        self._on_complete, self._ends_at = on_complete, ends_at
        self._inflight, self._observer = inflight, observer
        self._notes = EpochNotes(0.0)
        self._watermark = WatermarkTracker(watermark_policy)
        self._gate = Gate(query)
        self._sizes = RowSizes()
        self._rules: Mapping[str, int] = {}
        self._resume: Resume | None = None
        self._previous = previous
        self._attempts = 0
        self._failed_in_row = 0
        self._stray_logs = False
        self._stragglers_until = time.monotonic()
        self._opened = self._last_completed = 0.0
        self._frame: DataFrame | None = None
        self._barrier: Barrier | None = None
        self._failure: BaseException | None = None
        self.completed = self.decided = -1

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
        resume = self._drive(protocol.recover(self.generation))
        self._resume, self._generation = resume, resume.generation
        self._swept = time.monotonic()
        self._stragglers_until = self._swept + (_SWEEP_AGAIN_FOR if resume.generation > 1 else 0)
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
        with self._gate:
            try:
                self._gate.check()
                self._run(frame, epoch)
            except BaseException as error:
                self._failure = error
                self._emit("failed", epoch, error=f"{type(error).__name__}: {error}")
                raise
            finally:
                self._frame = None

    def tend(self) -> None:
        """Call now and then while the query runs: what has to be done though no epoch comes."""
        if self._gate.try_enter():
            try:
                if self.failure is None and not self._gate.closed:
                    self._sweep_stragglers()
            finally:
                self._gate.leave()

    def drain(self, given_up: Callable[[], bool]) -> None:
        """Return when the in-flight log is delivered, or `given_up` says so."""
        if self._inflight is not None:
            self._inflight.wait_empty(given_up)

    @contextmanager
    def held(self, patience: Deadline) -> Iterator[None]:
        """While this lasts no epoch is under way and none begins. `SavepointError` where one does not end in time."""
        if not self._gate.enter_within(patience.remaining()):
            raise SavepointError(
                f"The epoch under way of query {self._query!r} has not ended within the checkpoint timeout.",
                safe="the job goes on; nothing was changed.",
                to_do="see what it waits for, then ask again.",
            )
        try:
            yield
        finally:
            self._gate.leave()

    @property
    def delivered(self) -> bool:
        """Whether no row waits in the in-flight log."""
        return self._inflight is None or not self._inflight.pending

    @property
    def busy(self) -> bool:
        """Whether an epoch is under way."""
        if self._gate.try_enter():
            self._gate.leave()
            return False
        return True

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
        self._close_committers()

    # One epoch

    def _run(self, frame: DataFrame, epoch: int) -> None:
        if self._resume is None:
            self.recover(query_running=True)
        replay = self._take_replay(epoch)
        self._frame = frame
        self._barrier = self._log.barrier(epoch)
        if self._barrier is None:
            # Spark writes it before it calls us: the checkpoint we read is not the one it writes.
            raise mismatch(self._query, f"{self._log.location} has no offsets/{epoch}")
        self._gate.pause(self._last_completed + self._limits.min_pause_seconds - time.monotonic())
        self._open_inflight()
        while not self._attempt(epoch, replay):
            pass
        self._failed_in_row = 0
        self.completed = epoch
        self._last_completed = time.monotonic()
        self._ledger.prune(epoch)
        if self._inflight is not None and self._stray_logs:
            self._inflight.remove_strays(self._keep)
            self._stray_logs = False
        self._sweep_stragglers()
        if self._on_complete is not None:
            self._on_complete(epoch, self._barrier)
        self._emit("completed", epoch, seconds=round(self._last_completed - self._opened, 4))
        self._observe(epoch, None)

    def _observe(self, epoch: int, error: BaseException | None) -> None:
        if self._observer is not None:
            if self._inflight is not None:
                self._notes.inflight_bytes = self._inflight.bytes
            self._observer.ended(epoch, self._generation, self._barrier, self._notes, error)

    def _attempt(self, epoch: int, replay: Replay | None) -> bool:
        """Run the epoch once; False if it failed in a way that is tolerated, and is to be tried again."""
        assert self._barrier is not None
        self._attempts += 1
        self._opened, self._notes = time.monotonic(), EpochNotes(time.time())
        self._rules = rules_of(replay.decision.committables) if replay else {}
        self._watermark.start(int(self._barrier.metadata.get("batchWatermarkMs", 0)))
        if self._watermark.needed and epoch:
            self._watermark.verify(self._log.committed_watermark(epoch - 1))
        self._emit("opened", epoch)
        try:
            decision = self._drive(protocol.run_epoch(self._generation, epoch, replay))
        except BaseException as error:
            self._observe(epoch, error)
            again = isinstance(error, PenstockError) and error.checkpoint_only
            if not again or not protocol.may_try_again(self._performed):
                raise
            self._stragglers_until = time.monotonic() + _SWEEP_AGAIN_FOR
            self._failed_in_row += 1
            tolerated = self._failed_in_row <= self._limits.tolerable_failures
            self._emit(
                "checkpoint_failed",
                epoch,
                error=f"{type(error).__name__}: {error}",
                in_row=self._failed_in_row,
                tolerable=self._limits.tolerable_failures,
                tolerated=tolerated,
            )
            if not tolerated:
                raise
            self._gate.check()
            return False
        if decision is not None:
            self._keep = decision.committables
        return True

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

    def _sweep_stragglers(self) -> None:
        """Abort what tasks that were given up have opened since. Between epochs, nothing open is anybody's."""
        now = time.monotonic()
        if not self._swept + _SWEEP_AGAIN_EVERY < now < self._stragglers_until:
            return
        if self._inflight is not None and self._inflight.pending:
            return  # the drainer does it, and knows whether the sink answers
        self._swept = now
        try:
            self._abort_dangling(self._kept(self._keep))
        except Exception as error:  # no epoch needs it done: the next look, or the next start, finds what is left
            log.warning("query %s: leftovers of earlier attempts could not be swept: %s", self._query, error)

    # The actions

    def _register(self) -> int:
        generation = super()._register()
        self._emit("started", None)
        return generation

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "sources": self._sources, "history": history_of(self._log)}

    def _query_id(self) -> str | None:
        return self._log.query_id()

    def _look(self) -> protocol.Found:
        found = look(self._ledger, self._log)
        query = query_of(self._ledger, self._log)
        if query is not None and self._inflight is not None:
            self._inflight.open(query, self._generation)
        failpoint("recover.looked")
        return found

    def _restore_log(self, epoch: int, decided: DecisionId | None) -> bool:
        if self._query_running or not restore(self._ledger, self._log, epoch, decided):
            return False
        log.warning("query %s: Spark's log had lost files; restored from the ledger for epoch %d", self._query, epoch)
        self._emit("log_restored", epoch)
        failpoint("recover.restored")
        return True

    def _pre_commit(self, epoch: int, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        failpoint("epoch.opened")
        assert self._frame is not None
        outputs = EpochOutputs(
            epoch,
            self._attempts,
            self._generation,
            self._job,
            self._sinks,
            self._frame,
            lambda uid: self._writing(uid, only),
            self._hints,
            self._sizes,
            self._rules,
        )
        watchdog = Watchdog(self._frame, self._limits.timeout_seconds, self._query, epoch)
        try:
            with watchdog:
                self._body(self._frame, outputs)
                outputs.execute_rest()
                failpoint("epoch.precommitted")
                committables = self._prepared(outputs.committables, only)
                plan = self._executed_plan()
                watermark = self._watermark.advance(plan)
                if self._observer is not None:
                    self._observer.prepared(epoch, self._barrier, self._notes.opened, plan)
            self._check_end(epoch)
        except Exception as error:
            return protocol.Failed(watchdog.expired or error)
        if outputs.strays:
            self._stragglers_until = time.monotonic() + _SWEEP_AGAIN_FOR
            self._stray_logs = True
        rows = sum(one.rows for one in committables)
        seconds = time.monotonic() - self._opened
        self._notes.committables, self._notes.precommit_ms = committables, round(seconds * 1000, 2)
        self._emit("precommitted", epoch, rows=rows, seconds=round(seconds, 4))
        failpoint("epoch.sealed")
        return protocol.Prepared(committables, watermark, outputs.strays and not self._limits.unaligned)

    def _writing(self, uid: str, only: frozenset[str] | None) -> Writing:
        if only is not None:
            return Writing(How.SINK if uid in only else How.COUNT)
        if self._inflight is not None:
            return self._inflight.writing(uid, time.monotonic() - self._opened)
        return Writing()

    def _hints(self, uid: str) -> Mapping[str, Any]:
        own = self._committers[uid].hints()
        return self._inflight.with_hints(uid, own) if self._inflight is not None else own

    def _prepared(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        """Each sink confirms what its writers prepared."""
        found = [one for one in committables if one.rows and (only is None or one.sink in only)]
        deadline = Deadline(self._timing.commit_seconds)
        sealed = list(self._seal([one for one in found if not is_logged(one)], deadline))
        if self._inflight is not None:
            sealed.extend(self._inflight.sealed([one for one in found if is_logged(one)], self._seal))
        by_id = {one.id: one for one in sealed}
        return tuple(by_id.get(one.id, one) for one in committables)

    def _check_end(self, epoch: int) -> None:
        """Without a final checkpoint, the epoch that reaches the end of bounded inputs is not decided."""
        if self._limits.final_checkpoint or self._ends_at is None or self._barrier is None:
            return
        if self._ends_at(self._barrier):
            raise JobStopped(
                f"Epoch {epoch} of query {self._query!r} reaches the end of its inputs, and final_checkpoint is off.",
                safe="it is aborted, not lost: it replays when the job is started with final_checkpoint on.",
                to_do="nothing, if that is what you want.",
            )

    def _decide(self, decision: Decision) -> None:
        barrier = self._barrier
        assert barrier is not None
        # State and the sources' own logs are as much a part of the decision as the barrier, which the manifest holds.
        self._log.sync()
        self._ledger.decide(
            decision,
            query=self._log.query_id(),
            barrier=barrier.digest,
            offsets=barrier.text,
            history=history_of(self._log),
            stateful=self._log.stateful(),
        )
        self.decided = decision.id.epoch
        self._notes.decided = time.time()
        self._emit("decided", decision.id.epoch)
        failpoint("epoch.decided")

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        recovering = self._frame is None
        if not recovering:
            failpoint("epoch.confirmed")
        started = time.monotonic()
        deadline = Deadline(self._timing.commit_seconds)
        epoch = decision.id.epoch
        logged = [one for one in decision.to_commit if is_logged(one)]
        outcomes = self._commit_at_sinks(epoch, [one for one in decision.to_commit if not is_logged(one)], deadline)
        visible = True
        if logged:
            if self._inflight is None or {one.sink for one in logged} - self._sinks.keys():
                raise self._uids_changed(sorted({one.sink for one in logged}), f"epoch {epoch} is in the log for")
            visible = self._inflight.commit(epoch, logged, self._commit_at_sinks)
            outcomes.update({one.id: Outcome.COMMITTED for one in logged})
        self._notes.commit_ms = round((time.monotonic() - started) * 1000, 2)
        self._notes.logged = not visible
        if visible and all(outcomes.get(one.id, Outcome.UNKNOWN).visible for one in decision.to_commit):
            self._emit(
                "committed",
                epoch,
                rows=sum(one.rows for one in decision.committables),
                writers=len(decision.to_commit),
                commit_ms=self._notes.commit_ms,
                recovery=recovering,
            )
        failpoint("recover.committed" if recovering else "epoch.committed")
        return outcomes

    def _finish_log(self, epoch: int, watermark: int | None) -> bool:
        finished = not self._query_running and self._log.finish(epoch, watermark)
        failpoint("recover.finished")
        return finished

    def _sweep(self, keep: Sequence[Committable]) -> None:
        self._keep = tuple(keep)
        self._abort_dangling(self._kept(keep))
        if self._inflight is not None:
            self._inflight.remove_strays(keep)
        failpoint("recover.swept" if self._frame is None else "epoch.aborted")

    def _kept(self, keep: Sequence[Committable]) -> list[Committable]:
        """What must stay open at the sinks: of these and of the backlog, what was prepared there."""
        plain = [one if not is_logged(one) else prepared_of(one) for one in keep]
        waiting = self._inflight.prepared() if self._inflight is not None else []
        return [one for one in plain if one is not None] + waiting

    def _passed(self, point: str) -> None:
        failpoint(point)
