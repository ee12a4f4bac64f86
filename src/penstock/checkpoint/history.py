"""Which folder holds the checkpoint that a job goes on from: its first one, or one that was restored since.

    <storage>/<job>/<query>/spark                    the history that began with the job
    <storage>/<job>/<query>/spark-3f2a9c41d07e       one that began with a restore
    <storage>/<job>/restores/0000000002.json         the restore that made it the one that counts, for all queries
    <storage>/<job>/restoring/0000000002.json        that restore was begun, and which folders it builds
    <storage>/<job>/restoring/0000000003.json        restores up to 2 that are not recorded never count

A restore builds its folders first and then creates one record: that is the step at which all queries change over, at
once or not at all. Killed before it, the job is what it was; killed after it, it is restored. Nothing is moved or
overwritten.

Of two restores at once, the one that began last counts. Each reserves a number before it builds, and looks for a
higher one before and after it records its own: the other has begun, and this one ends with an error. A record of a
lower number never counts beside one of a higher, so folders that belong to a lower number may be removed.

A run that begins meanwhile is not in the copy that such a restore makes. It registers, then voids every restore that
has begun and is not recorded; a restore records, then looks for newer runs. So one of the two sees the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.layout import FIRST, RESTORES, RESTORING, is_history, numbered, numbers, read_sealed, seal
from penstock.errors import SavepointError
from penstock.storage.storage import AlreadyExists, Storage

_KEPT = 2
_KINDS = {RESTORES: "restore", RESTORING: "restoring"}


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
        void = {number for _, body in self._bodies(RESTORING) for number in body.get("voids", ())}
        bodies = [(number, body) for number, body in self._bodies(RESTORES) if number not in void]
        return [Restored(**{**layout.known_fields(Restored, body), "number": number}) for number, body in bodies]

    def current(self) -> str:
        """The name of the folder, below each query's, that counts."""
        restores = self.all()
        return restores[-1].history if restores else FIRST

    def kept(self) -> list[str]:
        """The histories that are still there, newest first: the one that counts, and the one before."""
        histories = [FIRST, *(restored.history for restored in self.all())]
        return histories[: -_KEPT - 1 : -1]

    def find(self, id: str) -> Restored | None:
        """The restore that was asked for under this id, if it was carried out."""
        return next((restored for restored in self.all() if restored.id == id), None)

    def reserve(self, history: str) -> int:
        """Begin a restore that builds folders of this name; its number. Restores that began before it end."""
        return self._number({"history": history})

    def void_unrecorded(self) -> None:
        """Call when a run has registered: restores that have begun and are not recorded never count."""
        begun = self._bodies(RESTORING)
        voided = [number for _, body in begun for number in body.get("voids", ())]
        over = {*numbers(self._storage.list(RESTORES)), *voided}
        void = [number for number, body in begun if "voids" not in body and number not in over]
        if void:
            self._number({"voids": void})

    def _number(self, body: Mapping[str, Any]) -> int:
        number = self._newest() + 1
        while True:
            try:
                self._storage.create(numbered(RESTORING, number), seal(_KINDS[RESTORING], body))
                return number
            except AlreadyExists:
                number += 1

    def record(self, restored: Restored) -> None:
        """Make it the one that counts; its number is a reserved one, and its folders are whole."""
        self.refuse_newer(restored.number)
        with contextlib.suppress(AlreadyExists):  # by this restore, whose reply was lost: the number is its own
            body = seal(_KINDS[RESTORES], dataclasses.asdict(restored))
            self._storage.create(numbered(RESTORES, restored.number), body)
        self.refuse_newer(restored.number)

    def refuse_newer(self, number: int) -> None:
        """Raise `SavepointError` where another restore has begun since."""
        newest = self._newest()
        if newest > number:
            raise SavepointError(
                f"Another restore into {self._storage.location} has begun after this one (number {newest}).",
                safe="what the job goes on from is whole: what the other one builds, and what it was until then.",
                to_do="see which machine restores this job; nothing, if its restore is the one that is wanted.",
            )

    def unneeded(self, uid: str, number: int) -> list[str]:
        """Folders of a query that belong to restores before this one, or to none, and neither count nor would count if
        the last restore had not been."""
        kept, begun = self.kept(), {body.get("history"): first for first, body in self._bodies(RESTORING)}
        names = [name for name in self._storage.list(uid) if is_history(name) and name not in kept]
        return [f"{uid}/{name}" for name in names if name not in begun or begun[name] < number]

    def _bodies(self, folder: str) -> list[tuple[int, dict[str, Any]]]:
        found = numbers(self._storage.list(folder))
        bodies = ((number, read_sealed(self._storage, _KINDS[folder], numbered(folder, number))) for number in found)
        return [(number, body) for number, body in bodies if body is not None]

    def _newest(self) -> int:
        """The highest number of a restore that is done, or was begun; 0 before the first."""
        return max([0, *numbers(self._storage.list(RESTORES)), *numbers(self._storage.list(RESTORING))])
