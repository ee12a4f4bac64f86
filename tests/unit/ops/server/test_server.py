"""The control server over real HTTP, with a job that has no Spark in it: Flink's paths, shapes and habits."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ControlError, PreCommitFailed, TopicMissing
from penstock.ops.process.registry import Registry, State, SupervisorEntry, expect_run, history_folder
from penstock.ops.server import serving as served_by
from penstock.ops.server.client import Client, NoAnswer
from penstock.ops.server.control import Lifecycle
from penstock.ops.server.history import read_history
from tests.support.fake_job import Served, Steered, served
from tests.support.waiting import until


@pytest.fixture
def job() -> Iterator[Served]:
    with served() as one:
        yield one


@pytest.fixture(params=["", "/v1"], ids=["plain", "v1"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def finished(job: Served, path: str, request: str) -> tuple[int, Any]:
    def over() -> tuple[int, Any] | None:
        status, body = job.ask("GET", f"{path}/{request}")
        return None if body == {"status": {"id": "IN_PROGRESS"}, "operation": None} else (status, body)

    return until(over, "the operation to end")


def test_the_list(job: Served, prefix: str) -> None:
    status, body = job.ask("GET", f"{prefix}/jobs/overview")
    assert status == 200
    [one] = body["jobs"]
    assert set(one) == {
        "jid", "name", "state", "start-time", "end-time", "duration", "last-modification", "tasks", "pending-operators",
    }  # fmt: skip
    assert (one["jid"], one["name"], one["state"]) == (job.id, "payments", "RUNNING")
    assert (one["end-time"], one["tasks"], one["pending-operators"]) == (-1, {"total": 1, "running": 1}, 0)
    assert job.ask("GET", f"{prefix}/jobs")[1] == {"jobs": [{"id": job.id, "status": "RUNNING"}]}


def test_one_job(job: Served, prefix: str) -> None:
    status, body = job.ask("GET", f"{prefix}/jobs/{job.id}")
    assert (status, body["jid"], body["state"], body["job-type"]) == (200, job.id, "RUNNING", "STREAMING")
    [vertex] = body["vertices"]  # a job that does not tell its plan has its queries
    assert {name: vertex[name] for name in ("id", "name", "status", "epoch", "generation")} == {
        "id": "out", "name": "out", "status": "RUNNING", "epoch": 12, "generation": 3,
    }  # fmt: skip
    assert {"CREATED", "RUNNING"} <= set(body["timestamps"])


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("savepoints", {"target-directory": "/sp", "cancel-job": False, "formatType": "CANONICAL"},
         ("savepoint", "/sp", "canonical")),
        ("savepoints", {"target-directory": None}, ("savepoint", None, "native")),
        ("stop", {"targetDirectory": "/sp", "drain": True, "formatType": "NATIVE"},
         ("stop_with_savepoint", "/sp", True, "native")),
        ("stop", {}, ("stop_with_savepoint", None, False, "native")),
    ],
)  # fmt: skip
def test_savepoints(prefix: str, path: str, body: dict[str, Any], asked: tuple[Any, ...]) -> None:
    with served() as job:
        job.job.gate.clear()
        status, answer = job.ask("POST", f"{prefix}/jobs/{job.id}/{path}", body)
        assert (status, set(answer)) == (202, {"request-id"})
        request = answer["request-id"]
        assert len(request) == 32
        poll = f"{prefix}/jobs/{job.id}/savepoints"
        in_progress = {"status": {"id": "IN_PROGRESS"}, "operation": None}
        assert job.ask("GET", f"{poll}/{request}") == (200, in_progress)
        job.job.gate.set()
        location = f"{asked[1] or '/default'}/savepoint-1"
        assert finished(job, poll, request) == (
            200, {"status": {"id": "COMPLETED"}, "operation": {"location": location}},
        )  # fmt: skip
        assert job.job.asked == [asked]
        assert job.entry.savepoint == location


def test_a_repeated_request_is_done_once(job: Served) -> None:
    request = uuid.uuid4().hex
    for _ in range(3):
        answer = job.ask("POST", f"/v1/jobs/{job.id}/savepoints", {"triggerId": request})
        assert answer == (202, {"request-id": request})
        finished(job, f"/v1/jobs/{job.id}/savepoints", request)
    assert len(job.job.asked) == 1
    status, body = job.ask("POST", f"/v1/jobs/{job.id}/checkpoints", {"triggerId": request})
    assert (status, list(body)) == (409, ["errors"])
    assert len(job.job.asked) == 1


def test_a_checkpoint(job: Served, prefix: str) -> None:
    path = f"{prefix}/jobs/{job.id}/checkpoints"
    _, answer = job.ask("POST", path, {"checkpointType": "FULL", "triggerId": uuid.uuid4().hex})
    operation = {"checkpointId": 7}
    assert finished(job, path, answer["request-id"]) == (200, {"status": {"id": "COMPLETED"}, "operation": operation})


def test_cancel(prefix: str, registry: Registry) -> None:
    with served() as job:
        assert job.ask("PATCH", f"{prefix}/jobs/{job.id}?mode=cancel") == (202, {})
        job.thread.join(60)
        assert job.job.asked == [("cancel",)]
        assert (job.entry.state, job.entry.address, job.entry.token) == (State.CANCELED, None, None)
        assert job.entry.end is not None


def test_a_clean_end_without_a_savepoint() -> None:
    with served() as job:
        assert job.ask("PATCH", f"/jobs/{job.id}?mode=stop") == (202, {})
        job.thread.join(60)
        assert (job.job.asked, job.entry.state) == ([("stop",)], State.FINISHED)


def test_cancel_with_a_savepoint() -> None:
    """Nothing becomes visible after the savepoint: the job stops at it."""
    with served() as job:
        _, answer = job.ask("POST", f"/v1/jobs/{job.id}/savepoints", {"target-directory": "/sp", "cancel-job": True})
        _, body = finished(job, f"/v1/jobs/{job.id}/savepoints", answer["request-id"])
        assert body["operation"] == {"location": "/sp/savepoint-1"}
        job.thread.join(60)
        assert job.job.asked == [("stop_with_savepoint", "/sp", False, "native"), ("cancel",)]
        assert (job.entry.state, job.entry.savepoint) == (State.CANCELED, "/sp/savepoint-1")


def test_a_cancel_whose_savepoint_fails_cancels_nothing(job: Served) -> None:
    job.job.error = PreCommitFailed("The disk is full.")
    _, answer = job.ask("POST", f"/jobs/{job.id}/savepoints", {"cancel-job": True})
    assert finished(job, f"/jobs/{job.id}/savepoints", answer["request-id"])[0] == 500
    assert [asked[0] for asked in job.job.asked] == ["stop_with_savepoint"]
    assert job.ask("GET", "/jobs")[1]["jobs"][0]["status"] == "RUNNING"
    job.end()
    assert job.entry.state is State.FINISHED


def test_whoever_asked_for_the_end_gets_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has ended, and the server still waits to be asked; the moment it was, it goes."""
    monkeypatch.setattr(served_by, "FETCH_SECONDS", 60.0)
    with served() as job:
        _, answer = job.ask("POST", f"/v1/jobs/{job.id}/stop", {})
        until(lambda: job.entry.state is State.FINISHED, "the job to end")
        assert job.thread.is_alive()
        assert job.ask("GET", "/jobs/overview")[1]["jobs"][0]["state"] == "FINISHED"
        _, body = finished(job, f"/v1/jobs/{job.id}/savepoints", answer["request-id"])
        assert body["operation"]["location"] == "/default/savepoint-1"
        job.thread.join(30)
        assert not job.thread.is_alive()


