"""The in-flight log: what an epoch holds for a sink that has not taken it yet, and its delivery later.

    tasks    rows ──▶ log file (Arrow IPC, lz4)          and, unless the sink already lags, ──▶ the sink's transaction
    driver   decision names the log files ──▶ backlog record ──▶ the epoch is complete
    drainer  backlog, oldest first ──▶ the sink, each epoch with a two-phase commit of its own ──▶ log removed

To the epoch protocol the log is just another place that commits; the same protocol then runs from it to the sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.checkpoint.decision import Committable, Outcome, WriterId
from penstock.checkpoint.inflight import Backlog, confirm, log_of, make_folder, with_prepared
from penstock.checkpoint.layout import BACKLOG, DRAIN, LOGS
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine.attempt import Gate
from penstock.engine.drainer import Drainer, WriteTurn
from penstock.engine.task import Route, Writing
from penstock.errors import PenstockError, UidChanged
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.storage.storage import Storage

Seal = Callable[[Sequence[Committable], Deadline], Sequence[Committable]]
CommitAtSinks = Callable[[int, Sequence[Committable], Deadline], Mapping[WriterId, Outcome]]

_LEAST_SECONDS = 0.2  # a healthy sink confirms in far less, and without any time it could never be used
_LOOK_EVERY = 0.5


@dataclass(kw_only=True, eq=False)
class InFlight:
    """Used by the coordinator's thread; the drainers it starts work in their own.

    Off (neither unaligned nor concurrent), it delivers what an earlier run left before the first epoch begins."""

    job: str
    query: str
    sinks: Mapping[str, TwoPhaseSink]
    location: str
    storage: Storage
    ledger: Ledger
    ledger_of: Callable[[str], Ledger]
    events: Events
    checkpoints: Checkpoints

    def __post_init__(self) -> None:
        self._backlogs: dict[str, Backlog] = {}
        self._turns = {uid: WriteTurn() for uid in self.sinks}
        self._opened: dict[str, float] = {}  # when the epoch under way began, by sink
        self._behind: set[str] = set()  # sinks for which it queues behind earlier ones
        self._drainers: dict[str, Drainer] = {}
        self._generation = 0
        self._id: str | None = None

    # Beginning and end

    def open(self, query_id: str, generation: int) -> None:
        """Read what is waiting. Nothing is delivered before `start`."""
        if self._id is not None:
            return
        self._id, self._generation = query_id, generation
        gone = [uid for uid in self.storage.list(query_id) if uid not in self.sinks and self._has(uid, BACKLOG)]
        if gone:
            raise UidChanged(
                f"The in-flight log of query {self.query!r} still holds rows for the sinks {gone}, but the program has"
                f" {sorted(self.sinks)}.",
                safe="nothing was started; the rows stay in the log.",
                to_do="give the sink its former uid and let the log drain, then rename it.",
            )
        for uid in self.sinks:
            folder = f"{query_id}/{uid}"
            backlog = self._backlogs[uid] = Backlog(self.storage, folder, f"{self.location}/{folder}/{LOGS}")
            if self.checkpoints.logged:
                make_folder(backlog.logs)

    def start(self) -> None:
        """Begin to deliver, once recovery is over."""
        for uid, backlog in self._backlogs.items():
            # Also where nothing waits: a drainer of an older run may still live, and leave something open.
            if uid not in self._drainers and (self.checkpoints.logged or backlog.count or self._has(uid, DRAIN)):
                self._drainer(uid).start()

    def drainers(self) -> dict[str, Drainer]:
        """Those of the sinks for which something waits, not started; `close` frees them."""
        return {uid: self._drainer(uid) for uid, backlog in self._backlogs.items() if backlog.count}

    def _drainer(self, uid: str) -> Drainer:
        assert self._id is not None
        drainer = self._drainers[uid] = Drainer(
            query=self.query,
            query_id=self._id,
            sink=self.sinks[uid],
            own_scope=SinkScope(self.job, uid, self._generation),
            backlog=self._backlogs[uid],
            ledger=self.ledger_of(f"{self.location}/{self._id}/{uid}/{DRAIN}"),
            registered=self.ledger,
            events=self.events,
            limits=self.checkpoints,
            turn=self._turns[uid],
        )
        return drainer

    def close(self) -> None:
        """Deliver nothing more; what waits is the next run's."""
        for drainer in self._drainers.values():
            drainer.stop()
        self._drainers.clear()

    @property
    def failure(self) -> BaseException | None:
        """What no waiting can cure, at one of the sinks."""
        return next((drainer.failure for drainer in self._drainers.values() if drainer.failure is not None), None)

    @property
    def pending(self) -> int:
        return sum(backlog.count for backlog in self._backlogs.values())

    @property
    def bytes(self) -> int:
        return sum(backlog.bytes for backlog in self._backlogs.values())

    def prepared(self) -> list[Committable]:
        """What waiting epochs have prepared at the sinks: it must stay open there."""
        return [each for backlog in self._backlogs.values() for entry in backlog.entries() for each in entry.prepared]

    def behind(self) -> list[str]:
        """The sinks for which rows are to be written from the log, or which do not answer now."""
        return [
            uid
            for uid, backlog in self._backlogs.items()
            if not backlog.at_sink or (uid in self._drainers and self._drainers[uid].waiting_for is not None)
        ]

    def wait_empty(self, given_up: Callable[[], bool]) -> None:
        """Return when everything is delivered, nothing more can be, or `given_up` returns True."""
        while self.pending and self.failure is None and not given_up():
            self._wait()

    # One epoch

    def wait_for_room(self, gate: Gate) -> None:
        """The back-pressure: before an epoch begins, wait until the log has room for it."""
        self.start()
        throttled, began = False, time.monotonic()
        while self._full():
            if (failure := self.failure) is not None:
                raise failure
            gate.check()
            if not throttled:
                throttled = True
                self.events.emit("throttled", query=self.query, bytes=self.bytes, epochs=self.pending)
            self._wait()
        if throttled:
            seconds = round(time.monotonic() - began, 3)
            self.events.emit("flowing", query=self.query, bytes=self.bytes, epochs=self.pending, seconds=seconds)

    def writing(self, uid: str, elapsed: float) -> Writing:
        """Which way the rows of a sink go in the epoch that begins; `elapsed` is how long it has lasted already."""
        if not self.checkpoints.logged:
            return Writing()
        backlog = self._backlogs[uid]
        self._opened[uid] = time.monotonic() - elapsed
        self._behind.discard(uid)
        self._turns[uid].take_from_tasks()  # where an attempt at this epoch failed before
        if self.checkpoints.max_concurrent > 1:
            patience, in_turn = self.checkpoints.timeout_seconds, backlog.at_sink
        else:
            patience, in_turn = self.checkpoints.aligned_timeout_seconds - elapsed, not backlog.count
        if not in_turn:
            self._behind.add(uid)
        elif patience > 0:
            if self._turns[uid].give_to_tasks():
                return Writing(Route.TEE, backlog.logs, patience)
            self._behind.add(uid)  # the drainer writes
        return Writing(Route.LOG, backlog.logs)

    def with_hints(self, uid: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """The sink's hints to its writers, with what the drainer knows."""
        drainer = self._drainers.get(uid)
        return own if drainer is None else _newest(own, drainer.hints)

    def sealed(self, committables: Sequence[Committable], seal: Seal) -> list[Committable]:
        """What the sinks prepared in time, confirmed by them; a sink that did not keep up goes by the log, whole. Each
        log file is seen before anything is decided on it."""
        sealed: list[Committable] = []
        for uid in self.sinks:
            if own := [committable for committable in committables if committable.sink == uid]:
                confirm(self._backlogs[uid].logs, (log_of(committable) for committable in own))
                sealed.extend(self._sealed_sink(own, seal))
            else:
                self._turns[uid].take_from_tasks()  # it got no rows
        return sealed

    def _sealed_sink(self, own: Sequence[Committable], seal: Seal) -> list[Committable]:
        prepared = [prepared for committable in own if (prepared := committable.at_sink) is not None]
        if len(prepared) == len(own):
            try:
                sealed = {committable.id: committable for committable in seal(prepared, self._patience())}
                return [with_prepared(committable, sealed[committable.id]) for committable in own]
            except PenstockError as error:
                if not error.retryable:
                    raise
        return [with_prepared(committable, None) for committable in own]

    def commit(self, epoch: int, logged: Sequence[Committable], commit_at_sinks: CommitAtSinks) -> bool:
        """Make a decided epoch visible, or one to be delivered; idempotent. Whether all of it is visible now."""
        by_sink = {
            uid: [committable for committable in logged if committable.sink == uid]
            for uid in sorted({committable.sink for committable in logged})
        }
        direct = {
            uid: [prepared for committable in own if (prepared := committable.at_sink) is not None]
            for uid, own in by_sink.items()
            if self.checkpoints.max_concurrent == 1 and self._in_turn(uid, epoch)
        }
        direct = {uid: own for uid, own in direct.items() if len(own) == len(by_sink[uid])}
        at_sinks = [prepared for own in direct.values() for prepared in own]
        outcomes = commit_at_sinks(epoch, at_sinks, self._patience()) if direct else {}
        visible = True
        for uid, own in by_sink.items():
            if uid in direct and all(outcomes.get(committable.id, Outcome.UNKNOWN).visible for committable in own):
                self._backlogs[uid].remove_logs([log_of(committable).name for committable in own])
            else:
                visible = self._record(uid, epoch, own) and visible
            self._turns[uid].take_from_tasks()
        return visible

    def remove_strays(self, keep: Sequence[Committable]) -> None:
        """Remove the logs of attempts that failed. Call only while no task writes."""
        for uid, backlog in self._backlogs.items():
            self._turns[uid].take_from_tasks()
            backlog.remove_strays(self._generation, keep)

    def _record(self, uid: str, epoch: int, own: Sequence[Committable]) -> bool:
        backlog, opened = self._backlogs[uid], self._opened.get(uid)
        if backlog.record(epoch, own):
            failpoint("inflight.recorded")
            self.events.emit(
                "logged",
                query=self.query,
                generation=self._generation,
                epoch=epoch,
                sink=uid,
                rows=sum(committable.rows for committable in own),
                bytes=sum(log_of(committable).bytes for committable in own),
                backlog=backlog.count,
                backlog_bytes=backlog.bytes,
                behind=uid in self._behind,
                seconds=None if opened is None else round(time.monotonic() - opened, 4),
            )
        return epoch <= backlog.drained

    def _in_turn(self, uid: str, epoch: int) -> bool:
        """Whether all before it is delivered, and it is not: only then may it become visible at once."""
        return epoch > self._backlogs[uid].drained and not self._backlogs[uid].count

    def _full(self) -> bool:
        if not self.checkpoints.logged:
            return self.pending > 0
        if self.checkpoints.max_concurrent > 1:
            return any(backlog.count >= self.checkpoints.max_concurrent for backlog in self._backlogs.values())
        return self.bytes > self.checkpoints.inflight_bytes

    def _patience(self) -> Deadline:
        if self.checkpoints.max_concurrent > 1:
            return Deadline(self.checkpoints.commit_timeout_seconds)
        return Deadline(max(_LEAST_SECONDS, self.checkpoints.aligned_timeout_seconds))

    def _wait(self) -> None:
        waiting = next((backlog for backlog in self._backlogs.values() if backlog.count), None)
        if waiting is not None:
            waiting.wait(_LOOK_EVERY)

    def _has(self, uid: str, folder: str) -> bool:
        return bool(self.storage.list(f"{self._id}/{uid}/{folder}"))


def _newest(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two committers' hints about one sink. Numbers that it counts up, a fence or those by transaction, are the newer
    the higher they are; of anything else its `own` is."""
    merged = {**other, **own}
    for key in own.keys() & other.keys():
        mine, its = own[key], other[key]
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            merged[key] = {**its, **mine, **{name: _higher(mine[name], its[name]) for name in mine.keys() & its.keys()}}
        else:
            merged[key] = _higher(mine, its)
    return merged


def _higher(mine: Any, its: Any) -> Any:
    return max(mine, its) if isinstance(mine, int) and isinstance(its, int) else mine
