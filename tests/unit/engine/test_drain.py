"""Stop with a drain: it closes every window once, or leaves the checkpoint what it was; and no start goes on behind it
by accident."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.checkpoint.spark_log import END_OF_TIME
from penstock.config import Checkpoints
from penstock.config.checkpoints import give_memory_a_folder
from penstock.engine.protocol import Resume
from penstock.engine.query import QueryRunner
from penstock.engine.restarts import ErrorClass, classify
from penstock.engine.steering import Steering, final_epoch
from penstock.errors import (
    ConfigurationError,
    JobDrained,
    LedgerError,
    PreCommitFailed,
    SavepointError,
    Superseded,
)
from penstock.events import Events
from penstock.failpoints import InjectedFault, hooked
from penstock.naming import check_name
from penstock.savepoints.savepoint import Kind
from tests.support.memory_sink import MemorySink
from tests.support.small_runner import SmallRunner, TimedSpark, small_runners

pytestmark = pytest.mark.usefixtures("small_runners")
__all__ = ["small_runners"]


@pytest.fixture
def spark(tmp_path: Path) -> TimedSpark:
    return TimedSpark(tmp_path, MemorySink())


def again(spark: TimedSpark, rows: int) -> AbstractContextManager[SmallRunner]:
    """Another start of the job."""
    return SmallRunner(spark).running(rows)


def drain(runner: QueryRunner) -> None:
    runner.prepare_final()
    runner.emit_final()


def away() -> None:
    raise InjectedFault("The sink is away.", safe="-", to_do="-")


def superseded_by(spark: TimedSpark, rows: int) -> Callable[[], None]:
    """Another run of the job takes over and reads up to `rows`."""
    return lambda: spark.run(rows)


def test_a_drain_closes_every_window_by_one_epoch_that_reads_nothing(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0]
    drain(runner)
    assert spark.log.next_epoch() == (last + 1, False)
    assert spark.position(last) == 20
    assert spark.log.closed_up_to(last) == END_OF_TIME
    assert runner.at_end().epoch == last


@pytest.mark.parametrize("point", ["epoch.opened", "epoch.precommitted", "epoch.sealed"])
def test_a_drain_that_fails_leaves_the_checkpoint_what_it_was(spark: TimedSpark, point: str) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    before = spark.log.next_epoch()
    with hooked(point, away), pytest.raises(InjectedFault):
        drain(runner)
    assert spark.log.next_epoch() == before
    with again(spark, 40):
        pass
    assert spark.log.closed_up_to(spark.log.next_epoch()[0] - 1) == 40_000
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(40))


def test_a_drain_that_is_killed_before_its_decision_is_forgotten_by_the_next_start(spark: TimedSpark) -> None:
    spark.run(20)
    epoch, _ = spark.log.next_epoch()
    spark.log.end_of_time(epoch)
    with again(spark, 40):
        pass
    assert spark.position(epoch) > 20
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(40))


def test_a_drain_that_fails_after_its_decision_is_finished(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0]
    with hooked("epoch.committed", away):
        drain(runner)
    assert spark.log.closed_up_to(last) == END_OF_TIME


def test_a_start_behind_a_drain_is_refused_and_a_restored_copy_goes_on(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    drain(runner)
    with pytest.raises(JobDrained, match="penstock run -s storage/job JOB") as refused, again(spark, 40):
        pass
    assert classify(refused.value) is ErrorClass.FATAL
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(20)), "nothing was read"
    spark.restore()
    with again(spark, 40):
        pass
    with again(spark, 50):
        pass
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(50))


def test_a_drain_that_was_killed_after_its_decision_is_finished_and_then_the_start_is_refused(
    spark: TimedSpark,
) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0]
    drain(runner)
    (spark.spark / f"commits/{last}").unlink()
    with pytest.raises(JobDrained), again(spark, 40):
        pass
    assert spark.log.closed_up_to(last) == END_OF_TIME


def test_a_drained_epoch_that_has_to_be_written_again_is_and_then_the_start_is_refused(spark: TimedSpark) -> None:
    """Its commit log is not known, so that it is proven by a replay."""
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0]
    drain(runner)
    (spark.spark / f"commits/{last}").unlink()
    (spark.spark / f"commits/{last - 1}").write_text('v2\n{"nextBatchWatermarkMs":20000}')
    with pytest.raises(JobDrained), again(spark, 40):
        pass
    assert spark.log.closed_up_to(last) == END_OF_TIME


def test_a_second_drain_has_nothing_to_close(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    drain(runner)
    spark.restore()
    restored = SmallRunner(spark)
    with restored.running(30):
        pass
    before = spark.log.next_epoch()
    drain(restored)
    assert spark.log.next_epoch() == before


@pytest.mark.parametrize("version", ["v2", "v9"])
def test_a_drain_that_cannot_close_windows_is_refused_by_name(spark: TimedSpark, version: str) -> None:
    spark.commit_version = version
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    before = spark.log.next_epoch()
    with pytest.raises(SavepointError, match=r"Query 'out' .* its windows cannot be closed: Spark's commit log"):
        drain(runner)
    assert spark.log.next_epoch() == before


@pytest.fixture
def at_most_once(tmp_path: Path) -> TimedSpark:
    return TimedSpark(tmp_path, MemorySink(), mode="at_most_once")


def test_at_most_once_a_drain_that_was_begun_is_not_begun_again_and_the_job_is_drained(
    at_most_once: TimedSpark,
) -> None:
    """Some windows may be visible: whatever emits them again doubles them. And the mark is on the epoch's number, so
    another barrier there would have its rows skipped."""
    spark = at_most_once
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0]
    with hooked("epoch.confirmed", away), pytest.raises(InjectedFault):
        drain(runner)
    with pytest.raises(JobDrained), again(spark, 40):
        pass
    assert spark.log.closed_up_to(last) == END_OF_TIME
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(20))


def test_at_most_once_an_epoch_that_was_begun_is_not_drained_over(at_most_once: TimedSpark) -> None:
    spark = at_most_once
    spark.run(20)
    with hooked("epoch.confirmed", away), pytest.raises(InjectedFault):
        spark.run(30)
    with pytest.raises(SavepointError, match=r"Query 'out' .*: epoch \d was begun"):
        drain(SmallRunner(spark))


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_drain_that_was_begun_otherwise_is_forgotten(tmp_path: Path, mode: str) -> None:
    spark = TimedSpark(tmp_path, MemorySink(), mode=mode)
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    with hooked("epoch.opened", away), pytest.raises(InjectedFault):
        drain(runner)
    with again(spark, 40):
        pass
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(40))
    drain(runner := SmallRunner(spark))
    with pytest.raises(JobDrained), again(spark, 60):
        pass
    assert runner.at_end().epoch == spark.log.next_epoch()[0] - 1


# Against a newer run


def test_a_superseded_drain_writes_no_barrier(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    runner.prepare_final()
    epoch, _ = spark.log.next_epoch()
    with hooked("recover.swept", once(superseded_by(spark, 40))), pytest.raises(Superseded):
        runner.emit_final()
    assert not spark.log.drained(epoch)
    spark.run(50)
    assert spark.log.closed_up_to(spark.log.next_epoch()[0] - 1) == 50_000
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(50))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_drain_that_is_superseded_while_it_writes_the_barrier_harms_nothing(
    spark: TimedSpark, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: the newer run has cut, decided and logged that very epoch. After: it finds the barrier, undecided."""
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    runner.prepare_final()
    other = once(superseded_by(spark, 40))
    original = type(spark.log).end_of_time

    def end_of_time(log: Any, epoch: int) -> None:
        if when == "before":
            other()
        original(log, epoch)
        if when == "after":
            other()

    monkeypatch.setattr(type(spark.log), "end_of_time", end_of_time)
    with pytest.raises(Superseded):
        runner.emit_final()
    with again(spark, 50):
        pass
    assert spark.log.closed_up_to(spark.log.next_epoch()[0] - 1) == 50_000
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(50))


