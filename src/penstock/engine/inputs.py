"""What a query's positions belong to, compared before Spark plans from them and again before an epoch is decided.

A position is a number, and a topic that was deleted and created again under the same name has the same numbers for
other rows. So a source that can tell the two apart (`Source.identified`) gives each part of it an id, which is kept in
Spark's checkpoint beside the positions:

    _penstock/sources/0000000001.json    of one source: the id of each part; for a part that is named twice, the last

1. *start*: the ids are read and made durable before Spark plans anything. A part that has a position must still be the
   one that the position was written for; a part that has none yet may be any.
2. *begin*: parts that have appeared since are recorded before the tasks of the epoch read them.
3. *confirm*: after the tasks, the ids of all parts that the epoch has read are compared once more. No second part ever
   has the id of the first, so what was read in between was read from the one that is recorded.

A copy of the checkpoint (savepoint, restore, fork) carries them along.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.errors import JobStopped
from penstock.storage.storage import AlreadyExists

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from penstock.checkpoint.spark_log import Barrier
    from penstock.contracts.plan import QueryPlan
    from penstock.storage.storage import Storage

log = logging.getLogger("penstock")

_KIND = "source"
#: Pauses before an id that differs is asked for again: a broker that lags behind the others still gives the former one.
_LOOK_AGAIN = (0.2, 0.5, 1.0)


class Inputs:
    """Of one start of one query. `storage` is Spark's checkpoint. Raises what the source says of a part that was
    replaced; nothing of the epoch is decided then."""

    def __init__(self, plan: QueryPlan, storage: Storage, *, final_checkpoint: bool) -> None:
        self._plan, self._storage, self._final_checkpoint = plan, storage, final_checkpoint
        self._sources = {uid: source for uid, source in plan.sources.items() if source.identified}
        self._known: dict[str, dict[str, str]] = {}
        self._confirmed: dict[str, Any] = {}  # the positions, by part, up to which each source was confirmed

    def start(self, barrier: Barrier | None) -> None:
        """Before Spark's query starts. `barrier`: the newest one that is written, complete or not."""
        if not self._sources:
            return
        self._known = self._read()
        for uid, source in self._sources.items():
            placed = self._positions(uid, barrier)
            if placed and not self._known.get(uid):
                log.info("source %s: the checkpoint does not say which %s it was written for", uid, ", ".join(placed))
            self._compare(uid, source.identities(placed, subscribed=True), placed)

    def begin(self, barrier: Barrier) -> None:
        """Before the tasks of an epoch that ends at `barrier`."""
        for uid, source in self._sources.items():
            new = self._positions(uid, barrier).keys() - self._known[uid].keys()
            if new:
                self._compare(uid, source.identities(new), ())

    def confirm(self, epoch: int, barrier: Barrier) -> None:
        """After the tasks of an epoch have ended, before it is decided."""
        for uid, source in self._sources.items():
            now, before = self._positions(uid, barrier), self._confirmed.get(uid, {})
            read = [name for name in now if now[name] != before.get(name)]
            if read:
                self._compare(uid, source.identities(read), read)
                self._confirmed[uid] = now
        if not self._final_checkpoint and self._plan.bounded and self._plan.finished_at(barrier):
            raise JobStopped(
                f"Epoch {epoch} of query {self._plan.uid!r} reaches the end of its inputs, and final_checkpoint is"
                " off.",
                safe="it is aborted, not lost: it replays when the job is started with final_checkpoint on.",
                to_do="nothing, if that is what you want.",
            )

    def _positions(self, uid: str, barrier: Barrier | None) -> dict[str, Any]:
        """Each part of the source that has a position, with its positions at every place where the plan reads it."""
        found: dict[str, Any] = {}
        offsets = () if barrier is None else barrier.offsets
        for name, offset in zip(self._plan.positions, offsets, strict=False):
            if name == uid and offset:
                for part, position in self._sources[uid].parts(offset).items():
                    found.setdefault(part, []).append(position)
        return found

    def _compare(self, uid: str, found: Mapping[str, str], placed: Collection[str]) -> None:
        """Refuse what differs of parts that have a position; record what is new."""
        source, known = self._sources[uid], self._known.setdefault(uid, {})

        def changed(found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
            both = known.keys() & found.keys() & set(placed)
            return {name: (known[name], found[name]) for name in sorted(both) if known[name] != found[name]}

        for pause in _LOOK_AGAIN:
            if not changed(found):
                break
            time.sleep(pause)
            found = {**found, **source.identities(list(changed(found)))}
        if replaced := changed(found):
            source.refuse_replaced(uid, replaced)
            log.warning("source %s goes on at its positions in what has replaced %s", uid, ", ".join(replaced))
        new = {name: now for name, now in found.items() if known.get(name) != now}
        if not new:
            return
        number = max(layout.numbers(self._storage.list(layout.SOURCE_IDS)), default=0) + 1
        try:
            self._storage.create(
                layout.numbered(layout.SOURCE_IDS, number), layout.seal(_KIND, {"source": uid, "ids": new})
            )
            known.update(new)
        except AlreadyExists:
            self._known = self._read()  # another run of the query was quicker: compare with what it has recorded
            self._compare(uid, found, placed)

    def _read(self) -> dict[str, dict[str, str]]:
        known: dict[str, dict[str, str]] = {}
        for number in layout.numbers(self._storage.list(layout.SOURCE_IDS)):
            name = layout.numbered(layout.SOURCE_IDS, number)
            data = self._storage.read(name)
            if data is not None:
                body = layout.unseal(_KIND, data, f"{self._storage.location}/{name}")
                known.setdefault(body["source"], {}).update(body["ids"])
        return known
