"""A query in real time, started, ended, killed, saved and taken over, in this process: each row is visible once."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.layout import OFFSETS
from penstock.checkpoint.spark_log import Barrier
from penstock.config import Checkpoints
from penstock.config.state import PARTITIONS
from penstock.contracts.guarantees import Guarantee, engine_link
from penstock.contracts.lanes import Lane, Owner
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.engine.lane_set import LaneSet
from penstock.engine.real_time import check_real_time
from penstock.errors import MarksLost, NotRestorable, PenstockError, PositionsLost, RealTimeRefused, Superseded
from penstock.failpoints import InjectedFault, hooked
from penstock.sources.kafka import KafkaSource
from tests.support.memory_sink import MemorySink
from tests.support.small_lanes import LANE, LaneRunner, LaneSink, MicroRunner, Numbers
from tests.support.small_runner import TimedSpark, small_runners
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("small_runners")
__all__ = ["small_runners"]


@pytest.fixture
def sink() -> LaneSink:
    return LaneSink()


@pytest.fixture
def spark(tmp_path: Path, sink: LaneSink) -> TimedSpark:
    return TimedSpark(tmp_path, sink)


def run(spark: TimedSpark, kind: type[MicroRunner], rows: int) -> MicroRunner:
    """One start, until `rows` are visible, and a clean stop."""
    runner = kind(spark)
    with runner.running(rows):
        pass
    return runner


def noted(spark: TimedSpark) -> Any:
    barrier = spark.log.newest_complete()
    return None if barrier is None else barrier.lanes


def exact(sink: LaneSink, rows: int) -> None:
    assert sorted(sink.visible) == list(range(rows))


def fault() -> None:
    raise InjectedFault("Killed.", safe="-", to_do="-")


def test_the_ledger_knows_of_the_lanes_before_spark_starts(spark: TimedSpark, sink: LaneSink) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        [found] = runner.seen
        assert (found.offsets, found.lanes.query, found.lanes.topics) == (
            ({"t": {"0": 0}},), spark.log.query_id(), {"t": "first"},
        )  # fmt: skip
        assert not found.lanes.closed
    assert sink.steps == ["prepare", "open 0 by 1", "prepare", "open 10 by 2"]
    assert noted(spark).closed
    assert spark.position(spark.log.next_epoch()[0] - 1) == 10
    exact(sink, 10)


@pytest.mark.parametrize("first", [MicroRunner, LaneRunner])
def test_it_changes_to_micro_batches_and_back(spark: TimedSpark, sink: LaneSink, first: type[MicroRunner]) -> None:
    kinds = [first, LaneRunner, MicroRunner, MicroRunner, LaneRunner, LaneRunner, MicroRunner]
    for number, kind in enumerate(kinds, start=1):
        run(spark, kind, number * 10)
        exact(sink, number * 10)
    assert noted(spark) is None


@pytest.mark.parametrize("after", [MicroRunner, LaneRunner])
def test_rows_behind_the_last_epoch_are_not_written_again(
    spark: TimedSpark, sink: LaneSink, after: type[MicroRunner]
) -> None:
    LaneRunner(spark).die(20)
    assert spark.position(spark.log.next_epoch()[0] - 1) == 0
    run(spark, after, 35)
    exact(sink, 35)


POINTS = [
    "recover.registered", "recover.claimed", "lanes.prepared", "lanes.opened", "epoch.opened", "epoch.sealed",
    "epoch.decided", "epoch.committed", "lanes.recorded", "lanes.fenced",
]  # fmt: skip


@pytest.mark.parametrize("after", [MicroRunner, LaneRunner])
@pytest.mark.parametrize("before", [MicroRunner, LaneRunner])
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_at_any_step_is_recovered(
    spark: TimedSpark, sink: LaneSink, point: str, before: type[MicroRunner], after: type[MicroRunner]
) -> None:
    run(spark, before, 10)
    runner = LaneRunner(spark)
    with hooked(point, fault):
        try:
            with runner.running(20):
                pass
        except PenstockError:
            pass
    assert runner.error is not None
    run(spark, after, 30)
    exact(sink, 30)


@pytest.mark.parametrize("point", ["lanes.fenced", "epoch.opened", "epoch.decided", "epoch.committed"])
def test_micro_batches_that_die_while_they_close_the_lanes(spark: TimedSpark, sink: LaneSink, point: str) -> None:
    LaneRunner(spark).die(20)
    with hooked(point, fault), pytest.raises(PenstockError):
        run(spark, MicroRunner, 30)
    run(spark, MicroRunner, 40)
    exact(sink, 40)


def test_marks_that_are_behind_the_ledger_stop_it(spark: TimedSpark, sink: LaneSink) -> None:
    run(spark, LaneRunner, 10)
    kept = sink.marks.copy()
    for marks in ([], sink.marks[LANE][:1]):
        sink.marks[LANE] = list(marks)
        with pytest.raises(MarksLost):
            run(spark, LaneRunner, 20)
    sink.marks, sink.id = kept, "another"
    with pytest.raises(MarksLost):
        run(spark, LaneRunner, 20)
    exact(sink, 10)
    sink.id = "first"
    run(spark, LaneRunner, 20)
    exact(sink, 20)


@pytest.mark.parametrize("newer", [MicroRunner, LaneRunner])
def test_a_run_that_was_superseded_ends_and_its_tasks_write_nothing(
    spark: TimedSpark, sink: LaneSink, newer: type[MicroRunner]
) -> None:
    old, other = LaneRunner(spark), newer(spark)
    with pytest.raises(Superseded), old.running(10), other.running(20):
        until(lambda: not old.alive, "the end of the older run")
    assert isinstance(old.error, Superseded)
    exact(sink, 20)


def test_a_savepoint_is_taken_while_rows_come(spark: TimedSpark, sink: LaneSink) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        spark.there = 25
        until(lambda: len(sink.visible) == 25, "more rows")
        with runner.hold(Deadline(10)) as held:
            assert spark.position(held.epoch) == 25
            spark.there = 40
            until(lambda: len(sink.visible) == 40, "rows while it is held")
        with runner.hold(Deadline(10)) as again:
            assert again.epoch == held.epoch + 1


def test_no_row_comes_behind_a_savepoint_that_ends_the_job(spark: TimedSpark, sink: LaneSink) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        with runner.hold(Deadline(10), final=True) as held:
            spark.there = 30
            assert spark.position(held.epoch) == 10
            runner.shut()
        runner.stop()
    assert spark.log.next_epoch()[0] - 1 == held.epoch
    exact(sink, 10)
    run(spark, MicroRunner, 40)
    exact(sink, 40)


def test_it_goes_on_where_such_a_savepoint_fails(spark: TimedSpark, sink: LaneSink) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        with runner.hold(Deadline(10), final=True):
            spark.there = 30
        until(lambda: len(sink.visible) == 30, "the rows that waited")
        assert runner.generation == 2
    exact(sink, 30)


def test_micro_batches_do_not_begin_within_a_source_row(spark: TimedSpark, sink: LaneSink) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        sink.commit(runner.played[-1]._owner, 10, part=2)
    assert noted(spark).parts == {"t-0": [2, 2]}
    with pytest.raises(NotRestorable, match="2 rows of offset 10"):
        run(spark, MicroRunner, 20)
    newest = sink.newest()
    assert newest is not None
    assert newest.part == 2
    run(spark, LaneRunner, 20)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("after", [MicroRunner, LaneRunner])
def test_rows_that_give_none_are_not_read_again(
    spark: TimedSpark, sink: LaneSink, after: type[MicroRunner], stopped: bool
) -> None:
    runner = LaneRunner(spark)
    with runner.running(10):
        runner.played[-1].ended = 30  # the plan has dropped the numbers from 10 on
        runner.hurry()
        until(lambda: noted(spark).marks == {"t-0": [10, 0, 0]}, "an epoch")
        assert spark.position(runner._completed_epoch()) == 30
        if not stopped:
            runner.played[-1]._error = PenstockError("killed")
            runner.played[-1].stop()
            until(lambda: not runner.alive, "the end of the query")
            runner.error = None
    run(spark, after, 40) if after is MicroRunner else LaneRunner(spark).die(40)
    assert sorted(sink.visible) == [*range(10), *range(30, 40)]
    assert sink.marks[LANE][-2 if after is LaneRunner else -1].position == (30, 0)


def test_an_epoch_to_be_run_again_needs_micro_batches(
    spark: TimedSpark, sink: LaneSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hooked("epoch.decided", fault), pytest.raises(PenstockError):
        run(spark, MicroRunner, 20)
    spark.commit_version = "v9"  # so that its log cannot be completed
    monkeypatch.setattr("penstock.checkpoint.spark_log.SparkLog.finish", lambda *_: False)
    with pytest.raises(RealTimeRefused, match="run again"):
        run(spark, LaneRunner, 30)


def test_it_leaves_as_many_epochs_as_are_retained(spark: TimedSpark) -> None:
    runner = LaneRunner(spark)
    with runner.running(1):
        for rows in range(2, 8):
            spark.there = rows
            until(lambda: len(runner.sink.visible) == rows, "the row")  # noqa: B023
            before = runner._completed_epoch()
            runner.hurry()
            until(lambda: spark.log.next_epoch()[0] > before + 1, "an epoch")  # noqa: B023
    assert len(spark.log.names(OFFSETS)) == 2


def refused(plan: dict[str, Any], **checkpoints: Any) -> str:
    usual = {"uid": "q", "latency": 0.02, "as_it_is": True, "sinks": {"q": LaneSink()}, "sources": {}}
    settings: Any = SimpleNamespace(derived_spark={})
    with pytest.raises(RealTimeRefused) as error:
        check_real_time([SimpleNamespace(**{**usual, **plan})], Checkpoints(**checkpoints), settings)  # type: ignore[list-item]
    return error.value.happened


def test_what_cannot_be_together_is_refused() -> None:
    assert "@job.epoch" in refused({"as_it_is": False})
    assert "a sink without lanes: MemorySink" in refused({"sinks": {"q": MemorySink()}})
    assert "mode=at_least_once" in refused({}, mode="at_least_once")
    assert "unaligned" in refused({}, unaligned=True)
    assert "max_concurrent=2" in refused({}, max_concurrent=2)
    no_plan: Any = SimpleNamespace(latency=0.0)
    assert check_real_time([no_plan], Checkpoints(unaligned=True), SimpleNamespace()) == []  # type: ignore[arg-type]


def test_explain_says_what_becomes_visible_together() -> None:
    link = engine_link(Checkpoints(), 0.02)
    assert link.guarantee is Guarantee.EXACTLY_ONCE
    assert "about every 20 ms, in the source's order" in link.because
    assert "do not become visible together" in link.because
    assert "real time" not in engine_link(Checkpoints()).because


def test_a_parallelism_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("require_real_time", "require_slots", "lane_plan"):
        monkeypatch.setattr(f"penstock.engine.real_time.{name}", lambda *_: None)
    frame, numbers = SimpleNamespace(sparkSession=None), {"numbers": Numbers()}
    plan: Any = SimpleNamespace(
        uid="q", latency=0.02, as_it_is=True, sinks={"q": LaneSink()}, sources=numbers, frame=frame
    )
    settings: Any = SimpleNamespace(derived_spark={PARTITIONS: SimpleNamespace(side="-D parallelism.default=4")})
    [finding] = check_real_time([plan], Checkpoints(), settings)
    assert finding.message.startswith("-D parallelism.default=4 has no effect")


class RestartedBroker:
    """An admin client of one that knows `early` topics at first, and `late` ones from the second answer on."""

    def __init__(self, early: str, late: str) -> None:
        self._answers = [early, early + late]

    def list_topics(self, timeout: float) -> Any:
        names = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=[0]) for name in names})

    def list_offsets(self, places: Any, **_: Any) -> Any:
        offsets: dict[Any, Future[Any]] = {place: Future() for place in places}
        for future in offsets.values():
            future.set_result(SimpleNamespace(offset=0))
        return offsets


def test_a_restarted_broker_gets_time_to_find_the_topics_of_a_pattern(
    sink: LaneSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("confluent_kafka")
    source = KafkaSource(pattern="[a-c]", servers="h:1")
    plan: Any = SimpleNamespace(uid="q", positions=("in",), sources={"in": source}, sinks={"out": sink})
    read = Barrier("", {}, ({name: {"0": 5} for name in "abc"},))

    def opened(early: str, late: str) -> set[Lane]:
        broker = RestartedBroker(early, late)
        monkeypatch.setattr(source, "_admin", lambda: broker)
        client = sink.open_lanes(SinkScope("job", "out", 1), "q")
        lanes = LaneSet(plan, client, Owner("q", 1), read, lambda: None)
        lanes.open()
        return {*lanes.marks}

    assert opened("a", "bc") == {Lane(name, 0) for name in "abc"}
    monkeypatch.setattr("penstock.kafka.connections.JOINING_SECONDS", 0.0)
    with pytest.raises(PositionsLost, match="b-0, c-0"):
        opened("a", "")
