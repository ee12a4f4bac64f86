"""The in-flight log while one run takes over from another: whoever is the newest delivers, and nobody else touches."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.config import Checkpoints
from penstock.contracts.sink import Committer, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.engine.coordinator import Coordinator
from penstock.engine.drainer import Drainer
from penstock.errors import CommittedRowsLost, Superseded, SystemUnavailable
from penstock.failpoints import hooked
from tests.support import memory_sink
from tests.support.memory_sink import MemorySink
from tests.support.small_spark import SmallSpark

PATIENCE = 60


class Death(BaseException):
    """The driver's process is gone."""


def die() -> None:
    raise Death


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


class SlowSink(MemorySink):
    """A sweep by the thread of `slow_sweeper` waits for `may_sweep`, and after the first writer of an epoch in
    `half_of` a commit waits for `may_commit`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_sweeper = ""
        self.half_of: int | None = None
        self.sweeping, self.may_sweep = threading.Event(), threading.Event()
        self.half, self.may_commit = threading.Event(), threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def open_committer(self, scope: SinkScope) -> Committer:
        return _SlowCommitter(self, scope)


class _SlowCommitter(memory_sink._Committer):
    _sink: SlowSink

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        if threading.current_thread().name == self._sink.slow_sweeper:
            self._sink.sweeping.set()
            assert self._sink.may_sweep.wait(PATIENCE)
        return super().abort_dangling(keep, deadline)

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        assert self._sink.answers.wait(PATIENCE)
        outcomes = {}
        for number, one in enumerate(committables):
            if number == 1 and self._sink.half_of == epoch:
                self._sink.half_of = None
                self._sink.half.set()
                assert self._sink.may_commit.wait(PATIENCE)
            outcomes[one.writer] = self._one(one.payload["name"])
        return outcomes


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("drainer._FIRST_WAIT", "drainer._LOOK_EVERY", "inflight._LOOK_EVERY"):
        monkeypatch.setattr(f"penstock.engine.{pause}", 0.005)


@pytest.fixture
def sink() -> Iterator[SlowSink]:
    made = SlowSink()
    yield made
    for event in (made.may_sweep, made.may_commit, made.answers):
        event.set()


def recovering(coordinator: Coordinator, name: str) -> threading.Thread:
    thread = threading.Thread(target=coordinator.recover, name=name, daemon=True)
    thread.start()
    return thread


def ended(coordinator: Coordinator) -> None:
    """Until its drainer has delivered everything, or given up for good."""
    coordinator.drain(lambda: coordinator.failure is not None)


def test_a_run_overtaken_during_its_recovery_delivers_nothing_and_the_newest_lives(
    sink: SlowSink, tmp_path: Path
) -> None:
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    first = spark.coordinator()
    first.recover()
    sink.away = True
    spark._query(first, 15)
    first.close()
    sink.away = False

    sink.slow_sweeper = "old"
    old = spark.coordinator()
    recovery = recovering(old, "old")
    assert sink.sweeping.wait(PATIENCE)
    sink.half_of = 1
    new = spark.coordinator()
    new.recover()
    assert sink.half.wait(PATIENCE), "the newest run is in the middle of a commit"
    sink.may_sweep.set()
    recovery.join(PATIENCE)
    ended(old)
    assert isinstance(old.failure, Superseded)
    sink.may_commit.set()
    ended(new)
    assert new.failure is None
    assert sink.visible == list(range(15))
    old.close()
    new.close()


@pytest.mark.parametrize("half_of", [None, 0, 1])
def test_a_run_that_takes_over_sees_what_the_old_drainer_has_done_since(
    sink: SlowSink, tmp_path: Path, half_of: int | None
) -> None:
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    old = spark.coordinator()
    old.recover()
    sink.answers.clear()
    spark._query(old, 15)
    sink.slow_sweeper, sink.half_of = "new", half_of
    new = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0).coordinator()
    recovery = recovering(new, "new")
    assert sink.sweeping.wait(PATIENCE), "the newer run has read the backlog"
    sink.answers.set()
    old.drain(lambda: sink.half.is_set() or old.failure is not None)
    sink.half_of = None  # only the old drainer is slow
    sink.may_sweep.set()
    recovery.join(PATIENCE)
    ended(new)
    sink.may_commit.set()
    ended(old)
    assert isinstance(old.failure, Superseded)
    assert new.failure is None
    assert sink.visible == list(range(15)) or half_of == 0, "in order"
    assert sorted(sink.visible) == list(range(15))
    old.close()
    new.close()


@pytest.mark.parametrize("after", [{"max_concurrent": 3}, {}, {"unaligned": True, "aligned_timeout": 60}], ids=str)
def test_a_decided_epoch_waits_behind_those_in_the_backlog_whatever_the_settings_are_now(
    tmp_path: Path, after: dict[str, Any]
) -> None:
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", max_concurrent=3)
    first = spark.coordinator()
    first.recover()
    assert first._inflight is not None
    first._inflight.close()
    first._inflight.start = lambda: None  # type: ignore[method-assign]  # as if the sink were slow
    spark._query(first, 8)
    with hooked("epoch.confirmed", die), pytest.raises(Death):
        spark._query(first, 14)
    spark.checkpoints = Checkpoints(**after)
    second = spark.coordinator()
    second.recover()
    ended(second)
    second.close()
    assert sink.visible == list(range(14))


# What a driver that stood still leaves open long after it was superseded


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first minute of every run is over, and another one at every look."""
    monkeypatch.setattr("penstock.engine.committers._AGAIN_FOR", -1.0)
    monkeypatch.setattr("penstock.engine.committers._OLDER_EVERY", -1.0)


