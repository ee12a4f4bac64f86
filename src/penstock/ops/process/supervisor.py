"""Starts a driver, starts it again when it has crashed, and passes on what it is told.

| the driver | then |
|---|---|
| ends, or is killed, after a stop was asked for | stopped; never started again |
| ends with 0 | done |
| is ended by SIGTERM or SIGINT from elsewhere | stopped |
| is killed by any other signal, or ends with `CRASHED` | started again as the restart strategy says |
| ends with `LOST_TURN` | started again to wait for the lease of its job, or when that is free: see `lease_wait` |
| ends with any other status | failed for good |

Where a standby is kept, "started again" means that the standby takes over, and another one is started.

Small on purpose: it imports no PySpark, holds no data, and takes no part in any commit. Killed itself, it takes the
driver with it, cleanly: see `lifeline`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts
from penstock.events import Events
from penstock.ops.process.driver import Driver, DriverRun
from penstock.ops.process.lease_wait import LeaseWait
from penstock.ops.process.lifeline import (
    CRASHED,
    DONE,
    FAILED,
    GAVE_UP,
    LOST_TURN,
    OVER_VARIABLE,
    TURN_VARIABLE,
    DriverReport,
    LeaseReport,
)
from penstock.ops.process.standby import Standby
from penstock.ops.process.sweep import Sweeper

log = logging.getLogger("penstock.supervisor")

_STOPS = (signal.SIGTERM, signal.SIGINT)


class DriverEnd(Enum):
    """What an ended driver calls for."""

    DONE = "done"
    STOPPED = "stopped"
    CRASHED = "crashed"
    LOST_TURN = "lost_turn"
    FAILED = "failed"


def classify_end(status: int, *, stopping: bool) -> DriverEnd:
    """`status` as `subprocess` gives it: negative for a signal. `stopping`: whether a stop was asked for."""
    if stopping or -status in _STOPS:
        return DriverEnd.STOPPED
    if status == DONE:
        return DriverEnd.DONE
    if status == LOST_TURN:
        return DriverEnd.LOST_TURN
    return DriverEnd.CRASHED if status < 0 or status == CRASHED else DriverEnd.FAILED


def penstock_command(*arguments: str) -> list[str]:
    """What starts the command line as a process of its own, wherever `penstock` is installed. `-P` as for `command`."""
    return [sys.executable, "-P", "-c", "from penstock.cli.main import main; main()", *arguments]


def command(script: Path, arguments: Sequence[str]) -> list[str]:
    """What starts the driver. `-P`: the working directory is no place to import from, as with `python JOB.py`."""
    return [sys.executable, "-P", "-m", "penstock.cli.supervised", str(script), *arguments]


class Supervisor:
    """Call `run`, once, in the main thread. With `standby` it keeps a second driver ready."""

    def __init__(
        self,
        driver: Sequence[str],
        strategy: RestartStrategy,
        *,
        standby: bool = False,
        events: Events | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._strategy = list(driver), strategy
        self._restarts = Restarts(strategy, clock=clock)
        self._events = events or Events()
        self._sweeper = Sweeper()
        self._standby = Standby(self._start_standby, self._sweeper, self._tell, clock=clock) if standby else None
        self._driver: Driver | None = None  # the active one
        self._asked: int | None = None  # the signal that asked for a stop
        self._lease: LeaseReport | None = None  # who has the lease of the job, as far as known

    def run(self) -> int:
        """Until the driver is done, stopped or has failed for good; the exit status for whoever asked. Nothing that it
        has started is left then."""
        with self._signals() as wake, contextlib.closing(self._sweeper), self._standing_by():
            while True:
                run = self._run_once(wake)
                end = classify_end(run.status, stopping=self._asked is not None or run.report.stopping)
                if end is DriverEnd.LOST_TURN:
                    ended = self._await_turn(run, wake)
                    if ended is not None:
                        return ended
                    continue
                if end is not DriverEnd.CRASHED:
                    return self._finish(end, run, run.status if run.status >= 0 else 128 - run.status)
                if run.report.strategy is not None:
                    self._follow(run.report.strategy)
                wait = self._restarts.after_failure()
                if wait is None:
                    return self._give_up(run)
                log.warning("the driver %s; it is started again in %.1f s", run.reason, wait)
                self._tell("restarting", seconds=round(wait, 3), reason=run.reason, verdict=run.report.verdict)
                if not self._pause(wait, wake):
                    return self._finish(DriverEnd.STOPPED, run, 128 + (self._asked or 0))

    def _run_once(self, wake: int) -> DriverRun:
        """One driver, from its start or its turn to its end."""
        standby = self._standby.take() if self._standby is not None else None
        try:
            self._driver = driver = standby or Driver(self._command)
        except OSError as error:  # no memory or no process left: time may cure it
            return DriverRun(CRASHED, DriverReport(error=f"{type(error).__name__}: {error}"))
        if standby is not None:
            driver.take_over(None if self._lease is None else self._lease.turn)
        self._restarts.started()
        what = "runs" if standby is None else "was the standby and takes over"
        log.info("the driver %s as process %d; restarts: %s", what, driver.pid, self._strategy.describe())
        self._tell("started", pid=driver.pid, standby=standby is not None)
        if self._asked is not None:
            self._forward(self._asked)  # it came while the driver was being made
        run = self._watch(driver, wake)
        self._driver = None
        self._sweeper.begin(driver.pid)
        driver.close()
        return run

    def _watch(self, driver: Driver, wake: int) -> DriverRun:
        """Until its end, which is noticed at once: by SIGCHLD. Meanwhile the standby is looked after."""
        while (run := driver.ended()) is None:
            seconds = self._standby.tend(driver) if self._standby is not None and self._asked is None else None
            spare = self._standby.driver if self._standby is not None else None
            lines = [one.line for one in (driver, spare) if one is not None and one.line is not None]
            self._sleep(wake, seconds, lines)
            for one in (driver, spare):
                if one is not None:
                    one.hear()
            self._note_lease(driver.report.lease)
        self._note_lease(run.report.lease)
        return run

    def _note_lease(self, lease: LeaseReport | None) -> None:
        """Remember who has the lease. The driver's run begins when it has it, however long it has waited before."""
        if lease is None or lease == self._lease:
            return
        self._lease = lease
        os.environ[TURN_VARIABLE] = str(lease.turn)  # for drivers that are started from now on
        if lease.here:
            self._restarts.started()
        log.info("the lease of the job is %s, turn %d", "held here" if lease.here else f"on {lease.host}", lease.turn)
        self._tell("has_lease" if lease.here else "awaits_lease", host=lease.host, turn=lease.turn)

    def _await_turn(self, run: DriverRun, wake: int) -> int | None:
        """After a driver that had no turn, or lost it: None when the next is to be started; otherwise the exit status,
        where the job has ended elsewhere or a stop was asked for."""
        lease = run.report.lease
        lost = run.report.error is not None
        if lost:
            log.warning("the driver %s; another one waits for its turn", run.reason)
            self._tell("lost_turn", reason=run.reason, verdict=run.report.verdict)
        if self._standby is not None or lease is None or lease.path is None:
            return None  # the next driver waits, warm
        waiting = LeaseWait(lease.path, lease.turn)
        if not lease.here:
            log.info("the lease is on %s; a driver is started here when it is free", lease.host)
        while self._asked is None and waiting.look():
            self._note_lease(waiting.report or self._lease)
            self._sleep(wake, waiting.seconds)
        if self._asked is not None:
            return self._finish(DriverEnd.STOPPED, run, 128 + self._asked)
        if waiting.ended is None:
            if waiting.over is not None:
                os.environ[OVER_VARIABLE] = str(waiting.over)
            return None
        log.info("the job has ended on %s (%s)", *waiting.ended)
        failed = waiting.ended[1] == "failed"
        return self._finish(DriverEnd.FAILED if failed else DriverEnd.STOPPED, run, FAILED if failed else DONE)

    def _start_standby(self) -> Driver:
        return Driver(self._command, standby=True)

    @contextmanager
    def _standing_by(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._standby is not None:
                self._standby.close()

    def _follow(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._restarts.follow(strategy)

    def _give_up(self, run: DriverRun) -> int:
        self._leave_nothing()
        log.error(
            "the driver %s, and the restart strategy gives up (%s). What was decided is safe: the next start"
            " recovers it.",
            run.reason,
            self._strategy.describe(),
        )
        self._tell("gave_up", reason=run.reason, verdict=run.report.verdict, status=GAVE_UP)
        return GAVE_UP

    def _finish(self, end: DriverEnd, run: DriverRun, status: int) -> int:
        self._leave_nothing()
        level = logging.ERROR if end is DriverEnd.FAILED else logging.INFO
        log.log(level, "%s: the driver %s; it is not started again", end.value, run.reason)
        self._tell(end.value, reason=run.reason, verdict=run.report.verdict, status=status)
        return status

    def _leave_nothing(self) -> None:
        """Whoever is told that the job has ended finds nothing left of it."""
        if self._standby is not None:
            self._standby.close()
        self._sweeper.close()

    def _pause(self, seconds: float, wake: int) -> bool:
        """False if a stop is asked for meanwhile."""
        end = time.monotonic() + seconds
        while self._asked is None and (left := end - time.monotonic()) > 0:
            self._sleep(wake, left)
        return self._asked is None

    @staticmethod
    def _sleep(wake: int, seconds: float | None, lines: Sequence[Any] = ()) -> None:
        """Until a signal has come, a driver has said something, or the time has passed."""
        select.select([wake, *lines], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 64)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Take SIGTERM and SIGINT for a stop. Gives the end of a pipe that becomes readable when one has come, or a
        child has ended: a sleep would go on to its end."""
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        before_wakeup = signal.set_wakeup_fd(woken)
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield wake
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_wakeup)
            os.close(wake)
            os.close(woken)

    def _stop(self, number: int, frame: Any) -> None:
        self._asked = number
        self._forward(number)

    def _forward(self, number: int) -> None:
        if self._driver is not None:
            self._driver.signal(number)

    def _tell(self, action: str, **fields: Any) -> None:
        self._events.emit("supervisor", query=None, action=action, **fields)
