"""Whether everything that a job needs is there, asked before anything starts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.engine.restarts import classify
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.contracts.sink import Finding
    from penstock.engine.restarts import Restarts
    from penstock.events import Events

log = logging.getLogger("penstock")

LATELY_SECONDS = 90.0  # a standby asks again and again; what has changed since, the start itself comes upon


class Readiness:
    """`check` asks every source and sink, and raises what cannot work."""

    def __init__(self, job: str, check: Callable[[], Sequence[Finding]]) -> None:
        self._job, self._check = job, check
        self._seen: float | None = None  # when everything was there

    def look(self) -> None:
        """Ask, and remember that all was well. Raises what is not."""
        for finding in self._check():
            if self._seen is None:
                log.warning("%s: %s", finding.sink, finding.message)
        self._seen = time.monotonic()

    def wait(self, events: Events, restarts: Restarts, stopped: Callable[[], bool], wake: threading.Event) -> bool:
        """Return when everything is there, at once where that was seen a moment ago. What only waits for another system
        to come up is tried again as the restart strategy says; False if a stop was asked for meanwhile."""
        while not stopped():
            try:
                if self._seen is None or time.monotonic() - self._seen > LATELY_SECONDS:
                    self.look()
                return True
            except PenstockError as error:
                wait = restarts.delay(error)
                if wait is None:
                    raise
                log.warning("job %s cannot start yet and tries again in %.1f s: %s", self._job, wait, error)
                verdict = str(classify(error).value)
                events.emit("restarting", query=None, seconds=wait, verdict=verdict, error=str(error))
                wake.wait(wait)
        return False
