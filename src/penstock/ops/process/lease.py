"""A driver's hold on the lease of its job: waited for, renewed while the job runs, given back at its end.

Two threads, because a storage that is away may not answer at all: one renews, the other looks at the clock. What they
go by is in `lease_rules`. The driver holds the lease and not its supervisor: only it reaches every storage, and
knows the job's name.

| it | and so |
|---|---|
| finds that somebody else has the lease | ends this process at once, with `LeaseLost` |
| cannot renew in time | the same: who waits may take over from now on |
| finds, while it waits, that the job has ended elsewhere | ends without having run it |
| finds, while it waits, that the storage is away | goes on waiting |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.checkpoint.lease import LeaseLog, Standing, Word
from penstock.errors import LeaseLost, LedgerCorrupt, LedgerFromTheFuture
from penstock.ops.process.lease_rules import LATE_PATIENCE, Holding, Verdict, Watching, lease_clock

if TYPE_CHECKING:
    from penstock.errors import PenstockError

log = logging.getLogger("penstock")

_CLOSE_SECONDS = 5.0  # to give the lease back; it runs out by itself otherwise


class Lease:
    """One driver's hold. `lost` is called at most once, from a thread of this object's, when the process must end;
    `seen` each time another holder, or this one, is seen to have it."""

    def __init__(
        self,
        words: LeaseLog,
        me: str,
        host: str,
        seconds: float,
        *,
        known: int | None = None,
        lost: Callable[[PenstockError], None],
        seen: Callable[[Word], None] = lambda _: None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._words, self._host, self._seconds = words, host, seconds
        self.me = me
        self._watching = Watching(me, known)
        self._lost, self._seen, self._clock = lost, seen, clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._holding: Holding | None = None
        self._word: Word | None = None  # the last one that is known to be said by this driver
        self._end: tuple[Standing | None, str] | None = None
        self._over = False
        self._away = False
        self._renewer: threading.Thread | None = None

    # Waiting

    def learn(self, known: int | None, over: int | None = None) -> None:
        """The supervisor knows of this turn, and has seen the word `over` run out."""
        self._watching.over = over
        if known is not None:
            self._watching.known = max(self._watching.known or 0, known)

    def try_take(self) -> Verdict:
        """One look; TAKE where the lease is held now."""
        begun = self._clock()
        self._watching.saw(self._words.newest(), self._clock())
        verdict = self._watching.verdict(self._clock())
        if verdict is Verdict.TAKE:
            word = self._watching.next_word(self._host, self._seconds)
            if not self._words.say(word):
                return Verdict.WAIT  # somebody was quicker, and is seen at the next look
            self._begin(word, begun)
            self._seen(word)
        elif self._watching.word is not None:
            self._seen(self._watching.word)
        return verdict

    def take_or_wait(self) -> Verdict:
        """The same, and WAIT where the storage is away. Raises only what no waiting can cure."""
        try:
            verdict = self.try_take()
        except (LedgerCorrupt, LedgerFromTheFuture):
            raise
        except Exception as error:
            if not self._away:
                log.warning("the lease cannot be seen now, so this driver waits until it can: %s", error)
            self._away = True
            return Verdict.WAIT
        blind = self._watching.blind
        if blind and not self._away:
            log.warning("%s shows less than before: is it mounted, or was it emptied?", self._words.location)
        elif self._away and not blind:
            log.info("the lease in %s can be seen again", self._words.location)
        self._away = blind
        return verdict

    def wait(self) -> bool:
        """Return when the lease is held; False where the job has ended elsewhere meanwhile."""
        while (verdict := self.take_or_wait()) is Verdict.WAIT:
            self._wake.wait(self._watching.wait_seconds(self._clock(), self._seconds))
        return verdict is Verdict.TAKE

    @property
    def word(self) -> Word | None:
        """The newest that this driver has said or seen."""
        return self._word or self._watching.word

    @property
    def location(self) -> str:
        return self._words.location

    # Holding

    def _begin(self, word: Word, begun: float) -> None:
        self._word, self._holding = word, Holding(self._seconds, begun)
        for name, body in (("renew", self._renew), ("guard", self._guard)):
            thread = threading.Thread(target=body, args=(self._holding,), name=f"penstock-lease-{name}", daemon=True)
            thread.start()
            if name == "renew":
                self._renewer = thread

    def close(self, standing: Standing | None, reason: str = "") -> None:
        """Give the lease back, or say that the job has ended; None: leave it to the next driver of this supervisor.
        Never raises: a lease that nobody renews runs out."""
        with self._lock:
            if self._renewer is None or self._over:
                return
            self._end = (standing, reason)
        self._wake.set()
        self._renewer.join(_CLOSE_SECONDS)
        with self._lock:
            self._over = True

    def is_lost(self) -> bool:
        """Whether somebody else has the lease, asked now; False where that cannot be seen."""
        try:
            newest = self._words.newest()
        except Exception:
            return False
        return self._word is not None and newest is not None and newest.holder != self.me

    def _renew(self, holding: Holding) -> None:
        while not self._over:
            with self._lock:
                pause, end = holding.renew_in(self._clock()), self._end
            if end is not None:
                self._give_back(*end)
                return
            if pause > 0:
                self._wake.wait(pause)
                continue
            with self._lock:
                holding.begin(self._clock())
            try:
                renewed = self._say(Standing.HELD)
            except Exception as error:
                log.warning("the lease could not be renewed, which is tried again: %s", error)
                with self._lock:
                    holding.failed(self._clock())
                continue
            if not renewed:
                self._leave(self.taken_error())
                return
            with self._lock:
                holding.succeeded()

    def _say(self, standing: Standing, reason: str = "") -> bool:
        """This driver's next word; False where somebody else has the lease."""
        assert self._word is not None
        word = self._word.follow(standing, reason)
        if not self._words.say(word):
            newest = self._words.newest()
            if newest is None or newest.holder != self.me or not newest.held:
                return False
            # Its own word, of an attempt that seemed to fail. It does not count from when it was said, so once more.
            word = newest.follow(standing, reason)
            if not self._words.say(word):
                return False
        self._word = word
        return True

    def _give_back(self, standing: Standing | None, reason: str) -> None:
        if standing is None:
            return
        try:
            self._say(standing, reason)
        except Exception as error:
            log.warning("the lease could not be given back, so it is free when it has run out: %s", error)

    def _guard(self, holding: Holding) -> None:
        while not self._over:
            before = self._clock()
            with self._lock:
                left = holding.stop_in(before)
                ending = self._end is not None
            if ending:
                return
            if left <= 0:
                self._leave(self._run_out())
                return
            self._wake.wait(left)
            now = self._clock()
            if now - before > left + self._seconds * LATE_PATIENCE:
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
        """What a driver ends of whose lease somebody else has."""
        try:
            newest = self._words.newest()
        except Exception:
            newest = None
        who = "Another supervisor" if newest is None else f"The supervisor on {newest.host} (run {newest.holder})"
        return LeaseLost(
            f"{who} has taken the lease of this job: this driver stood still, or was cut off, for too long.",
            safe="the other one goes on from the last decided epoch; this driver touches nothing more.",
            to_do="nothing: this supervisor waits for its turn again.",
        )

    def _run_out(self) -> PenstockError:
        return LeaseLost(
            f"The lease in {self._words.location} could not be renewed for {self._seconds:g} s.",
            safe="what was decided is safe: whoever runs the job next recovers it.",
            to_do="see that the storage answers; if it is often this slow, make high-availability.lease longer.",
        )
