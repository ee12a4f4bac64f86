"""The drainer in detail: what it tells the sink, what it tells people, what it refuses, and how it ends."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import CheckpointState, Committable, Decision, DecisionId, Outcome, honoured
from penstock.checkpoint.inflight import Backlog
from penstock.checkpoint.ledger import Ledger
from penstock.contracts.sink import Committer, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.engine import drainer as module
from penstock.engine.drainer import WriteTurn
from penstock.engine.inflight import InFlight
from penstock.engine.task import Route, committable, write_rows
from penstock.errors import CheckpointBehind, LedgerCorrupt, LedgerError, SchemaMismatch, Superseded, SystemUnavailable
from penstock.failpoints import InjectedFault, hooked
from penstock.logs import JsonFormatter
from penstock.storage.local import LocalStorage
from tests.support.inflight_world import World, batch, rows
from tests.support.memory_sink import MemorySink

OWN, DRAIN = SinkScope("job", "out", 1), SinkScope("job", "out~drain", 1)


class Watched(MemorySink):
    """Remembers scopes and committers; `refuse` and `silent` are what a test wants of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[WriterScope] = []
        self.committers: list[WatchedCommitter] = []
        self.commits: list[tuple[SinkScope, int]] = []
        self.silent: set[int] = set()
        self.refuse: Exception | None = None
        self.given_up: list[Committable] = []
        self.asked: list[tuple[list[Committable], float]] = []  # for evidence, and for how long
        self.aborted_writers = 0

    def open_writer(self, scope: WriterScope) -> Writer:
        self.writers.append(scope)
        if self.refuse is not None:
            raise self.refuse
        return WatchedWriter(self, super().open_writer(scope))

    def open_committer(self, scope: SinkScope) -> Committer:
        self.committers.append(WatchedCommitter(self, super().open_committer(scope), scope))
        return self.committers[-1]


class WatchedWriter(Writer):
    def __init__(self, sink: Watched, real: Writer) -> None:
        self._sink, self._real = sink, real

    def write(self, batch: pa.RecordBatch) -> None:
        self._real.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        return self._real.pre_commit()

    def abort(self) -> None:
        self._sink.aborted_writers += 1
        self._real.abort()


class WatchedCommitter(Committer):
    def __init__(self, sink: Watched, real: Committer, scope: SinkScope) -> None:
        self._sink, self._real, self.scope, self.closed = sink, real, scope, False

    def hints(self) -> Mapping[str, Any]:
        return {"from": self.scope.uid}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        assert isinstance(deadline, Deadline)
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        assert isinstance(deadline, Deadline)
        self._sink.commits.append((self.scope, epoch))
        answers = self._real.commit(epoch, committables, deadline)
        return {writer: outcome for writer, outcome in answers.items() if writer not in self._sink.silent}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        assert isinstance(deadline, Deadline)
        self._sink.given_up += committables
        self._real.abort(committables, deadline)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        assert isinstance(deadline, Deadline)
        return self._real.abort_dangling(keep, deadline)

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        self._sink.asked.append((list(committables), deadline.remaining()))
        return {one.writer: f"of writer {one.writer}" for one in committables if one.writer != 2}

    def close(self) -> None:
        self.closed = True


class Story(World):
    """A world whose sink is watched, and epochs of several writers and batches."""

    sink: Watched

    def __init__(self, folder: Path, **checkpoints: Any) -> None:
        super().__init__(folder, **checkpoints)
        self.sink = Watched()

    def write(
        self, driver: InFlight, epoch: int, *writers: Sequence[pa.RecordBatch], route: Route = Route.LOG, **change: Any
    ) -> list[Committable]:
        """What each writer wrote; `change` is what the decision says of them instead."""
        writing = replace(driver.writing("out", 0.0), route=route, seconds=60.0)
        own = SinkScope("job", "out", self.generation)
        made = [
            committable("out", write_rows(self.sink, WriterScope(own, epoch, 1, n, 7), iter(batches), writing))
            for n, batches in enumerate(writers)
        ]
        made = [replace(one, **{key: getattr(one, key) + by for key, by in change.items()}) for one in made]
        driver.commit(epoch, made, lambda *_: {one.id: Outcome.UNKNOWN for one in made})
        self.sink.writers.clear()
        return made

    def told(self, event: str) -> list[dict[str, Any]]:
        return [dict(one) for one in self.events if one["event"] == event]

    def until(self, driver: InFlight, reached: Callable[[], Any]) -> None:
        while not reached():
            driver.wait_empty(lambda: bool(reached()))


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.005)
    monkeypatch.setattr("penstock.engine.inflight._LOOK_EVERY", 0.005)
    made = Story(tmp_path)
    yield made
    made.close()


