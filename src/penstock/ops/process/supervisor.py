"""Starts a driver, restarts it after a crash or has a standby take over, forwards signals: docs/concepts/restarts.md.

Small on purpose: it imports no PySpark, holds no data, and takes no part in any commit. When it is killed, its driver
stops cleanly: see `lifeline`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from typing import Any

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts
from penstock.events import Events
from penstock.ops.process import lifeline
from penstock.ops.process.lease_holder import LeaseWatch
from penstock.ops.process.lifeline import Driver, DriverReport, DriverRun, LeaseReport, Orders
from penstock.processes import all_stat_fields, end_session

log = logging.getLogger("penstock.supervisor")

_STOPS = (signal.SIGTERM, signal.SIGINT)

#: Between the start of the job and the standby's, so that they do not compete for the processor when it counts.
SETTLE_SECONDS = 5.0

#: A JVM that has lost its driver ends by itself and removes its temporary files, in about a second.
PATIENCE_SECONDS = 10.0


class DriverEnd(Enum):
    DONE = "done"
    STOPPED = "stopped"
    CRASHED = "crashed"
    LOST_TURN = "lost_turn"
    FAILED = "failed"
    GAVE_UP = "gave_up"


def classify_end(status: int, *, stopping: bool) -> DriverEnd:
    """`status` as `subprocess` gives it: negative for a signal. `stopping`: whether a stop was requested."""
    if stopping or -status in _STOPS:
        return DriverEnd.STOPPED
    if status == lifeline.DONE:
        return DriverEnd.DONE
    if status == lifeline.LOST_TURN:
        return DriverEnd.LOST_TURN
    return DriverEnd.CRASHED if status < 0 or status == lifeline.CRASHED else DriverEnd.FAILED


def python_command(code: str, *arguments: str) -> list[str]:
    """Runs `code` in this Python. `-P`: the working directory is no place to import from, as with `python JOB.py`."""
    return [sys.executable, "-P", "-c", code, *arguments]


def penstock_command(*arguments: str) -> list[str]:
    """Runs the command line in a process of its own, wherever `penstock` is installed."""
    return python_command("from penstock.cli.main import main; main()", *arguments)


class Supervisor:
    """Call `run`, once, in the main thread. `id` is the run's, by which its drivers hold the job's lease."""

    def __init__(
        self,
        driver: Sequence[str],
        strategy: RestartStrategy,
        *,
        id: str = "",
        standby: bool = False,
        events: Events | None = None,
    ) -> None:
        self._command, self._strategy, self._id = list(driver), strategy, id
        self._restarts = Restarts(strategy)
        self._events = events or Events()
        self._sweeper = Sweeper()
        start = functools.partial(self._start, standby=True)
        self._standby = Standby(start, self._sweeper, self._emit) if standby else None
        self._driver: Driver | None = None  # the active one
        self._stop_signal: int | None = None
        self._lease: LeaseReport | None = None  # who holds the lease of the job, as far as known
        self._expired: int | None = None  # the entry of the lease that has expired while no driver ran

    def run(self) -> int:
        """Until the driver is done, stopped or failed for good, and every process is gone; returns the exit status."""
        with self._signals() as wake, contextlib.ExitStack() as stack:
            stack.callback(self._end_processes)
            while True:
                run = self._run_once(wake)
                end = classify_end(run.status, stopping=self._stop_signal is not None or run.report.stopping)
                if end is DriverEnd.LOST_TURN:
                    if (status := self._await_turn(run, wake)) is not None:
                        return status
                    continue
                if end is not DriverEnd.CRASHED:
                    # `LOST_TURN` comes here only when a stop was requested, which then ends the job.
                    own = run.status if run.status >= 0 else 128 - run.status
                    return self._finish(end, run, self._stop_status() if own == lifeline.LOST_TURN else own)
                if run.report.strategy is not None:
                    self._strategy = run.report.strategy
                    self._restarts.follow(self._strategy)
                wait = self._restarts.after_failure()
                if wait is None:
                    return self._finish(DriverEnd.GAVE_UP, run, lifeline.GAVE_UP)
                log.warning("the driver %s; it is restarted in %.1f s", run.reason, wait)
                self._emit("restarting", seconds=round(wait, 3), reason=run.reason, verdict=run.report.verdict)
                if not self._pause(wait, wake):
                    return self._finish(DriverEnd.STOPPED, run, self._stop_status())

    def _run_once(self, wake: int) -> DriverRun:
        standby = self._standby.take() if self._standby is not None else None
        try:
            self._driver = driver = standby or self._start(standby=False)
        except OSError as error:  # no memory or no process left: time may cure it
            return DriverRun(lifeline.CRASHED, DriverReport(error=f"{type(error).__name__}: {error}"))
        if standby is not None:
            driver.take_over(self._turn())
        self._restarts.started()
        action = "runs" if standby is None else "was the standby and takes over"
        log.info("the driver %s as process %d; restarts: %s", action, driver.pid, self._strategy.describe())
        self._emit("started", pid=driver.pid, standby=standby is not None)
        if self._stop_signal is not None:
            driver.signal(self._stop_signal)  # it came while the driver was being started
        run = self._watch(driver, wake)
        self._driver = None
        self._sweeper.begin(driver.pid)
        driver.close()
        return run

    def _watch(self, driver: Driver, wake: int) -> DriverRun:
        """Until its end, which SIGCHLD shows at once. Meanwhile the standby is kept ready."""
        standby = self._standby
        while (run := driver.ended()) is None:
            seconds = standby.tend(driver) if standby is not None and self._stop_signal is None else None
            spare = standby.driver if standby is not None else None
            lines = [each.line for each in (driver, spare) if each is not None and each.line is not None]
            self._sleep(wake, seconds, lines)
            if spare is not None:
                _ = spare.report  # takes it off the line
            self._note_lease(driver.report.lease)
        self._note_lease(run.report.lease)
        return run

    def _note_lease(self, lease: LeaseReport | None) -> None:
        """Remember who holds the lease. A driver's run begins when it has it, however long it has waited before."""
        if lease is None or lease == self._lease:
            return
        self._lease = lease
        if lease.here:
            self._restarts.started()
        log.info("the lease of the job is %s, turn %d", "held here" if lease.here else f"on {lease.host}", lease.turn)
        self._emit("has_lease" if lease.here else "awaits_lease", host=lease.host, turn=lease.turn)

    def _await_turn(self, run: DriverRun, wake: int) -> int | None:
        """After a lost turn: None when the next driver is to be started; the exit status where the job has ended."""
        lease = run.report.lease
        if run.report.error is not None:
            log.warning("the driver %s; another one waits for its turn", run.reason)
            self._emit("lost_turn", reason=run.reason, verdict=run.report.verdict)
        if self._standby is not None or lease is None or lease.path is None:
            return None  # the next driver waits, warm
        watch = LeaseWatch(lease.path, self._id, lease.turn)
        if not lease.here:
            log.info("the lease is on %s; a driver is started here when it is free", lease.host)
        while self._stop_signal is None and watch.look():
            self._note_lease(watch.report or self._lease)
            self._sleep(wake, watch.seconds)
        if self._stop_signal is not None:
            return self._finish(DriverEnd.STOPPED, run, self._stop_status())
        if watch.ended is None:
            self._expired = self._expired if watch.expired is None else watch.expired
            return None
        log.info("the job has ended on %s (%s)", *watch.ended)
        if watch.ended[1] == "failed":
            return self._finish(DriverEnd.FAILED, run, lifeline.FAILED)
        return self._finish(DriverEnd.STOPPED, run, lifeline.DONE)

    def _start(self, *, standby: bool) -> Driver:
        return Driver(self._command, Orders(standby, self._turn(), self._expired))

    def _turn(self) -> int | None:
        return None if self._lease is None else self._lease.turn

    def _finish(self, end: DriverEnd, run: DriverRun, status: int) -> int:
        self._end_processes()
        if end is DriverEnd.GAVE_UP:
            reason = f"{run.reason}, and the restart strategy gives up ({self._strategy.describe()})"
            log.error("the driver %s. Every decided epoch is safe: the next start recovers it.", reason)
        else:
            level = logging.ERROR if end is DriverEnd.FAILED else logging.INFO
            log.log(level, "%s: the driver %s; it is not restarted", end.value, run.reason)
        self._emit(end.value, reason=run.reason, verdict=run.report.verdict, status=status)
        return status

    def _stop_status(self) -> int:
        return lifeline.DONE if self._stop_signal is None else 128 + self._stop_signal

    def _end_processes(self) -> None:
        if self._standby is not None:
            self._standby.close()
        self._sweeper.close()

    def _pause(self, seconds: float, wake: int) -> bool:
        end = time.monotonic() + seconds
        while self._stop_signal is None and (remaining := end - time.monotonic()) > 0:
            self._sleep(wake, remaining)
        return self._stop_signal is None

    @staticmethod
    def _sleep(wake: int, seconds: float | None, lines: Sequence[Any] = ()) -> None:
        select.select([wake, *lines], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 64)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """SIGTERM and SIGINT stop. Yields a pipe that becomes readable when one has come or a child has ended."""
        wake, write_end = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(write_end, False)
        wakeup_before = signal.set_wakeup_fd(write_end)
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield wake
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)
            os.close(wake)
            os.close(write_end)

    def _stop(self, number: int, frame: Any) -> None:
        self._stop_signal = number
        if self._driver is not None:
            self._driver.signal(number)

    def _emit(self, action: str, **fields: Any) -> None:
        self._events.emit("supervisor", query=None, action=action, **fields)