def test_nobody_is_waited_for_who_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_by, "FETCH_SECONDS", 0.0)
    with served() as job:
        job.ask("POST", f"/v1/jobs/{job.id}/stop", {})
        job.thread.join(30)
        assert not job.thread.is_alive()
        assert job.entry.savepoint == "/default/savepoint-1"


def test_a_failed_savepoint(job: Served) -> None:
    job.job.error = PreCommitFailed("The disk is full.", safe="All.", to_do="Make room.")
    _, answer = job.ask("POST", f"/v1/jobs/{job.id}/savepoints", {})
    status, body = finished(job, f"/v1/jobs/{job.id}/savepoints", answer["request-id"])
    assert (status, body) == (500, {"errors": ["The disk is full.\nSafe: All.\nTo do: Make room."]})
    assert job.entry.savepoint is None
    with pytest.raises(PreCommitFailed) as raised:  # our own client gets the very error
        path = f"/jobs/{job.id}/savepoints"
        Client(str(job.serving.address), job.entry.token).perform(path, {}, path)
    assert (raised.value.happened, raised.value.safe, raised.value.to_do) == ("The disk is full.", "All.", "Make room.")


def test_a_stranger_s_error(job: Served) -> None:
    job.job.error = ZeroDivisionError("ü\n" * 9000)
    _, answer = job.ask("POST", f"/v1/jobs/{job.id}/checkpoints", {})
    status, body = finished(job, f"/v1/jobs/{job.id}/checkpoints", answer["request-id"])
    assert status == 500
    assert body["errors"][0].startswith("ZeroDivisionError: ü")


