"""An attempt at an epoch, the watchdog that ends one that takes too long, and the gate that epochs pass one by one. The
weaker modes, as coroutines over the protocol's actions and four of their own: see docs/concepts/modes.md.

All modes start with the same recovery, and an epoch that an exactly-once run has decided is carried out as decided.
Each coroutine returns what is visible, None if the epoch was skipped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome, WriterId
from penstock.checkpoint.spark_log import Barrier
from penstock.deadline import Deadline
from penstock.engine.checksum import rules_of
from penstock.engine.output_jobs import Jobs
from penstock.engine.protocol import Failed, NotPrepared, PreCommit, Prepared, Replay
from penstock.errors import CheckpointExpired, JobStopped, SavepointError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class Attempt:
    """`number` counts the attempts of a run, over all its epochs. `jobs` runs its tasks. With `replay`, the epoch was
    decided before. `direct`: its tasks make their rows visible themselves. `shares`: the epoch has no tasks, and
    this is what lanes have made visible since the one before. From `began` on: what there is to tell of it, with times
    of the wall clock."""

    query: str
    epoch: int
    number: int
    generation: int
    frame: DataFrame
    barrier: Barrier
    jobs: Jobs
    replay: Replay | None = None
    direct: bool = False
    shares: tuple[Committable, ...] | None = None
    opened: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.time)
    decided: float | None = None
    precommit_ms: float | None = None
    commit_ms: float | None = None
    committables: tuple[Committable, ...] = ()
    once: bool = True  # Spark has run its plan once, so that its counts are those of the rows
    logged: bool = False  # went into the in-flight log, not at once into its sinks
    inflight_bytes: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.opened

    @property
    def rules(self) -> Mapping[str, int]:
        """By which rule each sink's rows are summed: those of a replay as the rows were that they must equal."""
        return rules_of(self.replay.decision.committables) if self.replay is not None else {}


class Watchdog:
    """While entered, cancels the epoch's Spark jobs, which run under the name `group`, when its time is up; `expired`
    then says so."""

    def __init__(self, attempt: Attempt, seconds: float, group: str | None) -> None:
        self._attempt, self._seconds, self._group = attempt, seconds, group
        self._lock = threading.Lock()
        self._over = False
        self._timer = threading.Timer(seconds, self._bite)
        self._timer.daemon = True
        self.expired: CheckpointExpired | None = None

    def __enter__(self) -> Watchdog:
        self._timer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()
        if error is None and self.expired is not None:
            raise self.expired  # the time was up between two Spark jobs

    def _bite(self) -> None:
        attempt = self._attempt
        with self._lock:
            if self._over:
                return
            self.expired = CheckpointExpired(
                f"Epoch {attempt.epoch} of query {attempt.query!r} was not prepared after {self._seconds:g} s.",
                safe="everything it had prepared is aborted; it replays from the same positions.",
                to_do="see what is slow (the sink, the plan, too many rows); raise the checkpoint timeout, limit"
                " the rows per epoch at the source, or use unaligned checkpoints if it is the sink.",
            )
            if self._group:
                with contextlib.suppress(Exception):
                    attempt.frame.sparkSession.sparkContext.cancelJobGroup(self._group)


class Gate:
    """Held while an epoch is under way. Closed, it lets none begin and cuts every wait inside one short."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._shut = threading.Event()

    @property
    def closed(self) -> bool:
        return self._shut.is_set()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def try_enter(self) -> bool:
        """Enter if no epoch is under way; then `leave`."""
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        self._lock.release()

    def check(self) -> None:
        """Raises `JobStopped` once the gate is closed."""
        if self._shut.is_set():
            raise JobStopped(f"Query {self._query!r} is stopping.", safe="the epoch replays at the next start.")

    def pause(self, seconds: float) -> None:
        """Wait, unless the gate is closed meanwhile."""
        if seconds > 0:
            self._shut.wait(seconds)
            self.check()

    def shut(self) -> None:
        """From now on none begins; returns at once."""
        self._shut.set()

    def close(self) -> None:
        """Returns when no epoch is under way."""
        self.shut()
        with self._lock:
            pass

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    @contextmanager
    def held(self, patience: Deadline) -> Iterator[None]:
        """While this lasts no epoch is under way and none begins. `SavepointError` where one does not end in time."""
        if not self._lock.acquire(timeout=max(0.0, patience.remaining())):
            raise SavepointError(
                f"The epoch under way of query {self._query!r} has not ended within the checkpoint timeout.",
                safe="the job goes on; nothing was changed.",
                to_do="see what it waits for, then ask again.",
            )
        try:
            yield
        finally:
            self._lock.release()


@dataclass(frozen=True, slots=True)
class Begin:
    """Mark the epoch as begun, durably. → False if it was before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CommitOnce:
    """Commit without a decision. → mapping of `WriterId` to `Outcome`."""

    epoch: int
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Abort what is open, as far as the sinks answer. → None."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Report rows that are never written. → None."""

    epoch: int
    why: str
    committables: tuple[Committable, ...]


Visible = tuple[Committable, ...] | None


def at_least_once(epoch: int) -> Generator[Any, Any, Visible]:
    """Rows are visible as soon as their task is done."""
    prepared: Prepared | Failed = yield PreCommit(epoch, None)
    if isinstance(prepared, Failed):
        yield AbortAll()
        raise NotPrepared(epoch, prepared.error)
    return prepared.committables


def at_most_once(epoch: int) -> Generator[Any, Any, Visible]:
    """An epoch is begun once. Whatever fails afterwards, its rows are dropped, never repeated."""
    if not (yield Begin(epoch)):
        yield from _skip(epoch, "an earlier run had begun it")
        return None
    prepared: Prepared | Failed = yield PreCommit(epoch, None)
    if isinstance(prepared, Failed):
        yield AbortAll()
        yield from _skip(epoch, f"{type(prepared.error).__name__}: {prepared.error}")
        return None
    wanted = tuple(committable for committable in prepared.committables if committable.rows)
    outcomes: Mapping[WriterId, Outcome] = yield CommitOnce(epoch, wanted)
    missing = tuple(committable for committable in wanted if not outcomes.get(committable.id, Outcome.UNKNOWN).visible)
    if missing:
        yield Drop(epoch, f"{len(missing)} writers could not be committed", missing)
        yield AbortAll()
    return tuple(committable for committable in prepared.committables if committable not in missing)


def _skip(epoch: int, why: str) -> Generator[Any, Any, None]:
    """Run the plan, so that positions and state go on, and write nothing."""
    prepared: Prepared | Failed = yield PreCommit(epoch, frozenset())
    if isinstance(prepared, Failed):
        raise NotPrepared(epoch, prepared.error)
    yield Drop(epoch, why, prepared.committables)
