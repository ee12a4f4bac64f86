"""A supervisor that waits for the lease of its job without a driver, where the lease is in a folder it can read.

It only looks. When the lease is free a driver is started, and takes it, or ends again because somebody was quicker.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from penstock.checkpoint.lease import LeaseLog
from penstock.errors import LedgerCorrupt, LedgerFromTheFuture
from penstock.ops.process.lease_rules import Verdict, Watching, lease_clock
from penstock.ops.process.lifeline import LeaseReport
from penstock.ops.process.registration import ID_VARIABLE
from penstock.storage.local import LocalStorage

log = logging.getLogger("penstock.supervisor")

_BLIND_SECONDS = 10.0  # between two looks, where no lease could be seen yet


class LeaseWait:
    """The lease in the job's folder `path`, which is known to have come to turn `known`."""

    def __init__(self, path: str, known: int, *, clock: Callable[[], float] = lease_clock) -> None:
        self._words, self._path, self._clock = LeaseLog(LocalStorage(Path(path))), path, clock
        self._me = os.environ.get(ID_VARIABLE, "")
        self._watching = Watching(self._me, known)
        self._away = False
        self.over: int | None = None  # the word that has run out; the next driver need not wait for it once more
        self.ended: tuple[str, str] | None = None  # where and why the job has ended

    def look(self) -> bool:
        """Whether it is still to be waited for. Not so where the lease is free, where the job has ended, and where
        what is there cannot be understood: a driver says best what is wrong."""
        try:
            word = self._words.newest()
        except (LedgerCorrupt, LedgerFromTheFuture):
            return False
        except Exception as error:
            if not self._away:
                log.warning("the lease cannot be seen now, and is waited for all the same: %s", error)
            self._away = True
            return True
        self._watching.saw(word, self._clock())
        if self._watching.blind and not self._away:
            log.warning("%s shows less than before: is it mounted, or was it emptied?", self._words.location)
        self._away = self._watching.blind
        verdict = self._watching.verdict(self._clock())
        if verdict is Verdict.LEAVE and word is not None:
            self.ended = (word.host, word.reason)
        if verdict is Verdict.TAKE and word is not None:
            self.over = word.number
        return verdict is Verdict.WAIT

    @property
    def seconds(self) -> float:
        """Until the next look."""
        return self._watching.wait_seconds(self._clock(), _BLIND_SECONDS)

    @property
    def report(self) -> LeaseReport | None:
        """Who has it."""
        word = self._watching.word
        return None if word is None else LeaseReport(word.turn, word.host, word.holder == self._me, self._path)
