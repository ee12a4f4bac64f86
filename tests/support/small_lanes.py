"""A real-time query on a Spark and a broker that are played: the real runner, coordinator, ledger and log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.contracts.lanes import Lane, LaneClient, Mark, Owner, RealTimeSink
from penstock.contracts.sink import SinkScope
from penstock.engine.real_time import RealTimeRunner
from penstock.errors import PenstockError, Superseded
from tests.support.memory_sink import MemorySink
from tests.support.small_runner import SmallRunner, TimedSpark
from tests.support.waiting import until

LANE = Lane("t", 0)


class LaneSink(MemorySink, RealTimeSink):
    """`marks` is the marks topic, `id` its id; `steps` what drivers did."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[Lane, list[Mark]] = {}
        self.id, self.steps = "first", list[str]()

    def open_lanes(self, scope: SinkScope, query: str) -> LaneClient:
        return MemoryLanes(self, Owner(query, scope.generation))

    def lane_jars(self) -> Sequence[Path]:
        return ()

    def newest(self, lane: Lane = LANE) -> Mark | None:
        return next(reversed(self.marks.get(lane, [])), None)

    def commit(self, owner: Owner, end: int, part: int = 0) -> None:
        """A slice of a task, up to `end`."""
        with self.lock:
            mark = self.newest()
            assert mark is not None, "no driver has opened the lane"
            if Owner(mark.query, mark.generation) != owner:
                raise Superseded(f"The lane belongs to generation {mark.generation}.")
            if end > mark.offset or part:
                self.visible.extend(range(mark.offset, end))
                self.marks[LANE].append(replace(mark, offset=end, part=part, digest=part, rows=mark.rows + 1))


class MemoryLanes(LaneClient):
    def __init__(self, sink: LaneSink, owner: Owner) -> None:
        self._sink, self.owner = sink, owner

    def prepare(self, partitions: Mapping[str, int]) -> Mapping[str, str]:
        self._sink.steps.append("prepare")
        return dict.fromkeys(partitions, self._sink.id)

    def open(self, lane: Lane, begin: Callable[[Mark | None], Mark]) -> Mark:
        sink = self._sink
        with sink.lock:
            found = sink.newest(lane)
            if found is not None and found.query == self.owner.query and found.generation > self.owner.generation:
                raise Superseded(f"The lane belongs to generation {found.generation}.")
            mark = begin(found)
            sink.steps.append(f"open {mark.offset} by {mark.generation}")
            sink.marks.setdefault(lane, []).append(mark)
            return mark

    def open_all(self, lanes: Collection[Lane], begin: Callable[[Lane, Mark | None], Mark]) -> Mapping[Lane, Mark]:
        return {lane: self.open(lane, lambda found, lane=lane: begin(lane, found)) for lane in lanes}  # type: ignore[misc]

    def marks(self) -> Mapping[Lane, Mark]:
        return {lane: marks[-1] for lane, marks in self._sink.marks.items()}

    def writer(self, spark: Any, columns: Sequence[str], *, multiplies: bool, latency_ms: int) -> Any:
        return None

    def close(self) -> None:
        return


class Numbers:
    """The source: topic `t`, one partition."""

    identified = verifies = False

    def resolve(self, kept: Any, after: Any) -> None:
        return

    def begin_positions(self, known: Collection[str] = ()) -> Mapping[str, Mapping[int, int]]:
        return {"t": {0: 0}}

    def publish(self, job: str, uid: str, offset: Any) -> None:
        return

    def completed(self, uid: str, reader: str, offset: Any) -> None:
        return


class PlayedLanes:
    """Spark's query: its task commits all that is there, and waits for more."""

    run_id = "run"

    def __init__(self, spark: TimedSpark, sink: LaneSink, owner: Owner) -> None:
        self._spark, self._sink, self._owner = spark, sink, owner
        self._error: PenstockError | None = None
        self.ended: int | None = None  # where the newest batch of Spark's ended
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> PlayedLanes:
        self._thread.start()
        return self

    def _work(self) -> None:
        try:
            while not self._stopped.wait(0.002):
                self._sink.commit(self._owner, self._spark.there)
        except PenstockError as error:
            self._error = error

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    def waiting(self) -> int:
        return 0

    def ended_batch(self) -> tuple[int, Any] | None:
        return None if self.ended is None else (0, {"numbers": {"t": {"0": self.ended}}})

    def failure(self) -> PenstockError | None:
        return self._error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class MicroRunner(SmallRunner):
    """The same query in micro-batches."""

    def __init__(self, spark: TimedSpark) -> None:
        super().__init__(spark)
        plan: Any = self.plan
        plan.positions, plan.sources, plan.latency, plan.as_it_is = ("numbers",), {"numbers": Numbers()}, 0.0, True

    @property
    def sink(self) -> LaneSink:
        assert isinstance(self.spark.sink, LaneSink)
        return self.spark.sink


class LaneRunner(MicroRunner, RealTimeRunner):
    """`seen` is the newest complete barrier that each start of Spark's query found."""

    def __init__(self, spark: TimedSpark) -> None:
        super().__init__(spark)
        self.plan.latency = 0.02  # type: ignore[misc]
        self.seen: list[Any] = []
        self.played: list[PlayedLanes] = []

    def _start(self, lanes: Any) -> Any:
        self.seen.append(self.spark.log.newest_complete())
        self.played.append(PlayedLanes(self.spark, self.sink, lanes._client.owner))
        return self.played[-1].start()

    def _conf(self) -> dict[str, str]:
        return {}

    def _reads_all(self, rows: int) -> bool:
        return max(self.sink.visible, default=-1) >= rows - 1 and self._lanes is not None

    def die(self, rows: int) -> None:
        """Run until all numbers below `rows` are visible, and end without closing a lane, as if killed."""
        self.spark.there = rows
        self.start()
        until(lambda: not self.alive or self._reads_all(rows), lambda: f"all rows: {self.error}")
        assert self.error is None, self.error
        self.played[-1]._error = PenstockError("killed")
        self.played[-1].stop()
        until(lambda: not self.alive, "the end of the query")
