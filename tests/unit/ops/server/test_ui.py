"""`penstock ui`'s server: all runs of this machine, requests sent on to those that live, and what goes wrong there."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.errors import ControlError, PreCommitFailed
from penstock.ops.process.registry import Entry, Registry, State, history_folder
from penstock.ops.server import app as ui_server
from penstock.ops.server import commands, control, history, own
from tests.support.fake_job import Served, served
from tests.support.ui_client import a_story, request, ui
from tests.support.ui_link import link_of
from tests.support.waiting import until


def test_living_and_past_runs_together() -> None:
    with served() as past:
        a_story(past.events.emit)
    with served() as living, ui() as page:
        runs = page.ask("GET", "/penstock/v1/runs")[1]["runs"]
        assert [(run["id"], run["live"]) for run in runs] == [(living.id, True), (past.id, False)]
        assert page.ask("GET", f"/jobs/{living.id}")[1]["vertices"][0]["epoch"] == 12  # asked of the job itself
        assert page.ask("GET", f"/penstock/v1/runs/{past.id}/epochs")[1]["epochs"][0]["epoch"] == 4
        assert page.ask("GET", f"/penstock/v1/runs/{'0' * 32}")[0] == 404
        assert page.ask("GET", "/jobs/..%2f..%2fetc")[0] == 404


def finished(page: Any, job: Served, asked: str) -> tuple[int, Any]:
    def over() -> tuple[int, Any] | None:
        status, body = page.ask("GET", f"/v1/jobs/{job.id}/savepoints/{asked}")
        return None if status == 200 and body["status"]["id"] == "IN_PROGRESS" else (status, body)

    return until(over, "the savepoint")


def test_steering_goes_to_the_job() -> None:
    with served() as job, ui() as page:
        _, answer = page.ask("POST", f"/jobs/{job.id}/savepoints", {"target-directory": "/sp"})
        assert finished(page, job, answer["request-id"])[1]["operation"] == {"location": "/sp/savepoint-1"}
        job.job.error = PreCommitFailed("The disk is full.", safe="All.", to_do="Make room.")
        _, answer = page.ask("POST", f"/jobs/{job.id}/savepoints", {})
        assert finished(page, job, answer["request-id"]) == (
            500, {"errors": ["The disk is full.\nSafe: All.\nTo do: Make room."]},
        )  # fmt: skip
        assert page.ask("POST", f"/jobs/{job.id}/savepoints", {"formatType": "x"})[0] == 400
        job.job.error = None
        _, answer = page.ask("POST", f"/jobs/{job.id}/stop", {"targetDirectory": "/sp"})
        assert finished(page, job, answer["request-id"])[1]["operation"]["location"].startswith("/sp/savepoint-")
        job.thread.join(60)
        # The job is gone; whoever asked for its end is still told.
        assert finished(page, job, answer["request-id"])[1]["operation"]["location"].startswith("/sp/savepoint-")
        status, body = page.ask("POST", f"/jobs/{job.id}/stop", {})
        assert (status, "takes no commands" in body["errors"][0]) == (409, True)
        assert page.ask("PATCH", f"/jobs/{job.id}?mode=cancel")[0] == 409


def test_two_tabs_stop_one_job() -> None:
    with served() as job, ui() as page:
        job.job.gate.clear()
        answers: list[tuple[int, Any]] = []
        tabs = [
            threading.Thread(target=lambda: answers.append(page.ask("POST", f"/jobs/{job.id}/stop", {})))
            for _ in range(2)
        ]
        for tab in tabs:
            tab.start()
        for tab in tabs:
            tab.join(30)
        assert [status for status, _ in answers] == [202, 202]
        job.job.gate.set()
        ends = [finished(page, job, body["request-id"]) for _, body in answers]
        assert any(status == 200 for status, _ in ends)
        assert all(status == 200 or list(body) == ["errors"] for status, body in ends)
        job.thread.join(60)
        assert job.entry.state is State.FINISHED


def test_a_name_in_a_path_cannot_begin_another_request() -> None:
    """Names of queries may have any letters, and a forwarded path is sent as it came."""
    with served() as job, ui() as page:
        details = f"/v1/jobs/{job.id}/checkpoints/details/1/subtasks"
        for name in ("a%20b", "a%0D%0AX-Evil:%201%0D%0A%0D%0APOST%20/", "%C3%A4%E2%82%AC", "a%2Fb"):
            status, body = page.ask("GET", f"{details}/{name}")
            assert (status, list(body)) == (404, ["errors"])
            assert (status, body) == job.ask("GET", f"{details}/{name}")  # which has answered it
        assert job.job.asked == []
        headers = {"Authorization": f"Bearer {page.token}"}
        assert request(page.address, "HEAD", f"/v1/jobs/{job.id}", headers)[0] == 200


def test_each_who_asked_for_the_end_is_told(registry: Registry) -> None:
    """Also where the registry says already that the job has ended, and knows of the last request only."""
    with served() as job, ui() as page:
        asked = [page.ask("POST", f"/jobs/{job.id}/savepoints", {})[1]["request-id"] for _ in range(2)]
        until(lambda: len(job.job.asked) == 2, "both savepoints")
        job.job.ending.set()
        until(lambda: job.entry.state.ended, "the end")
        assert [finished(page, job, one)[0] for one in asked] == [200, 200]


class Dying:
    """A port that takes a request and breaks off, after some of an answer."""

    def __init__(self, says: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._says = says
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(self._says)

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.parametrize(
    "says",
    [
        b"", b"HTTP/1.1 200 OK\r\n", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{", b"\0" * 100_000,
    ],
)  # fmt: skip
def test_a_job_that_dies_while_it_is_asked(says: bytes, registry: Registry) -> None:
    with served() as job:
        a_story(job.events.emit)
        until(lambda: len(list(history_folder(job.id).glob("story-*"))) == 1, "its history")
        dying = Dying(says)
        with ui() as page:
            registry.put(Entry(**{**job.entry.__dict__, "address": dying.address}))
            until(lambda: page.ask("GET", f"/penstock/v1/runs/{job.id}/epochs")[1]["epochs"], "what it has written")
            status, body = page.ask("POST", f"/jobs/{job.id}/stop", {})
            assert (status, "did not answer" in body["errors"][0]) == (502, True)
            assert job.job.asked == []
        dying.end()


def test_a_registry_that_is_garbage(tmp_path: Path) -> None:
    with served() as job:
        folder = tmp_path / "home" / "jobs"
        bodies = [
            "",
            "{",
            "[]",
            "7",
            json.dumps({"version": 1, "id": "x"}),
            json.dumps({"version": 99, "id": "0" * 32}),
        ]
        for body in bodies:
            (folder / f"{uuid.uuid4().hex}.json").write_text(body)
        odd = {
            "version": 1,
            "id": uuid.uuid4().hex,
            "name": "odd",
            "state": "RUNNING",
            "start": 1,
            "address": "nowhere",
        }
        (folder / f"{odd['id']}.json").write_text(json.dumps(odd))
        for field, value in (("start", "soon"), ("name", None), ("error", ["x"]), ("address", 7), ("restarts", None)):
            wrong = {**odd, "id": uuid.uuid4().hex, field: value}
            (folder / f"{wrong['id']}.json").write_text(json.dumps(wrong))
        with ui() as page:
            runs = page.ask("GET", "/penstock/v1/runs")[1]["runs"]
            assert {run["id"] for run in runs} == {job.id, odd["id"]}
            assert page.ask("GET", f"/penstock/v1/runs/{odd['id']}")[1]["queries"] == []


def test_a_history_is_read_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as job:
        a_story(job.events.emit)
    reads: list[str] = []
    read = history.read_history

    def slowly(run: str) -> Any:
        reads.append(run)
        time.sleep(0.2)
        return read(run)

    monkeypatch.setattr(history, "read_history", slowly)
    with ui() as page:
        threads = [
            threading.Thread(target=page.ask, args=("GET", f"/penstock/v1/runs/{job.id}{path}"))
            for path in ("", "/epochs", "/series", "/state")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert reads == [job.id]


def test_a_history_cut_in_half() -> None:
    with served() as job:
        a_story(job.events.emit)
    file = history_folder(job.id) / "epochs-00000001.jsonl"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 5 // 8])
    with ui() as page:
        _, body = page.ask("GET", f"/penstock/v1/runs/{job.id}")
        assert body["damage"] == ["epochs-00000001.jsonl has 1 damaged lines, which are left out"]
        assert [epoch["epoch"] for epoch in page.ask("GET", f"/penstock/v1/runs/{job.id}/epochs")[1]["epochs"]] == [
            2,
            1,
        ]


# Commands in processes of their own


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def run(arguments: list[str], folder: Path | None = None, **_: Any) -> Any:
        found.append((arguments, folder))
        return {"id": "1" * 32, "name": "payments"}

    monkeypatch.setattr(commands, "run_command", run)
    return found


def registered(registry: Registry, program: str, **more: Any) -> str:
    run = uuid.uuid4().hex
    registry.put(Entry(run, "payments", **{"state": State.FINISHED, "start": 1, "end": 2, "script": program, **more}))
    return run


def test_a_program_that_the_registry_knows_is_started(ran: list[Any], registry: Registry, tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("")
    registered(registry, str(program))
    with ui() as page:
        for body, options in (
            ({}, []),
            ({"from": "/sp/1", "claim": False, "fork": None}, ["--from-savepoint=/sp/1", "--claim-mode=no_claim"]),
            ({"from": "-x", "claim": True, "fork": "two"},
             ["--from-savepoint=-x", "--claim-mode=claim", "--fork=two", "--suffix=_two"]),
        ):  # fmt: skip
            assert page.ask("POST", "/penstock/v1/runs", {"program": str(program), **body})[0] == 201
            assert ran[-1] == (["run", "-d", "--json", *options, "--", str(program)], tmp_path)
        count = len(ran)
        bad: list[dict[str, Any]] = [{}, {"program": "/bin/sh"}, {"program": 7}]
        bad += [{"program": str(program), "claim": "yes"}, {"program": str(program), "fork": "two"}]
        for refused in bad:
            assert page.ask("POST", "/penstock/v1/runs", refused)[0] in (400, 404)
        assert len(ran) == count
    with served() as job:
        assert job.ask("POST", "/penstock/v1/runs", {"program": str(program)})[0] == 409


def test_transactions_are_ended_by_the_command_s_rules(ran: list[Any], registry: Registry, tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("")
    past = registered(registry, str(program))
    lost = registered(registry, str(tmp_path / "moved.py"))
    with ui() as page, served() as job:
        path = f"/penstock/v1/runs/{past}/transactions"
        assert page.ask("POST", f"{path}/commit", {"ids": ["-a", "b"]})[0] == 200
        assert ran[-1] == (["transactions", "commit", f"--job={program}", "--json", "--", "-a", "b"], tmp_path)
        assert page.ask("POST", f"{path}/resolve", {"ids": ["a"], "as": "lost"})[0] == 200
        assert ran[-1][0] == ["transactions", "resolve", f"--job={program}", "--json", "--as=lost", "--yes", "--", "a"]
        count = len(ran)
        bad: list[dict[str, Any]] = [{}, {"ids": []}, {"ids": "a"}, {"ids": [7]}, {"ids": ["a\n"]}]
        for body in bad:
            assert page.ask("POST", f"{path}/abort", body)[0] == 400
        assert page.ask("POST", f"{path}/resolve", {"ids": ["a"], "as": "gone"})[0] == 400
        for other in (lost, job.id):  # a program that is not there; a job that runs
            assert page.ask("POST", f"/penstock/v1/runs/{other}/transactions/abort", {"ids": ["a"]})[0] == 409
        assert len(ran) == count


def test_a_program_is_run_where_its_run_was_started(ran: list[Any], registry: Registry, tmp_path: Path) -> None:
    """Storage may be named from there."""
    program = tmp_path / "programs" / "job.py"
    program.parent.mkdir()
    program.write_text("")
    past = registered(registry, str(program))
    history_folder(past).mkdir(parents=True)
    description = {"version": 1, "directory": str(tmp_path)}
    (history_folder(past) / "description.json").write_text(json.dumps(description))
    with ui() as page:
        assert page.ask("POST", f"/penstock/v1/runs/{past}/transactions/commit", {"ids": ["a"]})[0] == 200
        assert page.ask("POST", "/penstock/v1/runs", {"program": str(program)})[0] == 201
    assert [folder for _, folder in ran] == [tmp_path, tmp_path]


def test_a_run_is_started_again_as_it_was_started(ran: list[Any], registry: Registry, tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("")
    past = registered(registry, str(program), state=State.FAILED)
    given = {
        "state.backend.type": ("rocksdb", "-D"),
        "execution.state-recovery.path": ("/sp/0", "-D"),
        "penstock.restore.id": ("0" * 32, "-D"),
        "rest.port": ("0", "default"),
    }
    description = {
        "version": 1, "directory": str(tmp_path), "config": "/etc/penstock.yaml", "arguments": ["--topic", "payments"],
        "settings": [{"key": key, "value": value, "source": source} for key, (value, source) in given.items()],
    }  # fmt: skip
    history_folder(past).mkdir(parents=True)
    file = history_folder(past) / "description.json"
    file.write_text(json.dumps(description))
    start, backend = {"program": str(program), "run": past}, "-Dstate.backend.type=rocksdb"
    restore = ["-Dexecution.state-recovery.path=/sp/0", f"-Dpenstock.restore.id={'0' * 32}"]
    head, tail = ["run", "-d", "--json", "--config=/etc/penstock.yaml"], ["--", str(program), "--topic", "payments"]
    with ui() as page:
        assert page.ask("POST", "/penstock/v1/runs", start)[0] == 201
        # With the same restore, which the job has done already, it resumes from its own checkpoint.
        assert ran[-1] == ([*head, backend, *restore, *tail], tmp_path)
        assert page.ask("POST", "/penstock/v1/runs", {**start, "from": "/sp/1"})[0] == 201
        assert ran[-1][0] == [*head, backend, "--from-savepoint=/sp/1", "--claim-mode=no_claim", *tail]
        assert page.ask("POST", "/penstock/v1/runs", {**start, "run": "0" * 32})[0] == 404
        count = len(ran)
        secret = {"key": "kafka.sasl.password", "value": "***", "source": "-D"}
        file.write_text(json.dumps({**description, "settings": [secret]}))
        status, answer = page.ask("POST", "/penstock/v1/runs", start)
        assert status == 409
        assert "-D kafka.sasl.password" in answer["errors"][0]
        assert len(ran) == count


def test_a_command_s_error_is_told_as_it_is(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    past = registered(registry, str(tmp_path / "job.py"))
    with ui() as page:
        status, body = page.ask("POST", f"/penstock/v1/runs/{past}/transactions/commit", {"ids": ["a"]})
        assert (status, list(body)) == (500, ["errors"])
        assert "has 0 jobs at module level" in body["errors"][0]


class Held:
    """A job's `status` that does not come back while it is held."""

    def __init__(self, job: Served) -> None:
        self.asked, self.go, self._status = threading.Semaphore(0), threading.Event(), job.job.status
        job.job.status = self._slow  # type: ignore[method-assign]

    def _slow(self) -> dict[str, Any]:
        self.asked.release()
        assert self.go.wait(60)
        return self._status()


