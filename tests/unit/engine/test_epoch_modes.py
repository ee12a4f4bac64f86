"""The weaker modes with a sink in memory: at least once repeats, at most once drops, neither by accident."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.ledger import Ledger
from penstock.engine.coordinator import Coordinator
from penstock.errors import Superseded
from penstock.failpoints import InjectedFault, hooked
from penstock.storage.local import LocalStorage
from tests.support.memory_sink import MemorySink
from tests.support.small_spark import SmallSpark


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


def query(folder: Path, mode: str) -> SmallSpark:
    return SmallSpark(folder, MemorySink(), numbers, mode=mode)


def visible(of: SmallSpark) -> list[int]:
    assert isinstance(of.sink, MemorySink)
    return sorted(of.sink.visible)


def told(of: SmallSpark, event: str) -> list[int]:
    return [one["epoch"] for one in of.events if one["event"] == event]


def fail() -> None:
    raise InjectedFault("Here.")


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_without_trouble_all_is_visible_once_and_nothing_decided(tmp_path: Path, mode: str) -> None:
    one = query(tmp_path, mode)
    one.run(20)
    assert visible(one) == list(range(20))
    assert told(one, "committed") == told(one, "completed") == told(one, "opened")
    assert told(one, "decided") == []
    assert Ledger(LocalStorage(tmp_path / "ledger")).manifests(0) == ()


def test_at_least_once_rows_are_visible_before_the_epoch_is_over_and_come_again(tmp_path: Path) -> None:
    one = query(tmp_path, "at_least_once")
    with hooked("epoch.precommitted", fail), pytest.raises(InjectedFault):
        one.run(20)
    shown = visible(one)
    assert shown, "each task has made its rows visible"
    one.run(20)
    assert visible(one) == sorted([*shown, *range(20)])


@pytest.mark.parametrize("point", ["epoch.precommitted", "epoch.confirmed"])
def test_at_most_once_an_epoch_that_was_begun_is_never_written_again(tmp_path: Path, point: str) -> None:
    class Death(BaseException):
        """Not an error that anybody handles."""

    def die() -> None:
        raise Death

    one = query(tmp_path, "at_most_once")
    with hooked(point, die), pytest.raises(Death):
        one.run(20)
    lost = set(range(one.position(0)))
    one.run(20)
    assert visible(one) == sorted(set(range(20)) - lost)
    assert told(one, "skipped") == [0]


def test_at_most_once_a_failed_epoch_is_dropped_and_the_next_one_goes_on(tmp_path: Path) -> None:
    one, failures = query(tmp_path, "at_most_once"), iter(range(1))

    def fail_once() -> None:
        if next(failures, None) is not None:
            fail()

    with hooked("epoch.precommitted", fail_once):
        one.run(20)
    assert visible(one) == list(range(one.position(0), 20))
    assert told(one, "skipped") == [0]
    assert isinstance(one.sink, MemorySink)
    assert not one.sink.prepared, "what it had prepared is aborted"


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_run_that_is_superseded_writes_nothing(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, recover = query(tmp_path, mode), Coordinator.recover

    def recover_and_be_superseded(coordinator: Coordinator) -> object:
        resume = recover(coordinator)
        coordinator._ledger.register({})
        return resume

    monkeypatch.setattr(Coordinator, "recover", recover_and_be_superseded)
    with pytest.raises(Superseded):
        one.run(20)
    assert visible(one) == []
    assert told(one, "opened") == []


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_what_an_exactly_once_run_decided_is_carried_out_first(tmp_path: Path, mode: str) -> None:
    one = query(tmp_path, "exactly_once")
    with hooked("epoch.decided", fail), pytest.raises(InjectedFault):
        one.run(20)
    weaker = SmallSpark(tmp_path, one.sink, numbers, job=one.job, mode=mode)
    weaker.run(20)
    assert weaker.actions == ["finished"]
    assert visible(weaker) == list(range(20))