@pytest.mark.usefixtures("always_due")
@pytest.mark.parametrize("settings", [{}, {"max_concurrent": 2}, {"unaligned": True, "aligned_timeout": 60}], ids=str)
def test_what_a_zombie_opens_long_after_the_takeover_is_swept_by_the_newest_run(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", **settings)
    old, asleep, wake = spark.coordinator(), threading.Event(), threading.Event()
    old.recover()
    failures: list[BaseException] = []

    def epoch() -> None:
        try:
            spark._query(old, 5)
        except BaseException as error:
            failures.append(error)

    def sleep() -> None:
        asleep.set()
        assert wake.wait(PATIENCE)

    with hooked("epoch.opened", sleep):
        zombie = threading.Thread(target=epoch, daemon=True)
        zombie.start()
        assert asleep.wait(PATIENCE)
    other = SmallSpark(tmp_path, sink, numbers, job="job", **settings)
    new = other.coordinator()
    new.recover()
    other._query(new, 5)
    new.tend()
    wake.set()
    zombie.join(PATIENCE)
    assert isinstance(failures[0], Superseded)
    left = set(sink.prepared)
    assert left, "the zombie left something open"
    new.drain(lambda: False)
    new.tend()
    assert not left & set(sink.prepared)
    other._query(new, 10)
    new.drain(lambda: False)
    assert sink.visible == list(range(10))
    old.close()
    new.close()


@pytest.mark.usefixtures("always_due")
@pytest.mark.parametrize("now", [{"unaligned": True, "aligned_timeout": 0}, {}], ids=["the log is on", "it is off"])
def test_what_a_drainer_that_stood_still_opens_is_swept_by_the_newest_run(tmp_path: Path, now: dict[str, Any]) -> None:
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    old = spark.coordinator()
    old.recover()
    asleep, wake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert wake.wait(PATIENCE)

    with hooked("drain.prepared", sleep):
        spark._query(old, 4)
        assert asleep.wait(PATIENCE)
    spark.checkpoints = Checkpoints(**now)
    new = spark.coordinator()
    new.recover()
    new.drain(lambda: False)
    writer = sink.open_writer(WriterScope(SinkScope("job", "out~drain", old.generation), 0, 9, 0, 0))
    writer.pre_commit()
    while sink.prepared:
        assert new._inflight is not None
        new._inflight._backlogs["out"].wake()  # its drainer need not wait for a second
    wake.set()
    ended(old)
    assert new.failure is None
    assert sink.visible == list(range(4))
    old.close()
    new.close()


def test_a_sink_that_fences_older_runs_is_not_asked_for_them_again(
    tmp_path: Path, always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, swept = MemorySink(), list[object]()
    real = memory_sink._Committer.abort_dangling

    def sweep(self: memory_sink._Committer, *given: object) -> int:
        swept.append(given)
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(memory_sink._Committer, "abort_dangling", sweep)
    spark = SmallSpark(tmp_path, sink, numbers, job="job")
    spark.run(4)
    for fences, more in ((False, 1), (True, 0)):
        monkeypatch.setattr(memory_sink._Committer, "fences_older_runs", fences)
        run = spark.coordinator()
        run.recover()
        before = len(swept)
        run.tend()
        assert len(swept) == before + more
        run.close()


def test_a_superseded_run_sweeps_nothing(tmp_path: Path, always_due: None) -> None:
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job")
    spark.run(4)
    old = spark.coordinator()
    old.recover()
    spark.coordinator().recover()
    sink.open_writer(WriterScope(SinkScope("job", "out", old.generation), 0, 9, 0, 0)).pre_commit()
    old.tend()
    assert len(sink.prepared) == 1
    old.close()


@pytest.mark.parametrize("now", [{"unaligned": True, "aligned_timeout": 0}, {}], ids=["the log is on", "it is off"])
def test_a_run_that_is_stopped_at_once_sweeps_what_a_drainer_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: dict[str, Any]
) -> None:
    """Found by the simulation: its drainer was stopped before its thread had begun, and no later start swept either."""
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    spark.run(4)
    left = sink.open_writer(WriterScope(SinkScope("job", "out~drain", 1), 0, 9, 0, 0))
    left.pre_commit()
    assert sink.prepared

    def late(drainer: Drainer) -> None:
        assert drainer._stopping.wait(PATIENCE)
        drainer._loop()

    monkeypatch.setattr(Drainer, "_work", late)
    spark.checkpoints = Checkpoints(**now)
    new = spark.coordinator()
    new.recover()
    new.close()
    assert not sink.prepared
    assert sink.visible == list(range(4))


def test_what_a_request_of_a_failed_attempt_opens_later_is_swept_by_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the first run of a job, which has no older runs to sweep after."""
    monkeypatch.setattr("penstock.engine.committers._AGAIN_EVERY", -1.0)
    sink = MemorySink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    run, failures = spark.coordinator(), ["an answer is lost"]
    run.recover()
    real = sink.open_writer

    def open_writer(scope: WriterScope) -> Writer:
        if failures and scope.sink.uid.endswith("~drain"):
            raise SystemUnavailable(failures.pop())
        return real(scope)

    monkeypatch.setattr(sink, "open_writer", open_writer)
    spark._query(run, 4)
    run.drain(lambda: False)
    assert run.generation == 1
    real(WriterScope(SinkScope("job", "out~drain", 1), 0, 1, 0, 0)).pre_commit()
    for _ in range(PATIENCE * 100):
        if not sink.prepared:
            break
        run._inflight._backlogs["out"].wake()  # type: ignore[union-attr]
        time.sleep(0.01)
    assert not sink.prepared
    run.close()
    assert sink.visible == list(range(4))


# A sink that has lost what it had committed


class _Forgetful(memory_sink._Committer):
    """It can tell what it has lost, and commits again what has fallen back to prepared."""

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        assert isinstance(deadline, Deadline)
        assert epoch == 0
        lost = [one for one in committables if self._one(one.payload["name"]) is Outcome.LOST]
        return {one.writer: f"acknowledge {one.payload['name']}" for one in lost}


class ForgetfulSink(MemorySink):
    def open_committer(self, scope: SinkScope) -> Committer:
        return _Forgetful(self, scope)

    def fall_back(self, *, prepared: bool) -> None:
        if prepared:
            self.prepared.update({name: (1, rows) for name, rows in self.committed.items()})
        self.committed.clear()
        self.visible.clear()


def test_rows_that_a_sink_loses_after_their_log_is_removed_are_named_as_lost(tmp_path: Path) -> None:
    """Found by the simulation, as `LedgerCorrupt`: its advice was to restore a log that nobody has a copy of."""
    sink = ForgetfulSink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=60)
    first = spark.coordinator()
    first.recover()
    with hooked("epoch.committed", die), pytest.raises(Death):
        spark._query(first, 4)
    assert sink.visible == list(range(4))
    names = list(sink.committed)
    sink.fall_back(prepared=False)
    for _ in range(2):
        run = spark.coordinator()
        run.recover()
        ended(run)
        assert isinstance(run.failure, CommittedRowsLost)
        assert f"Query {run.query!r} has committed 4 rows of epoch 0" in str(run.failure)
        assert " in out any more" in str(run.failure)
        assert all(f"acknowledge {name}" in str(run.failure) for name in names)
        run.close()
    sink.committed = {name: [] for name in names}  # an operator acknowledges the loss
    spark.run(8)
    assert sink.visible == list(range(4, 8))


@pytest.mark.parametrize("prepared", [True, False])
def test_what_a_drainer_wrote_last_is_looked_for_before_its_leftovers_are_swept(tmp_path: Path, prepared: bool) -> None:
    """Found by the simulation: a replica took over that had the transaction prepared, and the sweep would end it."""
    sink = ForgetfulSink()
    spark = SmallSpark(tmp_path, sink, numbers, job="job", unaligned=True, aligned_timeout=0)
    spark.run(4)
    assert sink.visible == list(range(4))
    sink.fall_back(prepared=prepared)
    run = spark.coordinator()
    run.recover()
    assert run._inflight is not None
    drainer = run._inflight._drainers["out"]
    run.close()
    assert sorted(sink.visible) == (list(range(4)) if prepared else [])
    assert prepared or isinstance(drainer.failure, CommittedRowsLost)
