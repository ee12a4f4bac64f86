"""Which folder holds the checkpoint that a job goes on from: its first one, or one that was restored since.

    <storage>/<job>/<query>/spark                    the history that began with the job
    <storage>/<job>/<query>/spark-3f2a9c41d07e       one that began with a restore
    <storage>/<job>/restores/0000000002.json         the restore that made it the one that counts, for all queries

A restore builds its folders first and then creates one record: that is the step at which all queries change over, at
once or not at all. Killed before it, the job is what it was; killed after it, it is restored. Nothing is moved or
overwritten, so a driver that was believed dead goes on writing into the old folder, where it harms nobody.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import FIRST, RESTORES, is_history, numbered, numbers, seal, unseal
from penstock.errors import SavepointError
from penstock.storage.storage import AlreadyExists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.storage import Storage

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Restored:
    """One restore. `id` tells two requests to restore apart; `epochs` is where each query went on from. `claim`: the
    job owns what it was restored from, and deletes it when it has checkpoints of its own."""

    id: str
    source: str
    savepoint: str
    time: float
    history: str
    epochs: Mapping[str, int]
    claim: bool = False
    number: int = 0


class Histories:
    """The restores of one job; `storage` is the job's folder."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def all(self) -> list[Restored]:
        """Oldest first."""
        found = []
        for number in self._numbers():
            name = numbered(RESTORES, number)
            data = self._storage.read(name)
            if data is not None:
                body = unseal("restore", data, f"{self._storage.location}/{name}")
                found.append(Restored(**{**_known(body), "number": number}))
        return found

    def current(self) -> str:
        """The name of the folder, below each query's, that counts."""
        there = self.all()
        return there[-1].history if there else FIRST

    def kept(self) -> list[str]:
        """The histories that are still there, newest first: the one that counts, and the one before."""
        there = [FIRST, *(one.history for one in self.all())]
        return there[: -_KEPT - 1 : -1]

    def find(self, id: str) -> Restored | None:
        """The restore that was asked for under this id, if it was carried out."""
        return next((one for one in self.all() if one.id == id), None)

    def record(self, restored: Restored) -> Restored:
        """Make it the one that counts. Of two at the same moment, one is refused."""
        number = max(self._numbers(), default=0) + 1
        body = {**dataclasses.asdict(restored), "number": number}
        try:
            self._storage.create(numbered(RESTORES, number), seal("restore", body))
        except AlreadyExists:
            raise SavepointError(
                f"Somebody else has restored into {self._storage.location} at the same moment.",
                safe="their restore counts; this one changed nothing.",
                to_do="see who runs this job, and restore again if it is still wanted.",
            ) from None
        return dataclasses.replace(restored, number=number)

    def unneeded(self, uid: str) -> list[str]:
        """Folders of a query that neither count nor would count if the last restore had not been."""
        kept = self.kept()
        return [f"{uid}/{name}" for name in self._storage.list(uid) if is_history(name) and name not in kept]

    def _numbers(self) -> list[int]:
        return numbers(self._storage.list(RESTORES))


def _known(body: Mapping[str, Any]) -> dict[str, Any]:
    known = {one.name for one in dataclasses.fields(Restored)}
    return {key: value for key, value in body.items() if key in known}
