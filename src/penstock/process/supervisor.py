"""Starts a driver, starts it again when it has crashed, and passes on what it is told.

| the driver | then |
|---|---|
| ends, or is killed, after a stop was asked for | stopped; never started again |
| ends with 0 | done |
| is ended by SIGTERM or SIGINT from elsewhere | stopped |
| is killed by any other signal, or ends with `CRASHED` | started again as the restart strategy says |
| ends with any other status | failed for good |

Small on purpose: it imports no PySpark, holds no data, and takes no part in any commit. Killed itself, it takes the
driver with it, cleanly: see `lifeline`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.config.restart_strategy import RestartStrategy
from penstock.events import Events
from penstock.process import lifeline
from penstock.process.lifeline import CRASHED, DONE, GAVE_UP, DriverReport
from penstock.process.restart import Restarts
from penstock.process.sweep import Sweeper

log = logging.getLogger("penstock.supervisor")

_STOPS = (signal.SIGTERM, signal.SIGINT)


class DriverEnd(Enum):
    """What an ended driver calls for."""

    DONE = "done"
    STOPPED = "stopped"
    CRASHED = "crashed"
    FAILED = "failed"


def classify_end(status: int, *, stopping: bool) -> DriverEnd:
    """`status` as `subprocess` gives it: negative for a signal. `stopping`: whether a stop was asked for."""
    if stopping or -status in _STOPS:
        return DriverEnd.STOPPED
    if status == DONE:
        return DriverEnd.DONE
    return DriverEnd.CRASHED if status < 0 or status == CRASHED else DriverEnd.FAILED


def command(script: Path, arguments: Sequence[str]) -> list[str]:
    """What starts the driver. `-P`: the working directory is no place to import from, as with `python JOB.py`."""
    return [sys.executable, "-P", "-m", "penstock.cli.supervised", str(script), *arguments]


@dataclass(frozen=True)
class _Run:
    """One run of the driver, after its end."""

    status: int
    report: DriverReport

    @property
    def reason(self) -> str:
        if self.status < 0:
            return f"was killed by {_name(-self.status)}"
        cause = f" ({self.report.error.splitlines()[0]})" if self.report.error else ""
        return f"ended with status {self.status}{cause}"


class Supervisor:
    """Call `run`, once, in the main thread."""

    def __init__(
        self,
        driver: Sequence[str],
        strategy: RestartStrategy,
        *,
        events: Events | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver, self._strategy = list(driver), strategy
        self._restarts = Restarts(strategy, clock=clock)
        self._events = events or Events()
        self._sweeper = Sweeper()
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None  # the signal that asked for a stop

    def run(self) -> int:
        """Until the driver is done, stopped or has failed for good; the exit status for whoever asked."""
        with self._signals() as wake, contextlib.closing(self._sweeper):
            while True:
                run = self._run_once()
                end = classify_end(run.status, stopping=self._asked is not None or run.report.stopping)
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

    def _run_once(self) -> _Run:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    self._child = child = subprocess.Popen(
                        self._driver,
                        env={**os.environ, lifeline.VARIABLE: str(theirs.fileno())},
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # so that Ctrl-C comes once, and leftovers can be found
                    )
                except OSError as error:  # no memory or no process left: time may cure it
                    return _Run(CRASHED, DriverReport(error=f"{type(error).__name__}: {error}"))
            self._restarts.started()
            log.info("the driver runs as process %d; restarts: %s", child.pid, self._strategy.describe())
            self._tell("started", pid=child.pid)
            if self._asked is not None:
                self._forward(self._asked)  # it came while the child was being made
            status = child.wait()
            self._child = None
            self._sweeper.begin(child.pid)
            return _Run(status, lifeline.listen(ours))

    def _follow(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._restarts.follow(strategy)

    def _give_up(self, run: _Run) -> int:
        self._sweeper.close()
        log.error(
            "the driver %s, and the restart strategy gives up (%s). What was decided is safe: the next start"
            " recovers it.",
            run.reason,
            self._strategy.describe(),
        )
        self._tell("gave_up", reason=run.reason, verdict=run.report.verdict, status=GAVE_UP)
        return GAVE_UP

    def _finish(self, end: DriverEnd, run: _Run, status: int) -> int:
        self._sweeper.close()  # who is told that it has ended finds nothing left of it
        level = logging.ERROR if end is DriverEnd.FAILED else logging.INFO
        log.log(level, "%s: the driver %s; it is not started again", end.value, run.reason)
        self._tell(end.value, reason=run.reason, verdict=run.report.verdict, status=status)
        return status

    def _pause(self, seconds: float, wake: int) -> bool:
        """False if a stop is asked for meanwhile."""
        end = time.monotonic() + seconds
        while self._asked is None and (left := end - time.monotonic()) > 0:
            select.select([wake], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 64)
        return self._asked is None

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Take SIGTERM and SIGINT for a stop. Gives the end of a pipe that becomes readable when one has come: a
        sleep would go on to its end."""
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        before_wakeup = signal.set_wakeup_fd(woken)
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
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
        if self._child is not None:
            self._child.send_signal(number)

    def _tell(self, action: str, **fields: Any) -> None:
        self._events.emit("supervisor", query=None, action=action, **fields)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
