"""What tasks that were given up leave behind.

After their epoch has failed, or another attempt at their part was faster, they may still open a transaction or write a
log file. One sweep cannot find what is opened after it, so for a while it is repeated. Between epochs, nothing that is
open belongs to anybody, except what is decided.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.checkpoint.backlog import is_logged, prepared_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.checkpoint.decision import Committable
    from penstock.epoch.inflight.manager import InFlight

log = logging.getLogger("penstock")

_SWEEP_AGAIN_FOR = 60.0  # seconds after a start, or after tasks raced: those given up may still open something
_SWEEP_AGAIN_EVERY = 5.0


class Stragglers:
    """Of one start of one query. `abort` aborts what is open in the sinks, except what it is given. `keep` is what the
    last decision names."""

    def __init__(
        self, query: str, abort: Callable[[Sequence[Committable]], None], inflight: InFlight | None = None
    ) -> None:
        self._query, self._abort, self._inflight = query, abort, inflight
        self._swept = self._until = time.monotonic()
        self._logs = False
        self.keep: tuple[Committable, ...] = ()

    def expect(self, *, logs: bool = False) -> None:
        """From now on, for a while, some may be left behind; `logs`: log files, too."""
        self._until = time.monotonic() + _SWEEP_AGAIN_FOR
        self._logs = self._logs or logs

    def started(self, generation: int) -> None:
        """A recovery is over. Tasks of an earlier run may still live."""
        self._swept = self._until = time.monotonic()
        if generation > 1:
            self.expect()

    def sweep(self, keep: Sequence[Committable]) -> None:
        """Abort and remove whatever is left, except `keep`. No task of ours writes now."""
        self.keep = tuple(keep)
        self._abort_all()
        if self._inflight is not None:
            self._inflight.remove_strays(keep)

    def abort_all_quietly(self) -> None:
        """Where nothing is decided and a failure is under way, which matters more; the next start sweeps again."""
        self._swept = time.monotonic()
        try:
            self._abort(())
        except Exception as error:
            log.warning("query %s: leftovers could not be aborted: %s", self._query, error)

    def remove_logs(self) -> None:
        """After an epoch: the log files of its attempts that were given up."""
        if self._inflight is not None and self._logs:
            self._inflight.remove_strays(self.keep)
            self._logs = False

    def sweep_again(self) -> None:
        """Between epochs, now and then: abort what was opened since."""
        now = time.monotonic()
        if not self._swept + _SWEEP_AGAIN_EVERY < now < self._until:
            return
        if self._inflight is not None and self._inflight.pending:
            return  # the drainer does it, and knows whether the sink answers
        try:
            self._abort_all()
        except Exception as error:  # no epoch needs it done: the next look, or the next start, finds what is left
            log.warning("query %s: leftovers of earlier attempts could not be swept: %s", self._query, error)

    def _abort_all(self) -> None:
        """Of what is kept and of what waits in the in-flight log, that which was prepared at the sinks stays open."""
        self._swept = time.monotonic()
        plain = [committable if not is_logged(committable) else prepared_of(committable) for committable in self.keep]
        waiting = self._inflight.prepared() if self._inflight is not None else []
        self._abort([committable for committable in plain if committable is not None] + waiting)