# What it tells the sink


def test_writers_of_the_log_have_a_name_of_their_own(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)])
    story.drained(driver)
    assert sorted(story.sink.writers, key=lambda scope: scope.partition) == [
        WriterScope(DRAIN, 5, 1, partition, 0, {"from": "out~drain"}) for partition in (0, 1)
    ]
    assert story.sink.commits == [(DRAIN, 5)]


def test_what_the_tasks_had_prepared_is_committed_under_their_name(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)], route=Route.TEE)
    story.drained(driver)
    assert story.sink.writers == []
    assert story.sink.commits == [(OWN, 5)]
    assert driver.with_hints("out", {}) == {"from": "out"}


def test_what_tasks_gave_up_is_aborted_before_rows_are_written(story: Story) -> None:
    driver = story.driver()
    stray = story.sink.open_writer(WriterScope(OWN, 4, 1, 0, 0))
    stray.write(batch(9))
    stray.pre_commit()
    story.write(driver, 5, [batch(1)])
    assert story.drained(driver) == rows(1)
    assert story.sink.prepared == {}


def test_each_try_is_another_attempt(story: Story) -> None:
    driver, failures = story.driver(), iter(range(1))

    def fail() -> None:
        if next(failures, None) is not None:
            raise InjectedFault("Once more.")

    story.write(driver, 5, [batch(1)])
    with hooked("drain.prepared", fail):
        assert story.drained(driver) == rows(1)
    assert [scope.attempt for scope in story.sink.writers] == [1, 2]


# What it tells people


def test_each_delivery_is_told(story: Story) -> None:
    driver = story.driver()
    first = story.write(driver, 5, [batch(1, 2), batch(3)], [batch(4)])
    second = story.write(driver, 6, [batch(5)])
    story.drained(driver)
    told = story.told("drained")
    assert [(one["epoch"], one["rows"], one["writers"], one["rewritten"], one["backlog"]) for one in told] == [
        (5, 4, 2, 2, 1),
        (6, 1, 1, 1, 0),
    ]
    sizes = [sum(one.payload["log"]["bytes"] for one in ones) for ones in (first, second)]
    assert [one["bytes"] for one in told] == sizes
    assert {(one["sink"], one["query"], one["generation"]) for one in told} == {("out", "query", 1)}
    assert all(0 <= one["seconds"] < 600 and one["seconds"] == round(one["seconds"], 4) for one in told)
    assert any(one["seconds"] != round(one["seconds"]) for one in told)


def test_what_it_logs_says_which_sink_it_is_about(story: Story) -> None:
    driver, lines = story.driver(), list[str]()
    story.write(driver, 5, [batch(1)])
    record = logging.makeLogRecord({"msg": "delivering"})
    with hooked("drain.decided", lambda: lines.append(JsonFormatter().format(record))):
        story.drained(driver)
    [line] = map(json.loads, lines)
    assert (line["job"], line["query"], line["sink"]) == ("job", "query", "out")


def test_a_recovery_that_finishes_an_epoch_tells_it_and_writes_nothing(story: Story) -> None:
    """Decided, and the driver died: the next one commits what the first had prepared."""

    class Death(BaseException):
        """Not an error that anybody handles."""

    def die() -> None:
        raise Death

    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)])
    story.write(driver, 6, [batch(3)])
    with hooked("drain.decided", die):
        driver.start()
        driver.wait_empty(lambda: False)
    driver.close()
    written = len(story.sink.writers)
    assert sorted(story.drained(story.driver())) == rows(1, 2, 3)
    assert [scope.epoch for scope in story.sink.writers[written:]] == [6]
    told = story.told("drained")
    assert [(one["epoch"], one["rewritten"]) for one in told] == [(5, 0), (6, 1)]
    assert told[0]["seconds"] == 0.0


