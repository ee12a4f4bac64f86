"""The lanes of a query as the driver has them: where each begins, how far each is, and what a barrier notes of them.
The protocol of a single lane is in `contracts/lanes.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.spark_log import Barrier, LaneNote, SparkLog
from penstock.contracts.lanes import Lane, LaneClient, Mark, Owner, RealTimeSink
from penstock.contracts.sink import SinkScope
from penstock.contracts.source import QueryPlan
from penstock.engine.lanes import Known, begin, end, for_micro_batches
from penstock.errors import PenstockError, PositionsLost, RealTimeRefused
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class _Pace:
    """Of one lane, for display."""

    rows: int = 0  # since they were last taken
    seen: int = 0  # the owner's own count in its newest mark
    since: float = 0.0
    per_second: float = 0.0


class LaneSet:
    """Of one start of one query. From any thread, one call at a time. `look` raises where a newer run is registered."""

    def __init__(
        self, plan: QueryPlan, client: LaneClient, owner: Owner, barrier: Barrier | None, look: Callable[[], None]
    ) -> None:
        self._plan, self._client, self._owner, self._refuse_superseded = plan, client, owner, look
        self._place: dict[str, int] = {}  # of each topic, the position of its source in a barrier
        self._first: dict[Lane, int] = {}
        self._topics: Mapping[str, str] = {}
        self._pace: dict[Lane, _Pace] = {}
        self._passed: dict[Lane, int] = {}  # up to where Spark has read, if that is known
        self.marks: dict[Lane, Mark] = {}
        self._known, self._note = positions_of(barrier), None if barrier is None else barrier.lanes
        for index, offset in enumerate(() if barrier is None else barrier.offsets):
            self._place.update(dict.fromkeys(offset or (), index))

    @classmethod
    def of(cls, job: str, plan: QueryPlan, log: SparkLog, generation: int, look: Callable[[], None]) -> LaneSet:
        """The lanes of a query that has recovered. Raises `RealTimeRefused` where its sink has none."""
        uid, sink = next(iter(plan.sinks.items()))
        if not isinstance(sink, RealTimeSink) or len(plan.sinks) > 1:
            raise RealTimeRefused(
                f"Query {plan.uid!r} has written in real time into a sink that it no longer has, and was not stopped"
                " cleanly: its lanes may still be open.",
                safe="nothing was started; what is visible stays.",
                to_do="start it once more with its former sink and stop it; then change the sink.",
            )
        owner = Owner(log.give_id(), generation)
        client = sink.open_lanes(SinkScope(job, uid, generation), owner.query)
        return cls(plan, client, owner, log.newest_complete(), look)

    def open(self) -> None:
        """Fence all older owners of every lane and mark where it begins. Raises `MarksLost` where rows may be visible
        of which no mark is left, `Superseded` where a newer run has opened a lane."""
        self._find_partitions({lane.topic for lane in self._known})
        if gone := sorted({lane for lane in self._known if lane not in self._first}):
            raise PositionsLost(
                f"Query {self._plan.uid!r} has positions in {', '.join(map(str, gone))}, which its sources do not read"
                " any more.",
                safe="nothing was started; what is visible stays.",
                to_do="let the source read these topics again, or use another query uid to start over.",
            )
        self._open(begin)
        failpoint("lanes.opened")

    def end(self) -> None:
        """Fence all owners of every lane, this run's as well: what is visible from now on is final."""
        with contextlib.suppress(PenstockError):  # only for display
            self.look()
        self._find_partitions()
        self._open(end)
        failpoint("lanes.fenced")

    def _open(self, decide: Callable[[Owner, Known, Mark | None], Mark]) -> None:
        lanes = {*self._known, *self._first, *self.marks}
        self._topics = self._client.prepare(_counts(lanes))
        failpoint("lanes.prepared")
        noted = self._note.topics if self._note is not None else {}

        def known(lane: Lane) -> Known:
            query = None if self._note is None else self._note.query
            replaced = lane.topic in noted and noted[lane.topic] != self._topics[lane.topic]
            at = self._known.get(lane)
            if self._note is not None and query == self._owner.query and str(lane) in self._note.marks:
                at = Mark(query, 0, *self._note.marks[str(lane)])
            return Known(query, at, replaced, self._first.get(lane, 0))

        def mark_of(lane: Lane, found: Mark | None) -> Mark:
            self._refuse_superseded()
            mark, at = decide(self._owner, known(lane), found), self._known.get(lane)
            if at is not None and at.position > mark.position:
                mark = replace(mark, offset=at.offset, part=at.part, digest=at.digest)
            return self._beyond(lane, mark)

        self.marks = dict(self._client.open_all(lanes, mark_of))
        self._pace = {lane: self._pace.get(lane, _Pace()) for lane in self.marks}
        self._known, self._note = dict(self.marks), self.note(closed=False)  # from here on these lanes are ours

    def look(self) -> None:
        """Read how far the lanes are."""
        now = time.monotonic()
        for lane, mark in self._client.marks().items():
            before = self.marks.get(lane)
            if mark.query == self._owner.query and (before is None or mark.position >= before.position):
                self.marks[lane] = mark
                pace = self._pace.setdefault(lane, _Pace())
                # Each owner counts from 0.
                pace.rows += mark.rows - pace.seen if mark.rows >= pace.seen else mark.rows
                pace.per_second = (
                    max(0, mark.rows - pace.seen) / (now - pace.since) if now > pace.since and pace.since else 0.0
                )
                pace.seen, pace.since = mark.rows, now

    def pass_to(self, ends: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Spark has read up to there, by source, topic and partition, and what these rows gave is visible. Of a plan
        that drops most rows, marks alone would stay far behind."""
        for topics in ends.values():
            for topic, numbers in topics.items():
                self._passed |= {Lane(topic, int(number)): int(end) for number, end in numbers.items()}

    def _beyond(self, lane: Lane, mark: Mark) -> Mark:
        end = self._passed.get(lane, 0)
        return replace(mark, offset=end, part=0, digest=0) if end > mark.offset else mark

    def grow(self) -> list[Lane]:
        """Open lanes for partitions that have appeared; which those are. As a rule this comes before Spark finds such a
        partition, at the end of its batch. A task that is quicker waits for the mark that is committed here."""
        self._find_partitions()
        new = {lane for lane in self._first if lane not in self.marks}
        if not new:
            return []
        self._topics = self._client.prepare(_counts({*new, *self.marks}))
        self.look()
        known = Known(self._owner.query, None)

        def mark_of(lane: Lane, found: Mark | None) -> Mark:
            self._refuse_superseded()
            return begin(self._owner, known, found)

        self.marks.update(self._client.open_all(new - self.marks.keys(), mark_of))
        return sorted(new)

    def offsets(self) -> list[dict[str, dict[str, int]] | None]:
        """Up to where all rows are visible, as a barrier has it."""
        offsets: list[dict[str, dict[str, int]]] = [{} for _ in self._plan.positions]
        for lane, mark in sorted(self.marks.items()):
            at = self._beyond(lane, mark).offset
            offsets[self._place[lane.topic]].setdefault(lane.topic, {})[str(lane.partition)] = at
        return [offset or None for offset in offsets]

    def note(self, *, closed: bool) -> LaneNote:
        """What a barrier at these positions notes. `closed`: no lane has an owner any more."""
        places = [(str(lane), mark, self._beyond(lane, mark)) for lane, mark in sorted(self.marks.items())]
        parts = {lane: [at.part, at.digest] for lane, _, at in places if at.part}
        behind = {lane: [mark.offset, mark.part, mark.digest] for lane, mark, at in places if at is not mark}
        return LaneNote(self._owner.query, dict(self._topics), parts, behind, closed)

    def take_shares(self) -> list[Committable]:
        """The rows that each lane has made visible since the last call, for the epoch's record."""
        sink, shares = next(iter(self._plan.sinks)), []
        for number, (_, pace) in enumerate(sorted(self._pace.items())):
            shares.append(Committable(sink, number, pace.rows, 0))
            pace.rows = 0
        return shares

    def paces(self) -> dict[str, dict[str, float]]:
        """By lane: rows a second, and how long its newest commit took."""
        marks = self.marks
        return {
            str(lane): {
                "rows_per_second": round(pace.per_second, 1),
                "commit_ms": round(marks[lane].micros / 1000, 2) if lane in marks else 0.0,
            }
            for lane, pace in list(self._pace.items())
        }

    def writer(self, spark: SparkSession, columns: Sequence[str], *, multiplies: bool) -> Any:
        """See `LaneClient.writer`."""
        often = max(1, round(self._plan.latency * 1000))
        return self._client.writer(spark, columns, multiplies=multiplies, latency_ms=often)

    def close(self) -> None:
        self._client.close()

    def _find_partitions(self, known: Collection[str] = ()) -> None:
        for index, uid in enumerate(map(str, self._plan.positions)):
            begun = any(self._place[lane.topic] == index for lane in (*self._known, *self.marks))
            for topic, numbers in self._plan.sources[uid].begin_positions(known).items():
                self._place[topic] = index
                for number, offset in numbers.items():
                    # A partition that is new to a source that has positions begins with its first row.
                    self._first.setdefault(Lane(topic, number), 0 if begun else offset)


def _counts(lanes: Iterable[Lane]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for lane in lanes:
        counts[lane.topic] = max(counts.get(lane.topic, 0), lane.partition + 1)
    return counts


def positions_of(barrier: Barrier | None) -> dict[Lane, Mark]:
    """The positions in a barrier over Kafka topics, by lane, with the parts that a real-time query has noted."""
    if barrier is None:
        return {}
    parts = barrier.lanes.parts if barrier.lanes is not None else {}
    positions = {}
    for offset in barrier.offsets:
        for topic, numbers in (offset or {}).items():
            for number, at in numbers.items():
                lane = Lane(topic, int(number))
                positions[lane] = Mark("", 0, int(at), *parts.get(str(lane), ()))
    return positions


def end_lanes(
    job: str,
    plan: QueryPlan,
    log: SparkLog,
    generation: int,
    look: Callable[[], None],
    record: Callable[[int, str], None] | None,
    *,
    keep: bool = False,
) -> None:
    """Take over from a real-time query, if the newest complete epoch is of one: fence its lanes and cut an epoch where
    they ended. `record` is called with its number and its `offsets/N`; without `record` they are only fenced. `keep`:
    the epoch notes the lanes again. Otherwise micro-batches follow; raises `NotRestorable` where a row of the source is
    visible in part. `look`: see `LaneSet`."""
    barrier, epoch = log.newest_complete(), log.next_epoch()[0]
    if barrier is None or (note := barrier.lanes) is None:
        return
    whole = record is not None and not keep  # micro-batches begin at whole rows
    if note.closed or note.query != log.query_id():
        if whole:
            _refuse_parts(positions_of(barrier))
        return
    with closing(LaneSet.of(job, plan, log, generation, look)) as lanes:
        lanes.end()
        if whole:
            _refuse_parts(lanes.marks)
        if record is not None:
            record(epoch, log.cut_at(epoch, lanes.offsets(), {}, lanes.note(closed=True) if keep else None))


def _refuse_parts(marks: Mapping[Lane, Mark]) -> None:
    for mark in marks.values():
        for_micro_batches(mark)
