"""Whether all is there is asked before a start, again where it is not, and not where a standby has just asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.config.restart_strategy import RestartStrategy
from penstock.contracts.sink import Finding
from penstock.engine import run as readiness
from penstock.engine.restarts import Restarts
from penstock.engine.run import Readiness
from penstock.errors import SystemUnavailable, TopicMissing
from penstock.events import Events


class Systems:
    """What a job needs; each `trouble` is met once."""

    def __init__(self, *trouble: Exception) -> None:
        self.trouble, self.asked = list(trouble), 0

    def check(self) -> list[Finding]:
        self.asked += 1
        if self.trouble:
            raise self.trouble.pop(0)
        return [Finding("out", "unwise")]


def wait(asked: Readiness, strategy: RestartStrategy | None = None, *, stopped: bool = False) -> tuple[bool, list[Any]]:
    events, told = Events(), list[Any]()
    events.listen(told.append)
    restarts = Restarts(strategy or RestartStrategy.fixed_delay(5, 0), supervised=False)
    return asked.wait(events, restarts, lambda: stopped, threading.Event()), told


def test_what_is_only_unwise_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert wait(Readiness("job", Systems().check)) == (True, [])
    assert "out: unwise" in caplog.text


def test_what_may_come_up_is_waited_for() -> None:
    systems = Systems(SystemUnavailable("away"), SystemUnavailable("away"))
    ready, told = wait(Readiness("job", systems.check))
    assert ready
    assert systems.asked == 3
    assert [event["event"] for event in told] == ["restarting"] * 2


def test_what_cannot_be_is_raised() -> None:
    with pytest.raises(TopicMissing):
        wait(Readiness("job", Systems(TopicMissing("gone")).check))
    with pytest.raises(SystemUnavailable):
        wait(Readiness("job", Systems(SystemUnavailable("away")).check), RestartStrategy.none())


def test_a_topic_that_was_there_may_be_missing_while_its_broker_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no attempt of the restart strategy. A topic that stays away is named."""
    monkeypatch.setattr(readiness, "_TICK_SECONDS", 0.0)
    systems = Systems(TopicMissing("not yet"), TopicMissing("not yet"))
    ready, told = wait(Readiness("job", systems.check, lambda: True), RestartStrategy.none())
    assert (ready, systems.asked, told) == (True, 3, [])
    monkeypatch.setattr(readiness, "_JOINING_SECONDS", 0.0)
    with pytest.raises(TopicMissing):
        wait(Readiness("job", Systems(TopicMissing("gone")).check, lambda: True))


def test_a_stop_ends_the_waiting() -> None:
    systems = Systems()
    assert wait(Readiness("job", systems.check), stopped=True) == (False, [])
    assert systems.asked == 0


def test_what_was_seen_a_moment_ago_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    systems = Systems(SystemUnavailable("away"))
    asked = Readiness("job", systems.check)
    with pytest.raises(SystemUnavailable):
        asked.look()
    asked.look()
    assert wait(asked)[0]
    assert systems.asked == 2
    now[0] += readiness.LATELY_SECONDS + 1
    assert wait(asked)[0]
    assert systems.asked == 3
