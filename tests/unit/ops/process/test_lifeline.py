"""The line between a supervisor and a standby: what each says, and when."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import DriverReport, LeaseReport, Orders, Receiver, send


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The supervisor's end of a line whose other end is this process's, once it has connected."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(lifeline, "_line", None)
    monkeypatch.setattr(lifeline, "_turn", None)
    monkeypatch.setattr(lifeline, "_orders", Orders())
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


def connect(supervisor: socket.socket, orders: Orders | None = None) -> None:
    """As the driver does, after its supervisor has sent its orders."""
    send(supervisor, asdict(orders or Orders()))
    lifeline.connect()
    assert lifeline.VARIABLE not in os.environ


def test_a_standby_waits_until_it_is_told(supervisor: socket.socket) -> None:
    connect(supervisor, Orders(standby=True))
    assert lifeline.is_standby()
    assert not lifeline.await_turn(0.01)
    went: list[bool] = []
    waiting = threading.Thread(target=lambda: went.append(lifeline.await_turn()))
    waiting.start()
    send(supervisor, {"go": True, "turn": None})
    waiting.join(30)
    assert went == [True]
    assert not lifeline.is_standby()


def test_a_standby_is_told_of_the_lease_with_its_turn(supervisor: socket.socket) -> None:
    connect(supervisor, Orders(standby=True))
    assert lifeline.orders().turn is None
    send(supervisor, {"go": True, "turn": 12})
    assert lifeline.await_turn(30)
    assert lifeline.orders().turn == 12


def test_another_driver_is_told_when_it_is_started(supervisor: socket.socket) -> None:
    connect(supervisor, Orders(turn=12, expired=345))
    assert (lifeline.orders().turn, lifeline.orders().expired) == (12, 345)


def test_who_has_the_lease_is_heard(supervisor: socket.socket) -> None:
    connect(supervisor)
    heard = Receiver(supervisor)
    assert lifeline.lease() is None
    lifeline.report_lease(3, "one", here=False, path="/shared/job")
    assert heard.report().lease == LeaseReport(3, "one", here=False, path="/shared/job")
    lifeline.report_lease(4, "two", here=True)
    assert heard.report().lease == LeaseReport(4, "two", here=True)
    assert lifeline.lease() == {"turn": 4, "host": "two", "here": True, "path": None}


def test_any_other_driver_does_not_wait(supervisor: socket.socket) -> None:
    connect(supervisor)
    assert not lifeline.is_standby()
    assert lifeline.await_turn()


def test_what_is_said_is_heard_bit_by_bit(supervisor: socket.socket) -> None:
    connect(supervisor)
    heard = Receiver(supervisor)
    assert heard.report() == DriverReport()
    lifeline.report(ready=True)
    assert heard.report() == DriverReport(ready=True)
    assert lifeline._line is not None
    lifeline._line.send(b'{"runn')
    assert heard.report() == DriverReport(ready=True)
    lifeline._line.send(b'ing": true}\n7\n')
    lifeline.report(stopping=True)
    assert heard.report() == DriverReport(ready=True, running=True, stopping=True)
    assert not heard.ended


def test_a_line_that_ended_says_no_more() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        heard = Receiver(ours)
        theirs.send(b'{"ready": true}\n')
        theirs.close()
        assert heard.report() == DriverReport(ready=True)
        assert heard.ended


def test_nobody_hears_that_it_is_their_turn() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        send(ours, {"go": True})
