"""Drives the pure protocol against Spark, the ledger and the sinks. The only place that implements `foreachBatch`.

Every action of `protocol.py` has one method here, named after it. Nothing else in this file decides anything.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.deadline import Deadline
from penstock.epoch import protocol
from penstock.epoch.outputs import EpochOutputs
from penstock.epoch.protocol import Action, Committable, Decision, Outcome, Replay, Resume, WriterId
from penstock.epoch.stops import explain_stop
from penstock.epoch.watermark import WatermarkTracker
from penstock.errors import JobStopped, LedgerCorrupt, LedgerError, UidChanged
from penstock.sinks.base import Committer, SinkScope, TwoPhaseSink
from penstock.testing.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.epoch.ledger import Ledger
    from penstock.epoch.spark_log import Barrier, SparkLog
    from penstock.runtime.events import Events

Body = Callable[["DataFrame", EpochOutputs], None]
"""What a query does with an epoch: call `outputs.write` for each of its sinks."""

log = logging.getLogger("penstock")

_T = TypeVar("_T")
_SWEEP_AGAIN_FOR = 60.0  # seconds after a start, or after tasks raced: those given up may still open something
_SWEEP_AGAIN_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the steps after the pre-commit may take, together."""

    commit_seconds: float = 60.0  # longer than a broker's restart, shorter than any sane transaction timeout
    abort_seconds: float = 30.0


