"""Who may run the job now: the rules of the lease, without storage, threads or a clock of their own.

No two processes' clocks are compared; docs/how-to/failover.md has the rules. An entry is written after its holder began
to, from when the holder counts, and seen after it was written, from when a waiter counts; so a waiter's lease never
ends before the holder's, if both clocks run at the same rate. The last sixth covers clocks that do not, and the time a
process needs to end. A holder that stalls for longer finds at its next look that it has lost its turn; until then the
generations of the ledger keep its rows exactly once, as without a lease.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto

from penstock.checkpoint.lease_log import Standing, Word

RENEW_AFTER = 1 / 3
RETRY_AFTER = 1 / 12
STOP_AFTER = 5 / 6
LOOK_EVERY = 1 / 10
LOOK_SECONDS = 2.0  # at most: a lease that is given back is to be seen soon, however long it is
LATE_PATIENCE = 1 / 6


def lease_clock() -> float:
    """Seconds of this machine, including sleep where it can tell; they mean nothing elsewhere."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if kind is None else time.clock_gettime(kind)


class Verdict(Enum):
    """What a waiter is to do. LEAVE: the job has ended, and is not to be started again."""

    TAKE = auto()
    WAIT = auto()
    LEAVE = auto()


class Watching:
    """A waiter for the lease. `known` is the last turn that this supervisor knows of, None where it has just started: a
    supervisor that has waited must not start a job that ended meanwhile, one that comes later is asked to."""

    def __init__(self, me: str, known: int | None = None) -> None:
        self._me, self.known = me, known
        self.word: Word | None = None  # the newest that was seen
        self.expired: int | None = None  # the number of an entry that this machine has seen expire before
        self._since = 0.0
        self._fallback = 0  # the number of the last entry shown, where it is less than one seen before
        self.blind = False  # whether the last look showed less than before, and so counts for nothing

    def saw(self, word: Word | None, now: float) -> None:
        """A look has returned at `now`, with this entry as the newest. Entries never disappear: a storage that shows
        fewer than before, such as a folder that is no longer mounted, shows nothing. Unless new entries appear there:
        then it was emptied, and these count from now on."""
        last, shown = (0 if entry is None else entry.number for entry in (self.word, word))
        anew = 0 < self._fallback < shown < last
        self.blind = shown < last and not anew
        self._fallback = shown if self.blind else 0
        if word is not None and (shown > last or anew):
            self.word, self._since = word, now
            if anew and self.known is not None:
                self.known = word.turn

    def verdict(self, now: float) -> Verdict:
        """To be asked after a look."""
        word = self.word
        if self.blind:
            return Verdict.WAIT
        if word is None or word.standing is Standing.RELEASED:
            return Verdict.TAKE
        if word.standing is Standing.ENDED:
            return Verdict.TAKE if self.known is None or word.turn < self.known else Verdict.LEAVE
        if word.holder == self._me:
            return Verdict.TAKE  # of the driver before this one, which is dead: its supervisor has seen its end
        self.known = max(self.known or 0, word.turn)
        expired = word.number == self.expired or now - self._since >= word.seconds
        return Verdict.TAKE if expired else Verdict.WAIT

    def next_word(self, host: str, seconds: float) -> Word:
        """The entry by which the lease is taken."""
        last = self.word
        if last is None:
            return Word(1, 1, self._me, host, seconds, began=self._me)
        continues = last.held and last.holder == self._me
        turn = last.turn if continues else last.turn + 1
        began = self._me if last.standing is Standing.ENDED else last.began
        return Word(last.number + 1, turn, self._me, host, seconds, began=began)

    def wait_seconds(self, now: float, seconds: float) -> float:
        """Until the next look, at the latest when the lease expires; `seconds` is its length where no entry says it."""
        word = self.word
        if word is None or not word.held:
            return min(LOOK_SECONDS, seconds * LOOK_EVERY)
        pause, remaining = min(LOOK_SECONDS, word.seconds * LOOK_EVERY), self._since + word.seconds - now
        return min(pause, remaining) if remaining > 0 else pause


@dataclass(slots=True)
class Holding:
    """A holder of the lease since an entry that it began to write at `renewed`."""

    seconds: float
    renewed: float
    _begun: float | None = None  # when the attempt that is under way began
    _failed: float | None = None  # when the last attempt failed, if it did
    _late: float | None = None  # when the first attempt after the deadline began

    def renew_in(self, now: float) -> float:
        """Seconds until the next attempt is due."""
        if self._failed is not None:
            return max(0.0, self._failed + self.seconds * RETRY_AFTER - now)
        return max(0.0, self.renewed + self.seconds * RENEW_AFTER - now)

    def begin(self, now: float) -> None:
        """An attempt to renew begins. A holder that has slept past its deadline is granted one."""
        self._begun = now
        if self._late is None and self._failed is None and now >= self.renewed + self.seconds * STOP_AFTER:
            self._late = now

    def succeeded(self) -> None:
        assert self._begun is not None
        self.renewed, self._begun, self._failed, self._late = self._begun, None, None, None

    def failed(self, now: float) -> None:
        self._begun, self._failed = None, now

    def overslept(self, now: float) -> None:
        """This process was stalled, and resumes at `now`. An attempt that was under way gets the time of a late one."""
        if self._late is None:
            self._late = now

    def stop_in(self, now: float) -> float:
        """Seconds until the driver must be ended. A holder that slept past its deadline first tries to renew."""
        end = self.renewed + self.seconds * STOP_AFTER
        if self._late is not None:
            end = self._late + self.seconds * LATE_PATIENCE
        if self._begun is None and self._failed is None:
            end = max(end, now + self.seconds * RETRY_AFTER)
        return max(0.0, end - now)
