"""Commands to a running job: savepoint, checkpoint, stop, cancel, drain; and its status.

Every call may come from any thread; savepoints are taken one after the other. A refused command leaves the job running
as it was.

A drain is the last epoch of a job that stops with its windows closed. Its barrier reads nothing and has a watermark
beyond all time, so that windows emit what they hold. Run by accident, such a barrier would make every later row late,
without an error. So it bears a mark, and

* it counts only once its epoch is decided: any recovery removes one that is not (`log_repair`), so a drain that fails,
  is killed or is superseded leaves the checkpoint as it was;
* a run that did not ask for it refuses to run it (`positions`);
* a start behind one that is decided is refused, unless it is restored on purpose: a copy has an id of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import SAVEPOINTS
from penstock.checkpoint.spark_log import END_OF_TIME, SparkLog
from penstock.config.checkpoints import is_in_memory
from penstock.config.option import one_of
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, JobDrained, PenstockError, SavepointError
from penstock.progress import Progress, silent
from penstock.savepoints.savepoint import HeldQuery, Kind, TakenSavepoint, Taker
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import Checkpoints
    from penstock.engine.coordinator import Coordinator
    from penstock.engine.global_checkpoint import GlobalCheckpoints
    from penstock.engine.protocol import Resume
    from penstock.engine.query import QueryRunner
    from penstock.events import Events

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.05
_IDLE_SECONDS = 1.0  # beyond the interval: a query that begins no epoch in this time has nothing to read


class EndRequest(IntEnum):
    """What was asked of the job, the stronger the higher."""

    NONE = 0
    STOP = 1
    CANCEL = 2


class Steering:
    """`control.Steerable` of one job. It is there before the job runs; `begin` gives it the queries of a run."""

    def __init__(self, job: str, checkpoints: Checkpoints) -> None:
        self.name, self._checkpoints = job, checkpoints
        self._stop = self._cancel = False  # two flags: a stop never takes back a cancel
        self.signalled = False  # the process must end, rather than the job: it may go on elsewhere
        self.wake = threading.Event()  # set when there is something new for the thread that runs the job
        self.on_stop: Callable[[], None] = lambda: None  # safe in a signal handler
        self._runners: Sequence[QueryRunner] = ()
        self._lock = threading.Lock()
        self._ending = threading.Lock()  # a command at the very end is carried out, or refused
        self._final: tuple[str, Kind, Future[str], Progress] | None = None
        self._ended: str | None = "not started yet"

    def begin(
        self, runners: Sequence[QueryRunner], spark: SparkSession, events: Events, globals_: GlobalCheckpoints
    ) -> None:
        """The queries that commands are about from now on."""
        self._runners = sorted(runners, key=lambda runner: runner.plan.uid)
        self._spark, self._events, self._globals = spark, events, globals_
        self._ended = self._final = None

    @property
    def request(self) -> EndRequest:
        return EndRequest.CANCEL if self._cancel else EndRequest.STOP if self._stop else EndRequest.NONE

    def stop(self) -> None:
        self._stop = True
        self.on_stop()
        self.wake.set()

    def cancel(self) -> None:
        self._cancel = True
        self.stop()

    def shut_down(self) -> None:
        self.signalled = self.signalled or not self._stop
        self.stop()

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        where, wanted = self._directory(directory), one_of(Kind, kind, "kind of savepoint")
        with self._alone():
            return self._announce(self._taker(self._hold).take(where, wanted, progress=progress))

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        kind: str = "native",
        cancel: bool = False,
        progress: Progress = silent,
    ) -> str:
        """No epoch comes after the savepoint. Should it fail, the job goes on; with `drain` it ends even then."""
        where, wanted = self._directory(directory), one_of(Kind, kind, "kind of savepoint")
        with self._alone():
            if drain:
                final: Future[str] = Future()
                with self._ending:
                    self._refuse_ended()
                    self._final = (where, wanted, final, progress)
                self.stop()
                return final.result()
            with self._hold(final=True) as held_queries:
                taken = self._taker(lambda: nullcontext(held_queries)).take(where, wanted, progress=progress)
                for runner in self._runners:
                    runner.shut()
            (self.cancel if cancel else self.stop)()
            return self._announce(taken)

    def checkpoint(self) -> int:
        if not self._runners:
            raise self._refusal()
        before = {runner.plan.uid: _completed(runner) for runner in self._runners}
        known = self._globals.newest
        for runner in self._runners:
            runner.hurry()
        for runner in self._runners:
            self._wait_for_epoch(runner, before[runner.plan.uid])
        if not self._globals.wanted:
            return max(_completed(runner) for runner in self._runners)
        patience = Deadline(self._checkpoints.timeout_seconds)
        idle = all(_completed(runner) == before[runner.plan.uid] for runner in self._runners)
        while self._globals.newest == known and not (idle and known) and not patience.passed():
            self._refuse_ended()
            time.sleep(_POLL_SECONDS)
        return self._globals.newest

    def status(self) -> dict[str, Any]:
        queries = {}
        for runner in self._runners:
            epoch = _completed(runner)
            queries[runner.plan.uid] = {
                "epoch": None if epoch < 0 else epoch,
                "generation": runner.generation,
                "running": runner.alive,
                "done": runner.done,
                "error": None if runner.error is None else str(runner.error),
            }
        return {"queries": queries}

    def end(self, error: BaseException | None) -> None:
        """The queries have come to rest. Carries out a drain that was asked for, and answers the caller who waits."""
        with self._ending:
            self._ended = "failed" if error is not None else "ended"
            asked = self._final
        if asked is None:
            return
        where, kind, final, progress = asked
        if error is not None:
            final.set_exception(self._refusal(f"it failed: {error}"))
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
            final.set_result(self._announce(taker.take(where, kind, drained=True, progress=progress)))
        except BaseException as failed:
            final.set_exception(_half_drained(self.name, drained, failed) if drained else failed)
            if not isinstance(failed, PenstockError):
                raise

    @contextmanager
    def _hold(self, *, final: bool = False) -> Iterator[Sequence[HeldQuery]]:
        """Downstream first: a real-time query goes on while it is held, and what another one has read of its rows must
        be in its past."""
        patience, order = Deadline(self._checkpoints.timeout_seconds), list(self._globals.order or ())
        runners = sorted(self._runners, key=lambda runner: order.index(runner.plan.uid) if order else 0)
        with ExitStack() as held:
            yield [held.enter_context(runner.hold(patience, final=final)) for runner in runners]

    def _taker(self, hold: Any) -> Taker:
        return Taker(self.name, self._spark, hold, mode=str(self._checkpoints.mode))

    def _announce(self, taken: TakenSavepoint) -> str:
        saved = taken.savepoint
        self._events.emit(
            "savepoint",
            query=None,
            path=taken.path,
            kind=saved.kind.value,
            bytes=saved.size,
            epochs={uid: query.epoch for uid, query in saved.queries.items()},
            drained=saved.drained,
            held_ms=taken.held_ms,
            waited_ms=taken.waited_ms,
            total_ms=taken.total_ms,
        )
        log.info("savepoint %s: %d bytes, queries held for %.0f ms", taken.path, saved.size, taken.held_ms)
        return taken.path

    def _directory(self, directory: str | None) -> str:
        where = directory or self._checkpoints.savepoint_dir
        if not where and is_in_memory(self._checkpoints):
            raise ConfigurationError(
                "There is no folder to put the savepoint into, and the job's checkpoints are gone when it ends.",
                safe="the job goes on; nothing was changed.",
                to_do="name a folder with -p DIR, set execution.checkpointing.savepoint-dir or"
                " Checkpoints(savepoint_dir=…), or stop without one: penstock stop --no-savepoint.",
            )
        where = where or f"{self._checkpoints.storage.rstrip('/')}/{SAVEPOINTS}"
        path = local_path(where)
        return where if path is None or "://" in where or where.startswith("file:") else str(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self._refuse_ended()
            yield

    def _refuse_ended(self) -> None:
        if self._ended is not None or self._final is not None:
            raise self._refusal(None if self._ended is None else f"it has {self._ended}")

    def _refusal(self, why: str | None = None) -> SavepointError:
        if not self._runners:
            return SavepointError(f"Job {self.name!r} does not run yet.", to_do="ask again when it runs.")
        return SavepointError(
            f"Job {self.name!r} gives no savepoint: {why or 'it is stopping'}.",
            safe="its checkpoint is as it was; nothing is half done.",
            to_do="start it again, or restore from its checkpoint as STORAGE/JOB/chk-N.",
        )

    def _wait_for_epoch(self, runner: QueryRunner, before: int) -> None:
        patience = Deadline(self._checkpoints.timeout_seconds)
        idle = Deadline(2 * self._checkpoints.interval_seconds + _IDLE_SECONDS)
        while _completed(runner) <= before and not runner.done:
            self._refuse_ended()
            if idle.passed() and _completed(runner) >= 0 and not runner.busy:
                return
            if patience.passed():
                raise SavepointError(
                    f"Query {runner.plan.uid!r} has completed no checkpoint within the checkpoint timeout.",
                    safe="the job goes on.",
                    to_do="see its log for what it waits for.",
                )
            time.sleep(_POLL_SECONDS)


def _completed(runner: QueryRunner) -> int:
    return -1 if (progress := runner.progress) is None else progress.completed


def _half_drained(job: str, drained: Sequence[str], failed: BaseException) -> SavepointError:
    """Some queries have closed their windows, which cannot be taken back: their rows are visible."""
    error = SavepointError(
        f"Job {job!r} gives no savepoint, though the queries {list(drained)} are drained: {failed}",
        safe="what their windows held is visible, once; the checkpoints of the other queries are as they were.",
        to_do="the next start refuses to go on behind the drain (JobDrained), and says what can be done.",
    )
    error.__cause__ = failed
    return error


# The last epoch of a drain


def final_epoch(uid: str, log: SparkLog, resume: Resume) -> int | None:
    """The epoch that closes all windows of a query that has recovered so far; None where they hold nothing back, for
    example because there is no watermark. Raises `SavepointError` where it cannot be run."""
    epoch = resume.epoch
    if is_due(resume):
        raise not_held(uid, f"epoch {epoch} is decided and has to be written again first")
    closed = log.closed_up_to(epoch - 1) if epoch else 0
    if closed in (0, END_OF_TIME):
        return None
    if closed is None or log.committed_watermark(epoch - 1) is None:
        raise not_held(uid, "its windows cannot be closed: Spark's commit log is in a format that is not known")
    return epoch


def cut_final(coordinator: Coordinator, log: SparkLog, epoch: int) -> None:
    """Write the barrier at the end of time, in place of one that is not decided: Spark would cut it anew, and nothing
    of it is visible.

    No file system replaces a file only if no other run has. So look before; and again after, as every start does before
    Spark's. What a superseded drain has written stays, since the newer run may be at work there, and counts for
    nothing."""
    if coordinator.has_begun(epoch):
        raise not_held(coordinator.query, f"epoch {epoch} was begun and, at most once, has to be skipped first")
    coordinator.refuse_superseded()
    log.end_of_time(epoch)
    coordinator.drains_at = epoch


def is_due(resume: Resume) -> bool:
    """Whether the next epoch is decided and has to be run once more."""
    return resume.action not in ("none", "finished")


def refuse_drained(uid: str, log: SparkLog, job: str) -> None:
    """Raise `JobDrained` where the newest complete epoch has closed all windows. `job` is the job's folder."""
    if log.drained(log.next_epoch()[0] - 1):
        raise JobDrained(
            f"Query {uid!r} was drained: its windows are closed up to the end of time, and every row that comes for one"
            " is late.",
            safe="nothing was read; what the windows held is visible, once.",
            to_do="go on from a savepoint that was taken before the drain. To go on all the same, with late rows"
            f" dropped, restore this checkpoint: penstock run -s {job} JOB.py.",
        )


def not_held(uid: str, why: str) -> SavepointError:
    """The error for a query that cannot be brought to rest between two epochs."""
    return SavepointError(
        f"Query {uid!r} cannot be held between two epochs: {why}.", to_do="see the job's log; ask again when it runs."
    )
