"""Once an epoch may be decided it is only ever committed, and not tried again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, SinkScope
from penstock.deadline import Deadline
from penstock.errors import SystemUnavailable
from tests.support import memory_sink
from tests.support.memory_sink import MemorySink
from tests.support.small_spark import SmallSpark


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


class Fickle(MemorySink):
    """Goes away in the middle of a commit, or before anything is prepared, as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_to_commit = self.fails_to_seal = 0

    def open_committer(self, scope: SinkScope) -> Committer:
        return _Fickle(self, scope)


class _Fickle(memory_sink._Committer):
    _sink: Fickle

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        if self._sink.fails_to_seal:
            self._sink.fails_to_seal -= 1
            raise SystemUnavailable("The memory is away.")
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        if self._sink.fails_to_commit:
            self._sink.fails_to_commit -= 1
            self._one(committables[0].payload["name"])
            raise SystemUnavailable("The memory went away in the middle of the commit.")
        return dict(super().commit(epoch, committables, deadline))


def test_a_failure_before_the_decision_is_tolerated(tmp_path: Path) -> None:
    sink = Fickle()
    query = SmallSpark(tmp_path, sink, numbers, tolerable_failures=1)
    sink.fails_to_seal = 1
    query.run(20)
    assert sorted(sink.visible) == list(range(20))


def test_a_failure_after_the_decision_is_not_and_the_next_start_commits(tmp_path: Path) -> None:
    """A second try would begin by aborting what is decided, and half of it is visible."""
    sink = Fickle()
    query = SmallSpark(tmp_path, sink, numbers, tolerable_failures=5)
    sink.fails_to_commit = 1
    with pytest.raises(SystemUnavailable, match="in the middle of the commit"):
        query.run(20)
    assert len(sink.prepared) == 1, "the other half waits"
    assert [one["event"] for one in query.events].count("opened") == 1
    query.run(20)
    assert query.actions == ["none", "finished"]
    assert sorted(sink.visible) == list(range(20))
