"""Connections of strangers: bounded in number and in time, and not worth a line of the log."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.server import connections
from penstock.ops.server.client import Client, NoAnswer
from tests.support.fake_job import Served, served

HALF = b"GET /overview HTTP/1.1\r\nHost: localhost\r\nX-A: "


@pytest.fixture
def job() -> Iterator[Served]:
    with served() as one:
        yield one


def connect(job: Served, send: bytes = b"") -> socket.socket:
    host, _, port = str(job.serving.address).removeprefix("https://").rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=30)
    made.sendall(send)
    return made


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except OSError:
        return True


def test_strangers_hold_a_bounded_number_of_connections_and_the_owner_still_gets_an_answer(
    job: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600.0)  # only their number closes them here
    job.ask("GET", "/jobs")
    opened = [connect(job, HALF) for _ in range(3 * connections.MOST_CONNECTIONS)]
    assert job.ask("GET", "/jobs")[0] == 200
    assert all(is_closed(one) for one in opened[: connections.MOST_CONNECTIONS])
    for one in opened:
        one.close()


def test_strangers_that_never_speak_tls_do_not_keep_the_owner_out(
    job_certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600.0)
    with served(certificate=str(job_certificate)) as job:
        opened = [connect(job) for _ in range(2 * connections.MOST_CONNECTIONS)]
        client = Client(str(job.entry.address), job.entry.token, job.entry.certificate)
        assert client.jobs()[0]["jid"] == job.id
        assert all(is_closed(one) for one in opened[: connections.MOST_CONNECTIONS])
        for one in opened:
            one.close()


@pytest.mark.parametrize("sent", [b"", HALF, b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"])
def test_a_connection_that_never_finishes_a_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with served() as job, contextlib.closing(connect(job, sent)) as one:
        answer = b"".join(iter(lambda: _received(one), b""))
        assert b"200 OK" not in answer


def _received(one: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return one.recv(4096)
    return b""


def test_a_client_that_waits_for_its_answer_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.05)
    with served() as job:
        asked, go = threading.Event(), threading.Event()
        status = job.job.status

        def slow() -> dict[str, Any]:
            asked.set()
            assert go.wait(30)
            return status()

        job.job.status = slow  # type: ignore[method-assign]
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(job.ask("GET", f"/jobs/{job.id}")))
        asking.start()
        assert asked.wait(30)
        with contextlib.closing(connect(job)) as idle:
            assert is_closed(idle)  # so that its time has come, too
        go.set()
        asking.join(30)
        assert answers[0][0] == 200


def test_where_descriptors_run_out_the_server_waits_and_says_so_once(
    job: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_PAUSE_SECONDS", 0.01)
    job.ask("GET", "/jobs")
    failed: list[int] = []
    accept = socket.socket.accept

    def none_left(listener: socket.socket) -> Any:
        if threading.current_thread().name != "penstock-control" or len(failed) == 5:
            return accept(listener)
        failed.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", none_left)
    with caplog.at_level(logging.WARNING):
        assert job.ask("GET", "/jobs")[0] == 200
    assert len(failed) == 5
    assert [record.message for record in caplog.records] == [
        "the control server takes no connections for a while: [Errno 24] Too many open files"
    ]


def test_a_malformed_request_is_refused_without_a_line_in_the_log(
    job: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), contextlib.closing(connect(job, b"nonsense\r\n\r\n")) as one:
        assert b"400" in one.recv(4096)
    assert caplog.records == []


def test_a_request_in_flight_when_the_job_ends_is_no_fault_of_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.05)
    asked, go = threading.Event(), threading.Event()
    with served() as job, caplog.at_level(logging.WARNING):
        status = job.job.status

        def slow() -> dict[str, Any]:
            if threading.current_thread() is not job.thread:
                asked.set()
                assert go.wait(30)
            return status()

        job.job.status = slow  # type: ignore[method-assign]
        host, _, port = str(job.serving.address).rpartition(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
            connection.request("GET", f"/jobs/{job.id}", headers={"Authorization": f"Bearer {job.entry.token}"})
            assert asked.wait(30)
            ending = threading.Thread(target=job.end)
            ending.start()
            answer = connection.getresponse()
            body = json.loads(answer.read())
        go.set()
        ending.join(30)
    assert (answer.status, list(body)) == (503, ["errors"])
    assert caplog.records == []


@pytest.mark.parametrize(
    ("status", "text"),
    [(503, b'{"errors": ["The job ended before it could answer."]}'), (500, b"Internal Server Error")],
)
def test_a_job_that_ends_before_it_answers_gives_no_answer(
    status: int, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        def __init__(self) -> None:
            self.status = status

        def read(self) -> bytes:
            return text

        def getheader(self, name: str) -> None:
            return None

    monkeypatch.setattr(http.client.HTTPConnection, "request", lambda *_: None)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", lambda _: Answer())
    with pytest.raises(NoAnswer, match=str(status)):
        Client("127.0.0.1:1", None).ask("GET", "/jobs")
