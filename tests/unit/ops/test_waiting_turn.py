"""A driver that waits for its turn keeps itself warm and touches nothing; one that need not wait does neither."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.ops import attach, turn
from penstock.ops.process import lifeline
from penstock.sinks.kafka import KafkaSink
from penstock.spark import warm_up
from tests.support.waiting import until


class World:
    """A standby whose warming up only counts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.told: list[str] = []
        self.modules: list[str] = []
        self.error: Exception | None = None
        self.turn = threading.Event()
        self.source: Any = SimpleNamespace(warm_up=lambda spark, uid: self.done.append(uid))
        self.ended: list[int] = []
        patch.setattr(lifeline, "_turn", self.turn)
        patch.setattr(turn, "_KEEP_WARM_SECONDS", 0.01)
        patch.setattr(turn, "_HERE", ("penstock.no_such_module",))
        patch.setattr(lifeline, "report", lambda **fields: self.told.extend(fields))
        patch.setattr(warm_up, "warm_up", self._warm_up)
        patch.setattr(warm_up, "warm_workers", lambda spark, modules: self.done.append("workers"))
        patch.setattr(turn.os, "_exit", self.ended.append)  # type: ignore[attr-defined]

    def _warm_up(self, spark: Any, modules: list[str]) -> None:
        self.modules = modules
        self.done.append("all")
        if self.error is not None:
            raise self.error

    def look(self) -> None:
        self.done.append("look")

    def start(self) -> threading.Thread:
        spark: Any = None
        sinks = [KafkaSink("out", servers="nowhere:1")]
        given = (spark, sinks, {"in": self.source}, self.look)
        thread = threading.Thread(target=turn.take_turn, args=given, daemon=True)
        thread.start()
        return thread


class AtOnce:
    """Takes the place of a thread."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **named: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_it_warms_up_and_keeps_warm_until_its_turn(world: World) -> None:
    waiting = world.start()
    until(lambda: world.done.count("workers") >= 2, "it to keep warm")
    assert waiting.is_alive()
    assert world.done[:5] == ["all", "in", "look", "workers", "look"]
    assert world.told[0] == "ready"
    assert {"penstock.sinks.kafka.writer", "penstock.engine.task"} <= set(world.modules)
    world.turn.set()
    waiting.join(30)
    assert not waiting.is_alive()


def test_its_turn_comes_while_it_still_warms_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the end of that."""
    busy, go_on = threading.Event(), threading.Event()

    def slow(spark: Any, modules: Any) -> None:
        busy.set()
        go_on.wait(30)

    monkeypatch.setattr(warm_up, "warm_up", slow)
    waiting = world.start()
    assert busy.wait(30)
    world.turn.set()
    waiting.join(30)
    assert not waiting.is_alive()
    go_on.set()


def test_what_goes_wrong_meanwhile_is_no_reason_to_end(world: World) -> None:
    """The start itself says what is wrong, if it still is."""
    world.error = RuntimeError("no worker")
    waiting = world.start()
    until(lambda: "look" in world.done and "ready" in world.told, "it to go on")
    assert world.ended == []
    world.turn.set()
    waiting.join(30)


def test_without_its_jvm_it_makes_way_for_another(world: World) -> None:
    world.error = Py4JNetworkError("Answer from Java side is empty")
    world.start()
    until(lambda: world.ended, "it to end")
    assert world.ended[0] == lifeline.CRASHED
    world.turn.set()


@pytest.mark.parametrize(
    ("supervised", "master", "started"),
    [(True, "local[2]", True), (True, "spark://there:7077", False), (False, "local[2]", False)],
)
def test_workers_start_beside_what_follows(
    world: World, monkeypatch: pytest.MonkeyPatch, supervised: bool, master: str, started: bool
) -> None:
    """Where somebody waits for a driver that is started again, and the workers are this machine's."""
    monkeypatch.setattr(lifeline, "_turn", None)
    monkeypatch.setattr(lifeline, "connected", lambda: supervised)
    monkeypatch.setattr(turn.threading, "Thread", AtOnce)  # type: ignore[attr-defined]
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    turn.take_turn(spark, [KafkaSink("out", servers="nowhere:1")])
    assert world.done == (["workers"] if started else [])


def test_workers_that_do_not_start_are_left_to_the_first_epoch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(spark: Any, modules: Any) -> None:
        raise RuntimeError("no process left")

    monkeypatch.setattr(warm_up, "warm_workers", fail)
    turn._start_workers(SimpleNamespace(), [])  # type: ignore[arg-type]
    assert world.done == []


def test_any_other_driver_goes_on_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_turn", None)
    world.start().join(30)
    assert world.done == []


def test_the_supervisor_is_told_when_the_job_runs(world: World) -> None:
    for event in ("started", "recovered", "committed"):
        attach.report_running({"event": event})
    assert world.told == ["running"]
