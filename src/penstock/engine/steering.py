"""What somebody outside may ask of a running job: a savepoint, a checkpoint, an end with a savepoint, how it is.

Every call blocks and may come from any thread; savepoints are taken one after the other. Whatever is refused, the job
goes on as it was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from penstock.config.option import one_of
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PenstockError, SavepointError
from penstock.progress import Progress, silent
from penstock.savepoints.savepoint import Kind
from penstock.savepoints.take import HeldQuery, TakenSavepoint, Taker
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import Checkpoints
    from penstock.engine.global_checkpoint import GlobalCheckpoints
    from penstock.engine.query import QueryRunner
    from penstock.events import Events

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.05
_IDLE_SECONDS = 1.0  # beyond the interval: a query that begins no epoch in this time has nothing to read


class Steering:
    """The queries of one run of a job, and `stop`, which ends it cleanly."""

    def __init__(
        self,
        job: str,
        runners: Sequence[QueryRunner],
        spark: SparkSession,
        checkpoints: Checkpoints,
        events: Events,
        stop: Callable[[], None],
        globals_: GlobalCheckpoints | None = None,
    ) -> None:
        self._job, self._runners, self._spark = job, sorted(runners, key=lambda one: one.plan.uid), spark
        self._checkpoints, self._events, self._stop = checkpoints, events, stop
        self._globals = globals_
        self._lock = threading.Lock()
        self._final: tuple[str, Kind, Future[str], Progress] | None = None
        self._ending = threading.Lock()  # an end that is asked for at the very end is carried out, or refused
        self._ended: str | None = None

    def savepoint(self, directory: str | None, kind: str, progress: Progress = silent) -> str:
        """Take one while the job runs; where it is."""
        where, wanted = self._directory(directory), one_of(Kind, kind, "kind of savepoint")
        with self._alone():
            return self._announce(self._taker(self._hold).take(where, wanted, progress=progress))

    def stop_with_savepoint(
        self,
        directory: str | None,
        kind: str,
        *,
        drain: bool = False,
        end: Callable[[], None] | None = None,
        progress: Progress = silent,
    ) -> str:
        """Finish the epoch under way, take a savepoint, and end; no epoch comes after it. Should it fail, the job goes
        on. `drain`: first emit what windows still hold, as if all time had passed; then the job ends whether
        or not the savepoint works out. `end` ends the job in another way than `stop`."""
        where, wanted = self._directory(directory), one_of(Kind, kind, "kind of savepoint")
        with self._alone():
            if drain:
                final: Future[str] = Future()
                with self._ending:
                    self._refuse_ended()
                    self._final = (where, wanted, final, progress)
                self._stop()
                return final.result()
            with self._hold() as held_queries:
                taken = self._taker(lambda: nullcontext(held_queries)).take(where, wanted, progress=progress)
                for runner in self._runners:
                    runner.shut()
            (end or self._stop)()
            return self._announce(taken)

    def checkpoint(self) -> int:
        """Wait for a checkpoint that was begun after this call; its number. Where a query has nothing to read, its
        newest one holds everything already, and counts."""
        before = {runner.plan.uid: self._epoch(runner) for runner in self._runners}
        known = self._globals.newest if self._globals is not None else 0
        for runner in self._runners:
            self._wait_for_epoch(runner, before[runner.plan.uid])
        if self._globals is None or not self._globals.wanted:
            return max(self._epoch(runner) for runner in self._runners)
        patience = Deadline(self._checkpoints.timeout_seconds)
        idle = all(self._epoch(runner) == before[runner.plan.uid] for runner in self._runners)
        while self._globals.newest == known and not (idle and known) and not patience.passed():
            self._refuse_ended()
            time.sleep(_POLL_SECONDS)
        return self._globals.newest

    def status(self) -> dict[str, Any]:
        """Where each query stands."""
        queries = {}
        for runner in self._runners:
            now = runner.progress
            queries[runner.plan.uid] = {
                "epoch": None if now is None or now.completed < 0 else now.completed,
                "generation": runner.generation,
                "running": runner.alive,
                "done": runner.done,
                "error": None if runner.error is None else str(runner.error),
            }
        return {"queries": queries}

    # Called by the job itself

    def end(self, error: BaseException | None) -> None:
        """The queries have come to rest. Carries out a drain that was asked for, and answers whoever waits."""
        with self._ending:
            self._ended = "failed" if error is not None else "ended"
            asked = self._final
        if asked is None:
            return
        where, kind, final, progress = asked
        if error is not None:
            final.set_exception(_refusal(self._job, f"it failed: {error}"))
            return
        drained: list[str] = []
        try:
            for runner in self._runners:
                runner.prepare_final()  # all of them, before the first one closes its windows
            for runner in self._runners:
                runner.emit_final()
                drained.append(runner.plan.uid)
            held_queries = [runner.at_end() for runner in self._runners]
            taker = self._taker(lambda: nullcontext(held_queries))
            taken = taker.take(where, kind, drained=True, progress=progress)
            final.set_result(self._announce(taken))
        except BaseException as failed:
            final.set_exception(_half_drained(self._job, drained, failed) if drained else failed)
            if not isinstance(failed, PenstockError):
                raise

    @contextmanager
    def _hold(self) -> Iterator[Sequence[HeldQuery]]:
        patience = Deadline(self._checkpoints.timeout_seconds)
        with ExitStack() as held:
            yield [held.enter_context(runner.hold(patience)) for runner in self._runners]

    def _taker(self, hold: Any) -> Taker:
        return Taker(self._job, self._spark, hold, mode=str(self._checkpoints.mode))

    def _announce(self, taken: TakenSavepoint) -> str:
        saved = taken.savepoint
        self._events.emit(
            "savepoint",
            query=None,
            path=taken.path,
            kind=saved.kind.value,
            bytes=saved.size,
            epochs={uid: one.epoch for uid, one in saved.queries.items()},
            drained=saved.drained,
            held_ms=taken.held_ms,
            waited_ms=taken.waited_ms,
            total_ms=taken.total_ms,
        )
        log.info("savepoint %s: %d bytes, queries held for %.0f ms", taken.path, saved.size, taken.held_ms)
        return taken.path

    def _directory(self, given: str | None) -> str:
        where = given or self._checkpoints.savepoint_dir
        if not where:
            raise ConfigurationError(
                "There is no folder to put the savepoint into.",
                safe="the job goes on; nothing was changed.",
                to_do="name a folder, or set Checkpoints(savepoint_dir=…) or execution.checkpointing.savepoint-dir.",
            )
        path = local_path(where)
        return where if path is None or "://" in where or where.startswith("file:") else str(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self._refuse_ended()
            yield

    def _refuse_ended(self) -> None:
        if self._ended is not None or self._final is not None:
            raise _refusal(self._job, f"it has {self._ended}" if self._ended else "it is stopping")

    def _epoch(self, runner: QueryRunner) -> int:
        now = runner.progress
        return -1 if now is None else now.completed

    def _wait_for_epoch(self, runner: QueryRunner, before: int) -> None:
        patience = Deadline(self._checkpoints.timeout_seconds)
        idle = Deadline(2 * self._checkpoints.interval_seconds + _IDLE_SECONDS)
        while self._epoch(runner) <= before and not runner.done:
            self._refuse_ended()
            if idle.passed() and self._epoch(runner) >= 0 and not runner.busy:
                return
            if patience.passed():
                raise SavepointError(
                    f"Query {runner.plan.uid!r} has completed no checkpoint within the checkpoint timeout.",
                    safe="the job goes on.",
                    to_do="see its log for what it waits for.",
                )
            time.sleep(_POLL_SECONDS)


def _half_drained(job: str, drained: Sequence[str], failed: BaseException) -> SavepointError:
    """Some queries have closed their windows, which cannot be taken back: their rows are visible."""
    error = SavepointError(
        f"Job {job!r} gives no savepoint, though the queries {list(drained)} are drained: {failed}",
        safe="what their windows held is visible, once; the checkpoints of the other queries are as they were.",
        to_do="the next start refuses to go on behind the drain (JobDrained), and says what can be done.",
    )
    error.__cause__ = failed
    return error


def _refusal(job: str, why: str) -> SavepointError:
    return SavepointError(
        f"Job {job!r} gives no savepoint: {why}.",
        safe="its checkpoint is as it was; nothing is half done.",
        to_do="start it again, or restore from its checkpoint as STORAGE/JOB/chk-N.",
    )
