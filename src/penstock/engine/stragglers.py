"""What tasks that were given up, and drivers that were superseded, leave behind.

After their epoch has failed, or another attempt at their part was faster, they may still open a transaction or write a
log file. One sweep cannot find what is opened after it, so it is repeated, see `sweep_times`. Between epochs, nothing
that is open belongs to anybody, except what is decided.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.engine.sweep_times import SweepTimes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Protocol

    from penstock.checkpoint.decision import Committable
    from penstock.engine.inflight.manager import InFlight

    class Abort(Protocol):
        """Aborts what is open in the sinks, except `keep`. `again`: it was done before in this run; then the sinks in
        `without` are not asked, nor, where it is for what `older` runs leave alone, those that fence them."""

        def __call__(
            self,
            keep: Sequence[Committable],
            *,
            again: bool = False,
            without: Collection[str] = (),
            older: bool = False,
        ) -> None: ...


log = logging.getLogger("penstock")


class Stragglers:
    """Of one start of one query. `keep` is what the last decision names."""

    def __init__(self, query: str, abort: Abort, inflight: InFlight | None = None) -> None:
        self._query, self._abort, self._inflight = query, abort, inflight
        self._times = SweepTimes()
        self._logs = False
        self.keep: tuple[Committable, ...] = ()

    def expect(self, *, logs: bool = False) -> None:
        """From now on, for a while, some may be left behind; `logs`: log files, too."""
        self._times.expect()
        self._logs = self._logs or logs

    def started(self, generation: int) -> None:
        """A recovery is over. Tasks and drivers of an earlier run may still live."""
        self._times.started(generation)

    def sweep(self, keep: Sequence[Committable]) -> None:
        """Abort and remove whatever is left, except `keep`. No task of ours writes now."""
        self.keep = tuple(keep)
        self._times.swept()
        self._abort(self._kept())
        if self._inflight is not None:
            self._inflight.remove_strays(keep)

    def abort_all_quietly(self) -> None:
        """Where nothing is decided and a failure is under way, which matters more; the next start sweeps again."""
        self._times.swept()
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
        if not self._times.due:
            return
        older = not self._times.soon
        self._times.swept()
        # Where rows wait to be written from the log, the drainer sweeps, and knows whether the sink answers.
        behind = self._inflight.behind() if self._inflight is not None else ()
        try:
            self._abort(self._kept(), again=True, without=behind, older=older)
        except Exception as error:  # no epoch needs it done: the next look, or the next start, finds what is left
            log.warning("query %s: leftovers of earlier attempts could not be swept: %s", self._query, error)

    def _kept(self) -> list[Committable]:
        """Of what is kept and of what waits in the in-flight log, that which was prepared at the sinks stays open."""
        waiting = self._inflight.prepared() if self._inflight is not None else []
        return [prepared for committable in self.keep if (prepared := committable.at_sink) is not None] + waiting