class Coordinator:
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
        timing: Timing | None = None,
        on_complete: Callable[[int, Barrier | None], None] | None = None,
        previous: int = 0,
    ) -> None:
        self._job, self._query = job, query
        self._sinks, self._sources = dict(sinks), tuple(sources)
        self._ledger, self._log, self._events, self._body = ledger, log, events, body
        self._timing = timing or Timing()
        self._executed_plan = executed_plan
        self._query_running = False
        self._on_complete = on_complete
        self._watermark = WatermarkTracker(watermark_policy)
        self._committers: dict[str, Committer] = {}
        self._pool = ThreadPoolExecutor(max_workers=max(4, len(sinks)), thread_name_prefix=f"penstock-{query}")
        self._gate = threading.Lock()
        self._closed = False
        self._resume: Resume | None = None
        self._previous, self._generation = previous, 0
        self._attempts = 0
        self._swept = self._stragglers_until = time.monotonic()
        self._keep: tuple[Committable, ...] = ()  # of the last decision
        self._frame: DataFrame | None = None
        self._barrier: Barrier | None = None
        self.failure: BaseException | None = None
        self.completed = -1

    @property
    def generation(self) -> int:
        """This run's number; before it has registered, that of the run before it in this process."""
        return self._generation or self._previous

    # The two entrances

    def recover(self, *, query_running: bool = False) -> Resume:
        """Finish what an earlier run decided. Call before Spark's query starts (`query_running`: it has, so its log is
        not ours to complete, and a decided epoch is proven by replay)."""
        started = time.monotonic()
        self._query_running = query_running
        self._check_identity()
        resume = self._drive(protocol.recover(self._previous))
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
        return resume

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        """`foreachBatch`: returns only when epoch `epoch` is visible in every sink; then Spark writes its commit."""
        with self._gate:
            try:
                if self._closed:
                    raise JobStopped(f"Query {self._query!r} is stopping.", safe="the epoch replays at the next start.")
                self._run(frame, epoch)
            except BaseException as error:
                self.failure = error
                self._emit("failed", epoch, error=f"{type(error).__name__}: {error}")
                raise
            finally:
                self._frame = None

    def tend(self) -> None:
        """Call now and then while the query runs: what has to be done though no epoch comes."""
        if self._gate.acquire(blocking=False):
            try:
                if self.failure is None and not self._closed:
                    self._sweep_stragglers()
            finally:
                self._gate.release()

    def close_gate(self) -> None:
        """From now on no epoch begins; returns when none is under way. Stop Spark's query after this."""
        self._closed = True
        with self._gate:
            pass

    def close(self) -> None:
        """Free the sinks' connections. Waits for an epoch under way."""
        self.close_gate()
        for committer in self._committers.values():
            committer.close()
        self._committers.clear()
        self._pool.shutdown(wait=False)

    # One epoch

    def _run(self, frame: DataFrame, epoch: int) -> None:
        if self._resume is None:
            self.recover(query_running=True)
        replay = self._take_replay(epoch)
        self._frame = frame
        self._attempts += 1
        self._barrier = self._log.barrier(epoch)
        if self._barrier is None:
            # Spark writes it before it calls us: the checkpoint we read is not the one it writes.
            raise self._strangers(f"{self._log.location} has no offsets/{epoch}")
        self._watermark.start(int(self._barrier.metadata.get("batchWatermarkMs", 0)))
        if self._watermark.needed and epoch:
            self._watermark.verify(self._log.committed_watermark(epoch - 1))
        self._emit("opened", epoch)
        decision = self._drive(protocol.run_epoch(self._generation, epoch, replay))
        if decision is not None:
            self._keep = decision.committables
        self.completed = epoch
        self._ledger.prune(epoch)
        self._sweep_stragglers()
        if self._on_complete is not None:
            self._on_complete(epoch, self._barrier)

    def _take_replay(self, epoch: int) -> Replay | None:
        assert self._resume is not None
        replay = self._resume.replay
        if (replay is not None and replay.decision.id.epoch != epoch) or epoch < self._resume.epoch:
            raise self._strangers(f"{self._ledger.location} was recovered for epoch {self._resume.epoch}")
        self._resume = Resume(self._generation, epoch + 1, "none")
        return replay

    def _strangers(self, found: str) -> LedgerError:
        return LedgerError(
            f"Spark runs an epoch of query {self._query!r}, but {found}: ledger and checkpoint do not belong together.",
            safe="nothing was written.",
            to_do="give `checkpoint=` the same location as the query's checkpointLocation.",
        )

    def _sweep_stragglers(self) -> None:
        """Abort what tasks that were given up have opened since. Between epochs, nothing open is anybody's."""
        now = time.monotonic()
        if not self._swept + _SWEEP_AGAIN_EVERY < now < self._stragglers_until:
            return
        self._swept = now
        try:
            self._abort_dangling(self._keep)
        except Exception as error:  # no epoch needs it done: the next look, or the next start, finds what is left
            log.warning("query %s: leftovers of earlier attempts could not be swept: %s", self._query, error)

    # The actions

    def _drive(self, steps: Generator[Action, Any, _T]) -> _T:
        """Carry out actions until the coroutine ends; what an action raises goes past it, to the caller."""
        answer: Any = None
        try:
            while True:
                answer = self._perform(steps.send(answer))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except protocol.ProtocolStop as stop:
            raise explain_stop(stop, self._query, self._log.location) from getattr(stop, "error", None)

    def _perform(self, action: Action) -> Any:
        match action:
            case protocol.Register():
                return self._register()
            case protocol.Look():
                return self._look()
            case protocol.WriteClaim(claim):
                self._ledger.claim(claim, self._log.query_id())
                failpoint("recover.claimed")
            case protocol.NewestGeneration():
                return self._ledger.newest_generation()
            case protocol.PreCommit(epoch, only):
                return self._pre_commit(epoch, only)
            case protocol.Decide(decision):
                self._decide(decision)
            case protocol.Commit(decision):
                return self._commit(decision)
            case protocol.FinishLog(epoch, watermark):
                return self._finish_log(epoch, watermark)
            case protocol.Sweep(keep):
                self._sweep(keep)
        return None

    def _register(self) -> int:
        facts = {
            "job": self._job,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sources": self._sources,
            "sinks": sorted(self._sinks),
        }
        self._generation = self._ledger.register(facts)
        for uid, sink in self._sinks.items():
            self._committers[uid] = sink.open_committer(SinkScope(self._job, uid, self._generation))
        failpoint("recover.registered")
        self._emit("started", None)
        return self._generation

    def _look(self) -> protocol.Found:
        query = self._log.query_id()
        epoch, barrier = self._log.next_epoch()
        if query is not None:
            self._check_barrier(epoch if barrier else epoch - 1, query)
        decisions = self._ledger.decisions(epoch, query) if query is not None else ()
        claims = self._ledger.claims(query) if query is not None else ()
        failpoint("recover.looked")
        return protocol.Found(epoch, barrier, decisions, claims)

    def _pre_commit(self, epoch: int, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        failpoint("epoch.opened")
        assert self._frame is not None
        started = time.monotonic()
        outputs = EpochOutputs(
            epoch, self._attempts, self._generation, self._job, self._sinks, self._committers, self._frame, only
        )
        try:
            self._body(self._frame, outputs)
            outputs.execute_rest()
            failpoint("epoch.precommitted")
            committables = self._seal(outputs.committables, only)
            watermark = self._watermark.advance(self._executed_plan())
        except Exception as error:
            return protocol.Failed(error)
        if outputs.strays:
            self._stragglers_until = time.monotonic() + _SWEEP_AGAIN_FOR
        rows = sum(one.rows for one in committables)
        self._emit("precommitted", epoch, rows=rows, seconds=round(time.monotonic() - started, 4))
        failpoint("epoch.sealed")
        return protocol.Prepared(committables, watermark, outputs.strays)

    def _seal(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        """Each sink confirms what its writers say they prepared."""
        deadline = Deadline(self._timing.commit_seconds)
        prepared = [one for one in committables if one.rows and (only is None or one.sink in only)]
        sealed = self._per_sink(prepared, lambda committer, own: committer.seal(own, deadline))
        by_id = {one.id: one for own in sealed.values() for one in own}
        return tuple(by_id.get(one.id, one) for one in committables)

    def _decide(self, decision: Decision) -> None:
        barrier = self._barrier.digest if self._barrier else None
        self._ledger.decide(decision, query=self._log.query_id(), barrier=barrier)
        self._emit("decided", decision.id.epoch)
        failpoint("epoch.decided")

    def _commit(self, decision: Decision) -> dict[WriterId, Outcome]:
        recovering = self._frame is None
        if not recovering:
            failpoint("epoch.confirmed")
        started = time.monotonic()
        deadline = Deadline(self._timing.commit_seconds)
        epoch = decision.id.epoch
        missing = {one.sink for one in decision.to_commit} - self._sinks.keys()
        if missing:
            raise self._uids_changed(sorted(missing), f"epoch {epoch} is decided for")
        answers = self._per_sink(decision.to_commit, lambda committer, own: committer.commit(epoch, own, deadline))
        outcomes = {(sink, writer): outcome for sink, own in answers.items() for writer, outcome in own.items()}
        if all(outcomes.get(one.id, Outcome.UNKNOWN).visible for one in decision.to_commit):
            self._emit(
                "committed",
                epoch,
                rows=sum(one.rows for one in decision.committables),
                writers=len(decision.to_commit),
                commit_ms=round((time.monotonic() - started) * 1000, 2),
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
        self._abort_dangling(keep)
        failpoint("recover.swept" if self._frame is None else "epoch.aborted")

    def _abort_dangling(self, keep: Sequence[Committable]) -> None:
        deadline = Deadline(self._timing.abort_seconds)
        found = 0
        for uid, committer in self._committers.items():
            found += committer.abort_dangling([one for one in keep if one.sink == uid], deadline)
        if found:
            self._events.emit("aborted", query=self._query, generation=self._generation, count=found)

    # What they share

    def _per_sink(
        self, committables: Sequence[Committable], call: Callable[[Committer, Sequence[Committable]], _T]
    ) -> dict[str, _T]:
        """`call` for every sink that has committables, side by side; the first error is raised after all have ended."""
        groups: dict[str, list[Committable]] = {}
        for one in committables:
            groups.setdefault(one.sink, []).append(one)
        if len(groups) == 1:
            ((uid, own),) = groups.items()
            return {uid: call(self._committers[uid], own)}
        futures = {uid: self._pool.submit(call, self._committers[uid], own) for uid, own in groups.items()}
        for future in futures.values():
            future.exception()
        return {uid: future.result() for uid, future in futures.items()}

    def _check_identity(self) -> None:
        """The program must have the sources the checkpoint was written with: Spark knows their positions by order."""
        newest = self._ledger.newest_generation()
        before = self._ledger.generation(newest) if newest else None
        if before is not None and tuple(before["sources"]) != self._sources and self._log.query_id() is not None:
            raise UidChanged(
                f"Query {self._query!r} was last run with the sources {list(before['sources'])},"
                f" the program now reads {list(self._sources)}.",
                safe="nothing was started; the checkpoint is as it was.",
                to_do="give the sources their former uids and order, or use another query uid to start over.",
            )

    def _check_barrier(self, epoch: int, query: str) -> None:
        """Positions are decided with the epoch: if `offsets/N` is no longer the file that was decided on, stop."""
        barrier = self._log.barrier(epoch) if epoch >= 0 else None
        manifests = [one for one in self._ledger.manifests(epoch) if one.query == query] if barrier else []
        if barrier and manifests and all(one.barrier not in (None, barrier.digest) for one in manifests):
            raise LedgerCorrupt(
                f"{self._log.location}/offsets/{epoch} is not the file epoch {epoch} was decided on.",
                safe="nothing was started; what is committed stays committed.",
                to_do="see whether another program writes to this checkpoint, and restore the file from a copy.",
            )

    def _uids_changed(self, missing: Sequence[str], why: str) -> UidChanged:
        return UidChanged(
            f"The ledger of query {self._query!r} knows the sinks {list(missing)} ({why} them),"
            f" but the program has {sorted(self._sinks)}.",
            safe="nothing was committed or aborted; what is decided waits, until its transactions expire.",
            to_do="give the sink its former uid and let the epoch finish, then rename it in a new query.",
        )

    def _emit(self, event: str, epoch: int | None, **fields: Any) -> None:
        more = {} if epoch is None else {"epoch": epoch}
        self._events.emit(event, query=self._query, generation=self._generation, **more, **fields)
