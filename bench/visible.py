"""What of a topic a `read_committed` reader could see, and when: asked of the broker, without reading it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from topic_content import Ints

_EVERY = 0.05
_TOGETHER = 0.15  # partitions of one transaction become visible one after the other, but not this much later
_FEWEST_STEPS = 5

Counts = Mapping[int, tuple[Ints, Ints, Ints]]


@dataclass(frozen=True)
class Step:
    """A moment at which more became visible: the end of each partition, and what `watched` told then."""

    moment: float
    rows: int  # a little more than there are: markers of transactions have a place in the log too
    ends: tuple[int, ...]
    told: tuple[float, ...]


class VisibleRows:
    """Follows the ends of a topic's partitions while the block runs. `watched` is asked at every change."""

    def __init__(self, servers: str, topic: str, partitions: int, watched: Callable[[], tuple[float, ...]]) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(topic, number): latest for number in range(partitions)}
        self._watched = watched
        self.steps: list[Step] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> VisibleRows:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def rows(self) -> int:
        return self.steps[-1].rows if self.steps else 0

    def is_still(self, seconds: float) -> bool:
        """Whether nothing has become visible for so long."""
        return bool(self.steps) and time.monotonic() - self.steps[-1].moment > seconds

    def longest_pause(self, begin: float, end: float) -> float:
        """The most seconds without anything new between two moments of the monotonic clock."""
        pauses = [after.moment - one.moment for one, after in pairwise(self.steps) if _meet(one, after, begin, end)]
        return max(pauses, default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            ends = self._ends()
            if sum(ends) > self.rows:
                self.steps.append(Step(time.monotonic(), sum(ends), ends, self._watched()))

    def _ends(self) -> tuple[int, ...]:
        found = self._admin.list_offsets(self._asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10)
        ends = {place.partition: one.result().offset for place, one in found.items()}
        return tuple(ends[number] for number in sorted(ends))


def _meet(one: Step, after: Step, begin: float, end: float) -> bool:
    return one.moment <= end and after.moment >= begin


def window(steps: Sequence[Step], warm_up: int) -> tuple[Step, Step]:
    """From where to where a rate is taken: from the first step with `warm_up` rows to the last but one.

    The last is left out because a system that cuts checkpoints by time waits for it with nothing left to do. Steps that
    belong to one checkpoint count as one. Where rows become visible all the time, there are none: then the last
    twentieth of the rows is left out.
    """
    whole = [one for one, after in pairwise(steps) if after.moment - one.moment > _TOGETHER]
    later = [one for one in whole if one.rows >= warm_up]
    if len(later) >= _FEWEST_STEPS:
        return later[0], later[-1]
    most = steps[-1].rows * 0.95
    later = [one for one in steps if warm_up <= one.rows <= most]
    if len(later) < 2:
        raise SystemExit(f"{len(steps)} steps are too few to tell a rate: more rows are needed")
    return later[0], later[-1]


def counted(counts: Counts, keys: int, steps: Sequence[Step]) -> tuple[list[Step], Ints]:
    """Of a topic of counts by key: the steps with the rows that its counts stand for, and the last count of each."""
    latest = np.zeros(keys, np.int64)
    done = dict.fromkeys(counts, 0)
    found = []
    for step in steps:
        for one, (offsets, numbers, values) in counts.items():
            end = int(np.searchsorted(offsets, step.ends[one]))
            latest[numbers[done[one] : end]] = values[done[one] : end]  # of several for one key the last one stays
            done[one] = end
        found.append(replace(step, rows=int(latest.sum())))
    return found, latest