def test_a_sink_that_takes_nothing_is_told_of_once(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.sink.refuse = SystemUnavailable("The target is away.")
    driver.start()
    story.until(driver, lambda: len(story.sink.writers) > 4)
    [waiting] = story.told("drain_waiting")
    assert (waiting["sink"], waiting["query"]) == ("out", "query")
    assert "The target is away." in waiting["error"]
    story.sink.refuse = None
    assert story.drained(driver) == rows(1)
    story.write(driver, 6, [batch(2)])
    story.sink.refuse = SystemUnavailable("Away again.")
    story.until(driver, lambda: len(story.told("drain_waiting")) > 1)
    story.sink.refuse = None
    assert story.drained(driver) == rows(1, 2)


def test_a_sink_that_answers_again_is_not_waited_for_though_nothing_is_delivered(story: Story) -> None:
    driver = story.driver()
    story.sink.away = True
    driver.start()
    while not story.told("drain_waiting"):
        driver._backlogs["out"].wait(0.001)
    assert driver.behind() == ["out"]
    story.sink.away = False
    while driver.behind():
        driver._backlogs["out"].wait(0.001)


def test_pauses_grow_up_to_a_limit_and_begin_anew_after_a_delivery(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.003)
    pauses: list[float] = []
    real = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0.01:
            pauses.append(timeout)
        return real(event, timeout)

    driver = story.driver()
    monkeypatch.setattr(threading.Event, "wait", wait)
    for epoch in (5, 6):
        story.sink.refuse = SystemUnavailable("Away.")
        story.write(driver, epoch, [batch(epoch)])
        driver.start()
        before = len(pauses)
        story.until(driver, lambda before=before: len(pauses) >= before + 4)  # type: ignore[misc]
        assert pauses[before : before + 4] == [0.001, 0.002, 0.003, 0.003]
        story.sink.refuse = None
        story.drained(driver)


# What it refuses


def test_what_was_prepared_and_cannot_be_proven_is_asked_for_again(story: Story) -> None:
    """Nothing is guessed: it is neither delivered nor written again."""
    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)], route=Route.TEE)
    story.sink.silent = {0, 1}
    driver.start()
    story.until(driver, lambda: story.told("drain_waiting"))
    assert story.sink.writers == []
    assert "could not be proven" in story.told("drain_waiting")[0]["error"]
    story.sink.silent = set()
    assert sorted(story.drained(driver)) == rows(1, 2)


def test_a_writer_that_nobody_answers_for_is_not_taken_for_delivered(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)], route=Route.TEE)
    story.sink.silent = {1}
    driver.start()
    story.until(driver, lambda: story.told("drain_waiting"))
    assert driver.pending == 1
    story.sink.silent = set()
    assert sorted(story.drained(driver)) == rows(1, 2)


def test_only_what_the_sink_has_lost_is_written_again(story: Story) -> None:
    driver = story.driver()
    ones = story.write(driver, 5, [batch(1)], [batch(2)], route=Route.TEE)
    story.sink.prepared.pop(ones[1].payload["prepared"]["name"])
    assert sorted(story.drained(driver)) == rows(1, 2)
    assert [scope.partition for scope in story.sink.writers] == [1]


@pytest.mark.parametrize("change", [{"rows": 1}, {"rows": -1}, {"checksum": 1}, {"checksum": -1}])
def test_a_log_that_is_not_what_was_decided_is_not_delivered(story: Story, change: dict[str, Any]) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1, 2), batch(3)], **change)
    story.write(driver, 6, [batch(4)])
    driver.start()
    driver.wait_empty(lambda: False)
    assert isinstance(driver.failure, LedgerCorrupt)
    assert story.sink.visible == []
    assert story.sink.aborted_writers == 1
    assert story.sink.prepared == {}
    assert driver.pending == 2, "and no later epoch is delivered either"


def test_an_error_that_no_waiting_cures_ends_it(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.sink.refuse = SchemaMismatch("No such column.")
    driver.start()
    driver.wait_empty(lambda: False)
    assert isinstance(driver.failure, SchemaMismatch)
    driver._drainers["out"]._thread.join()
    assert len(story.sink.writers) == 1


# Repair


def test_a_decided_epoch_that_lost_a_writer_is_repaired(story: Story) -> None:
    """The lost one is written again from the log, proven equal, and the other committed as it was."""

    class Death(BaseException):
        """Not an error that anybody handles."""

    def die() -> None:
        raise Death

    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)])
    with hooked("drain.decided", die):
        driver.start()
        driver.wait_empty(lambda: False)
    driver.close()
    story.sink.prepared.pop(next(name for name, (_, kept) in story.sink.prepared.items() if kept == rows(2)))
    assert sorted(story.drained(story.driver())) == rows(1, 2)
    assert story.sink.prepared == {}


