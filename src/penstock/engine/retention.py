"""Retention of a job's checkpoints: how many epochs Spark keeps, and how those of a cancelled job are deleted.

Half a checkpoint is worse than none, so the deletion first writes a *mark*, `deleting/….json`, and deletes it last:
after it the checkpoint is gone, whatever files are left, and every start finishes a deletion that has begun. Each side
first writes and then looks: the deletion writes its mark, then looks for newer runs, and withdraws the mark if there is
one; a start registers, then looks for marks, and starts over if there is one. So at least one of them sees the other.

Only named parts are deleted, without following links. The numbers of the runs (`ledger/generations`) stay on purpose:
without them a driver that seems dead could wake up, find no newer run than itself, and write.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.ledger import Ledger
from penstock.errors import LedgerError, PenstockError
from penstock.storage.storage import Storage
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

RETAINED_BATCHES = "spark.sql.streaming.minBatchesToRetain"
_MIN_BATCHES = 2  # recovery looks at the epoch before the last
_MARK = re.compile(r"^[0-9a-f]{12}\.json$")
_IN_LEDGER = (f"{layout.LEDGER}/{name}" for name in (layout.EPOCHS, layout.CLAIMS, layout.PROBE))
_OF_A_QUERY = (layout.INFLIGHT, layout.CHECKPOINTS, layout.SCHEMAS, *_IN_LEDGER)


@contextlib.contextmanager
def retain_batches(spark: SparkSession, num_retained: int) -> Iterator[None]:
    """Let queries that start meanwhile keep so many epochs of offsets, commits and state, and at least two. What the
    user's session sets wins."""
    if spark.conf.get(RETAINED_BATCHES, None) is not None:
        yield
        return
    spark.conf.set(RETAINED_BATCHES, str(max(_MIN_BATCHES, num_retained)))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # where Spark is gone, there is nothing to undo
            spark.conf.unset(RETAINED_BATCHES)


class JobFolder:
    """The folder of one job's checkpoints: deleted as a whole, or not at all."""

    def __init__(self, storage: Storage, trees: Tree) -> None:
        self._storage, self._trees = storage, trees

    def refuse_marked(self) -> None:
        """Call after a run has registered: it must start over where a deletion has begun meanwhile."""
        if self._marks():
            raise LedgerError(
                f"The checkpoint in {self._storage.location} is being deleted.",
                safe="nothing was started.",
                to_do="nothing: the job starts over once it is gone.",
            )

    def finish_deletion(self, queries: Iterable[str]) -> bool:
        """Call before a run starts: where the checkpoint is marked, delete what is left. True if it was marked."""
        marks = self._marks()
        if not marks:
            return False
        mark = self._mark({})  # the others may be withdrawn meanwhile
        self._delete(queries, {})
        self._unmark(*marks, mark)
        log.warning("%s was being deleted; the deletion is finished, and the job starts over", self._storage.location)
        return True

    def delete(self, generations: Mapping[str, int]) -> str:
        """Delete the checkpoint of a cancelled job whose queries ran as these generations. Empty, or why it is kept. If
        this raises, the next start finishes it."""
        reason = self._needed(generations)
        if reason:
            return reason
        mark = self._mark(generations)
        reason = self._needed(generations)
        if not reason:
            reason = self._delete(generations, generations)
        self._unmark(mark)
        return reason

    def delete_cancelled(self, generations: Mapping[str, int], abandoned: Collection[str]) -> None:
        """The same after a cancel, with a warning where it is kept: the job has ended whether this works or not.
        `abandoned`: queries with an epoch that has not ended."""
        try:
            reason = f"an epoch of {', '.join(abandoned)} has not ended" if abandoned else self.delete(generations)
        except PenstockError as error:
            reason = f"it could not be deleted, which the next start tries again: {error}"
        if reason:
            log.warning("the checkpoint in %s is kept: %s", self._storage.location, reason)

    def _needed(self, generations: Mapping[str, int]) -> str:
        for uid, generation in generations.items():
            if not generation:
                return f"query {uid} has not run"
            if overtaken := self._overtaken(uid, generation):
                return overtaken
            waiting = self._waiting(f"{uid}/{layout.INFLIGHT}")
            if waiting:
                return f"{waiting} holds rows that are not delivered yet"
            for part in self._parts(uid):
                if self._trees.is_link(f"{uid}/{part}"):
                    return f"{uid}/{part} is a link, or inside one, and links are not followed"
        return ""

    def _parts(self, uid: str) -> list[str]:
        histories = [name for name in self._storage.list(uid) if layout.is_history(name) and name != layout.FIRST]
        return [layout.FIRST, *histories, *_OF_A_QUERY]

    def _overtaken(self, uid: str, generation: int) -> str:
        newest = Ledger(self._trees.at(f"{uid}/{layout.LEDGER}").storage).newest_generation()
        return f"generation {newest} of query {uid} has taken over" if newest > generation else ""

    def _waiting(self, folder: str, depth: int = 2) -> str:
        """The first backlog with something in it: `<query>/inflight/<id>/<sink>/backlog`."""
        if self._storage.list(f"{folder}/{layout.BACKLOG}"):
            return f"{folder}/{layout.BACKLOG}"
        below = self._storage.list(folder) if depth else []
        return next(filter(None, (self._waiting(f"{folder}/{name}", depth - 1) for name in below)), "")

    def _delete(self, queries: Iterable[str], generations: Mapping[str, int]) -> str:
        """Delete every part; stops, and says why, at a run newer than `generations`: this one was then stalled for so
        long that another run finished the deletion and started over."""
        known = set(layout.query_uids(self._storage.list(layout.QUERIES)))
        for uid in sorted(known | set(queries)):
            for part in self._parts(uid):
                if uid in generations and (overtaken := self._overtaken(uid, generations[uid])):
                    return overtaken
                self._trees.delete(f"{uid}/{part}")
            self._storage.delete(f"{uid}/{layout.LEDGER}/{layout.IDENTITY}")
        for folder in (layout.GLOBAL, layout.RESTORES, layout.RESTORING):
            for number in layout.numbers(self._storage.list(folder)):
                self._storage.delete(layout.numbered(folder, number))
        for uid in known:
            self._storage.delete(layout.query_file(uid))
        for folder in (layout.GLOBAL, layout.RESTORES, layout.RESTORING, layout.QUERIES):
            self._trees.delete_if_empty(folder)
        return ""

    def _marks(self) -> list[str]:
        return [f"{layout.DELETING}/{name}" for name in self._storage.list(layout.DELETING) if _MARK.match(name)]

    def _mark(self, generations: Mapping[str, int]) -> str:
        name = f"{layout.DELETING}/{secrets.token_hex(6)}.json"
        self._storage.create(name, layout.seal("deleting", {"generations": dict(generations), "time": time.time()}))
        return name

    def _unmark(self, *marks: str) -> None:
        for mark in marks:
            self._storage.delete(mark)
        self._trees.delete_if_empty(layout.DELETING)
