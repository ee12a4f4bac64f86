"""One try at one epoch: what it works on, when it began, what there is to tell of it, and the watchdog that ends one
that takes too long."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.engine.checksum import rules_of
from penstock.errors import CheckpointExpired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame

    from penstock.checkpoint.decision import Committable
    from penstock.checkpoint.spark_log import Barrier
    from penstock.engine.protocol import Replay


@dataclass
class EpochNotes:
    """What there is to tell of one attempt at an epoch. Times are of the wall clock."""

    opened: float = field(default_factory=time.time)
    decided: float | None = None
    precommit_ms: float | None = None
    commit_ms: float | None = None
    committables: tuple[Committable, ...] = ()
    logged: bool = False  # went into the in-flight log, not at once into its sinks
    inflight_bytes: int = 0


class EpochObserver(Protocol):
    """Told of every attempt, in the thread that runs it; must return at once and raise nothing."""

    def prepared(self, epoch: int, barrier: Barrier | None, opened: float, plan: Callable[[], Any]) -> None:
        """`plan` gives what Spark executed; to ask for it costs the epoch a few milliseconds."""

    def ended(
        self, epoch: int, generation: int, barrier: Barrier | None, notes: EpochNotes, error: BaseException | None
    ) -> None: ...


@dataclass
class Attempt:
    """`number` counts the attempts of a run, over all its epochs. With `replay`, the epoch was decided before.
    `direct`: its tasks make their rows visible themselves."""

    query: str
    epoch: int
    number: int
    generation: int
    frame: DataFrame
    barrier: Barrier
    replay: Replay | None = None
    direct: bool = False
    notes: EpochNotes = field(default_factory=EpochNotes)
    opened: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
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
        self._timer: threading.Timer | None = None
        self.expired: CheckpointExpired | None = None

    def __enter__(self) -> Watchdog:
        self._timer = threading.Timer(self._seconds, self._bite)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timer is not None
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