def test_what_is_under_way_when_the_job_fails_is_answered() -> None:
    with served() as job:
        job.job.gate.clear()
        _, answer = job.ask("POST", f"/v1/jobs/{job.id}/savepoints", {})
        job.failure = TopicMissing("The topic is gone.")
        job.job.ending.set()
        status, body = finished(job, f"/v1/jobs/{job.id}/savepoints", answer["request-id"])
        assert (status, list(body)) == (500, ["errors"])
        assert "The topic is gone." in body["errors"][0]
        job.end()
        entry = job.entry
        assert (entry.state, entry.error) == (
            State.FAILED, {"error": "TopicMissing", "happened": "The topic is gone.", "safe": "nothing was started.",
                           "to_do": ""},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nonsense", None, 404), ("GET", "/v1/nonsense", None, 404), ("DELETE", "/jobs/overview", None, 405),
        ("GET", f"/jobs/{'0' * 32}", None, 404), ("POST", f"/v1/jobs/{'0' * 32}/savepoints", {}, 404),
        ("GET", "/jobs/JOB/savepoints/0", None, 404), ("POST", "/jobs/JOB/savepoints", b"{", 400),
        ("POST", "/jobs/JOB/savepoints", [1], 400), ("POST", "/jobs/JOB/savepoints", {"triggerId": "7"}, 400),
        ("POST", "/jobs/JOB/savepoints", {"formatType": "PARQUET"}, 400),
        ("POST", "/jobs/JOB/savepoints", {"target-directory": 7}, 400),
        ("POST", "/jobs/JOB/stop", {"drain": "yes"}, 400), ("PATCH", "/jobs/JOB?mode=kill", None, 400),
        ("POST", "/savepoint-disposal", {}, 400), ("POST", "/jobs/JOB/stop", b" " * (1 << 20) + b"{}", 413),
        ("POST", "/jobs/JOB/savepoints", b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400),
        ("POST", "/jobs/JOB/savepoints", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        ("POST", "/jobs/JOB/savepoints", b'{"a": ' + b"9" * 9000 + b"}", 400),
        ("POST", "/jobs/JOB/savepoints", b"\xff\xfe{", 400), ("POST", "/jobs/JOB/savepoints", b'"text"', 400),
        ("POST", "/jobs/JOB/savepoints", b"null", 400), ("POST", "/jobs/JOB/savepoints", b"7", 400),
        ("POST", "/jobs/JOB/savepoints", b'{"formatType": "\\ud800"}', 400),
        ("POST", "/jobs/JOB/savepoints", {"target-directory": "/a\0b"}, 400),
        ("POST", "/jobs/JOB/savepoints", {"target-directory": "/a\r\nX-Header: b"}, 400),
        ("POST", "/jobs/JOB/savepoints", {"target-directory": ["/a"]}, 400),
        ("POST", "/jobs/JOB/savepoints", {"target-directory": " "}, 400),
        ("POST", "/jobs/JOB/savepoints", {"cancel-job": "true"}, 400),
        ("POST", "/jobs/JOB/savepoints", {"triggerId": ["0" * 32]}, 400),
        ("POST", "/jobs/JOB/savepoints", {"triggerId": "../" * 10 + "ab"}, 400),
        ("POST", "/savepoint-disposal", {"savepoint-path": {"a": 1}}, 400),
        ("GET", "/jobs/..%2f..%2fetc", None, 404), ("GET", "/jobs/JOB/savepoints/..%2f..%2fetc%00", None, 404),
    ],
)  # fmt: skip
def test_every_error_has_flinks_shape(job: Served, method: str, path: str, body: Any, status: int) -> None:
    """Its client takes any other shape for success, or asks again."""
    answer = job.ask(method, path.replace("JOB", job.id), body)
    assert answer[0] == status
    assert list(answer[1]) == ["errors"]
    assert answer[1]["errors"][0]
    assert job.job.asked == []


