"""Once an epoch may be decided it is only ever committed: not tried again, and its barrier not replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.checkpoint.spark_log import END_OF_TIME, SparkLog
from penstock.contracts.sink import Committer, SinkScope
from penstock.deadline import Deadline
from penstock.epoch.protocol import Resume
from penstock.errors import SavepointError, SystemUnavailable
from penstock.job.query import QueryRunner
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


# Stop with a drain


class Drained(QueryRunner):
    """A runner whose starts are played: what recovery comes to, and what it finds in Spark's log."""

    def __init__(self, log: SparkLog, resume: Resume, finishes: str | None = None) -> None:
        self.plan = SimpleNamespace(uid="out")  # type: ignore[assignment]
        self._log, self._comes_to, self._finishes = log, resume, finishes
        self._stopping = SimpleNamespace(set=lambda: None, clear=lambda: None)  # type: ignore[assignment]
        self._wake = self._stopping
        self._coordinator, self._generation, self._until, self.starts = None, 0, None, 0

    def _spark_log(self) -> SparkLog:
        return self._log

    def _run_once(self) -> None:
        self.starts += 1
        if self.starts == 1:
            self._resume = self._comes_to
            if self._finishes:
                self._log.write_again(self._finishes, 'v1\n{"nextBatchWatermarkMs":5000}')
        else:
            self._log.finish(self._until or 0, END_OF_TIME)


@pytest.fixture
def log(tmp_path: Path) -> SparkLog:
    """Epoch 7 is decided and visible; Spark has not logged it."""
    query = SmallSpark(tmp_path, MemorySink(), numbers)
    for epoch in range(8):
        query.write(f"offsets/{epoch}", f'v1\n{{"batchWatermarkMs":5000,"conf":{{}}}}\n{{"t":{{"0":{epoch}}}}}')
        if epoch < 7:
            query.write(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":5000}')
    return query.log


def positions(log: SparkLog, epoch: int) -> Any:
    barrier = log.barrier(epoch)
    return None if barrier is None else (barrier.offsets[0]["t"]["0"], barrier.metadata["batchWatermarkMs"])


def test_a_drain_recovers_before_it_replaces_a_barrier(log: SparkLog) -> None:
    Drained(log, Resume(3, 8, "finished"), finishes="commits/7").emit_final()
    assert positions(log, 7) == (7, 5000), "decided and visible: not to be touched"
    assert positions(log, 8) == (7, END_OF_TIME)


def test_a_barrier_that_is_not_decided_is_replaced(log: SparkLog) -> None:
    Drained(log, Resume(3, 7, "none")).emit_final()
    assert positions(log, 7) == (6, END_OF_TIME)


def test_an_epoch_that_has_to_be_written_again_is_not_drained_over(log: SparkLog) -> None:
    with pytest.raises(SavepointError, match="epoch 7 is decided and has to be written again first"):
        Drained(log, Resume(3, 7, "void")).emit_final()
    assert positions(log, 7) == (7, 5000)
