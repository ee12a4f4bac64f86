"""A person's word on what waits in the in-flight log and nobody can prove any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Outcome
from penstock.contracts.sink import Committer, SinkScope
from penstock.engine import settlement
from penstock.engine.coordinator import Coordinator
from penstock.engine.settlement import JobLedgers, Unprovable
from penstock.errors import OutcomeUnknown, Superseded, TransactionRefused
from penstock.failpoints import hooked
from tests.support import memory_sink
from tests.support.memory_sink import MemorySink
from tests.support.small_spark import SmallSpark


class Death(BaseException):
    """The driver's process is gone."""


def die() -> None:
    raise Death


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


class ForgetfulSink(MemorySink):
    """Of the first `forgotten` transactions it cannot say how they ended."""

    forgotten = 0

    def open_committer(self, scope: SinkScope) -> Committer:
        return _ForgetfulCommitter(self, scope)

    def forget(self) -> None:
        self.prepared.clear()
        self.forgotten = next(self.names)


class _ForgetfulCommitter(memory_sink._Committer):
    _sink: ForgetfulSink

    def _one(self, name: str) -> Outcome:
        if int(name.rpartition("-")[2]) < self._sink.forgotten:
            return Outcome.UNKNOWN
        return super()._one(name)


class Story:
    """A job with an epoch in its in-flight log, which the sink is made to forget."""

    def __init__(self, folder: Path, **checkpoints: Any) -> None:
        self.folder, self.sink = folder / "job", ForgetfulSink()
        self.spark = SmallSpark(self.folder / "out", self.sink, numbers, job="job", **checkpoints)
        self.made: list[Coordinator] = []

    def start(self) -> Coordinator:
        self.made.append(self.spark.coordinator())
        self.made[-1].recover()
        return self.made[-1]

    def delivered(self) -> list[int]:
        coordinator = self.start()
        coordinator.drain(lambda: coordinator.failure is not None)
        assert coordinator.failure is None
        return self.sink.visible

    def stuck(self) -> str:
        """Start the job, until its drainer has said that it waits, and what it says; then it is stopped."""
        coordinator = self.start()
        waiting = lambda: [one for one in self.spark.events if one["event"] == "drain_waiting"]  # noqa: E731
        coordinator.drain(lambda: bool(waiting()) or coordinator.failure is not None)
        coordinator.close()
        return str(waiting()[-1]["error"])

    def resolve(self, outcome: Outcome | None, only: Sequence[tuple[str, int]] = ()) -> list[Unprovable]:
        ledgers = JobLedgers.at(str(self.folder))
        return settlement.resolve(ledgers, ledgers.queries[0], {"out": self.sink}, only, lambda found: outcome)


def without_drainer(coordinator: Coordinator) -> Coordinator:
    """As if the sink answered nothing from now on."""
    assert coordinator._inflight is not None
    coordinator._inflight.close()
    coordinator._inflight.start = lambda: None  # type: ignore[method-assign]
    return coordinator


def recorded(story: Story) -> None:
    """Prepared at the sink and in the backlog."""
    first = without_drainer(story.start())
    story.spark._query(first, 4)
    first.close()


def decided(story: Story) -> None:
    """Prepared at the sink and decided, not in the backlog yet."""
    first = without_drainer(story.start())
    with hooked("epoch.confirmed", die), pytest.raises(Death):
        story.spark._query(first, 4)


def rewritten(story: Story) -> None:
    """Lost at the sink, written from the log, and decided by the drainer."""
    first = without_drainer(story.start())
    story.spark._query(first, 4)
    first.close()
    story.sink.lose()
    with hooked("drain.decided", die):
        second = story.start()
        second.drain(lambda: second.failure is not None)


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr("penstock.engine.drainer._FIRST_WAIT", 0.001)
    monkeypatch.setattr("penstock.engine.drainer._LOOK_EVERY", 0.005)
    monkeypatch.setattr("penstock.engine.inflight._LOOK_EVERY", 0.005)
    made = Story(tmp_path, max_concurrent=2)
    yield made
    for coordinator in made.made:
        coordinator.close()


