"""The backlog of one sink: complete epochs whose rows are in the in-flight log and not yet, for sure, in the sink.

    logs/0000000012.g00000007.a3.p1.t55.arrow   rows of one writer
    backlog/0000000012.json                     epoch 12 is to be delivered: its committables
    drained/0000000011.json                     everything up to epoch 11 is delivered

A record is created once. Epochs are delivered in order, and the mark comes before the record and its files are
removed; so a record at or below the newest mark, left or made again by a run that was interrupted, counts as delivered.
Everything lies under the id of Spark's query: in a checkpoint that was begun anew, epochs mean other rows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight_log import LogFile
from penstock.checkpoint.layout import BACKLOG, DRAINED, numbered, numbers, seal, unseal
from penstock.storage.open import task_tree
from penstock.storage.storage import AlreadyExists, Storage

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = re.compile(r"^(\d{10})\.g(\d{8})\.")


def log_of(one: Committable) -> LogFile:
    return LogFile.of(one.payload["log"])


def with_prepared(one: Committable, prepared: Committable | None) -> Committable:
    return one.with_payload(prepared=None if prepared is None else dict(prepared.payload))


@dataclass(frozen=True, slots=True)
class Entry:
    """One epoch of one sink, to be delivered."""

    epoch: int
    committables: tuple[Committable, ...]

    @property
    def bytes(self) -> int:
        return sum(log_of(one).bytes for one in self.committables)

    @property
    def prepared(self) -> tuple[Committable, ...]:
        return tuple(found for one in self.committables if (found := one.at_sink) is not None)

    @property
    def at_sink(self) -> bool:
        """Whether every writer had prepared at the sink, so that a commit there may be all that is left to do."""
        return len(self.prepared) == len(self.committables)


class Backlog:
    """Written by the coordinator, emptied by the drainer of the same process; both may call from their threads."""

    def __init__(self, storage: Storage, folder: str, logs: str) -> None:
        self._storage, self._folder, self.logs = storage, folder, logs
        self._changed = threading.Condition()
        self._entries: dict[int, Entry] = {}
        self._drained = -1
        self.reload()

    # What is in it

    @property
    def location(self) -> str:
        return f"{self._storage.location}/{self._folder}"

    @property
    def drained(self) -> int:
        """Everything up to this epoch is delivered."""
        return self._drained

    def entries(self) -> tuple[Entry, ...]:
        with self._changed:
            return tuple(self._entries[epoch] for epoch in sorted(self._entries))

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.entries())

    def first(self) -> Entry | None:
        return next(iter(self.entries()), None)

    @property
    def at_sink(self) -> bool:
        """Whether all that waits is prepared at the sink, and nothing there has to be written from the log."""
        return all(entry.at_sink for entry in self.entries())

    def wait(self, seconds: float) -> None:
        """Until something is added or delivered, or the time is up."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # What happens to it

    def record(self, epoch: int, committables: Sequence[Committable]) -> bool:
        """Make the epoch one to be delivered; False if it was recorded, or even delivered, before."""
        if epoch <= self._drained or epoch in self._entries:
            return False
        body = {
            "epoch": epoch,
            "committables": [[one.sink, one.writer, one.rows, one.checksum, dict(one.payload)] for one in committables],
        }
        entry, fresh = Entry(epoch, tuple(committables)), True
        try:
            self._storage.create(numbered(f"{self._folder}/{BACKLOG}", epoch), seal("backlog", body))
        except AlreadyExists:
            entry, fresh = read_entry(self._storage, self._folder, epoch) or entry, False
        with self._changed:
            self._entries[epoch] = entry
            self._changed.notify_all()
        return fresh

    def mark(self, epoch: int) -> None:
        """Everything up to `epoch` is visible in the sink. After this it is never delivered again."""
        try:
            self._storage.create(numbered(f"{self._folder}/{DRAINED}", epoch), seal("drained", {"epoch": epoch}))
        except AlreadyExists:
            pass
        self._drained = max(self._drained, epoch)

    def forget(self, entry: Entry) -> None:
        """Remove the record and the log of a marked epoch, and older marks."""
        self._storage.delete(numbered(f"{self._folder}/{BACKLOG}", entry.epoch))
        self.remove_logs([log_of(one).name for one in entry.committables])
        for number in numbers(self._storage.list(f"{self._folder}/{DRAINED}")):
            if number < self._drained:
                self._storage.delete(numbered(f"{self._folder}/{DRAINED}", number))
        with self._changed:
            self._entries.pop(entry.epoch, None)
            self._changed.notify_all()

    def remove_logs(self, names: Collection[str]) -> None:
        tree = task_tree(self.logs)
        for name in names:
            tree.remove(name)

    def remove_strays(self, generation: int, keep: Collection[Committable]) -> None:
        """Remove log files that no epoch needs, of attempts that failed in this and older runs."""
        tree = task_tree(self.logs)
        needed = {log_of(one).name for one in keep if one.logged}
        needed.update(log_of(one).name for entry in self.entries() for one in entry.committables)
        for name in tree.file_names(""):
            match = _LOG.match(name)
            if match and int(match[2]) <= generation and name not in needed:
                tree.remove(name)

    def reload(self) -> None:
        """Read again what waits and what is delivered: a run before this one may have delivered some of it. What this
        process records meanwhile stays."""
        for folder in (DRAINED, BACKLOG):
            # A run that died may have given a name and not synced it; epochs are about to be completed by what is here.
            self._storage.settle(f"{self._folder}/{folder}")
        waiting = numbers(self._storage.list(f"{self._folder}/{BACKLOG}"))
        recorded = [entry for number in waiting if (entry := read_entry(self._storage, self._folder, number))]
        # After the records: a mark is made before the record that it covers is removed.
        drained = drained_up_to(self._storage, self._folder)
        with self._changed:
            self._drained = max(self._drained, drained)
            known = {**self._entries, **{entry.epoch: entry for entry in recorded}}
            self._entries = {epoch: entry for epoch, entry in known.items() if epoch > self._drained}
            self._changed.notify_all()
        for entry in recorded:
            if entry.epoch <= self._drained:
                self.forget(entry)


def drained_up_to(storage: Storage, folder: str) -> int:
    """Everything up to this epoch is delivered, says the newest mark in a sink's folder; -1 where there is none."""
    return max(numbers(storage.list(f"{folder}/{DRAINED}")), default=-1)


def read_entry(storage: Storage, folder: str, epoch: int) -> Entry | None:
    """What a sink's folder records of an epoch, None where it records nothing."""
    name = numbered(f"{folder}/{BACKLOG}", epoch)
    data = storage.read(name)
    if data is None:
        return None
    body = unseal("backlog", data, f"{storage.location}/{name}")
    return Entry(epoch, tuple(Committable(*fields) for fields in body["committables"]))
