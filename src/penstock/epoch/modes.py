"""The two weaker modes. A job that asks for less gets just that, and not by accident.

* **At least once**: each task makes its rows visible by itself; no decision, nothing to wait for. After a crash the
  epoch replays, and its rows come again.
* **At most once**: an epoch is marked as begun before anything of it is visible, then written and committed, without a
  second try. After a crash an epoch that was begun is not written again, even if nothing of it became visible.

Both begin with the same recovery as an exactly-once run: what one of those has decided is carried out first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.checkpoint.decision import Committable, Outcome
from penstock.deadline import Deadline
from penstock.epoch import protocol
from penstock.epoch.channel import How, Writing
from penstock.epoch.coordinator import Coordinator
from penstock.epoch.driver import log
from penstock.epoch.explain import explain_stop
from penstock.epoch.notes import EpochNotes
from penstock.epoch.protocol import Replay
from penstock.failpoints import failpoint


class AtLeastOnce(Coordinator):
    """Rows are visible as soon as their task is done."""

    def _attempt(self, epoch: int, replay: Replay | None) -> bool:
        if replay is not None:
            return super()._attempt(epoch, replay)
        self._begin(epoch)
        prepared = self._pre_commit(epoch, None)
        if isinstance(prepared, protocol.Failed):
            self._abort_quietly()
            raise explain_stop(
                protocol.NotPrepared(epoch, prepared.error), self._query, self._where
            ) from prepared.error
        self.decided = epoch
        self._told(epoch, prepared.committables)
        failpoint("epoch.committed")
        return True

    def _writing(self, uid: str, only: frozenset[str] | None) -> Writing:
        return Writing(How.DIRECT) if only is None else super()._writing(uid, only)

    def _prepared(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        return tuple(committables) if only is None else super()._prepared(committables, only)

    def _begin(self, epoch: int) -> None:
        newest = self._ledger.newest_generation()
        if newest > self._generation:
            raise explain_stop(protocol.Fenced(self._generation, newest), self._query, self._where)
        self._attempts += 1
        self._opened, self._notes = time.monotonic(), EpochNotes(time.time())
        self._watermark.start(int(self._barrier.metadata.get("batchWatermarkMs", 0)) if self._barrier else 0)
        self._emit("opened", epoch)

    def _told(self, epoch: int, committables: Sequence[Committable]) -> None:
        self._emit(
            "committed",
            epoch,
            rows=sum(one.rows for one in committables),
            writers=sum(bool(one.rows) for one in committables),
            commit_ms=0.0,
            recovery=False,
        )

    def _abort_quietly(self) -> None:
        try:
            self._abort_dangling(())
        except Exception as error:  # the failure under way matters more; the next start sweeps again
            log.warning("query %s: leftovers could not be aborted: %s", self._query, error)


class AtMostOnce(AtLeastOnce):
    """An epoch is begun once. Whatever goes wrong afterwards, its rows are dropped, never repeated."""

    def _attempt(self, epoch: int, replay: Replay | None) -> bool:
        if replay is not None:
            return Coordinator._attempt(self, epoch, replay)
        self._begin(epoch)
        query = self._log.query_id()
        if not self._ledger.begin(epoch, query):
            return self._skip(epoch, "an earlier run had begun it")
        prepared = self._pre_commit(epoch, None)
        if isinstance(prepared, protocol.Failed):
            self._abort_quietly()
            return self._skip(epoch, f"{type(prepared.error).__name__}: {prepared.error}")
        self.decided = epoch
        failpoint("epoch.confirmed")
        wanted = [one for one in prepared.committables if one.rows]
        outcomes = self._commit_at_sinks(epoch, wanted, Deadline(self._timing.commit_seconds))
        missing = [one for one in wanted if not outcomes.get(one.id, Outcome.UNKNOWN).visible]
        if missing:
            self._dropped(epoch, f"{len(missing)} writers could not be committed", sum(one.rows for one in missing))
            self._abort_quietly()
        self._told(epoch, [one for one in prepared.committables if one not in missing])
        failpoint("epoch.committed")
        return True

    def _skip(self, epoch: int, why: str) -> bool:
        """Run the plan, so that positions and state go on, and write nothing."""
        prepared = self._pre_commit(epoch, frozenset())
        if isinstance(prepared, protocol.Failed):
            raise explain_stop(
                protocol.NotPrepared(epoch, prepared.error), self._query, self._where
            ) from prepared.error
        self._dropped(epoch, why, sum(one.rows for one in prepared.committables))
        return True

    def _dropped(self, epoch: int, why: str, rows: int) -> None:
        log.warning("query %s, at most once: epoch %d is skipped (%s)", self._query, epoch, why)
        self._emit("skipped", epoch, rows=rows, error=why)

    def _writing(self, uid: str, only: frozenset[str] | None) -> Writing:
        return Coordinator._writing(self, uid, only)

    def _prepared(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        return Coordinator._prepared(self, committables, only)
