"""A job's turn among several supervisors: the lease is opened before anything is touched, and given back at the end.

| the job | then whoever waits |
|---|---|
| was stopped, cancelled, is done, or failed for good | ends as well: the job is over, wherever it ran |
| ends because its process was sent SIGTERM or SIGINT | takes over at once |
| crashed, so that its supervisor starts it again | takes over if that takes longer than the lease |
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.checkpoint.lease import LeaseLog, Standing, Word
from penstock.checkpoint.open import require_trust
from penstock.engine.restarts import classify, error_chain
from penstock.errors import JobStopped, PenstockError, Superseded
from penstock.ops.process import lifeline
from penstock.ops.process.lease_holder import LeaseHolder
from penstock.ops.process.lease_rules import Verdict
from penstock.ops.process.lifeline import status_of
from penstock.ops.process.registry import expected_run
from penstock.storage.local import LocalStorage
from penstock.storage.open import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import Checkpoints
    from penstock.config.settings import Settings

log = logging.getLogger("penstock")


class TurnEnd(StrEnum):
    """Why a job that ran has ended, in the words that the lease keeps."""

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
        """Whether the lease is held now. Where somebody else has it and the supervisor can wait alone, this process
        ends."""
        self.lease.learn(lifeline.known_turn(), lifeline.expired_lease())
        verdict = self.lease.take_or_wait()
        if verdict is Verdict.LEAVE:
            self._go()
        word = self.lease.word
        if verdict is Verdict.WAIT and self._cold and word is not None and word.held:
            raise SystemExit(lifeline.LOST_TURN)
        return verdict is Verdict.TAKE

    def wait(self) -> None:
        """Return when the lease is held. Where the job has ended elsewhere, this process ends."""
        self.lease.learn(lifeline.known_turn(), lifeline.expired_lease())  # a standby was told with its turn
        if not self.lease.wait():
            self._go()

    @property
    def goes_on(self) -> bool:
        """Whether the job that this driver runs was begun by another supervisor."""
        word = self.lease.word
        return word is not None and word.began != self.lease.me

    def _go(self) -> None:
        word = self.lease.word
        assert word is not None
        log.warning("the job has ended on %s (%s), so it is not started here", word.host, word.reason)
        lifeline.report_stopping()
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
    """The lease of the job `name`, in its folder; None where it has none."""
    seconds = settings.availability.lease
    if seconds is None:
        return None
    storage = storage_at(f"{checkpoints.storage.rstrip('/')}/{name}", spark)
    require_trust(storage, checkpoints.trusted_schemes)
    return JobLease(LeaseLog(storage), seconds, warm=settings.availability.standby)


@contextmanager
def held(lease: JobLease | None, end: Callable[[], TurnEnd]) -> Iterator[None]:
    """While the job runs. At its end the lease says what whoever waits is to do; `end` tells how a job ended that did
    not fail. A run that was superseded by one that has the lease ends with `LeaseLost`."""
    if lease is None:
        yield
        return
    mine = lease.lease
    try:
        yield
    except JobStopped:
        mine.close(end().standing, end())
        raise
    except (KeyboardInterrupt, SystemExit):
        mine.close(Standing.RELEASED, TurnEnd.HANDED_OVER)
        raise
    except BaseException as error:
        if any(isinstance(cause, Superseded) for cause in error_chain(error)) and mine.is_lost():
            mine.close(None)
            raise mine.taken_error() from error
        if status_of(error) != lifeline.CRASHED:
            mine.close(Standing.ENDED, TurnEnd.FAILED)
        else:  # its supervisor starts it again; where there is none, somebody else may
            mine.close(None if lifeline.connected() else Standing.RELEASED, TurnEnd.HANDED_OVER)
        raise
    mine.close(end().standing, end())


def settings_of_turn(lease: JobLease | None, settings: Settings) -> Settings:
    """The settings for a run that begins now. A savepoint to start from is for whoever begins the job: to restore it
    once more in a takeover would take the job back to it."""
    if lease is None or not lease.goes_on or settings.recovery.path is None:
        return settings
    log.warning("the job was begun elsewhere and goes on from its checkpoint, not from %s", settings.recovery.path)
    return replace(settings, recovery=replace(settings.recovery, path=None))


def _end_process(error: PenstockError) -> None:
    """At once: whatever this driver still did, it would do beside another one."""
    log.error("%s", error)
    lifeline.report_error(error, classify(error))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status_of(error))
