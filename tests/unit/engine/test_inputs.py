"""Positions belong to the topics they were written for, not to whatever has their names now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import Barrier
from penstock.contracts.source import QueryPlan, Source
from penstock.engine.positions import Inputs
from penstock.errors import JobStopped, LedgerCorrupt, PositionsLost
from tests.support.memory_storage import MemoryStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Topics(Source):
    """Topics whose ids a test sets; remembers what it was asked for."""

    def __init__(self, **ids: str) -> None:
        self.ids, self.accepted = ids, set[str]()
        self.asked: list[set[str]] = []
        self.meanwhile: list[Mapping[str, str]] = []  # the ids from the next question on

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        raise NotImplementedError

    @property
    def identified(self) -> bool:
        return True

    def parts(self, offset: Any) -> Mapping[str, Any]:
        return {name: own for name, own in offset.items() if any(own.values())}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        if self.meanwhile:
            self.ids = dict(self.meanwhile.pop(0))
        self.asked.append(set(names))
        return {name: own for name, own in self.ids.items() if subscribed or name in names}

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:
        if not {now for _, now in replaced.values()} <= self.accepted:
            raise PositionsLost(f"{uid}: {dict(replaced)}")


class Bounded(Topics):
    @property
    def bounded(self) -> bool:
        return True

    def finished(self, offset: Any) -> bool:
        return True


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that were made, without making them."""
    made: list[float] = []
    monkeypatch.setattr("penstock.engine.positions.time.sleep", made.append)
    return made


def plan(sources: Mapping[str, Source], *positions: str | None) -> QueryPlan:
    where = positions or tuple(sources)
    return QueryPlan("q", cast("DataFrame", None), {}, sources, where, lambda batch, outputs: None)


def at(*offsets: Mapping[str, int] | None) -> Barrier:
    """A barrier with one partition of each topic."""
    made = tuple(None if one is None else {name: {"0": end} for name, end in one.items()} for one in offsets)
    return Barrier("", {}, made)


def started(storage: MemoryStorage, source: Topics, barrier: Barrier | None) -> Inputs:
    made = Inputs(plan({"in": source}), storage, final_checkpoint=True)
    made.start(barrier)
    return made


def test_ids_are_durable_before_spark_plans_anything() -> None:
    storage = MemoryStorage()
    started(storage, Topics(orders="A"), None)
    started(storage, Topics(orders="A"), at({"orders": 5}))
    assert storage.list(layout.SOURCE_IDS) == ["0000000001.json"], "what is known is not recorded again"


def test_sources_without_ids_cost_nothing() -> None:
    class Unreadable(MemoryStorage):
        def list(self, folder: str) -> list[str]:
            raise AssertionError(folder)

    class Plain(Topics):
        identified = False

    run = Inputs(plan({"in": Plain(orders="A")}), Unreadable(), final_checkpoint=True)
    run.start(at({"orders": 1}))
    run.begin(at({"orders": 1}))
    run.confirm(0, at({"orders": 1}))


def test_a_topic_that_was_created_again_is_not_read_at_its_old_position() -> None:
    storage = MemoryStorage()
    started(storage, Topics(orders="A"), None)
    with pytest.raises(PositionsLost, match=r"in: \{'orders': \('A', 'B'\)\}"):
        started(storage, Topics(orders="B"), at({"orders": 100}))
    started(storage, Topics(orders="A"), at({"orders": 100}))  # nothing was recorded by the start that was refused


def test_a_topic_of_which_nothing_was_read_may_be_any() -> None:
    storage = MemoryStorage()
    for own in "ABC":
        started(storage, Topics(orders=own), at({"orders": 0}))
    with pytest.raises(PositionsLost):
        started(storage, Topics(orders="B"), at({"orders": 1}))
    started(storage, Topics(orders="C"), at({"orders": 1}))


def test_a_restart_in_the_middle_of_an_epoch_compares_its_topics_too() -> None:
    storage = MemoryStorage()
    run = started(storage, Topics(orders="A"), None)
    run.begin(at({"orders": 100}))  # dies in its tasks: the barrier is written, nothing is decided
    with pytest.raises(PositionsLost):
        started(storage, Topics(orders="B"), at({"orders": 100}))


def test_what_an_earlier_version_has_written_is_taken_for_what_is_there_now() -> None:
    storage = MemoryStorage()
    started(storage, Topics(orders="A"), at({"orders": 100}))
    with pytest.raises(PositionsLost):
        started(storage, Topics(orders="B"), at({"orders": 100}))


def test_a_topic_that_appears_is_recorded_before_its_rows_are_read() -> None:
    storage, topics = MemoryStorage(), Topics(orders="A")
    run = started(storage, topics, None)
    topics.ids["returns"] = "R"
    run.begin(at({"orders": 1, "returns": 1}))
    assert len(storage.list(layout.SOURCE_IDS)) == 2
    topics.ids["returns"] = "S"
    with pytest.raises(PositionsLost, match="returns"):
        run.confirm(0, at({"orders": 1, "returns": 1}))


