"""The lease of a job in storage: which of several supervisors runs it. A log of small sealed files.

    lease/0000000012.json      the twelfth word: its holder and for how long, or that it was released

The file with the highest number is what counts. To take the lease, to renew it and to give it back are one and the same
step: to create the next number, which only one can. So a holder that renews and a successor that takes over can never
both succeed. No time in these files is ever compared with a clock: how long a lease lasts, each side measures by
itself, see `penstock.ops.process.lease_rules`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.layout import read_sealed, seal
from penstock.errors import LedgerError
from penstock.storage.storage import AlreadyExists, Storage, tidying

_KIND = "lease"
_KEEP = 20  # words: a process that lists and then reads must find what it has listed
_LOOKS = 5


class Standing(StrEnum):
    """What a word says. HELD: the holder runs the job. RELEASED: it was shut down, any supervisor may go on. ENDED: the
    job itself is over, no supervisor may go on."""

    HELD = "held"
    RELEASED = "released"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Word:
    """One file. `holder` is the id of a run, the same for every driver of one supervisor; `turn` counts how often the
    lease has come to another holder; `seconds` is how long the word holds from before it was written; `reason` says
    how the job ended; `began` is the holder that started the job, where others have only taken it over since. `host`
    and `written` (seconds since 1970, by the holder's clock) are for people only."""

    number: int
    turn: int
    holder: str
    host: str
    seconds: float
    standing: Standing = Standing.HELD
    reason: str = ""
    written: float = 0.0
    began: str = ""

    @property
    def held(self) -> bool:
        return self.standing is Standing.HELD

    def follow(self, standing: Standing, reason: str = "") -> Word:
        return replace(self, number=self.number + 1, standing=standing, reason=reason)

    @classmethod
    def of(cls, number: int, body: Mapping[str, Any]) -> Word:
        known = {field.name: body[field.name] for field in fields(cls) if field.name != "number"}
        return cls(number, **{**known, "standing": Standing(body["standing"])})

    def body(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "number"}


class LeaseLog:
    """The words in the job's folder. Every method may be called from several machines at once."""

    def __init__(self, storage: Storage, *, now: Callable[[], float] = time.time) -> None:
        self._storage, self._now = storage, now

    @property
    def location(self) -> str:
        return f"{self._storage.location}/{layout.LEASE}"

    @property
    def storage(self) -> Storage:
        return self._storage

    def newest(self) -> Word | None:
        """The word that counts, None before the first."""
        for _ in range(_LOOKS):
            numbers = self._numbers()
            if not numbers:
                return None
            body = read_sealed(self._storage, _KIND, layout.numbered(layout.LEASE, numbers[-1]))
            if body is not None:
                return Word.of(numbers[-1], body)
        raise LedgerError(  # it was renewed twenty times between a listing and a read, again and again
            f"The newest file of {self.location} is listed and cannot be read.",
            safe="nothing was started or stopped because of it.",
            to_do="see that the storage shows the same files to everybody; it is asked again.",
        )

    def say(self, word: Word) -> bool:
        """Write the next word; False if another process has written it, or a later one. After an error it may be there
        or not: only `newest` tells."""
        stamped = replace(word, written=self._now())
        try:
            self._storage.create(layout.numbered(layout.LEASE, word.number), seal(_KIND, stamped.body()))
        except AlreadyExists:
            return False
        # A word that was written, outdated and deleted leaves its number free again, for a process that slept that
        # long.
        numbers = self._numbers()
        if numbers[-1:] != [word.number]:
            return False
        if word.number > 1 and word.number - 1 not in numbers:
            raise LedgerError(
                f"{self.location} has lost what was in it.",
                safe="the lease does not count as held.",
                to_do="see that the storage is there, and that a folder which should be mounted is.",
            )
        with tidying(self.location):
            for number in numbers[:-_KEEP]:
                self._storage.delete(layout.numbered(layout.LEASE, number))
        return True

    def _numbers(self) -> list[int]:
        return layout.numbers(self._storage.list(layout.LEASE))