@pytest.mark.parametrize("lost", [1, 2])
def test_what_this_very_run_has_decided_and_lost_it_decides_once_more(story: Story, lost: int) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)], [batch(2)])

    def lose() -> None:
        for name in list(story.sink.prepared)[:lost]:
            del story.sink.prepared[name]
        lost_once.set()

    lost_once = threading.Event()
    with hooked("drain.decided", lambda: None if lost_once.is_set() else lose()):
        assert sorted(story.drained(driver)) == rows(1, 2)
    assert driver.failure is None
    ledger = Ledger(LocalStorage(story.folder / "id" / "out" / "drain"))
    numbers = [decision.id for decision in ledger.decisions(5, "id")]
    assert [module.generation_of(number) for number in numbers] == [1, 1]
    assert numbers[0] != numbers[1]


# One order of runs


def refused_once(monkeypatch: pytest.MonkeyPatch, method: str, *, done: bool) -> None:
    """The ledger's storage fails once, before or after it has done what it was asked for."""
    real, times = getattr(Ledger, method), iter([True])

    def fail(ledger: Ledger, *given: Any, **more: Any) -> Any:
        first = next(times, False)
        if not first or done:
            real(ledger, *given, **more)
        if first:
            raise LedgerError("The answer was lost.")

    monkeypatch.setattr(Ledger, method, fail)