def test_a_topic_that_is_created_again_while_tasks_read_is_noticed_before_the_decision() -> None:
    topics = Topics(orders="A")
    run = started(MemoryStorage(), topics, None)
    run.begin(at({"orders": 1}))
    run.confirm(0, at({"orders": 1}))
    run.begin(at({"orders": 9}))
    topics.ids["orders"] = "B"
    with pytest.raises(PositionsLost, match="orders"):
        run.confirm(1, at({"orders": 9}))


def test_only_topics_that_an_epoch_has_read_are_asked_for() -> None:
    topics = Topics(orders="A", returns="R")
    run = started(MemoryStorage(), topics, at({"orders": 5, "returns": 5}))
    for end in (5, 5, 6):  # the first epoch of a start may be a replay, so all of it counts
        run.begin(at({"orders": end, "returns": 5}))
        run.confirm(0, at({"orders": end, "returns": 5}))
    assert topics.asked == [{"orders", "returns"}, {"orders", "returns"}, {"orders"}]


def test_an_id_that_the_user_accepts_is_the_one_from_then_on() -> None:
    storage, moved = MemoryStorage(), Topics(orders="B")
    started(storage, Topics(orders="A"), None)
    moved.accepted = {"B"}
    started(storage, moved, at({"orders": 100}))
    started(storage, Topics(orders="B"), at({"orders": 100}))
    with pytest.raises(PositionsLost):
        started(storage, Topics(orders="C"), at({"orders": 100}))


def test_a_broker_that_lags_behind_is_asked_again(pauses: list[float]) -> None:
    storage, topics = MemoryStorage(), Topics(orders="B")
    started(storage, topics, None)
    topics.meanwhile = [{"orders": "A"}, {"orders": "B"}]
    started(storage, topics, at({"orders": 100}))
    assert not topics.meanwhile
    assert pauses == [0.2]
    with pytest.raises(PositionsLost):
        started(storage, Topics(orders="A"), at({"orders": 100}))
    assert pauses == [0.2, 0.2, 0.5, 1.0]


def test_topics_without_an_id_or_gone_are_left_to_spark() -> None:
    storage, topics = MemoryStorage(), Topics()
    run = started(storage, topics, at({"orders": 100}))
    run.begin(at({"orders": 101}))
    run.confirm(1, at({"orders": 101}))
    assert storage.list(layout.SOURCE_IDS) == []


def test_of_two_runs_that_record_at_once_the_later_compares_with_the_first() -> None:
    class Racing(MemoryStorage):
        def create(self, name: str, data: bytes) -> None:
            if not self.list(layout.SOURCE_IDS):
                super().create(name, layout.seal("source", {"source": "in", "ids": {"orders": "B"}}))
            super().create(name, data)

    with pytest.raises(PositionsLost, match=r"\('B', 'A'\)"):
        started(Racing(), Topics(orders="A"), at({"orders": 1}))


def test_each_source_of_a_plan_has_ids_of_its_own_wherever_the_plan_reads_it() -> None:
    storage, orders, other = MemoryStorage(), Topics(orders="A"), Topics(orders="X")
    both = plan({"a": orders, "b": other}, "a", "b", None, "a")
    Inputs(both, storage, final_checkpoint=True).start(None)
    orders.ids = {"orders": "B"}
    Inputs(both, storage, final_checkpoint=True).start(at(None, {"orders": 3}, {"orders": 7}, None))
    orders.ids = {"orders": "C"}
    with pytest.raises(PositionsLost, match=r"a: .*'B', 'C'"):
        Inputs(both, storage, final_checkpoint=True).start(
            at({"orders": 0}, {"orders": 3}, {"orders": 7}, {"orders": 1})
        )


def test_an_altered_record_is_refused() -> None:
    storage = MemoryStorage()
    storage.create(layout.numbered(layout.SOURCE_IDS, 1), b"{}")
    with pytest.raises(LedgerCorrupt, match=f"{layout.SOURCE_IDS}/0000000001.json"):
        started(storage, Topics(orders="A"), None)


def test_the_end_of_bounded_inputs_is_not_decided_without_a_final_checkpoint() -> None:
    storage = MemoryStorage()
    for final, barrier in ((True, at({"orders": 1})), (False, at(None))):
        Inputs(plan({"in": Bounded()}), storage, final_checkpoint=final).confirm(0, barrier)
    with pytest.raises(JobStopped, match="final_checkpoint"):
        Inputs(plan({"in": Bounded()}), storage, final_checkpoint=False).confirm(0, at({"orders": 1}))
    Inputs(plan({"in": Topics()}), storage, final_checkpoint=False).confirm(0, at({"orders": 1}))
