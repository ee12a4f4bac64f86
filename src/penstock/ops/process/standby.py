"""The supervisor's second driver: started when the first one runs, replaced when it dies, taken when it is needed.

A standby loads the program and warms up, and touches nothing before it is told to take over: see `job.standby`. What
becomes of it never touches the driver that runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts
from penstock.ops.process.lifeline import DONE

if TYPE_CHECKING:
    from penstock.ops.process.driver import Driver, DriverRun
    from penstock.ops.process.sweep import Sweeper

log = logging.getLogger("penstock.supervisor")

#: Between the first driver's start and the standby's, so that they do not share the processor when it counts.
SETTLE_SECONDS = 5.0


class Standby:
    """Keeps one driver ready beside the active one. Everything here returns at once."""

    def __init__(
        self,
        start: Callable[[], Driver],
        sweeper: Sweeper,
        tell: Callable[..., None],
        *,
        clock: Callable[[], float] = time.monotonic,
        settle: float | None = None,
    ) -> None:
        self._start, self._sweeper, self._tell, self._clock = start, sweeper, tell, clock
        self._settle = SETTLE_SECONDS if settle is None else settle
        self._restarts = Restarts(RestartStrategy.exponential_delay("1s", "1min", reset_after="5min"), clock=clock)
        self._driver: Driver | None = None
        self._ready = False
        self._due: float | None = None  # when the next one is to be started
        self._useless = False

    @property
    def driver(self) -> Driver | None:
        """The standby, if there is one now."""
        return self._driver

    def tend(self, active: Driver) -> float | None:
        """Notice what has become of the standby, start one when it is time. Seconds until there is something to do
        again, None where that is only when a driver says something."""
        if self._driver is not None:
            run = self._driver.ended()
            if run is None:
                self._note_ready(self._driver)
                return None
            self._lost(self._driver, run)
        if self._useless or not active.report.running:
            return None
        if self._due is None:
            self._due = self._clock() + self._settle
        left = self._due - self._clock()
        if left > 0:
            return left
        return self._begin()

    def take(self) -> Driver | None:
        """The standby, which from now on is somebody else's; None where there is none that lives."""
        driver, self._driver, self._due, self._ready = self._driver, None, None, False
        if driver is not None and (run := driver.ended()) is not None:
            self._lost(driver, run)
            return None
        return driver

    def close(self) -> None:
        """End the standby, if there is one."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.end()
            self._sweeper.begin(driver.pid)

    def _begin(self) -> float | None:
        self._due = None
        try:
            self._driver = self._start()
        except OSError as error:
            log.warning("a standby cannot be started now: %s", error)
            self._due = self._clock() + (self._restarts.after_failure() or 0.0)
            return self._due - self._clock()
        self._ready = False
        self._restarts.started()
        log.info("a standby starts as process %d", self._driver.pid)
        self._tell("standby", pid=self._driver.pid)
        return None

    def _note_ready(self, driver: Driver) -> None:
        if not self._ready and driver.report.ready:
            self._ready = True
            log.info("the standby, process %d, is ready to take over", driver.pid)
            self._tell("standby_ready", pid=driver.pid)

    def _lost(self, driver: Driver, run: DriverRun) -> None:
        """It is replaced, later each time; not where it came to its end without waiting: so will the next."""
        self._driver, self._ready = None, False
        driver.close()
        self._sweeper.begin(driver.pid)
        self._tell("standby_lost", pid=driver.pid, reason=run.reason, verdict=run.report.verdict)
        if run.status == DONE:
            self._useless = True
            log.warning("the standby came to the program's end without waiting for its turn; there will be no other")
            return
        wait = self._restarts.after_failure() or 0.0
        self._due = self._clock() + wait
        log.warning("the standby %s; another is started in %.1f s, the job goes on", run.reason, wait)
