"""The queries of a job as one: what starts, stops and ends when one of them fails. The queries here are scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.query import QueryRunner
from penstock.engine.restarts import Restarts
from penstock.engine.run import QueryGroup
from penstock.engine.steering import EndRequest
from penstock.errors import DataError, PenstockError, Superseded, SystemUnavailable
from penstock.events import Events

Step = Exception | str
"""What one start comes to: an error, `done`, `stopped` (runs until it is stopped) or `stuck` (never ends)."""


class Scripted:
    """A runner whose every start is told what to come to. It ends in the group's own thread: nothing is timed."""

    def __init__(self, uid: str, steps: Sequence[Step], when_stopped: Step, world: World) -> None:
        self.plan = SimpleNamespace(uid=uid)
        self.error: BaseException | None = None
        self.failed_at = 0.0
        self.done = self.alive = False
        self._steps, self._when_stopped = list(steps), when_stopped
        self._history, self._wake = world.history, world.wake
        self.settles: Step = "settled"
        self._now: Step = "stopped"

    @property
    def at_rest(self) -> bool:
        return not self.alive and self.error is None

    def start(self) -> None:
        self.error, self.alive = None, True
        self._history.append(f"start {self.plan.uid}")
        self._now = self._steps.pop(0)
        if self._now not in ("stopped", "stuck"):
            self._end(self._now)

    def stop(self) -> None:
        if self.alive and self._now != "stuck":
            self._end(self._when_stopped)

    def cancel(self) -> None:
        self._history.append(f"cancel {self.plan.uid}")
        self.stop()

    def finish_cancelled(self, patience: float) -> None:
        self._history.append(f"settle {self.plan.uid}")
        if isinstance(self.settles, Exception):
            raise self.settles

    def _end(self, how: Step) -> None:
        self.alive = False
        self.done = how == "done"
        if isinstance(how, Exception):
            self.error, self.failed_at = how, float(len(self._history))
        self._history.append(f"{type(how).__name__ if isinstance(how, Exception) else how} {self.plan.uid}")
        self._wake.set()


class World:
    def __init__(self, strategy: RestartStrategy | None = None) -> None:
        self.history: list[str] = []
        self.runners: list[Scripted] = []
        self.asked = EndRequest.NONE
        self.wake = threading.Event()
        self.told: list[dict[str, Any]] = []
        self._events = Events()
        self._events.listen(lambda event: self.told.append(dict(event)))
        self._strategy = strategy or RestartStrategy.fixed_delay(5, 0)
        self.before: Callable[[], None] = lambda: None

    def query(self, uid: str, *steps: Step, when_stopped: Step = "stopped") -> Scripted:
        self.runners.append(Scripted(uid, steps, when_stopped, self))
        return self.runners[-1]

    def run(self) -> BaseException | None:
        self.group = QueryGroup(
            cast("list[QueryRunner]", self.runners),
            restarts=Restarts(self._strategy),
            events=self._events,
            wake=self.wake,
            asked=lambda: self.asked,
            before_round=lambda: self.before(),
        )
        try:
            self.group.run()
        except BaseException as error:
            return error
        return None

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.told if event["event"] == name]


def away(text: str = "away") -> SystemUnavailable:
    return SystemUnavailable(text)


def test_one_failure_restarts_all() -> None:
    world = World()
    world.query("a", away(), "done")
    world.query("b", "stopped", "done")
    assert world.run() is None
    assert world.history == [
        "start a", "SystemUnavailable a", "start b", "stopped b", "start a", "done a", "start b", "done b",
    ]  # fmt: skip
    [restarting] = world.events("restarting")
    assert (restarting["query"], restarting["seconds"], restarting["error"]) == ("a", 0.0, "away")
    assert [(event["query"], event["error"]) for event in world.events("stopped")] == [("a", None), ("b", None)]


def test_what_is_done_stays_done() -> None:
    world = World()
    world.query("a", "done")
    world.query("b", away(), away(), "done")
    assert world.run() is None
    assert world.history.count("start a") == 1
    assert world.history.count("start b") == 3


