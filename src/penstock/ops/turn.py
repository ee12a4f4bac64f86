"""A driver's turn: waited for as a standby, taken and held by the lease, given back at the end.

`take_turn` comes first in `Job.run` and in the drop-in: before the job is in the registry, a port is opened, a
generation registered, a checkpoint or a sink written to. docs/how-to/failover.md says what a driver that waits does.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from penstock.checkpoint.lease_log import LeaseLog, Standing, Word
from penstock.checkpoint.open import require_trust
from penstock.engine.restarts import classify, error_chain, jvm_gone
from penstock.errors import JobStopped, PenstockError, Superseded
from penstock.ops.process import lifeline
from penstock.ops.process.lease_holder import LeaseHolder
from penstock.ops.process.lease_rules import Verdict
from penstock.ops.process.lifeline import status_of
from penstock.ops.process.registry import expected_run
from penstock.spark.executors import runs_tasks_itself, writer_modules
from penstock.storage.local import LocalStorage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import Checkpoints
    from penstock.config.resolve import Settings
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.contracts.source import Source

log = logging.getLogger("penstock")

_Step = Callable[[], None]
_KEEP_WARM_SECONDS = 40.0  # Spark ends Python workers that were idle for a minute
_HERE = ("penstock.savepoints.restore", "penstock.ops.server.app", "uvicorn")  # what a start loads in this process


def take_turn(
    spark: SparkSession,
    sinks: Iterable[TwoPhaseSink],
    sources: Mapping[str, Source] | None = None,
    look: _Step = lambda: None,
    lease: JobLease | None = None,
) -> None:
    """Return when this driver is the one that runs the job; meanwhile keep warm what it will need. SIGTERM ends a
    standby. Where the job has ended elsewhere, or its supervisor can wait without a driver, this process ends here."""
    modules = ["penstock.engine.task", *writer_modules(sinks)]  # what each Python worker loads
    if not lifeline.is_standby() and (lease is None or lease.take_or_leave()):
        if lifeline.connected() and runs_tasks_itself(spark.sparkContext.master):
            threading.Thread(target=_start_workers, args=(spark, modules), name="penstock-workers", daemon=True).start()
        return
    warm = [partial(source.warm_up, spark, uid) for uid, source in (sources or {}).items()]
    turn = threading.Event()
    arguments = (turn, spark, modules, warm, look)
    threading.Thread(target=_keep_warm, args=arguments, name="penstock-standby", daemon=True).start()
    lifeline.await_turn()
    if lease is not None:
        lease.wait()
    turn.set()


def _start_workers(spark: SparkSession, modules: Sequence[str]) -> None:
    """During recovery, so that the first epoch finds them. Where this fails, the first epoch starts them."""
    from penstock.spark.warm_up import warm_workers

    try:
        warm_workers(spark, modules)
    except Exception as error:
        log.debug("Python workers could not be started ahead: %r", error)


def _keep_warm(
    turn: threading.Event, spark: SparkSession, modules: Sequence[str], once: Sequence[_Step], look: _Step
) -> None:
    """Failures do not matter here: the start itself reports what is wrong."""
    from penstock.spark.warm_up import warm_up, warm_workers

    for name in (*_HERE, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    steps: Sequence[_Step] = (lambda: warm_up(spark, modules), *once, look)
    while not turn.is_set():
        for step in steps:
            try:
                step()
            except Exception as error:
                log.debug("a standby could not warm up: %r", error)
                if jvm_gone(error) and not turn.is_set():
                    lifeline.report_error(error, classify(error))
                    os._exit(lifeline.CRASHED)  # it can no longer take over; another standby can
        lifeline.report(ready=True)
        steps = (lambda: warm_workers(spark, modules), look)
        turn.wait(_KEEP_WARM_SECONDS)


class TurnEnd(StrEnum):
    """Why a job that ran has ended, as the lease records it."""

    DONE = "done"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    HANDED_OVER = "handed over"

    @property
    def standing(self) -> Standing:
        return Standing.RELEASED if self is TurnEnd.HANDED_OVER else Standing.ENDED


class JobLease:
    """The lease of one job, as its driver waits for it and holds it."""

    def __init__(self, words: LeaseLog, seconds: float, *, warm: bool) -> None:
        storage = words.storage
        self._path = str(storage.root) if isinstance(storage, LocalStorage) else None
        self._cold = not warm and self._path is not None and lifeline.connected()
        self._waits = False
        me = expected_run() or uuid.uuid4().hex
        self.lease = LeaseHolder(words, me, socket.gethostname(), seconds, lost=_end_process, seen=self._tell)

    def take_or_leave(self) -> bool:
        """Whether the lease is held now. Where the supervisor can wait for it alone, this process ends."""
        self._learn()
        verdict = self.lease.take_or_wait()
        if verdict is Verdict.LEAVE:
            self._go()
        word = self.lease.word
        if verdict is Verdict.WAIT and self._cold and word is not None and word.held:
            raise SystemExit(lifeline.LOST_TURN)
        return verdict is Verdict.TAKE

    def wait(self) -> None:
        """Return when the lease is held. Where the job has ended elsewhere, this process ends."""
        self._learn()  # a standby, with its turn
        if not self.lease.wait():
            self._go()

    def _learn(self) -> None:
        self.lease.learn(lifeline.orders().turn, lifeline.orders().expired)

    @property
    def goes_on(self) -> bool:
        """Whether another supervisor began the job that this driver runs."""
        word = self.lease.word
        return word is not None and word.began != self.lease.me

    def _go(self) -> None:
        word = self.lease.word
        assert word is not None
        log.warning("the job has ended on %s (%s), so it is not started here", word.host, word.reason)
        lifeline.report(stopping=True)
        raise SystemExit(lifeline.FAILED if word.reason == TurnEnd.FAILED else lifeline.DONE)

    def _tell(self, word: Word) -> None:
        here = word.holder == self.lease.me
        if here:
            log.info("this driver has the lease of the job, turn %d", word.turn)
        elif not self._waits and word.held:
            log.info("the supervisor on %s has the lease of the job, turn %d; this driver waits", word.host, word.turn)
        self._waits = not here
        lifeline.report_lease(word.turn, word.host, here=here, path=self._path)


def lease_of(name: str, settings: Settings, checkpoints: Checkpoints, spark: SparkSession) -> JobLease | None:
    """In the job's folder; None where the job has none."""
    seconds = settings.availability.lease
    if seconds is None:
        return None
    storage = storage_at(f"{checkpoints.storage.rstrip('/')}/{name}", spark)
    require_trust(storage, checkpoints.trusted_schemes)
    return JobLease(LeaseLog(storage), seconds, warm=settings.availability.standby)


