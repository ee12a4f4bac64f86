"""A driver's hold on the lease of its job, and how a supervisor without a driver watches that lease.

The driver holds the lease and not its supervisor: only it reaches every storage, and knows the job's name. Two threads
keep it, because a storage that is away may not answer at all: one renews, the other watches the clock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.checkpoint.lease_log import LeaseLog, Standing, Word
from penstock.errors import LeaseLost, LedgerCorrupt, LedgerFromTheFuture, PenstockError
from penstock.ops.process.lease_rules import LATE_PATIENCE, Holding, Verdict, Watching, lease_clock
from penstock.ops.process.lifeline import LeaseReport
from penstock.storage.local import LocalStorage

log = logging.getLogger("penstock")

_CLOSE_SECONDS = 5.0  # to give the lease back; it expires by itself otherwise
_BLIND_SECONDS = 10.0  # between two looks, where no lease could be read yet


class _Waiter:
    """A look at the lease, as a driver and a supervisor without one share it."""

    _log = log

    def __init__(self, lease_log: LeaseLog, me: str, known: int | None, clock: Callable[[], float]) -> None:
        self._lease_log, self.me, self._clock, self._watching = lease_log, me, clock, Watching(me, known)
        self._away = False

    def _see(self) -> Verdict:
        self._watching.saw(self._lease_log.newest(), self._clock())
        return self._watching.verdict(self._clock())

    def _patient(self, look: Callable[[], Verdict]) -> Verdict:
        """WAIT where the storage is away. Raises only what no waiting can cure."""
        try:
            verdict = look()
        except (LedgerCorrupt, LedgerFromTheFuture):
            raise
        except Exception as error:
            if not self._away:
                self._log.warning("the lease cannot be read now, and is read again until it can: %s", error)
            self._away = True
            return Verdict.WAIT
        blind, location = self._watching.blind, self._lease_log.location
        if blind and not self._away:
            self._log.warning("%s shows less than before: is it mounted, or was it emptied?", location)
        elif self._away and not blind:
            self._log.info("the lease in %s can be read again", location)
        self._away = blind
        return verdict


class LeaseHolder(_Waiter):
    """One driver's hold. Its thread calls `lost` at most once, when the process must end; `seen` gets every holder."""

    def __init__(
        self,
        lease_log: LeaseLog,
        me: str,
        host: str,
        seconds: float,
        *,
        lost: Callable[[PenstockError], None],
        seen: Callable[[Word], None] = lambda _: None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        super().__init__(lease_log, me, None, clock)
        self._host, self._seconds, self._lost, self._seen = host, seconds, lost, seen
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._word: Word | None = None  # the last one that this driver is known to have written
        self._end: tuple[Standing | None, str] | None = None
        self._over = False
        self._renewer: threading.Thread | None = None

    def learn(self, known: int | None, expired: int | None = None) -> None:
        """The supervisor knows of this turn, and has seen the entry `expired` expire."""
        self._watching.expired = expired
        if known is not None:
            self._watching.known = max(self._watching.known or 0, known)

    def try_take(self) -> Verdict:
        """One look; TAKE where the lease is held now."""
        begun = self._clock()
        verdict = self._see()
        if verdict is Verdict.TAKE:
            word = self._watching.next_word(self._host, self._seconds)
            if not self._lease_log.say(word):
                return Verdict.WAIT  # another supervisor was quicker, and is seen at the next look
            self._begin(word, begun)
            self._seen(word)
        elif self._watching.word is not None:
            self._seen(self._watching.word)
        return verdict

    def take_or_wait(self) -> Verdict:
        """The same, and WAIT where the storage is away. Raises only what no waiting can cure."""
        return self._patient(self.try_take)

    def wait(self) -> bool:
        """Return when the lease is held; False where the job has ended elsewhere meanwhile."""
        while (verdict := self.take_or_wait()) is Verdict.WAIT:
            self._wake.wait(self._watching.wait_seconds(self._clock(), self._seconds))
        return verdict is Verdict.TAKE

    @property
    def word(self) -> Word | None:
        """The newest that this driver has written or seen."""
        return self._word or self._watching.word

    def _begin(self, word: Word, begun: float) -> None:
        self._word, holding = word, Holding(self._seconds, begun)
        guard, self._renewer = (
            threading.Thread(target=body, args=(holding,), name=f"penstock-lease-{name}", daemon=True)
            for name, body in (("guard", self._guard), ("renew", self._renew))
        )
        guard.start()
        self._renewer.start()

    def close(self, standing: Standing | None, reason: str = "") -> None:
        """Give the lease back or record the job's end; None leaves it to the supervisor's next driver. Never raises."""
        with self._lock:
            if self._renewer is None or self._over:
                return
            self._end = (standing, reason)
        self._wake.set()
        self._renewer.join(_CLOSE_SECONDS)
        with self._lock:
            self._over = True

    def is_lost(self) -> bool:
        """Whether another supervisor has the lease now; False where that cannot be read."""
        newest = self._newest()
        return self._word is not None and newest is not None and newest.holder != self.me

    def _newest(self) -> Word | None:
        with contextlib.suppress(Exception):
            return self._lease_log.newest()
        return None

    def _renew(self, holding: Holding) -> None:
        while not self._over:
            with self._lock:
                pause, end = holding.renew_in(self._clock()), self._end
            if end is not None:
                standing, reason = end
                try:
                    if standing is not None:
                        self._write(standing, reason)
                except Exception as error:
                    log.warning("the lease could not be given back, so it is free when it has expired: %s", error)
                return
            if pause > 0:
                self._wake.wait(pause)
                continue
            with self._lock:
                holding.begin(self._clock())
            try:
                renewed = self._write(Standing.HELD)
            except Exception as error:
                log.warning("the lease could not be renewed, and is retried: %s", error)
                with self._lock:
                    holding.failed(self._clock())
                continue
            if not renewed:
                self._leave(self.taken_error())
                return
            with self._lock:
                holding.succeeded()

    def _write(self, standing: Standing, reason: str = "") -> bool:
        """This driver's next word; False where another supervisor has the lease."""
        assert self._word is not None
        word = self._word.follow(standing, reason)
        if not self._lease_log.say(word):
            newest = self._lease_log.newest()
            if newest is None or newest.holder != self.me or not newest.held:
                return False
            # Its own, of an attempt that seemed to fail. It does not count from when it was written, so write again.
            word = newest.follow(standing, reason)
            if not self._lease_log.say(word):
                return False
        self._word = word
        return True

    def _guard(self, holding: Holding) -> None:
        while not self._over:
            before = self._clock()
            with self._lock:
                remaining = holding.stop_in(before)
                if self._end is not None:
                    return
            if remaining <= 0:
                happened = f"The lease in {self._lease_log.location} could not be renewed for {self._seconds:g} s."
                safe = "every decided epoch is safe: the next driver of the job recovers it."
                to_do = "check that the storage answers; if it is often this slow, make high-availability.lease longer."
                self._leave(LeaseLost(happened, safe=safe, to_do=to_do))
                return
            self._wake.wait(remaining)
            now = self._clock()
            if now - before > remaining + self._seconds * LATE_PATIENCE:
                with self._lock:
                    holding.overslept(now)

    def _leave(self, error: PenstockError) -> None:
        with self._lock:
            if self._over or self._end is not None:
                return
            self._over = True
        self._wake.set()
        self._lost(error)

    def taken_error(self) -> PenstockError:
        """What ends a driver whose lease another supervisor has taken."""
        newest = self._newest()
        holder = "Another supervisor" if newest is None else f"The supervisor on {newest.host} (run {newest.holder})"
        return LeaseLost(
            f"{holder} has taken the lease of this job: this driver was stalled, or cut off, for too long.",
            safe="the other driver continues from the last decided epoch; this one touches nothing more.",
            to_do="nothing: this supervisor waits for its turn again.",
        )


class LeaseWatch(_Waiter):
    """A supervisor of run `me` that waits for the lease of its job without a driver, where the lease is in a folder it
    can read: the job's folder `path`, known to have come to turn `known`. It only reads. When the lease is free, a
    driver is started and takes it, or ends again because another supervisor was quicker."""

    _log = logging.getLogger("penstock.supervisor")

    def __init__(self, path: str, me: str, known: int, *, clock: Callable[[], float] = lease_clock) -> None:
        super().__init__(LeaseLog(LocalStorage(Path(path))), me, known, clock)
        self._path = path
        self.expired: int | None = None  # the entry that has expired; the next driver need not wait for it once more
        self.ended: tuple[str, str] | None = None  # where and why the job has ended

    def look(self) -> bool:
        """Whether to go on waiting. False also where the lease cannot be understood: a driver's error explains that."""
        try:
            verdict = self._patient(self._see)
        except (LedgerCorrupt, LedgerFromTheFuture):
            return False
        word = self._watching.word
        if verdict is Verdict.LEAVE and word is not None:
            self.ended = (word.host, word.reason)
        if verdict is Verdict.TAKE and word is not None:
            self.expired = word.number
        return verdict is Verdict.WAIT

    @property
    def seconds(self) -> float:
        """Until the next look."""
        return self._watching.wait_seconds(self._clock(), _BLIND_SECONDS)

    @property
    def report(self) -> LeaseReport | None:
        word = self._watching.word
        return None if word is None else LeaseReport(word.turn, word.host, word.holder == self.me, self._path)
