"""What tasks that were given up leave behind is swept again for a while, and nothing that is decided with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable
from penstock.engine import committers as module
from penstock.engine.committers import Stragglers
from penstock.errors import SystemUnavailable


def committable(writer: int, payload: dict[str, Any] | None = None) -> Committable:
    return Committable("out", writer, 1, 0, payload or {"name": str(writer)})


class World:
    """A clock that is set by hand, sinks that note what a sweep kept, and an in-flight log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, logged: bool = False) -> None:
        self.now, self.away = 1000.0, False
        self.sweeps: list[list[int]] = []
        self.asked: list[tuple[bool, list[str], bool]] = []
        self.behind: list[str] = []
        self.removed: list[list[int]] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.inflight: Any = SimpleNamespace(
            behind=lambda: self.behind,
            prepared=lambda: [committable(7)],
            remove_strays=lambda keep: self.removed.append([one.writer for one in keep]),
        )
        inflight: Any = self.inflight if logged else None
        self.stragglers = Stragglers("query", self._abort, inflight)

    def _abort(
        self, keep: Sequence[Committable], *, again: bool = False, without: Collection[str] = (), older: bool = False
    ) -> None:
        self.asked.append((again, list(without), older))
        if self.away:
            raise SystemUnavailable("The sink is away.")
        self.sweeps.append([one.writer for one in keep])

    def swept_after(self, seconds: float) -> bool:
        self.now += seconds
        before = len(self.sweeps)
        self.stragglers.sweep_again()
        return len(self.sweeps) > before


def test_a_first_run_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.stragglers.started(1)
    assert not world.swept_after(10)


def test_after_a_start_they_are_looked_for_every_few_seconds_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.stragglers.started(2)
    assert [world.swept_after(4) for _ in range(20)] == [False, True] * 7 + [False] * 6


def test_what_the_last_decision_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.stragglers.sweep([committable(1)])
    world.stragglers.expect()
    assert world.swept_after(6)
    world.stragglers.keep = (committable(2),)
    assert world.swept_after(6)
    assert world.sweeps == [[1], [1], [2]]


def test_of_logged_epochs_what_is_prepared_at_the_sink_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, logged=True)
    file = {"name": "f", "bytes": 1, "crc": 1}
    prepared = committable(1, {"log": file, "prepared": {"name": "1"}})
    world.stragglers.sweep([prepared, committable(2, {"log": file, "prepared": None})])
    assert world.sweeps == [[1, 7]], "and what waits in the log"
    assert world.removed == [[1, 2]], "log files of the decision stay"


def test_a_run_with_others_before_it_looks_once_a_minute_for_as_long_as_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.stragglers.started(2)
    assert [world.swept_after(31) for _ in range(9)] == [True, False, True, False, True, False, True, False, True]
    assert [older for _, _, older in world.asked] == [False, True, True, True, True]
    assert all(again for again, _, _ in world.asked)


def test_tasks_that_raced_are_looked_for_more_often_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.stragglers.started(2)
    world.now += 1000
    world.stragglers.expect()
    assert [world.swept_after(6) for _ in range(11)] == [True] * 9 + [False] * 2
    assert not any(older for _, _, older in world.asked)


def test_a_sink_that_lags_is_left_to_its_drainer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, logged=True)
    world.stragglers.expect()
    world.behind = ["slow"]
    assert world.swept_after(6)
    world.stragglers.sweep(())
    assert world.asked == [(True, ["slow"], False), (False, [], False)]


def test_log_files_of_attempts_that_were_given_up_go_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, logged=True)
    world.stragglers.remove_logs()
    world.stragglers.expect(logs=True)
    world.stragglers.expect()
    world.stragglers.remove_logs()
    world.stragglers.remove_logs()
    assert world.removed == [[]]


def test_a_sink_that_is_away_breaks_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.stragglers.expect()
    world.away = True
    assert not world.swept_after(6)
    world.stragglers.abort_all_quietly()
    with pytest.raises(SystemUnavailable):
        world.stragglers.sweep(())


def test_log_files_stay_where_no_attempt_left_any(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, logged=True)
    world.stragglers.expect()
    world.stragglers.remove_logs()
    assert world.removed == []


@pytest.mark.parametrize("how", ["sweep", "abort"])
def test_a_sweep_that_was_needed_counts_as_one_of_those_that_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world = World(monkeypatch)
    world.stragglers.expect()
    world.now += 4
    world.stragglers.sweep(()) if how == "sweep" else world.stragglers.abort_all_quietly()
    assert world.sweeps == [[]]
    assert not world.swept_after(4)
    assert world.swept_after(2)