@pytest.mark.parametrize("before", [recorded, decided, rewritten])
@pytest.mark.parametrize("word", [Outcome.LOST, Outcome.ALREADY_COMMITTED])
def test_the_job_goes_by_the_word_on_what_waits_in_its_log(
    story: Story, before: Callable[[Story], None], word: Outcome
) -> None:
    before(story)
    story.sink.forget()
    assert "penstock transactions resolve" in story.stuck()
    assert len(story.resolve(None)) == 2, "only shown"
    found = story.resolve(word)
    assert [(one.query, one.epoch, one.committable.sink, one.committable.writer) for one in found] == [
        ("out", 0, "out", 0),
        ("out", 0, "out", 1),
    ]
    assert story.delivered() == (list(range(4)) if word is Outcome.LOST else [])


def test_the_word_may_be_on_some_of_the_writers(story: Story) -> None:
    recorded(story)
    story.sink.forget()
    [one] = story.resolve(Outcome.LOST, [("out", 1)])
    assert one.committable.writer == 1
    assert len(story.resolve(Outcome.ALREADY_COMMITTED)) == 1
    assert story.delivered() == [2, 3]


def test_epochs_are_resolved_in_the_order_in_which_they_are_delivered(story: Story) -> None:
    first = without_drainer(story.start())
    story.spark._query(first, 9)
    first.close()
    story.sink.forget()
    assert {one.epoch for one in story.resolve(Outcome.LOST)} == {0}
    assert "Epoch 1" in story.stuck()
    assert story.sink.visible == [0, 1, 2, 3]
    assert {one.epoch for one in story.resolve(Outcome.LOST)} == {1}
    assert story.delivered() == list(range(9))


def test_what_a_drainer_has_proven_of_the_tasks_writers_needs_no_word(story: Story) -> None:
    """One was visible, one lost and written from the log; then nothing of it can be proven any more."""
    first = without_drainer(story.start())
    story.spark._query(first, 4)
    first.close()
    del story.sink.prepared[next(iter(story.sink.prepared))]
    with hooked("drain.decided", die):
        second = story.start()
        second.drain(lambda: second.failure is not None)
    assert story.sink.visible == [2, 3]
    story.sink.forget()
    [one] = story.resolve(Outcome.LOST)
    assert one.committable.writer == 0
    assert story.delivered() == [2, 3, 0, 1]


def test_what_is_still_prepared_is_committed_and_needs_no_word(story: Story) -> None:
    recorded(story)
    assert story.resolve(Outcome.LOST) == []
    assert story.sink.visible == [0, 1, 2, 3]
    assert story.delivered() == [0, 1, 2, 3]


def test_whoever_resolves_supersedes_the_drainers_of_the_query(story: Story) -> None:
    recorded(story)
    story.sink.forget()
    coordinator = story.start()
    story.resolve(None)
    coordinator.drain(lambda: coordinator.failure is not None)
    assert isinstance(coordinator.failure, Superseded)


def test_a_word_that_comes_after_a_takeover_is_not_kept(story: Story) -> None:
    recorded(story)
    story.sink.forget()
    ledgers = JobLedgers.at(str(story.folder))
    query = ledgers.queries[0]

    def late(_: Sequence[Unprovable]) -> Outcome:
        query.ledger.register({})
        return Outcome.LOST

    with pytest.raises(Superseded):
        settlement.resolve(ledgers, query, {"out": story.sink}, (), late)
    assert not list(story.folder.rglob("rulings/*"))


def test_where_nothing_waits_there_is_nothing_to_resolve(story: Story) -> None:
    recorded(story)
    story.delivered()
    with pytest.raises(TransactionRefused, match="Nothing"):
        story.resolve(Outcome.LOST)


def test_the_error_says_what_to_do(story: Story) -> None:
    recorded(story)
    story.sink.forget()
    coordinator = without_drainer(story.start())
    assert coordinator._inflight is not None
    [drainer] = coordinator._inflight.drainers().values()
    entry = drainer._backlog.first()
    assert entry is not None
    with pytest.raises(OutcomeUnknown) as error:
        drainer._not_visible(entry)
    assert "penstock transactions resolve" in str(error.value.to_do)
