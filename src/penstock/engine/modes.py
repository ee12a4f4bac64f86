"""How an epoch becomes visible: exactly once by the protocol, or weaker. A job that asks for less gets just that.

* **Exactly once**: prepared, decided, committed, as `protocol` says.
* **At least once**: each task makes its rows visible by itself; no decision, nothing to wait for. After a crash the
  epoch replays, and its rows come again.
* **At most once**: an epoch is marked as begun before anything of it is visible, then written and committed, without a
  second try. After a crash an epoch that was begun is not written again, even if nothing of it became visible.

All begin with the same recovery, and an epoch that an exactly-once run has decided is carried out as it was decided.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.checkpoint.decision import Committable, Outcome
from penstock.config import Mode
from penstock.engine import protocol
from penstock.errors import PenstockError
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.attempt import Attempt
    from penstock.engine.coordinator import Coordinator

log = logging.getLogger("penstock")


class Delivery(ABC):
    """What a mode does with an attempt. `direct`: its tasks make their rows visible themselves."""

    direct = False

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    @abstractmethod
    def run(self, attempt: Attempt) -> bool:
        """False where it failed in a way that is tolerated, and the epoch is to be tried again."""


class ExactlyOnce(Delivery):
    """Tolerates as many failures of a checkpoint in a row as the settings say, as long as nothing is decided."""

    def __init__(self, coordinator: Coordinator, tolerable: int) -> None:
        super().__init__(coordinator)
        self._tolerable, self._failed_in_row = tolerable, 0

    def run(self, attempt: Attempt) -> bool:
        coordinator = self._coordinator
        coordinator.open(attempt, verify=True)
        try:
            coordinator.carry_out(attempt)
        except BaseException as error:
            coordinator.observe(attempt, error)
            if not self._tolerates(attempt, error):
                raise
            coordinator.check_gate()
            return False
        self._failed_in_row = 0
        return True

    def _tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        coordinator = self._coordinator
        again = isinstance(error, PenstockError) and error.checkpoint_only
        if not again or not coordinator.may_try_again:
            return False
        coordinator.stragglers.expect()
        self._failed_in_row += 1
        tolerated = self._failed_in_row <= self._tolerable
        coordinator.emit(
            "checkpoint_failed",
            attempt.epoch,
            error=f"{type(error).__name__}: {error}",
            in_row=self._failed_in_row,
            tolerable=self._tolerable,
            tolerated=tolerated,
        )
        return tolerated


class _Weaker(Delivery):
    """Nothing is decided, so a run that is superseded has to look for itself."""

    def run(self, attempt: Attempt) -> bool:
        self._coordinator.refuse_superseded()
        self._coordinator.open(attempt)
        self._deliver(attempt)
        return True

    @abstractmethod
    def _deliver(self, attempt: Attempt) -> None: ...

    def _emit_committed(self, epoch: int, committables: Sequence[Committable]) -> None:
        self._coordinator.emit(
            "committed",
            epoch,
            rows=sum(committable.rows for committable in committables),
            writers=sum(bool(committable.rows) for committable in committables),
            commit_ms=0.0,
            recovery=False,
        )
        failpoint("epoch.committed")


class AtLeastOnce(_Weaker):
    """Rows are visible as soon as their task is done."""

    direct = True

    def _deliver(self, attempt: Attempt) -> None:
        coordinator = self._coordinator
        prepared = coordinator.prepare(attempt, None)
        if isinstance(prepared, protocol.Failed):
            coordinator.stragglers.abort_all_quietly()
            raise coordinator.not_prepared(attempt, prepared) from prepared.error
        coordinator.decided = attempt.epoch
        self._emit_committed(attempt.epoch, prepared.committables)


class AtMostOnce(_Weaker):
    """An epoch is begun once. Whatever goes wrong afterwards, its rows are dropped, never repeated."""

    def _deliver(self, attempt: Attempt) -> None:
        coordinator, epoch = self._coordinator, attempt.epoch
        if not coordinator.begin(attempt):
            return self._skip(attempt, "an earlier run had begun it")
        prepared = coordinator.prepare(attempt, None)
        if isinstance(prepared, protocol.Failed):
            coordinator.stragglers.abort_all_quietly()
            return self._skip(attempt, f"{type(prepared.error).__name__}: {prepared.error}")
        coordinator.decided = epoch
        failpoint("epoch.confirmed")
        wanted = [committable for committable in prepared.committables if committable.rows]
        outcomes = coordinator.commit_at_sinks(epoch, wanted)
        missing = [committable for committable in wanted if not outcomes.get(committable.id, Outcome.UNKNOWN).visible]
        if missing:
            self._drop(epoch, f"{len(missing)} writers could not be committed", missing)
            coordinator.stragglers.abort_all_quietly()
        self._emit_committed(
            epoch, [committable for committable in prepared.committables if committable not in missing]
        )
        return None

    def _skip(self, attempt: Attempt, why: str) -> None:
        """Run the plan, so that positions and state go on, and write nothing."""
        prepared = self._coordinator.prepare(attempt, frozenset())
        if isinstance(prepared, protocol.Failed):
            raise self._coordinator.not_prepared(attempt, prepared) from prepared.error
        self._drop(attempt.epoch, why, prepared.committables)

    def _drop(self, epoch: int, why: str, committables: Sequence[Committable]) -> None:
        log.warning("query %s, at most once: epoch %d is skipped (%s)", self._coordinator.query, epoch, why)
        self._coordinator.emit("skipped", epoch, rows=sum(committable.rows for committable in committables), error=why)


def delivery_of(mode: str, exactly_once: ExactlyOnce, coordinator: Coordinator) -> Delivery:
    """What the mode asks for; `exactly_once` is what every coordinator has, for what was decided before."""
    match Mode(mode):
        case Mode.AT_LEAST_ONCE:
            return AtLeastOnce(coordinator)
        case Mode.AT_MOST_ONCE:
            return AtMostOnce(coordinator)
    return exactly_once
