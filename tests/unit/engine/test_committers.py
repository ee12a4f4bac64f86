"""The sinks of one run as its driver uses them: which committer is asked for what, and which runs are not touched."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from penstock import logs
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.engine.committers import Committers, of_all_generations
from penstock.errors import LedgerLost, SystemUnavailable, UidChanged

DEADLINE = Deadline(60)


class Recording(Committer):
    """It remembers what it was asked, and in which thread."""

    def __init__(self, sink: Sink, scope: SinkScope) -> None:
        self.sink, self.scope, self.closed, self.released = sink, scope, False, 0
        self.asked: list[tuple[Any, ...]] = []
        self.thread: int | None = None
        self.query: Any = None
        self.fences_older_runs = sink.fences  # type: ignore[misc]

    def _ask(self, *given: Any, deadline: Deadline) -> None:
        assert deadline is DEADLINE
        if given[0] != "leftovers":
            assert logs._context.get({})["sink"] == self.scope.uid, "log lines name the sink"
        self.asked.append(given)
        self.thread = threading.get_ident()
        self.query = logs._context.get({}).get("query")
        if self.sink.together is not None:
            self.sink.together.wait(30)
        if self.sink.fails is not None:
            raise self.sink.fails

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        self._ask("seal", [one.writer for one in committables], deadline=deadline)
        return [one.with_payload(sealed=self.scope.uid) for one in committables if one.writer < 8]

    def release(self) -> None:
        self.released += 1

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        self._ask("commit", epoch, [one.writer for one in committables], deadline=deadline)
        return {one.writer: self.sink.outcome for one in committables}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        raise AssertionError

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        self._ask("abort_dangling", [one.writer for one in keep], deadline=deadline)
        return self.sink.dangling

    def close(self) -> None:
        assert not self.closed, "once is enough"
        self.closed = True


class Looking(Recording):
    """One that can also tell what it has lost, and what is open."""

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        self._ask("missing", epoch, [one.writer for one in committables], deadline=deadline)
        return {one.writer: f"remedy {self.scope.uid}" for one in committables}

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover] | None:
        self._ask("leftovers", deadline=deadline)
        open_now = self.sink.open_now
        return open_now and [one for one in open_now if one.generation <= self.scope.generation]


class Sink:
    def __init__(self, kind: type[Recording] = Recording) -> None:
        self.kind, self.made = kind, list[Recording]()
        self.fences, self.dangling, self.outcome = False, 0, Outcome.COMMITTED
        self.fails: Exception | None = None
        self.together: threading.Barrier | None = None
        self.open_now: list[Leftover] | None = []

    def open_committer(self, scope: SinkScope) -> Committer:
        self.made.append(self.kind(self, scope))
        return self.made[-1]

    @property
    def asked(self) -> list[tuple[Any, ...]]:
        return [call for one in self.made for call in one.asked]


class World:
    def __init__(self, **sinks: Sink) -> None:
        self.sinks, given = sinks, dict[str, Any](sinks)
        self.committers = Committers("query", given)
        self.open()

    def open(self, generation: int = 3) -> None:
        self.committers.open({uid: SinkScope("job", uid, generation) for uid in self.sinks})


def writer(sink: str, number: int, rows: int = 1) -> Committable:
    return Committable(sink, number, rows, 0, {"name": f"{sink}-{number}"})


# Opening


def test_a_new_generation_closes_the_committers_of_the_last() -> None:
    world = World(a=Sink(), b=Sink())
    world.open(4)
    for sink in world.sinks.values():
        assert [(one.scope.generation, one.closed) for one in sink.made] == [(3, True), (4, False)]
    assert world.committers["a"] is world.sinks["a"].made[1]
    world.committers.close()
    world.committers.close()
    assert all(one.closed for sink in world.sinks.values() for one in sink.made)
    with pytest.raises(RuntimeError, match="after shutdown"):
        world.committers.seal([writer("a", 0), writer("b", 0)], DEADLINE)


# Before and after the decision


def test_each_sink_seals_its_own_and_the_order_stays() -> None:
    world = World(a=Sink(), b=Sink())
    given = [writer("b", 1), writer("a", 0), writer("b", 0), writer("a", 9)]
    sealed = world.committers.seal(given, DEADLINE)
    assert [one.id for one in sealed] == [one.id for one in given]
    assert [one.payload.get("sealed") for one in sealed] == ["b", "a", "b", None], "what a sink leaves out is as it was"
    assert world.sinks["b"].asked == [("seal", [1, 0])]
    assert [one.released for sink in world.sinks.values() for one in sink.made] == [0, 0]


def test_what_other_committers_commit_stays_locked_by_none() -> None:
    world = World(a=Sink(), b=Sink(), without=Sink())
    sealed = world.committers.seal_for_others([writer("a", 0), writer("b", 1)], DEADLINE)
    assert [one.payload["sealed"] for one in sealed] == ["a", "b"]
    assert [one.released for sink in world.sinks.values() for one in sink.made] == [1, 1, 0]


def test_an_epoch_is_committed_in_all_its_sinks_side_by_side() -> None:
    world = World(a=Sink(), b=Sink())
    world.sinks["a"].together = world.sinks["b"].together = threading.Barrier(2)
    world.sinks["b"].outcome = Outcome.UNKNOWN
    with logs.bound(query="shop"):
        outcomes = world.committers.commit(7, [writer("a", 0), writer("b", 1), writer("a", 2)], DEADLINE)
    assert [sink.made[0].query for sink in world.sinks.values()] == ["shop"] * 2, "as its log lines say"
    assert outcomes == {("a", 0): Outcome.COMMITTED, ("a", 2): Outcome.COMMITTED, ("b", 1): Outcome.UNKNOWN}
    assert world.sinks["a"].asked == [("commit", 7, [0, 2])]
    assert world.sinks["b"].asked == [("commit", 7, [1])]


def test_one_sink_is_asked_without_another_thread() -> None:
    world = World(a=Sink(), b=Sink())
    assert world.committers.commit(7, [writer("a", 0)], DEADLINE) == {("a", 0): Outcome.COMMITTED}
    assert world.sinks["a"].made[0].thread == threading.get_ident()
    assert world.committers.commit(7, [], DEADLINE) == {}


def test_the_error_of_one_sink_is_raised_after_the_others_have_ended() -> None:
    world = World(a=Sink(), b=Sink())
    world.sinks["a"].fails = SystemUnavailable("It is away.")
    with pytest.raises(SystemUnavailable):
        world.committers.commit(7, [writer("a", 0), writer("b", 1)], DEADLINE)
    assert world.sinks["b"].asked == [("commit", 7, [1])]


def test_nothing_is_committed_where_the_program_lacks_one_of_the_sinks() -> None:
    world = World(a=Sink())
    with pytest.raises(UidChanged, match=r"knows the sinks \['gone'\] \(epoch 7 is decided for them\)"):
        world.committers.commit(7, [writer("a", 0), writer("gone", 0)], DEADLINE)
    assert world.sinks["a"].asked == []


def test_closing_does_not_wait_for_a_sink_that_does_not_answer() -> None:
    world, answers = World(a=Sink(), b=Sink()), threading.Event()
    asked = threading.Barrier(3)

    class Silent(Recording):
        def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
            asked.wait(30)
            answers.wait()
            return committables

    for sink in world.sinks.values():
        sink.kind = Silent
    world.open(4)
    sealing = threading.Thread(target=world.committers.seal, args=([writer("a", 0), writer("b", 1)], DEADLINE))
    sealing.start()
    asked.wait(30)
    world.committers.close()
    assert sealing.is_alive()
    answers.set()
    sealing.join()


# What was committed, and what is open


def test_only_sinks_that_can_tell_are_asked_what_they_have_lost() -> None:
    world = World(a=Sink(), b=Sink(Looking), c=Sink(Looking))
    assert world.committers.looking_back() == {"b", "c"}
    lost = world.committers.missing(6, [writer("b", 1), writer("c", 2)], DEADLINE)
    assert lost == {("b", 1): "remedy b", ("c", 2): "remedy c"}
    assert world.sinks["b"].asked == [("missing", 6, [1])]


def test_sinks_that_fence_older_runs_are_known() -> None:
    world = World(a=Sink(), b=Sink())
    world.sinks["b"].fences = True
    world.open(4)
    assert world.committers.fencing() == ["b"]


def test_a_sweep_keeps_each_sinks_own_and_counts_what_it_ended() -> None:
    world = World(a=Sink(), b=Sink(), c=Sink())
    for number, sink in enumerate(world.sinks.values(), 1):
        sink.dangling = number
    keep = [writer("a", 0), writer("a", 1, rows=0), writer("c", 2), writer("b", 3)]
    assert world.committers.abort_dangling(keep, DEADLINE, without=["b"]) == 4
    assert world.sinks["a"].asked == [("abort_dangling", [0])]
    assert world.sinks["b"].asked == []
    assert world.sinks["c"].asked == [("abort_dangling", [2])]
    assert world.committers.abort_dangling(keep, DEADLINE) == 6


# Runs that the ledger does not know


def left_open(*generations: int) -> list[Leftover]:
    return [Leftover(f"transaction-{number}", generation) for number, generation in enumerate(generations)]


def test_what_is_open_is_seen_whichever_run_opened_it() -> None:
    sink = Sink(Looking)
    sink.open_now = left_open(1, 3, 1 << 61)
    given: Any = sink
    assert of_all_generations(given, SinkScope("job", "a", 3), DEADLINE) == sink.open_now
    [committer] = sink.made
    assert committer.scope == SinkScope("job", "a", 1 << 62)
    assert committer.closed


def test_transactions_of_a_run_that_the_ledger_never_knew_stop_the_start() -> None:
    world = World(a=Sink(Looking))
    world.sinks["a"].open_now = left_open(9, 3, 12, 9, 9)
    with pytest.raises(LedgerLost) as refused:
        world.committers.refuse_unknown_runs(lambda: 3, DEADLINE)
    assert refused.value.happened.startswith(
        "Sink 'a' of job 'job' has 4 open transactions of generation 9, 12 and the newest run in the ledger is 3:"
        " transaction-0, transaction-2, transaction-3, …. The"
    )
    assert all(call[0] == "leftovers" for call in world.sinks["a"].asked)
    world.sinks["a"].open_now = left_open(9, 12, 9)
    with pytest.raises(LedgerLost, match=r"3: transaction-0, transaction-1, transaction-2\. The"):
        world.committers.refuse_unknown_runs(lambda: 3, DEADLINE)


@pytest.mark.parametrize(("generations", "newest"), [((), 3), ((1, 3), 3), ((4, 5), 5), ((3, 4), 9)])
def test_transactions_of_runs_in_the_ledger_are_left_to_them(generations: tuple[int, ...], newest: int) -> None:
    """The ledger is asked after the look: a run that has registered since has taken over."""
    world = World(a=Sink(Looking))
    world.sinks["a"].open_now = left_open(*generations)
    asked: list[bool] = []

    def known() -> int:
        asked.append(bool(world.sinks["a"].asked))
        return newest

    world.committers.refuse_unknown_runs(known, DEADLINE)
    assert asked == ([True] if max(generations, default=0) > 3 else [])


def test_unknown_runs_are_looked_for_once_in_a_generation() -> None:
    world = World(a=Sink(Looking), mute=Sink(Recording))
    for _ in range(2):
        world.committers.refuse_unknown_runs(lambda: 3, DEADLINE)
    assert len(world.sinks["a"].asked) == 1
    assert len(world.sinks["mute"].made) == 1, "one that cannot say is not asked"
    world.open(4)
    world.committers.refuse_unknown_runs(lambda: 4, DEADLINE)
    assert len(world.sinks["a"].asked) == 2


def test_a_sink_that_does_not_know_what_is_open_refuses_nothing() -> None:
    world = World(a=Sink(Looking))
    world.sinks["a"].open_now = None
    world.committers.refuse_unknown_runs(lambda: 3, DEADLINE)
