"""The queries of a job, run as one: they start together, restart together, stop together.

When one fails, the others finish the epoch under way and stop; then the job's one restart strategy is asked, and all
start again. So linked queries never run against a neighbour that is down, and a job has one count of restarts. A
bounded query that is through with its input stays so. Everything here happens in the thread that called `Job.run`.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from penstock.deadline import Deadline
from penstock.engine.restarts import ErrorClass, classify
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from penstock.engine.query import QueryRunner
    from penstock.engine.restarts import Restarts
    from penstock.events import Events

log = logging.getLogger("penstock")

_TICK_SECONDS = 0.5  # how often the job looks around when nobody wakes it
_CANCEL_SECONDS = 10.0  # for an epoch to fail once its tasks are cancelled; Spark gives a Python worker 2 s of these
_TASK_SECONDS = 10.0  # for tasks that Spark has given up to be gone, so that nothing is opened after the last look


class EndRequest(IntEnum):
    """What was asked of the job, the stronger the higher."""

    NONE = 0
    STOP = 1
    CANCEL = 2


class Watcher(Protocol):
    """Somebody who looks at the queries while they run, in the job's own thread. Raises nothing."""

    def began(self) -> None: ...
    def look(self) -> None: ...
    def ended(self) -> None: ...


class QueryGroup:
    """Runs the queries of one job to their end. `asked` tells whether the job is to end, `wake` that it changed."""

    def __init__(
        self,
        runners: Sequence[QueryRunner],
        *,
        restarts: Restarts,
        events: Events,
        wake: threading.Event,
        asked: Callable[[], EndRequest],
        before_round: Callable[[], None] = lambda: None,
        watcher: Watcher | None = None,
    ) -> None:
        self._runners, self._restarts, self._events = runners, restarts, events
        self._wake, self._asked = wake, asked
        self._before_round, self._watcher = before_round, watcher
        self._reported: set[str] = set()
        self.abandoned: list[str] = []  # queries that were cancelled in an epoch which has not ended since

    def run(self) -> None:
        """Until all are done, an end is asked for, or the job fails for good: raises what it failed of. After a cancel
        nothing is left open at the sinks; where that could not be seen to, raises as well."""
        try:
            error = self._run()
        finally:
            for runner in self._runners:
                self._report_stopped(runner)
        if error is not None:
            raise error

    def _run(self) -> BaseException | None:
        while self._asked() is EndRequest.NONE:
            error = self._round()
            if self._asked() is EndRequest.CANCEL:
                break
            if error is None or self._asked() is not EndRequest.NONE:
                return error  # an epoch that failed is no clean end, whoever asked for it
            if not self._pause(error):
                return error
        return self._finish_cancelled() if self._asked() is EndRequest.CANCEL else None

    def _round(self) -> BaseException | None:
        """One start of all queries that are not done, until all have ended; what it failed of."""
        self._restarts.started()
        try:
            self._before_round()
        except PenstockError as error:
            return error
        for runner in self._runners:
            if not runner.done:
                runner.start()
        if self._watcher is not None:
            self._watcher.began()
        self._wait()
        if self._watcher is not None:
            self._watcher.ended()
        return failure_of(self._runners)

    def _wait(self) -> None:
        patience: Deadline | None = None
        while any(runner.alive for runner in self._runners):
            asked = self._asked()
            if asked is EndRequest.CANCEL and patience is None:
                patience = Deadline(_CANCEL_SECONDS)
                for runner in self._runners:
                    runner.cancel()
            elif asked is not EndRequest.NONE or any(runner.error is not None for runner in self._runners):
                for runner in self._runners:
                    runner.stop()
            if patience is not None and patience.passed():
                return
            self._wake.wait(_TICK_SECONDS)
            self._wake.clear()
            for runner in self._runners:
                if runner.done:
                    self._report_stopped(runner)
            if self._watcher is not None:
                self._watcher.look()

    def _pause(self, error: BaseException) -> bool:
        """Wait as the restart strategy says; False where it gives up."""
        failed = next((runner.plan.uid for runner in self._runners if runner.error is error), None)
        seconds = self._restarts.delay(error)
        if seconds is None:
            return False
        log.warning("query %s failed and the job restarts in %.1f s: %s", failed, seconds, error)
        verdict = str(classify(error).value)
        self._events.emit("restarting", query=failed, seconds=seconds, verdict=verdict, error=str(error))
        pause = Deadline(seconds)
        while self._asked() is EndRequest.NONE and not pause.passed():
            self._wake.wait(pause.remaining())
            self._wake.clear()
        return True

    def _finish_cancelled(self) -> BaseException | None:
        """After a cancel: whatever failed or hangs is brought to an end by a run of its own. What it fails of counts;
        what the cancel itself made fail does not."""
        error = failure_of(self._runners)
        if is_fatal(error):
            return error
        for runner in self._runners:
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
        return failure_of(self._runners)

    def _report_stopped(self, runner: QueryRunner) -> None:
        if runner.plan.uid not in self._reported:
            self._reported.add(runner.plan.uid)
            text = str(runner.error) if runner.error is not None else None
            self._events.emit("stopped", query=runner.plan.uid, error=text)


def failure_of(runners: Sequence[QueryRunner]) -> BaseException | None:
    """The error that counts: the first that no retry can cure, otherwise the first. The others are its notes."""
    failed = sorted((runner for runner in runners if runner.error is not None), key=lambda runner: runner.failed_at)
    if not failed:
        return None
    first = next((runner for runner in failed if is_fatal(runner.error)), failed[0])
    assert first.error is not None
    noted = getattr(first.error, "__notes__", ())
    for other in failed:
        note = f"Query {other.plan.uid!r} failed too: {type(other.error).__name__}: {other.error}"
        if other is not first and note not in noted:
            first.error.add_note(note)
    return first.error


def is_fatal(error: BaseException | None) -> bool:
    """Whether no retry can cure it; above all `Superseded`, after which coming back would be taking over."""
    return error is not None and classify(error) is ErrorClass.FATAL