def test_disposal(job: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.savepoints.savepoint as savepoints

    gone: list[str] = []
    monkeypatch.setattr(savepoints, "dispose", gone.append)
    _, answer = job.ask("POST", "/v1/savepoint-disposal", {"savepoint-path": "/sp/one"})
    assert finished(job, "/v1/savepoint-disposal", answer["request-id"]) == (
        200, {"status": {"id": "COMPLETED"}, "operation": {}},
    )  # fmt: skip
    assert gone == ["/sp/one"]


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_what_changes_something_needs_the_token(job: Served, token: str | None) -> None:
    for method, path in [
        ("POST", f"/jobs/{job.id}/savepoints"), ("POST", f"/v1/jobs/{job.id}/stop"), ("PATCH", f"/v1/jobs/{job.id}"),
        ("POST", f"/jobs/{job.id}/checkpoints"), ("POST", "/v1/savepoint-disposal"),
    ]:  # fmt: skip
        status, body = job.ask(method, path, {"savepoint-path": "/sp"}, token)
        assert (status, list(body)) == (401, ["errors"])
    assert job.job.asked == []


READS = [
    "/jobs", "/jobs/overview", "/jobs/JOB", "/jobs/JOB/savepoints/1", "/jobs/JOB/checkpoints/1",
    "/savepoint-disposal/1",
]  # fmt: skip


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("token", [None, "wrong", "ü"])
def test_reading_needs_the_token_too(job: Served, prefix: str, path: str, token: str | None) -> None:
    status, body = job.ask("GET", prefix + path.replace("JOB", job.id), token=token)
    assert (status, list(body)) == (401, ["errors"])
    assert job.id not in str(body)


def test_reading_may_be_open_but_never_shows_an_error() -> None:
    """A failure's text may quote the row that caused it."""
    with served(open_reads=True) as job:
        assert job.ask("GET", "/jobs/overview", token=None)[1]["jobs"][0]["jid"] == job.id
        job.job.failed = "the row {'iban': 'DE02'} was refused"
        for token, shown in ((None, False), ("wrong", False), ("its own", True)):
            status, body = job.ask("GET", f"/jobs/{job.id}", token=token)
            assert (status, "DE02" in str(body)) == (200, shown)
            status, body = job.ask("GET", f"/penstock/v1/runs/{job.id}", token=token)
            assert (status, "DE02" in str(body)) == (200, shown)
        job.job.error = PreCommitFailed("the row {'iban': 'DE02'} was refused")
        _, answer = job.ask("POST", f"/v1/jobs/{job.id}/savepoints", {})
        path = f"/v1/jobs/{job.id}/savepoints"
        assert "DE02" in str(finished(job, path, answer["request-id"]))
        assert job.ask("GET", f"{path}/{answer['request-id']}", token=None)[0] == 401


def test_what_breaks_an_open_read_is_told_to_nobody_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(open_reads=True) as job:
        monkeypatch.setattr(
            Lifecycle, "since", property(lambda _: dict[object, object]()[object()])
        )  # a fault of our own
        for token, told in ((None, False), ("its own", True)):
            status, body = job.ask("GET", "/jobs/overview", token=token)
            assert (status, "KeyError" in str(body)) == (500, told)


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1", True), ("127.0.0.1:PORT", True), ("localhost:PORT", True), ("LOCALHOST.:7", True),
        ("[::1]:PORT", True), ("jobs.example.org", True), ("jobs.example.org:443", True), ("other.example.org", True),
        ("evil.example", False), ("evil.example:PORT", False), ("127.0.0.1.evil.example", False), ("", False),
        ("127.0.0.1@evil.example", False), ("[::1", False), ("10.0.0.1", False), ("localhost:x", False),
    ],
)  # fmt: skip
def test_it_answers_only_to_its_own_names(host: str, answered: bool) -> None:
    """A page in a browser can make its own name lead to this machine; what it cannot do is name the job rightly."""
    with served(address="jobs.example.org", hosts=("other.example.org",)) as job:
        port = str(job.serving.address).rpartition(":")[2]
        for method, path in (("GET", "/jobs/overview"), ("PATCH", f"/jobs/{job.id}?mode=cancel"), ("GET", "/no")):
            if answered and method == "PATCH":
                continue
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            with contextlib.closing(connection):
                headers = {"Host": host.replace("PORT", port), "Authorization": f"Bearer {job.entry.token}"}
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
                body = json.loads(response.read())
            assert (response.status == 403) is not answered
            assert (list(body) == ["errors"]) is (not answered or path == "/no")
        assert job.job.asked == []


