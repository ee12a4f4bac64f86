"""A query that Spark does not call any more is noticed, and one that only has nothing to read is not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters

from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts
from penstock.errors import CheckpointExpired, SparkUnresponsive
from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import status_of
from penstock.spark import query as spark_query
from penstock.spark.query import Liveness, stop_query
from tests.support.waiting import until


class Watched(Liveness):
    """With a clock and a log of the test's."""

    def __init__(self, server: Any = None) -> None:
        self.time, self.log = 0.0, (0, False)
        super().__init__("out", lambda: server, lambda: self.log, 10.0, lambda: self.time)

    def after(self, seconds: float, log: tuple[int, bool], *, busy: bool = False) -> bool:
        """Whether the query counts as stuck, looked at every half second of this time."""
        self.log, found = log, None
        for _ in range(round(seconds * 2)):
            self.time += 0.5
            found = found or self.fault(busy=busy)
        assert found is None or (isinstance(found, CheckpointExpired) and "cut epoch 3 " in str(found))
        return found is not None


def test_an_epoch_that_spark_has_cut_and_never_hands_over_expires() -> None:
    watched = Watched()
    assert not watched.after(10, (3, True))
    assert watched.after(1, (3, True))


def test_a_query_without_rows_never_expires() -> None:
    assert not Watched().after(100, (3, False))


def test_an_epoch_under_way_is_left_to_its_own_watchdog() -> None:
    watched = Watched()
    assert not watched.after(100, (3, True), busy=True)
    assert not watched.after(9, (3, True)), "the time counts from its end"


def test_epochs_that_follow_each_other_never_expire() -> None:
    watched = Watched()
    assert not any(watched.after(9, (epoch, True)) for epoch in range(10))


def test_storage_that_does_not_answer_is_no_sign_of_a_stuck_query() -> None:
    def away() -> tuple[int, bool]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    watched = Watched()
    watched._next_epoch = away
    assert not watched.after(100, (3, True))


@pytest.fixture
def server() -> Any:
    """py4j's own, as PySpark starts it."""
    made = CallbackServer(None, None, callback_server_parameters=CallbackServerParameters(port=0, daemonize=True))
    made.start()
    until(lambda: made.server_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), "it to listen")
    yield made
    with contextlib.suppress(Exception):
        made.shutdown()


def test_a_callback_server_that_ran_out_of_descriptors_fails_the_driver(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, address, accept = Watched(server), server.server_socket.getsockname(), socket.socket.accept
    assert watched.fault(busy=False) is None

    def none_left(listener: socket.socket) -> Any:
        if listener is server.server_socket:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", none_left)
    with contextlib.closing(socket.create_connection(address, timeout=30)) as call:
        server.thread.join(30)
        assert not server.thread.is_alive(), "py4j accepts no more, and its socket still listens"
        fault = watched.fault(busy=True)
        assert isinstance(fault, SparkUnresponsive)
        with pytest.raises(ConnectionError):
            call.recv(1)  # Spark's own thread does not wait for ever, either
            raise ConnectionResetError("closed")
    assert Restarts(RestartStrategy.fixed_delay(attempts=3, delay=0)).delay(fault) is None, "not in this process"
    assert status_of(fault) == lifeline.CRASHED


def test_a_query_that_spark_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_query, "STOP_SECONDS", 0.05)
    never = threading.Event()
    query: Any = SimpleNamespace(stop=lambda: never.wait(30))
    with pytest.raises(SparkUnresponsive, match="has not stopped query 'out'"):
        stop_query(query, "out")
    never.set()


def test_what_spark_says_to_a_stop_is_told() -> None:
    def stop() -> None:
        raise RuntimeError("a sentence of Spark's")

    query: Any = SimpleNamespace(stop=stop)
    with pytest.raises(RuntimeError, match="a sentence of Spark's"):
        stop_query(query, "out")