def test_a_job_that_does_not_answer_in_time_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is asked may start processes: to answer in its place would start them a second time."""
    monkeypatch.setattr(ui_server, "READ_SECONDS", 0.2)
    with served() as job, ui() as page:
        held = Held(job)
        status, body = page.ask("GET", f"/penstock/v1/runs/{job.id}")
        held.go.set()
        assert (status, "has not answered in time" in body["errors"][0]) == (504, True)


def test_commands_that_wait_hold_no_thread_and_are_few(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, tmp_path: Path
) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def slow(*_: Any) -> list[Any]:
        begun.release()
        assert go.wait(60)
        return []

    monkeypatch.setattr(commands, "run_command", slow)
    (tmp_path / "job.py").write_text("")
    path = f"/penstock/v1/runs/{registered(registry, str(tmp_path / 'job.py'))}/transactions/commit"
    with ui() as page, ThreadPoolExecutor(20) as many:
        asking = [many.submit(page.ask, "POST", path, {"ids": ["a"]}) for _ in range(commands.MOST_WAITING + 4)]
        assert begun.acquire(timeout=60)
        until(lambda: sum(one.done() for one in asking) == 3, "those that are too many to be refused")
        assert page.ask("GET", "/jobs/overview")[0] == 200
        assert not begun.acquire(blocking=False), "one at a time"
        go.set()
        assert sorted(one.result()[0] for one in asking) == [200] * 9 + [429] * 3


def test_long_work_and_streams_of_events_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_RUNNING", 2)
    monkeypatch.setattr(own, "MOST_STREAMS", 0)
    with served() as job:
        job.job.gate.clear()
        asked = [job.ask("POST", f"/jobs/{job.id}/checkpoints")[0] for _ in range(3)]
        assert asked == [202, 202, 409]
        assert job.ask("GET", f"/penstock/v1/runs/{job.id}/events")[0] == 429


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(commands, "penstock_command", lambda *_: hanging)
    monkeypatch.setattr(commands, "COMMAND_SECONDS", 0.2)
    with pytest.raises(ControlError, match="did not end within"):
        commands.run_command(["list"])


def test_an_audit_is_run_for_the_page_and_its_report_is_kept(
    ran: list[Any], registry: Registry, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text("")
    past, lost = registered(registry, str(program)), registered(registry, str(tmp_path / "moved.py"))
    with ui() as page:
        path = f"/penstock/v1/runs/{past}/audit"
        assert page.ask("GET", path) == (200, {"audit": None})
        status, body = page.ask("POST", path)
        assert (status, body["audit"]["name"]) == (200, "payments")
        [(arguments, folder)] = ran
        assert (arguments[:2], arguments[3:], folder) == (["audit", "--json"], ["--", past], tmp_path)
        assert page.ask("POST", f"/penstock/v1/runs/{lost}/audit")[0] == 409
        history.keep_audit(past, '{"status": 3}')
        assert page.ask("GET", path) == (200, {"audit": {"status": 3}})
        (history_folder(past) / "audit.json").write_text("{")
        history_folder(lost).write_text("no folder")
        history.keep_audit(lost, "{}")  # an audit ends as well where its report cannot be kept
        assert page.ask("GET", path) == (200, {"audit": None})
    with served() as job:
        assert job.ask("GET", f"/penstock/v1/runs/{job.id}/audit") == (200, {"audit": None})


def test_a_report_counts_whatever_the_status_of_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The status of an audit is its verdict; without a report it is a failure."""
    report = tmp_path / "report.json"
    write = f"import sys; print('not JSON'); open({str(report)!r}, 'w').write('[7]'); sys.exit(3)"
    monkeypatch.setattr(commands, "penstock_command", lambda *_: [sys.executable, "-c", write])
    assert commands.run_command(["audit"], report=report) == [7]
    monkeypatch.setattr(commands, "penstock_command", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(ControlError, match="status 1"):
        commands.run_command(["audit"], report=tmp_path / "none.json")


def test_a_command_of_a_job_under_spark_submit_has_a_jvm_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "7")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "x")
    show = "import json, os; print(json.dumps([name for name in os.environ if 'GATEWAY' in name]))"
    monkeypatch.setattr(commands, "penstock_command", lambda *_: [sys.executable, "-c", show])
    assert commands.run_command(["audit"]) == []


