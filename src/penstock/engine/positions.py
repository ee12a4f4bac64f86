"""What an epoch reads, checked: the positions that Spark runs it between, and the identity of what they belong to.

**Positions.** Two drivers may both believe they created `offsets/N`. So it is compared with Spark's memory before
anything of the epoch is written, and the manifest holds what was run: see "The file may differ from what ran" in
docs/design-notes.md.

**Inputs.** A topic that was deleted and created again under the same name has the same positions for other rows. So a
source that can tell the two apart (`Source.identified`) gives each part of it an id, kept in Spark's checkpoint, and so
in every copy of it. No second part ever has the id of the first: rows that were read between two looks at the same id
are the recorded part's.

    _penstock/sources/0000000001.json    of one source: the id of each part; for a part that is named twice, the last
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from penstock.checkpoint import layout
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import completed
from penstock.checkpoint.open import mismatch
from penstock.checkpoint.spark_log import Barrier, SparkLog
from penstock.contracts.source import QueryPlan
from penstock.errors import BarrierOverwritten, JobStopped, LedgerError
from penstock.storage.storage import AlreadyExists, Storage

log = logging.getLogger("penstock")


class RunningEpoch(Protocol):
    """What Spark holds in memory of the epoch under way, each in the form of `offsets/N`; None where it cannot
    be seen. Then Spark's log is trusted."""

    def starts_at(self) -> str | None: ...

    def ends_at(self) -> str | None: ...


class Positions:
    def __init__(self, query: str, ledger: Ledger, log: SparkLog, running: RunningEpoch | None) -> None:
        self._query, self._ledger, self._log, self._running = query, ledger, log, running
        self._followed = -1  # the epoch whose end the next one starts at, as seen in this run

    def barrier(self, epoch: int, *, drains: bool = False) -> Barrier:
        """What the epoch under way is cut at. Raises where the log, or the decision before it, says otherwise.
        `drains`: it may be a barrier at the end of time; otherwise a superseded drain has written it since."""
        barrier = self._log.barrier(epoch)
        if barrier is None:
            # Spark writes it before it calls us: the checkpoint we read is not the one it writes.
            raise mismatch(self._query, f"{self._log.location} has no {layout.offsets(epoch)}")
        if not drains and self._log.drained(epoch):
            raise LedgerError(
                f"A drain of an earlier run has replaced the barrier of epoch {epoch} of query {self._query!r}.",
                safe="the epoch was not run; no window was closed.",
                to_do="let the job restart: its recovery removes that barrier.",
            )
        if self._running is not None:
            starts = self._running.starts_at() if self._followed != epoch - 1 else None
            ends = self._running.ends_at()
            if starts is not None:
                self._check_start(epoch, starts)
            if ends is not None and self._log.parse_barrier(epoch, ends.encode()).cut != barrier.cut:
                raise self.overwritten(epoch)
        self._followed = epoch
        return replace(barrier, notes=self._log.notes(barrier))

    def _check_start(self, epoch: int, text: str) -> None:
        """In the first epoch of a run: Spark has read the log after we have looked at it there."""
        before = completed(self._ledger, epoch - 1, self._log.query_id())
        if before is None or before.file is None:
            return  # it was not decided, or its manifest is not intact
        decided = self._log.parse_barrier(epoch - 1, before.file.encode())
        if self._log.parse_barrier(epoch - 1, text.encode()).offsets != decided.offsets:
            raise self.overwritten(epoch - 1)

    def overwritten(self, epoch: int) -> BarrierOverwritten:
        """The error for a barrier that is another driver's."""
        return BarrierOverwritten(
            f"{self._log.location}/{layout.offsets(epoch)} is not what Spark runs query {self._query!r} by: another"
            " driver, one that this run has superseded, has written it.",
            safe="nothing of the epoch was written; the next start takes what was decided from the ledger.",
            to_do="let the job restart. If it happens again, a second driver of this job is still alive: stop it.",
        )


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
            if new := self._positions(uid, barrier).keys() - self._known[uid].keys():
                self._compare(uid, source.identities(new), ())

    def confirm(self, epoch: int, barrier: Barrier) -> None:
        """After the tasks of an epoch have ended, before it is decided."""
        for uid, source in self._sources.items():
            now, before = self._positions(uid, barrier), self._confirmed.get(uid, {})
            if read := [name for name in now if now[name] != before.get(name)]:
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
        places: dict[str, Any] = {}
        offsets = () if barrier is None else barrier.offsets
        for name, offset in zip(self._plan.positions, offsets, strict=False):
            if name == uid and offset:
                for part, position in self._sources[uid].parts(offset).items():
                    places.setdefault(part, []).append(position)
        return places

    def _compare(self, uid: str, ids: Mapping[str, str], placed: Collection[str]) -> None:
        source, known = self._sources[uid], self._known.setdefault(uid, {})

        def changed(ids: Mapping[str, str]) -> dict[str, tuple[str, str]]:
            both = known.keys() & ids.keys() & set(placed)
            return {name: (known[name], ids[name]) for name in sorted(both) if known[name] != ids[name]}

        for pause in _LOOK_AGAIN:
            if not changed(ids):
                break
            time.sleep(pause)
            ids = {**ids, **source.identities(list(changed(ids)))}
        if replaced := changed(ids):
            source.refuse_replaced(uid, replaced)
            log.warning("source %s goes on at its positions in what has replaced %s", uid, ", ".join(replaced))
        new = {name: now for name, now in ids.items() if known.get(name) != now}
        if not new:
            return
        number = max(layout.numbers(self._storage.list(layout.SOURCE_IDS)), default=0) + 1
        data = layout.seal(_KIND, {"source": uid, "ids": new})
        try:
            self._storage.create(layout.numbered(layout.SOURCE_IDS, number), data)
            known.update(new)
        except AlreadyExists:
            self._known = self._read()  # another run of the query was quicker: compare with what it has recorded
            self._compare(uid, ids, placed)

    def _read(self) -> dict[str, dict[str, str]]:
        known: dict[str, dict[str, str]] = {}
        for number in layout.numbers(self._storage.list(layout.SOURCE_IDS)):
            body = layout.read_sealed(self._storage, _KIND, layout.numbered(layout.SOURCE_IDS, number))
            if body is not None:
                known.setdefault(body["source"], {}).update(body["ids"])
        return known