def test_a_run_that_did_not_ask_for_it_does_not_run_the_barrier_of_a_drain(spark: TimedSpark) -> None:
    """A superseded drain wrote it after the run had recovered."""
    spark.run(20)
    epoch, _ = spark.log.next_epoch()
    coordinator = spark.coordinator()
    coordinator.recover()
    spark.log.end_of_time(epoch)
    with pytest.raises(LedgerError, match="has replaced the barrier"):
        spark._query(coordinator, 40)
    coordinator.close()
    with again(spark, 40):
        pass
    assert sorted(cast("MemorySink", spark.sink).visible) == list(range(40))


def test_a_start_that_is_superseded_during_its_recovery_starts_no_query(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with pytest.raises(Superseded), hooked("recover.swept", once(superseded_by(spark, 20))), runner.running(30):
        pass
    assert not runner.queries


# What ends, and how


def test_a_query_that_spark_ends_without_being_asked_has_failed(spark: TimedSpark) -> None:
    runner = SmallRunner(spark)
    with pytest.raises(PreCommitFailed, match="without an error") as failed, runner.running(20):
        runner.queries[0].stop()
        runner.ended.wait(30)
    assert not runner.done
    assert classify(failed.value) is not ErrorClass.FATAL


def test_the_end_of_a_query_is_the_epoch_that_is_visible_and_not_the_one_that_spark_logged(spark: TimedSpark) -> None:
    """Spark was stopped before it wrote the last commit: a savepoint of the epoch before would double its rows."""
    runner = SmallRunner(spark)
    with runner.running(20):
        pass
    last = spark.log.next_epoch()[0] - 1
    (spark.spark / f"commits/{last}").unlink()
    assert runner.at_end().epoch == last


# Several queries


class Played:
    """A runner that drains, or fails to."""

    def __init__(self, uid: str, told: list[str], fails: str = "") -> None:
        self.plan, self._told, self._fails = SimpleNamespace(uid=uid), told, fails

    def _do(self, what: str) -> None:
        if self._fails == what:
            raise SavepointError(f"{self.plan.uid} cannot {what}.")
        self._told.append(f"{what} {self.plan.uid}")

    def prepare_final(self) -> None:
        self._do("prepare")

    def emit_final(self) -> None:
        self._do("emit")

    def at_end(self) -> Any:
        raise SavepointError("The folder is full.")


@pytest.mark.parametrize(
    ("fails", "done", "says"),
    [
        ({"b": "prepare"}, ["prepare a"], "b cannot prepare"),
        ({"a": "emit"}, ["prepare a", "prepare b"], "a cannot emit"),
        ({"b": "emit"}, ["prepare a", "prepare b", "emit a"], r"the queries \['a'\] are drained: b cannot emit"),
        ({}, ["prepare a", "prepare b", "emit a", "emit b"], r"\['a', 'b'\] are drained: The folder is full"),
    ],
)
def test_of_several_queries_none_closes_a_window_before_all_can_and_the_error_names_those_that_did(
    fails: dict[str, str], done: list[str], says: str
) -> None:
    told: list[str] = []
    runners = [Played(uid, told, fails.get(uid, "")) for uid in ("a", "b")]
    steering = Steering("job", Checkpoints())
    steering.begin(cast("Any", runners), cast("Any", None), Events(), cast("Any", None))
    final: Future[str] = Future()
    steering._final = ("/savepoints", Kind.NATIVE, final, lambda _: None)
    steering.end(None)
    with pytest.raises(SavepointError, match=says):
        final.result()
    assert told == done


def once(action: Callable[[], None]) -> Callable[[], None]:
    """The first call acts: what acts passes the same points itself."""
    calls: list[int] = []

    def act() -> None:
        calls.append(1)
        if len(calls) == 1:
            action()

    return act


def test_what_is_due_is_not_drained_over(spark: TimedSpark) -> None:
    for action in ("void", "repair", "verify"):
        with pytest.raises(SavepointError, match=r"Query 'out' .*epoch 7 is decided and has to be written again first"):
            final_epoch("out", spark.log, Resume(3, 7, action))
    for action in ("none", "finished"):
        assert final_epoch("out", spark.log, Resume(3, 0, action)) is None


def test_where_a_savepoint_goes_without_a_folder(tmp_path: Path) -> None:
    """Beside the job's checkpoint, under a name that no job can have; never into a folder that ends with the job."""
    kept = Checkpoints(storage=str(tmp_path))
    assert Steering("job", kept)._directory(None) == f"{tmp_path}/_savepoints"
    assert (
        Steering("job", kept.but(storage="hdfs:///checkpoints/"))._directory(None) == "hdfs:///checkpoints/_savepoints"
    )
    assert Steering("job", kept.but(savepoint_dir="/sp"))._directory(None) == "/sp"
    assert Steering("job", kept)._directory("/named") == "/named"
    with pytest.raises(ConfigurationError, match="gone when it ends") as refused:
        Steering("job", give_memory_a_folder(kept.but(storage="memory:")))._directory(None)
    assert "-p DIR" in refused.value.to_do
    assert "--no-savepoint" in refused.value.to_do
    with pytest.raises(ConfigurationError):
        check_name("_savepoints", "job")