@contextmanager
def held(lease: JobLease | None, end: Callable[[], TurnEnd]) -> Iterator[None]:
    """Hold the lease while the job runs; `end` says how a job ended that did not fail, which waiting drivers learn. A
    run superseded by the lease's new holder raises `LeaseLost`."""
    if lease is None:
        yield
        return
    hold = lease.lease
    try:
        yield
    except JobStopped:
        hold.close(end().standing, end())
        raise
    except (KeyboardInterrupt, SystemExit):
        hold.close(Standing.RELEASED, TurnEnd.HANDED_OVER)
        raise
    except BaseException as error:
        if any(isinstance(cause, Superseded) for cause in error_chain(error)) and hold.is_lost():
            hold.close(None)
            raise hold.taken_error() from error
        if status_of(error) != lifeline.CRASHED:
            hold.close(Standing.ENDED, TurnEnd.FAILED)
        else:  # its supervisor restarts it; without one, another driver may take over
            hold.close(None if lifeline.connected() else Standing.RELEASED, TurnEnd.HANDED_OVER)
        raise
    hold.close(end().standing, end())


def settings_of_turn(lease: JobLease | None, settings: Settings) -> Settings:
    """Only the driver that begins a job restores its savepoint: in a takeover that would set the job back."""
    if lease is None or not lease.goes_on or settings.recovery.path is None:
        return settings
    log.warning("the job began elsewhere and resumes from its checkpoint, not from %s", settings.recovery.path)
    return replace(settings, recovery=replace(settings.recovery, path=None))


def _end_process(error: PenstockError) -> None:
    """At once: anything more that this driver did would happen beside another one."""
    log.error("%s", error)
    lifeline.report_error(error, classify(error))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status_of(error))