def test_a_request_without_a_host_is_refused(job: Served) -> None:
    host, _, port = str(job.serving.address).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"GET /jobs HTTP/1.0\r\nAuthorization: Bearer {job.entry.token}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.split(b" ", 2)[1] == b"403"


def test_beyond_this_machine_it_answers_to_the_address_that_was_dialled() -> None:
    with served(bind_address="0.0.0.0") as job:
        port = str(job.serving.address).rpartition(":")[2]
        for name in ("127.0.0.1", "127.0.0.2", "localhost"):  # all of 127.0.0.0/8 is this machine
            assert Client(f"{name}:{port}", job.entry.token).jobs()[0]["jid"] == job.id


def test_beyond_this_machine_every_request_needs_the_token(caplog: pytest.LogCaptureFixture) -> None:
    with served(bind_address="0.0.0.0", address="127.0.0.1") as job:
        assert job.ask("GET", "/jobs/overview", token=None)[0] == 401
        assert job.ask("GET", "/v1/jobs/overview")[0] == 200
    assert "listens on 0.0.0.0 without TLS" in caplog.text
    with served():
        assert caplog.text.count("without TLS") == 1, "nobody else can see what stays on this machine"


def test_a_token_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one who knows it can ask from elsewhere."""
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret-of-mine")
    with served() as job:
        _, answer = job.ask("POST", f"/jobs/{job.id}/checkpoints", {}, "secret-of-mine")
        assert finished(job, f"/jobs/{job.id}/checkpoints", answer["request-id"])[0] == 200


def test_the_address_others_are_told() -> None:
    with served(address="jobs.example.org") as job:
        assert job.entry.address is not None
        host, _, port = job.entry.address.rpartition(":")
        assert host == "jobs.example.org"
        assert Client(f"127.0.0.1:{port}", job.entry.token).jobs()[0]["jid"] == job.id


def test_a_port_that_is_taken_stops_no_job(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING), served(port=port) as job:
            assert not str(job.serving.address).endswith(f":{port}")
            assert job.ask("GET", "/jobs/overview")[0] == 200
    assert f"port {port} is taken" in caplog.text


def test_an_address_that_is_not_this_machine_s_stops_no_job(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), served(bind_address="192.0.2.1") as job:
        assert job.serving.address is None
        assert job.entry.state is State.RUNNING
    assert "takes no commands" in caplog.text


def test_a_job_may_be_out_of_reach() -> None:
    with served(enabled=False) as job:
        assert job.serving.address is None
        assert (job.entry.state, job.entry.address) == (State.RUNNING, None)


def test_the_state_follows_the_job(registry: Registry) -> None:
    with served() as job:
        assert job.entry.state is State.RUNNING
        job.events.emit("restarting", query="out", seconds=1, error="x")
        job.job.state = "RESTARTING"
        assert (job.entry.state, job.entry.restarts) == (State.RESTARTING, 1)
        assert job.ask("GET", "/jobs")[1]["jobs"][0]["status"] == "RESTARTING"
        job.events.emit("opened", query="out", generation=3, epoch=4)
        assert job.entry.state is State.RUNNING
        job.job.state = "FAILING"  # the job knows more than its events have told
        assert job.ask("GET", "/jobs")[1]["jobs"][0]["status"] == "FAILING"
        job.events.emit("savepoint", path="/sp/by-itself")
        assert job.entry.savepoint == "/sp/by-itself"
    assert registry.get(job.id) is not None


def test_a_job_that_is_being_cancelled_does_not_run_again() -> None:
    with served() as job:
        job.job.cancel = lambda: None  # type: ignore[method-assign]
        job.ask("PATCH", f"/jobs/{job.id}")
        job.events.emit("opened", query="out", generation=3, epoch=4)
        assert job.ask("GET", "/jobs")[1]["jobs"][0]["status"] == "CANCELLING"


def test_a_job_that_cannot_say_how_it_is_is_still_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("not yet")

    steered = Steered()
    monkeypatch.setattr(steered, "status", broken)
    with served(steered) as job:
        assert job.ask("GET", f"/jobs/{job.id}")[1]["state"] == "RUNNING"


def test_a_client_says_who_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswer, match=f"127.0.0.1:{port} does not answer"):
        Client(f"127.0.0.1:{port}", None).jobs()


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "ftp://localhost:1", "host:port", "http://[::1", "a b:1", "h:1/\x00", "h:1/a\r\nX: y", "h:99999"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ControlError, match="is not the address of a job"):
        Client(address, None)


def test_a_broken_connection_does_not_make_two_savepoints(job: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request arrives, its answer does not: it is asked again, by the same id."""
    client = Client(str(job.serving.address), job.entry.token)
    ask: Callable[..., dict[str, Any]] = client.ask
    broken = iter([True])

    def once_broken(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = ask(method, path, body)
        if method == "POST" and next(broken, False):
            raise NoAnswer("cut off")
        return answer

    monkeypatch.setattr(client, "ask", once_broken)
    path = f"/jobs/{job.id}/savepoints"
    assert client.perform(path, {}, path) == {"location": "/default/savepoint-1"}
    assert len(job.job.asked) == 1


def test_a_history_that_is_garbage_stops_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is started again goes on with what the one before it has left."""
    run = uuid.uuid4().hex
    folder = history_folder(run)
    folder.mkdir(parents=True)
    line = {"time": 1.0, "event": "checkpoint", "query": "out", "epoch": "x"}
    (folder / "epochs-00000001.jsonl").write_text(json.dumps(line) + "\n")
    expect_run(run)
    with served() as job:
        assert job.id == run
        assert job.ask("GET", f"/penstock/v1/runs/{run}/epochs")[1]["epochs"] == []


def test_a_killed_driver_is_an_exception_of_the_run_once(registry: Registry, tmp_path: Path) -> None:
    """The next driver finds what the supervisor has recorded, and keeps it in the history."""
    supervisor = SupervisorEntry(tmp_path / "payments.py")
    supervisor({"event": "supervisor", "action": "restarting", "reason": "was killed by SIGKILL"})
    written = registry.read_entry(supervisor.id)
    assert written is not None
    for _ in range(2):  # another start of the run, without another death
        expect_run(supervisor.id)
        with served() as job:
            exceptions = job.ask("GET", f"/penstock/v1/runs/{job.id}/exceptions")[1]["exceptions"]
            restarts = job.ask("GET", f"/penstock/v1/runs/{job.id}/restarts")[1]["restarts"]
        assert [(note["happened"], note["query"], note["time"]) for note in exceptions] == [
            ("The driver was killed by SIGKILL.", None, written.modified)
        ]
        assert [note["time"] for note in restarts] == [written.modified]


def test_secrets_among_the_arguments_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["job.py", "--topic", "payments", "--password", "hunter2", "--dsn=x://a:hunter2@h"])
    with served() as job:
        job.ask("GET", f"/jobs/{job.id}")
    kept = read_history(job.id).description["arguments"]
    assert kept[:3] == ["--topic", "payments", "--password"]
    assert "hunter2" not in str(kept)