@pytest.mark.parametrize("done", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("method", ["claim", "decide"])
def test_a_storage_whose_answer_is_lost_costs_nothing(
    story: Story, monkeypatch: pytest.MonkeyPatch, method: str, done: bool
) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    refused_once(monkeypatch, method, done=done)
    assert story.drained(driver) == rows(1)
    assert driver.failure is None
    driver.close()
    assert story.drained(story.driver()) == rows(1)


def test_it_registers_nothing_and_goes_by_the_runs_of_the_query(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.drained(driver)
    assert not (story.folder / "id" / "out" / "drain" / "generations").exists()
    assert {one["generation"] for one in story.told("drained")} == {1}


@pytest.mark.parametrize("route", [Route.LOG, Route.TEE])
def test_a_superseded_drainer_touches_nothing(story: Story, route: Route) -> None:
    old = story.driver()
    story.write(old, 5, [batch(1)])
    assert story.drained(old) == rows(1)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert go_on.wait(60)

    with hooked("drain.opened", hold):
        story.write(old, 6, [batch(2)], route=route)
        story.write(old, 7, [batch(3)], route=Route.TEE)
        assert held.wait(60)
        story.driver()
        before = dict(story.sink.prepared), list(story.sink.commits)
        go_on.set()
        story.until(old, lambda: old.failure)
    assert isinstance(old.failure, Superseded)
    assert (story.sink.prepared, story.sink.commits) == before
    assert story.sink.given_up == []


def test_a_run_that_is_overtaken_before_its_drainer_begins_claims_and_leaves(story: Story) -> None:
    old = story.driver()
    story.write(old, 5, [batch(1)])
    story.sink.open_writer(WriterScope(DRAIN, 4, 1, 0, 0)).pre_commit()
    before = dict(story.sink.prepared)
    new = story.driver()
    old.start()
    story.until(old, lambda: old.failure)
    assert isinstance(old.failure, Superseded)
    assert (story.sink.visible, story.sink.commits) == ([], [])
    assert story.sink.prepared == before != {}, "nothing was swept"
    assert story.drained(new) == rows(1)
    assert story.sink.prepared == {}


def test_what_a_run_before_has_delivered_since_is_read_from_the_storage(story: Story) -> None:
    old = story.driver()
    story.write(old, 5, [batch(1)])
    story.write(old, 6, [batch(2)])
    new = InFlight(**story.arguments())
    new.open("id", 2)
    assert new.pending == 2
    assert story.drained(old) == rows(1, 2)
    story.registered.register({})
    story.made.append(new)
    assert story.drained(new) == rows(1, 2)
    assert new.failure is None


def test_a_log_that_is_gone_because_its_epoch_was_delivered_meanwhile_is_no_damage(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.write(driver, 6, [batch(2)])

    def deliver_elsewhere() -> None:
        other = Backlog(LocalStorage(story.folder), "id/out", str(story.folder / "id/out/logs"))
        entry = other.first()
        if entry is not None and entry.epoch == 5:
            other.mark(5)
            other.forget(entry)

    with hooked("drain.opened", deliver_elsewhere):
        assert story.drained(driver) == rows(2)
    assert driver.failure is None
    assert [one["epoch"] for one in story.told("drained")] == [6], "it tells only of its own"


def test_a_later_decision_says_that_all_before_it_is_delivered(story: Story) -> None:
    """Their mark was lost with a copy of the storage; the decision names what is to be committed next."""
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    one = story.write(driver, 6, [batch(2)])
    writer = story.sink.open_writer(WriterScope(DRAIN, 6, 1, 0, 0))
    writer.write(batch(2))
    prepared = replace(one[0], payload=writer.pre_commit())
    ledger = Ledger(LocalStorage(story.folder / "id" / "out" / "drain"))
    ledger.decide(Decision(DecisionId(6, 0), (prepared,)), query="id", barrier=None)
    assert story.drained(driver) == rows(2)
    assert [path.name for path in story.folder.glob("id/out/drained/*")] == ["0000000006.json"]


def test_what_is_marked_by_a_later_decision_leaves_its_epoch_first_or_nothing(story: Story) -> None:
    driver = story.driver()
    for epoch in (5, 6, 9):
        story.write(driver, epoch, [batch(epoch)])
    drainer = driver.drainers()["out"]
    assert drainer._restore_log(6)
    assert [entry.epoch for entry in drainer._backlog.entries()] == [6, 9]
    assert not drainer._restore_log(8), "another epoch comes first"
    assert [entry.epoch for entry in drainer._backlog.entries()] == [9]
    assert not drainer._restore_log(10)
    assert driver.pending == 0


def test_a_decision_for_an_epoch_that_is_in_no_log_is_refused_and_names_the_place(story: Story) -> None:
    driver = story.driver()
    one = story.write(driver, 5, [batch(1)])
    ledger = Ledger(LocalStorage(story.folder / "id" / "out" / "drain"))
    ledger.decide(Decision(DecisionId(7, 0), tuple(one)), query="id", barrier=None)
    driver.start()
    story.until(driver, lambda: driver.failure)
    assert isinstance(driver.failure, CheckpointBehind)
    assert f"{story.folder}/id/out has lost it" in str(driver.failure)
    assert story.sink.commits == []


# What cannot be proven, for a person to look at


def test_what_cannot_be_proven_is_told_with_what_is_seen_of_it(story: Story) -> None:
    driver = story.driver()
    made = story.write(driver, 5, [batch(1)], [batch(2)], [batch(3)], route=Route.TEE)
    story.sink.silent = {1, 2}
    drainer = driver.drainers()["out"]
    told = drainer.unproven(30.0)
    assert [(epoch, one.id, seen) for epoch, one, seen in told] == [
        (5, made[1].id, "of writer 1"),
        (5, made[2].id, ""),
    ]
    [(asked, seconds)] = story.sink.asked
    assert [one.id for one in asked] == [made[1].id, made[2].id]
    assert 0 < seconds <= 30
    story.sink.silent = set()
    assert drainer.unproven(30.0) == []
    assert len(story.sink.asked) == 1, "where all is proven there is nothing to look at"


# Sweeping between two epochs


class Times:
    """When to sweep, as a test wants it."""

    def __init__(self, *, due: bool = True, soon: bool) -> None:
        self.due, self.soon, self.done = due, soon, 0

    def swept(self) -> None:
        self.done += 1


def sweeping(
    story: Story, monkeypatch: pytest.MonkeyPatch, times: Times, error: Exception | None = None
) -> tuple[module.Drainer, list[Any]]:
    drainer, swept = story.driver()._drainer("out"), list[Any]()

    def abort_dangling(keep: Sequence[Committable], **how: bool) -> None:
        swept.append((keep, how, times.done))
        if error is not None:
            raise error

    monkeypatch.setattr(drainer, "_times", times)
    monkeypatch.setattr(drainer._run, "abort_dangling", abort_dangling)
    return drainer, swept


@pytest.mark.parametrize("soon", [True, False])
def test_what_older_runs_open_is_swept_again_and_what_this_one_may_have_left_at_first(
    story: Story, monkeypatch: pytest.MonkeyPatch, soon: bool
) -> None:
    drainer, swept = sweeping(story, monkeypatch, Times(soon=soon))
    drainer._sweep_again()
    assert swept == [((), {"again": True, "older": not soon}, 1)]


def test_a_sweep_that_is_not_due_is_not_made(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    drainer, swept = sweeping(story, monkeypatch, Times(due=False, soon=True))
    drainer._sweep_again()
    assert swept == []


def test_a_sweep_that_may_succeed_later_holds_up_no_delivery(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(soon=True)
    drainer, swept = sweeping(story, monkeypatch, times, SystemUnavailable("Away."))
    drainer._sweep_again()
    assert (len(swept), times.done) == (1, 1)


def test_a_sweep_that_cannot_succeed_ends_it(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    drainer, _ = sweeping(story, monkeypatch, Times(soon=True), Superseded("A newer run has registered."))
    with pytest.raises(Superseded):
        drainer._sweep_again()


# How it ends


def test_a_drainer_that_has_nothing_to_do_is_woken_to_end(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY", 600.0)
    driver = story.driver()
    driver.start()
    while not driver._backlogs["out"]._changed._waiters:  # type: ignore[attr-defined]
        driver._backlogs["out"].wait(0.0)
    driver.close()
    assert all(one.closed for one in story.sink.committers), "its thread has ended"


def test_it_sweeps_now_and_then_though_nothing_waits(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, often = iter(range(3)), threading.Event()
    monkeypatch.setattr(module.Drainer, "_sweep_again", lambda _: often.set() if next(looks, None) is None else None)
    driver = story.driver()
    driver.start()
    often.wait()
    driver.close()


def test_its_deadlines_are_those_of_the_job(story: Story) -> None:
    driver = story.driver()
    driver.start()
    assert driver._drainers["out"]._run.limits is story.checkpoints


def test_it_runs_in_a_thread_that_keeps_no_process_alive(story: Story) -> None:
    driver = story.driver()
    driver.start()
    thread = driver._drainers["out"]._thread
    assert thread.daemon
    driver.close()
    assert not thread.is_alive(), "it has ended when `close` returns"


def test_every_committer_is_closed_in_the_end(story: Story) -> None:
    driver, failures = story.driver(), iter(range(1))

    def fail() -> None:
        if next(failures, None) is not None:
            raise InjectedFault("Once more.")

    story.write(driver, 5, [batch(1)], route=Route.TEE)
    story.write(driver, 6, [batch(2)])
    with hooked("drain.prepared", fail):
        story.drained(driver)
    driver.close()
    assert {one.scope.uid for one in story.sink.committers} == {"out", "out~drain"}
    assert all(one.closed for one in story.sink.committers)


def test_a_sink_that_never_answers_does_not_hold_up_the_end(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is left behind, with its committers: when it wakes up, it is a zombie, and fenced. It closes them, and
    with them what it has connected to since: the process may go on for days."""
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.01)
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.sink.open.clear()
    driver.start()
    while not story.sink.writers:
        driver.wait_empty(lambda: bool(story.sink.writers))
    thread = driver._drainers["out"]._thread
    closing = threading.Thread(target=driver.close, daemon=True)
    closing.start()
    closing.join(10)
    ended = not closing.is_alive()
    closed = [one.closed for one in story.sink.committers]
    story.sink.open.set()
    thread.join(10)
    assert ended
    assert not any(closed)
    assert all(one.closed for one in story.sink.committers)


def test_old_decisions_are_forgotten(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 49, [batch(1)])
    story.drained(driver)
    story.write(driver, 150, [batch(2)])
    story.drained(driver)
    driver.close()
    ledger = Ledger(LocalStorage(story.folder / "id" / "out" / "drain"))
    assert [len(ledger.decisions(epoch, "id")) for epoch in (49, 150)] == [0, 1]


def test_while_nothing_waits_it_waits_itself(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real = Backlog.wait

    def wait(backlog: Backlog, seconds: float) -> None:
        waits.append(seconds)
        real(backlog, seconds)

    monkeypatch.setattr(Backlog, "wait", wait)
    driver = story.driver()
    driver.start()
    while not waits:
        pass
    story.write(driver, 5, [batch(1)])
    assert story.drained(driver) == rows(1), "and wakes up again"


# Whose turn it is


def test_what_is_delivered_is_marked_and_never_delivered_again(story: Story) -> None:
    driver = story.driver()
    ones = story.write(driver, 5, [batch(1)])
    story.drained(driver)
    driver.close()
    assert [path.name for path in story.folder.glob("id/out/drained/*")] == ["0000000005.json"]
    after = story.driver()
    assert after.commit(5, ones, lambda *_: {}), "a recovery that repeats the commit arrives late"
    assert story.drained(after) == rows(1)


def test_hints_are_those_of_the_tasks_own_committer(story: Story) -> None:
    driver = story.driver()
    driver.start()
    assert driver.with_hints("out", {"mine": 1}) == {"mine": 1}
    story.write(driver, 5, [batch(1)])
    story.drained(driver)
    assert driver.with_hints("out", {}) == {"from": "out"}


def test_later_epochs_give_way_before_rows_of_an_earlier_one_are_written(story: Story) -> None:
    """What they have prepared could become visible before it."""
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    [later] = story.write(driver, 6, [batch(2)], route=Route.TEE)
    assert story.drained(driver) == rows(1, 2)
    assert [one.payload for one in story.sink.given_up] == [later.payload["prepared"]]
    assert [scope.epoch for scope in story.sink.writers] == [5, 6]


def test_after_an_error_it_recovers_before_it_goes_on(story: Story) -> None:
    """The epoch was decided: it is committed as it was prepared, and nothing is written a second time."""
    driver, failures = story.driver(), iter(range(1))

    def fail() -> None:
        if next(failures, None) is not None:
            raise InjectedFault("Once more.")

    story.write(driver, 5, [batch(1)])
    with hooked("drain.decided", fail):
        assert story.drained(driver) == rows(1)
    assert len(story.sink.writers) == 1


def test_a_drainer_that_was_superseded_while_it_waited_does_not_come_back(story: Story) -> None:
    old = story.driver()
    story.write(old, 5, [batch(1)])
    story.write(old, 6, [batch(2)])
    story.sink.refuse = SystemUnavailable("Away.")
    old.start()
    story.until(old, lambda: len(story.sink.writers) > 1)
    new = story.driver()
    story.until(old, lambda: old.failure)
    assert isinstance(old.failure, Superseded)
    story.sink.refuse = None
    assert story.drained(new) == rows(1, 2)


def test_while_it_is_the_turn_of_tasks_it_waits_and_its_end_is_not_held_up(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, wait = threading.Event(), WriteTurn._wait

    def note(turn: WriteTurn) -> None:
        waiting.set()
        wait(turn)

    monkeypatch.setattr(WriteTurn, "_wait", note)
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    assert driver._turns["out"].give_to_tasks()
    driver.start()
    assert waiting.wait(10)
    closing = threading.Thread(target=driver.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert all(one.closed for one in story.sink.committers), "its thread has ended"
    assert story.sink.writers == []
    assert driver.pending == 1


# What a start finds


def test_a_start_claims_the_epoch_that_comes_next(story: Story) -> None:
    driver = story.driver()
    story.write(driver, 5, [batch(1)])
    story.drained(driver)
    driver.close()
    after = story.driver()
    after.start()
    after.close()
    ledger = Ledger(LocalStorage(story.folder / "id" / "out" / "drain"))
    claims = [(module.generation_of(DecisionId(0, claim.generation)), claim.epoch) for claim in ledger.claims("id")]
    assert claims == [(1, 5), (2, 6)]


def test_a_start_looks_at_what_is_durable_and_at_earlier_claims(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    settled, found = list[Any](), list[Any]()

    def look(one: CheckpointState) -> Any:
        found.append((len(settled), one))
        return honoured(one)

    monkeypatch.setattr(Ledger, "settle", lambda ledger: settled.append(1))
    monkeypatch.setattr("penstock.engine.protocol.honoured", look)
    for number in range(2):
        driver = story.driver()
        if number:
            story.write(driver, 5, [batch(1)])
        driver.start()
        story.until(driver, lambda: len(found) == story.generation)
        driver.close()
    assert [before for before, _ in found] == [1, 2]
    assert [one.barrier for _, one in found] == [False, True], "whether an epoch waits"
    assert [module.generation_of(DecisionId(0, claim.generation)) for claim in found[1][1].claims] == [1]