# The command


def test_the_command_prints_a_link_that_works_once() -> None:
    started = [sys.executable, "-c", "from penstock.cli.main import main; main()", "ui", "--port", "0", "--json"]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            link = urlsplit(link_of(process))
            code = {"code": link.fragment.removeprefix("code=")}
            assert (link.path, link.query) == ("/", "")
            status, _, body = until(lambda: _try(link.netloc, code), "the server")
            assert status == 201
            assert request(link.netloc, "POST", "/penstock/v1/sessions", {}, code)[0] == 401
            session = {"Authorization": f"Bearer {json.loads(body)['token']}"}
            assert request(link.netloc, "GET", "/penstock/v1/runs", session)[2] == b'{"runs": []}'
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def _try(address: str, code: dict[str, str]) -> Any:
    try:
        return request(address, "POST", "/penstock/v1/sessions", {}, code)
    except OSError:
        return None


def test_a_browser_is_started_without_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user of the machine sees what programs are started with."""
    import webbrowser

    from penstock.cli.ui import _open_browser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    for code in ("first", "second"):
        _open_browser(f"http://127.0.0.1:1/#code={code}")
    page = tmp_path / "home" / "open.html"
    assert opened == [page.as_uri()] * 2
    assert "url=http://127.0.0.1:1/#code=second" in page.read_text()
    assert "first" not in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_the_command_opens_a_job_s_own_page() -> None:
    from typer.testing import CliRunner

    from penstock.cli.main import app

    with served() as job:
        result = CliRunner().invoke(app, ["ui", "payments", "--json"])
        link = urlsplit(json.loads(result.stdout)["link"])
        assert link.netloc == job.serving.address
        assert _try(link.netloc, {"code": link.fragment.removeprefix("code=")})[0] == 201