def test_the_strategy_counts_for_the_job() -> None:
    world = World(RestartStrategy.fixed_delay(2, 0))
    world.query("a", away("1"), "stopped", away("3"))
    world.query("b", "stopped", away("2"), "stopped")
    assert str(world.run()) == "3"
    assert [event["query"] for event in world.events("restarting")] == ["a", "b"]
    assert [(event["query"], event["error"]) for event in world.events("stopped")] == [("a", "3"), ("b", None)]


def test_a_second_failure_is_a_note_of_the_first() -> None:
    world = World(RestartStrategy.none())
    world.query("a", "stopped", when_stopped=away("second"))
    world.query("b", away("first"))
    error = world.run()
    assert str(error) == "first"
    assert error is not None
    assert error.__notes__ == ["Query 'a' failed too: SystemUnavailable: second"]


def test_a_fatal_failure_while_stopping_ends_the_job() -> None:
    """Coming back after `Superseded` would take the job away from the newer run."""
    for fatal in (Superseded("newer"), DataError("never")):
        world = World()
        world.query("a", away("first"))
        world.query("b", "stopped", when_stopped=fatal)
        error = world.run()
        assert error is fatal
        assert error.__notes__ == ["Query 'a' failed too: SystemUnavailable: first"]
        assert not world.events("restarting")


def test_an_exception_of_anybody_is_retried() -> None:
    world = World()
    world.query("a", ValueError("?"), "done")
    assert world.run() is None


def test_a_failure_while_the_user_stops_is_raised() -> None:
    world = World()
    world.query("a", "stopped", when_stopped=away())
    world.before = lambda: setattr(world, "asked", EndRequest.STOP)
    assert isinstance(world.run(), SystemUnavailable)
    assert world.history == ["start a", "SystemUnavailable a"]


def test_stop_is_heard_while_the_job_waits_to_restart() -> None:
    world = World(RestartStrategy.fixed_delay(5, "1h"))
    world.query("a", away())
    world._events.listen(
        lambda event: setattr(world, "asked", EndRequest.STOP) if event["event"] == "restarting" else None
    )
    assert world.run() is None
    assert world.history == ["start a", "SystemUnavailable a"]


def test_what_fails_before_a_start_is_retried_too() -> None:
    world = World()
    world.query("a", "done")
    failures: list[PenstockError] = [away("storage")]

    def before() -> None:
        if failures:
            raise failures.pop()

    world.before = before
    assert world.run() is None
    assert [(event["query"], event["error"]) for event in world.events("restarting")] == [(None, "storage")]


def test_cancel_settles_what_it_made_fail() -> None:
    world = World()
    world.query("a", "stopped", when_stopped=away("its tasks were cancelled"))
    world.query("b", "stopped")
    world.before = lambda: setattr(world, "asked", EndRequest.CANCEL)
    assert world.run() is None
    assert world.history[2:] == ["cancel a", "SystemUnavailable a", "cancel b", "stopped b", "settle a"]
    assert [event["error"] for event in world.events("stopped")] == [None, None]
    assert not world.group.abandoned


def test_cancel_raises_what_cannot_be_settled() -> None:
    world = World()
    world.query("a", "stopped", when_stopped=away()).settles = away("the broker is gone")
    world.before = lambda: setattr(world, "asked", EndRequest.CANCEL)
    assert str(world.run()) == "the broker is gone"


def test_cancel_does_not_settle_for_a_newer_run() -> None:
    world = World()
    world.query("a", "stopped", when_stopped=Superseded("newer"))
    world.before = lambda: setattr(world, "asked", EndRequest.CANCEL)
    assert isinstance(world.run(), Superseded)
    assert "settle a" not in world.history


def test_cancel_while_waiting_to_restart_settles_too() -> None:
    world = World(RestartStrategy.fixed_delay(5, "1h"))
    world.query("a", away())
    world._events.listen(
        lambda event: setattr(world, "asked", EndRequest.CANCEL) if event["event"] == "restarting" else None
    )
    assert world.run() is None
    assert world.history == ["start a", "SystemUnavailable a", "settle a"]


def test_cancel_does_not_wait_for_an_epoch_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.engine.run._CANCEL_SECONDS", 0.0)
    world = World()
    world.query("a", "stuck")
    world.before = lambda: setattr(world, "asked", EndRequest.CANCEL)
    assert world.run() is None
    assert world.history == ["start a", "cancel a", "settle a"]
    assert world.group.abandoned == ["a"]
