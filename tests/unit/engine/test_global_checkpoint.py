"""The global checkpoint: who feeds whom, that every cut is consistent in every interleaving, and what is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from graphlib import CycleError
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Checkpoints, KafkaSink, KafkaSource
from penstock.checkpoint.layout import seal, unseal
from penstock.checkpoint.record import global_numbers, read_global
from penstock.contracts.source import QueryPlan, QueryProgress
from penstock.engine.global_checkpoint import GlobalCheckpoints, downstream_first, find_links, take_cut
from penstock.engine.query import QueryRunner
from penstock.errors import LedgerCorrupt, LedgerError
from penstock.events import Events
from tests.support.memory_storage import MemoryStorage

SERVERS = "localhost:9092"


def reads(topics: str = "", *, servers: str = SERVERS, **more: Any) -> KafkaSource:
    return KafkaSource(topics, servers=servers, **more)


def writes(topic: str | None, servers: str = SERVERS) -> KafkaSink:
    return KafkaSink(topic, servers=servers)


def plan(uid: str, source: KafkaSource, sink: KafkaSink) -> QueryPlan:
    return cast("QueryPlan", SimpleNamespace(uid=uid, sources={"in": source}, sinks={"out": sink}, latency=0.0))


def fed(*plans: QueryPlan) -> set[tuple[str, str]]:
    return {(link.upstream, link.downstream) for link in find_links(plans)}


# Links


def test_a_topic_links_its_writer_to_its_reader() -> None:
    enrich, total = plan("enrich", reads("orders"), writes("enriched")), plan("total", reads("enriched"), writes("t"))
    assert fed(enrich, total) == {("enrich", "total")} == fed(total, enrich)
    [link] = find_links([enrich, total])
    assert (link.topic, link.committed_only) == ("enriched", True)


@pytest.mark.parametrize(
    ("source", "linked"),
    [
        (reads("a,enriched"), True),
        (reads("other"), False),
        (reads(pattern="enr.*"), True),
        (reads(pattern="enr"), False),  # Kafka wants the whole name to match
        (reads(pattern=r"\p{Alpha}+"), True),  # Java's alone: it may match
        (reads("enriched", servers="kafka:9092"), False),
        (reads("enriched", servers="kafka:9092, 127.0.0.1:9092"), True),
        (reads("enriched", servers="LOCALHOST:9092"), True),
        (reads("enriched", servers="localhost:9093"), False),
        (reads("other", options={"subscribe": "enriched"}), True),
    ],
)
def test_what_counts_as_a_link(source: KafkaSource, linked: bool) -> None:
    found = fed(plan("up", reads("orders"), writes("enriched")), plan("down", source, writes("end")))
    assert found == ({("up", "down")} if linked else set())


def test_a_sink_with_the_topic_in_a_column_may_write_any() -> None:
    assert fed(plan("up", reads("orders"), writes(None)), plan("down", reads("x"), writes("y"))) == {("up", "down")}


def test_reading_the_own_output_is_no_link() -> None:
    assert fed(plan("loop", reads("a,b"), writes("b"))) == set()


def test_downstream_comes_first() -> None:
    first, last = plan("a", reads("0"), writes("1")), plan("d", reads("2,3"), writes("4"))
    middle = [plan("b", reads("1"), writes("2")), plan("c", reads("1"), writes("3"))]
    order = downstream_first(["a", "b", "c", "d", "alone"], find_links([first, *middle, last]))
    assert order.index("d") < min(order.index("b"), order.index("c")) <= 3
    assert order.index("a") == 4


def test_a_circle_has_no_downstream() -> None:
    plans = [
        plan("a", reads("0,2"), writes("1")),
        plan("b", reads("1"), writes("2")),
        plan("before", reads("x"), writes("0")),
        plan("after", reads("2"), writes("y")),
    ]
    names = [one.uid for one in plans]
    with pytest.raises(CycleError) as refused:
        downstream_first(names, find_links(plans))
    assert set(refused.value.args[1]) == {"a", "b"}


# The cut, in every interleaving


@dataclass(frozen=True)
class Stream:
    """A chain of queries, each reading the one before. An epoch is decided, then visible, then complete."""

    visible: tuple[int, ...]  # newest visible epoch of each query
    decided: tuple[int, ...]
    completed: tuple[int, ...]
    consumed: tuple[tuple[int, ...], ...]  # of each query, for each epoch cut so far, the newest epoch read upstream

    @classmethod
    def of(cls, queries: int) -> Stream:
        none = (-1,) * queries
        return cls(none, none, none, ((),) * queries)

    def moves(self, most: int) -> Iterator[Stream]:
        for one in range(len(self.visible)):
            if self.decided[one] == self.completed[one] < most - 1:
                if len(self.consumed[one]) == self.completed[one] + 1:
                    source = self.visible[one - 1] if one else len(self.consumed[0])
                    barriers = (*self.consumed[one], source)
                    yield replace(self, consumed=_with(self.consumed, one, barriers))
                else:
                    yield replace(self, decided=_with(self.decided, one, self.decided[one] + 1))
            elif self.visible[one] < self.decided[one]:
                yield replace(self, visible=_with(self.visible, one, self.decided[one]))
            elif self.completed[one] < self.decided[one]:
                yield replace(self, completed=_with(self.completed, one, self.decided[one]))


def _with(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def every_cut(queries: int, epochs: int, order: list[int], *, by_decided: bool = True) -> Iterator[tuple[Stream, Any]]:
    """Every cut that can be taken while the queries go on between any two reads, and the world it ended in."""
    start = (Stream.of(queries), 0, ())
    seen, left = {start}, [start]
    while left:
        world, done, found = left.pop()
        after: list[Any] = [(one, done, found) for one in world.moves(epochs)]
        if done < queries:
            uid = order[done]
            answers = {str(uid): QueryProgress(1, world.completed[uid], world.decided[uid])}
            upstream = frozenset(map(str, range(queries - 1))) if by_decided else frozenset()
            one = take_cut([str(uid)], upstream, answers.get)
            if one is not None:
                after.append((world, done + 1, (*found, (uid, one[str(uid)][0]))))
        else:
            yield world, dict(found)
            continue
        for state in after:
            if state not in seen:
                seen.add(state)
                left.append(state)


def consistent(world: Stream, found: dict[int, int]) -> bool:
    """Whether no query has consumed what the one before it wrote after its epoch in the cut."""
    return all(world.consumed[uid][found[uid]] <= found[uid - 1] for uid in found if uid)


@pytest.mark.parametrize(("queries", "epochs"), [(2, 3), (3, 2)])
def test_every_cut_is_consistent(queries: int, epochs: int) -> None:
    cuts = list(every_cut(queries, epochs, list(reversed(range(queries)))))
    assert cuts
    assert all(consistent(world, found) for world, found in cuts)


def test_upstream_first_would_not_do() -> None:
    assert not all(consistent(world, found) for world, found in every_cut(2, 3, [0, 1]))


def test_the_complete_epoch_of_upstream_would_not_do() -> None:
    assert not all(consistent(world, found) for world, found in every_cut(2, 3, [1, 0], by_decided=False))


# What is written


class Runner:
    def __init__(self, given: QueryPlan) -> None:
        self.plan = given
        self.progress: QueryProgress | None = None

    def at(self, completed: int, decided: int | None = None, generation: int = 1) -> None:
        self.progress = QueryProgress(generation, completed, completed if decided is None else decided)


class Job:
    """A job of two linked queries, with a clock that the test turns."""

    def __init__(self, *, back: bool = False, isolation: str = "read_committed", **settings: Any) -> None:
        options = {"isolation.level": isolation}
        self.up = Runner(plan("up", reads("orders,end" if back else "orders"), writes("enriched")))
        self.down = Runner(plan("down", reads("enriched", options=options), writes("end")))
        self.storage, self.clock, self.told = MemoryStorage(), 100.0, list[dict[str, Any]]()
        self.settings = Checkpoints(**settings)
        self.begin()

    def begin(self) -> None:
        events = Events()
        events.listen(lambda event: self.told.append(dict(event)))
        runners = cast("list[QueryRunner]", [self.up, self.down])
        clock: Callable[[], float] = lambda: self.clock  # noqa: E731 - it reads the attribute each time
        self.taker = GlobalCheckpoints(runners, self.storage, self.settings, events, now=clock, clock=clock)
        self.taker.began()

    def look(self, after: float = 10.0) -> None:
        self.clock += after
        self.taker.look()

    def records(self) -> list[dict[str, int]]:
        found = []
        for number in global_numbers(self.storage):
            data = self.storage.read(f"global/{number:010d}.json")
            assert data is not None
            body = unseal("global", data, "here")
            assert body["number"] == number
            found.append({uid: one["epoch"] for uid, one in body["queries"].items()})
        return found


def test_a_record_says_all_that_is_needed() -> None:
    job = Job()
    job.up.at(4, generation=3)
    job.down.at(2, generation=5)
    job.look()
    queries = {"up": {"epoch": 4, "generation": 3}, "down": {"epoch": 2, "generation": 5}}
    assert read_global(job.storage, global_numbers(job.storage)[-1]) == {
        "number": 1,
        "queries": queries,
        "time": 110.0,
        "history": "spark",
    }
    [event] = job.told
    assert (event["event"], event["number"], event["epochs"]) == ("global_checkpoint", 1, {"down": 2, "up": 4})


def test_nothing_before_every_query_has_a_complete_epoch() -> None:
    job = Job()
    job.up.at(4)
    job.look()
    job.down.at(-1)
    job.look()
    assert job.records() == []
    job.down.at(0)
    job.look()
    assert job.records() == [{"up": 4, "down": 0}]


def test_a_decided_epoch_is_waited_for() -> None:
    job = Job()
    job.up.at(4, decided=5)
    job.down.at(2)
    job.look()
    assert job.records() == []
    job.down.at(3)  # has moved on meanwhile; the cut has not
    job.up.at(5, decided=6)
    job.look(0)
    assert job.records() == [{"up": 5, "down": 2}]


def test_a_restart_drops_the_cut() -> None:
    job = Job()
    job.up.at(4, decided=5)
    job.down.at(2)
    job.look()
    job.taker.began()
    job.up.at(5, generation=2)
    job.down.at(3, generation=2)
    job.look(0)
    assert job.records() == [{"up": 5, "down": 3}]
    job.up.at(6, decided=7, generation=2)
    job.look()
    job.up.at(7, generation=3)
    job.look(0)
    assert len(job.records()) == 1, "the cut was of another generation"


def test_not_more_often_than_the_interval_and_only_when_something_changed() -> None:
    job = Job(interval="5s")
    job.up.at(1)
    job.down.at(1)
    job.look(5)
    job.up.at(2)
    job.look(4.9)
    assert len(job.records()) == 1
    job.look(0.1)
    assert len(job.records()) == 2
    job.look(5)
    assert len(job.records()) == 2


@pytest.mark.parametrize(("num_retained", "kept"), [(1, 2), (3, 3)])
def test_the_newest_are_kept(num_retained: int, kept: int) -> None:
    job = Job(num_retained=num_retained)
    for epoch in range(6):
        job.up.at(epoch)
        job.down.at(epoch)
        job.look()
    assert [one["up"] for one in job.records()] == list(range(6))[-kept:]
    assert global_numbers(job.storage)[-1] == 6


def test_numbers_go_on_after_a_restart_of_the_process() -> None:
    job = Job()
    for _ in range(2):
        job.up.at(1)
        job.down.at(1)
        job.look()
        job.begin()
    assert global_numbers(job.storage) == [1, 2]


def test_the_end_is_recorded_at_once() -> None:
    job = Job(interval="1h")
    job.up.at(3)
    job.down.at(3)
    job.taker.ended()
    assert job.records() == [{"up": 3, "down": 3}]
    job.up.at(4, decided=5)  # failed after its decision: no end to remember
    job.taker.ended()
    assert len(job.records()) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"back": True}, "down, up feed each other in a circle"),
        ({"isolation": "read_uncommitted"}, "down also reads rows that are not committed"),
        ({"mode": "at_least_once"}, "rows are visible before their epoch is decided"),
    ],
)
def test_what_cannot_be_cut_is_refused_once(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        job = Job(**settings)
        job.up.at(3)
        job.down.at(3)
        job.look()
        job.look()
    assert job.records() == []
    [warning] = caplog.messages
    assert said in warning


def theirs(generation: int) -> bytes:
    queries = {uid: {"epoch": 9, "generation": generation} for uid in ("up", "down")}
    return seal("global", {"number": 2, "queries": queries, "time": 0.0, "history": "spark"})


@pytest.mark.parametrize("record", [b"another's", theirs(generation=2)], ids=["unreadable", "of a newer run"])
def test_another_run_that_writes_them_is_left_alone(record: bytes, caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    for runner in (job.up, job.down):
        runner.at(1)
    job.look()
    job.storage.create("global/0000000002.json", record)
    job.up.at(2)
    job.look()
    job.up.at(3)
    job.look()
    assert global_numbers(job.storage) == [1, 2]
    [warning] = caplog.messages
    assert "a newer run of the job writes them" in warning


def test_a_record_of_its_own_whose_answer_was_lost_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(num_retained=5)
    for runner in (job.up, job.down):
        runner.at(1)

    def lose_the_answer(name: str, data: bytes) -> None:
        MemoryStorage.create(job.storage, name, data)
        raise LedgerError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(job.storage, "create", lose_the_answer)
        job.look()
    for epoch in (2, 3, 4):
        job.up.at(epoch)
        job.look()
    assert job.records() == [{"up": epoch, "down": 1} for epoch in (1, 3, 4)]
    assert job.taker.wanted


def test_storage_that_refuses_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    job.up.at(1)
    job.down.at(1)

    def refuse(name: str, data: bytes) -> None:
        raise LedgerError("full")

    with monkeypatch.context() as patch:
        patch.setattr(job.storage, "create", refuse)
        job.look()
        job.look()
    assert len(caplog.messages) == 1
    job.look()
    assert job.records() == [{"up": 1, "down": 1}]


def test_an_altered_record_is_not_believed() -> None:
    job = Job()
    job.up.at(1)
    job.down.at(1)
    job.look()
    job.storage._files["global/0000000001.json"] = job.storage._files["global/0000000001.json"].replace(
        b'"epoch":1', b'"epoch":2'
    )
    with pytest.raises(LedgerCorrupt):
        read_global(job.storage, global_numbers(job.storage)[-1])
