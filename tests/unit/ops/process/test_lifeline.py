"""The line between a supervisor and a standby: what each says, and when."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import DriverReport, Hearing, LeaseReport


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The supervisor's end of a line whose other end is this process's, once it has connected."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(lifeline, "_line", None)
    for name in ("_turn", "_known", "_over"):
        monkeypatch.setattr(lifeline, name, None)
    monkeypatch.setattr(lifeline, "_lease", {})
    monkeypatch.setenv(lifeline.VARIABLE, str(theirs.detach()))
    yield ours
    monkeypatch.setattr(os, "kill", lambda *_: None)  # the line ends, and with it would this process
    ours.close()
    for thread in threading.enumerate():
        if thread.name == "penstock-lifeline":
            thread.join(30)
    assert lifeline._line is not None
    lifeline._line.close()


def test_a_standby_waits_until_it_is_told(supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifeline.STANDBY_VARIABLE, "1")
    lifeline.connect()
    assert lifeline.STANDBY_VARIABLE not in os.environ
    assert lifeline.is_standby()
    assert not lifeline.await_turn(0.01)
    went: list[bool] = []
    waiting = threading.Thread(target=lambda: went.append(lifeline.await_turn()))
    waiting.start()
    lifeline.say_go(supervisor)
    waiting.join(30)
    assert went == [True]
    assert not lifeline.is_standby()


def test_a_standby_is_told_of_the_lease_with_its_turn(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lifeline.STANDBY_VARIABLE, "1")
    lifeline.connect()
    assert lifeline.known_turn() is None
    lifeline.say_go(supervisor, 12)
    assert lifeline.await_turn(30)
    assert lifeline.known_turn() == 12


def test_another_driver_is_told_when_it_is_started(supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifeline.TURN_VARIABLE, "12")
    monkeypatch.setenv(lifeline.OVER_VARIABLE, "345")
    lifeline.connect()
    assert (lifeline.known_turn(), lifeline.lease_over()) == (12, 345)
    assert lifeline.TURN_VARIABLE not in os.environ


def test_who_has_the_lease_is_heard(supervisor: socket.socket) -> None:
    lifeline.connect()
    heard = Hearing(supervisor)
    assert lifeline.lease() is None
    lifeline.tell_lease(3, "one", here=False, path="/shared/job")
    assert heard.report().lease == LeaseReport(3, "one", here=False, path="/shared/job")
    lifeline.tell_lease(4, "two", here=True)
    assert heard.report().lease == LeaseReport(4, "two", here=True)
    assert lifeline.lease() == {"turn": 4, "host": "two", "here": True, "path": None}


def test_any_other_driver_does_not_wait(supervisor: socket.socket) -> None:
    lifeline.connect()
    assert not lifeline.is_standby()
    assert lifeline.await_turn()


def test_what_is_said_is_heard_bit_by_bit(supervisor: socket.socket) -> None:
    lifeline.connect()
    heard = Hearing(supervisor)
    assert heard.report() == DriverReport()
    lifeline.tell_ready()
    assert heard.report() == DriverReport(ready=True)
    assert lifeline._line is not None
    lifeline._line.send(b'{"runn')
    assert heard.report() == DriverReport(ready=True)
    lifeline._line.send(b'ing": true}\n7\n')
    lifeline.tell_stopping()
    assert heard.report() == DriverReport(ready=True, running=True, stopping=True)
    assert not heard.ended


def test_a_line_that_ended_says_no_more() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        heard = Hearing(ours)
        theirs.send(b'{"ready": true}\n')
        theirs.close()
        assert heard.report() == DriverReport(ready=True)
        assert heard.ended


def test_nobody_hears_that_it_is_their_turn() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        lifeline.say_go(ours)