class Standby:
    """Keeps one driver ready beside the active one: starts it once the job runs, replaces it when it dies, hands it
    over when it is needed. A standby loads the program and warms up, and touches nothing before it takes over: see
    `ops.turn`. Nothing that happens to it affects the active driver. Every method returns at once."""

    def __init__(
        self,
        start: Callable[[], Driver],
        sweeper: Sweeper,
        emit: Callable[..., None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._sweeper, self._emit, self._clock = start, sweeper, emit, clock
        self._restarts = Restarts(RestartStrategy.exponential_delay("1s", "1min", reset_after="5min"), clock=clock)
        self.driver: Driver | None = None  # the standby, if there is one now
        self._ready = False
        self._due: float | None = None  # when the next one is to be started
        self._useless = False

    def tend(self, active: Driver) -> float | None:
        """Replace the standby when due. Returns the seconds until the next call, None where a report comes first."""
        if self.driver is not None:
            run = self.driver.ended()
            if run is None:
                if not self._ready and self.driver.report.ready:
                    self._ready = True
                    log.info("the standby, process %d, is ready to take over", self.driver.pid)
                    self._emit("standby_ready", pid=self.driver.pid)
                return None
            self._replace(self.driver, run)
        if self._useless or not active.report.running:
            return None
        if self._due is None:
            self._due = self._clock() + SETTLE_SECONDS
        remaining = self._due - self._clock()
        return remaining if remaining > 0 else self._begin()

    def take(self) -> Driver | None:
        """The standby, which from now on is the caller's; None where none is alive."""
        driver, self.driver, self._due, self._ready = self.driver, None, None, False
        if driver is not None and (run := driver.ended()) is not None:
            self._replace(driver, run)
            return None
        return driver

    def close(self) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.end()
            self._sweeper.begin(driver.pid)

    def _begin(self) -> float | None:
        self._due = None
        try:
            self.driver = self._start()
        except OSError as error:
            log.warning("a standby cannot be started now: %s", error)
            self._due = self._clock() + (self._restarts.after_failure() or 0.0)
            return self._due - self._clock()
        self._ready = False
        self._restarts.started()
        log.info("a standby starts as process %d", self.driver.pid)
        self._emit("standby", pid=self.driver.pid)
        return None

    def _replace(self, driver: Driver, run: DriverRun) -> None:
        """Later each time; never where the program came to its end without waiting: so would the next one."""
        self.driver, self._ready = None, False
        driver.close()
        self._sweeper.begin(driver.pid)
        self._emit("standby_lost", pid=driver.pid, reason=run.reason, verdict=run.report.verdict)
        if run.status == lifeline.DONE:
            self._useless = True
            log.warning("the standby came to the program's end without waiting for its turn; there will be no other")
            return
        wait = self._restarts.after_failure() or 0.0
        self._due = self._clock() + wait
        log.warning("the standby %s; another is started in %.1f s, the job goes on", run.reason, wait)


class Sweeper:
    """Ends what dead drivers leave behind, each session in a thread of its own, beside the start of the next driver: a
    process without its driver can decide nothing, and what it has prepared is fenced by the next generation."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience, self._pool = patience, ThreadPoolExecutor(thread_name_prefix="penstock-sweep")

    def begin(self, leader: int) -> None:
        """End the session that `leader`, which is dead, had opened. Returns at once."""
        self._pool.submit(self._sweep, leader)

    def close(self) -> None:
        """Return when every process is gone; nothing is begun any more."""
        self._pool.shutdown()

    def _sweep(self, leader: int) -> None:
        killed = end_session(leader, self._patience)
        if killed:
            log.warning("processes that the driver left behind were killed: %s", ", ".join(map(str, killed)))
        # Reap orphans that a container's first process inherits; the next driver's status `Driver.ended` needs.
        with contextlib.suppress(FileNotFoundError):  # a system without `/proc` has no containers either
            for pid in all_stat_fields():
                with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                    if os.getsid(pid) == leader:
                        os.waitpid(pid, os.WNOHANG)
