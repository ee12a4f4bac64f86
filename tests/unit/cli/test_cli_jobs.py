"""The commands that ask something of running jobs, with jobs that have no Spark in them."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.jobs import _writer
from penstock.cli.output import Output, duration_text
from penstock.errors import ControlError, PreCommitFailed
from penstock.ops.process.registry import Entry, Registry, State
from penstock.processes import mark
from penstock.progress import Step
from tests.support.command import run_command
from tests.support.fake_job import Served, Steered, served
from tests.support.own_home import use_own_home

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_home(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the command as the shell would: exit status, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capfd, *arguments)

    return call


@pytest.fixture
def answer(invoke: Invoke) -> Callable[..., Any]:
    """What the command prints with --json; it must succeed."""

    def call(*arguments: str) -> Any:
        status, out, err = invoke(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return call


@pytest.fixture
def job() -> Iterator[Served]:
    with served() as one:
        yield one


def ended(name: str, state: State = State.FINISHED, id: str = "e" * 32) -> Entry:
    entry = Entry(id, name, state, start=1000, end=2000)
    Registry().put(entry)
    return entry


def test_nothing_runs(invoke: Invoke) -> None:
    assert invoke("list") == (0, "No job runs.\n", "")
    assert invoke("list", "-a") == (0, "No job is known.\n", "")
    assert invoke("list", "--json")[:2] == (0, "[]\n")


def test_list(invoke: Invoke, answer: Callable[..., Any], job: Served) -> None:
    ended("yesterday")
    restarting = Entry("a" * 32, "away", State.RESTARTING, 9, pid=os.getpid(), pid_mark=mark(os.getpid()))
    Registry().put(restarting)
    assert {one["name"] for one in answer("list")} == {"payments", "away"}
    assert {one["name"] for one in answer("list", "-r")} == {"payments"}
    assert {one["name"] for one in answer("list", "--running")} == {"payments"}
    assert {one["name"] for one in answer("list", "--all")} == {"payments", "away", "yesterday"}
    [one] = answer("list", "-r")
    assert (one["id"], one["state"], one["pid"]) == (job.id, "RUNNING", os.getpid())
    assert "token" not in one
    _, out, _ = invoke("list", "-a")
    rows = {line.split()[1]: line.split() for line in out.splitlines()[2:]}
    assert rows["payments"][:3] == [job.id[:12], "payments", "RUNNING"]
    assert rows["yesterday"][2] == "FINISHED"
    assert str(job.entry.token) not in out


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["savepoint", "payments"], ("savepoint", None, "native")),
        (["savepoint", "payments", "/sp", "--type", "canonical"], ("savepoint", "/sp", "canonical")),
        (["savepoint", "payments", "-type", "CANONICAL"], ("savepoint", None, "canonical")),
        (["stop", "payments"], ("stop_with_savepoint", None, False, "native")),
        (["stop", "-p", "/sp", "--drain", "payments"], ("stop_with_savepoint", "/sp", True, "native")),
        (["stop", "--savepointPath", "/sp", "-d", "--type", "CANONICAL", "payments"],
         ("stop_with_savepoint", "/sp", True, "canonical")),
        (["cancel", "payments", "-s"], ("stop_with_savepoint", None, False, "native")),
        (["cancel", "-s", "payments"], ("stop_with_savepoint", None, False, "native")),
        (["cancel", "-s", "/sp", "payments"], ("stop_with_savepoint", "/sp", False, "native")),
        (["cancel", "--withSavepoint", "/sp", "payments"], ("stop_with_savepoint", "/sp", False, "native")),
        (["cancel", "payments", "-s", "--type", "native"], ("stop_with_savepoint", None, False, "native")),
    ],
)  # fmt: skip
def test_savepoints(answer: Callable[..., Any], arguments: list[str], asked: tuple[Any, ...]) -> None:
    with served() as job:
        said = answer(*arguments)
        assert job.job.asked[0] == asked
        assert said["savepoint"] == f"{asked[1] or '/default'}/savepoint-1"
        assert (said["id"], said["name"]) == (job.id, "payments")
        ends = {"savepoint": None, "stop": "FINISHED", "cancel": "CANCELED"}[arguments[0]]
        assert said.get("state") == ends


def test_stop_without_a_savepoint(answer: Callable[..., Any], job: Served) -> None:
    assert answer("stop", "--no-savepoint", job.id[:8])["state"] == "FINISHED"
    assert job.job.asked == [("stop",)]


def test_a_stop_that_gets_nowhere_says_what_it_waits_for(invoke: Invoke, job: Served) -> None:
    """The job ends all the same, once it can."""
    job.job.gate.clear()
    job.events.emit("opened", query="out", epoch=12, generation=3)
    status, out, err = invoke("stop", "payments", "--timeout", "0", "--json")
    assert (status, out) == (1, "")
    error = json.loads(err)
    assert error["error"] == "ControlError"
    assert "waits for epoch 12 of query out (in prepare for " in error["happened"]
    assert "still ends when it can" in error["safe"]
    assert "penstock cancel" in error["to_do"]
    assert not job.job.ending.is_set()
    job.job.gate.set()
    job.thread.join(60)
    assert job.entry.state == "FINISHED"


def test_a_long_stop_says_in_a_pipe_what_it_waits_for(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, job: Served
) -> None:
    from penstock.cli import jobs, output

    monkeypatch.setattr(output, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    job.job.gate.clear()
    waits = jobs.Wait.__call__

    def wait(self: jobs.Wait) -> None:
        waits(self)
        job.job.gate.set()

    monkeypatch.setattr(jobs.Wait, "__call__", wait)
    status, _, err = invoke("stop", "payments")
    assert status == 0
    assert "Stopping payments: waits for its queries to end, 0s" in err


def test_cancel(answer: Callable[..., Any], job: Served) -> None:
    assert answer("cancel", job.id)["state"] == "CANCELED"
    assert job.job.asked == [("cancel",)]


def test_checkpoint(answer: Callable[..., Any], invoke: Invoke, job: Served) -> None:
    assert answer("checkpoint", "payments")["checkpoint"] == 7
    status, out, _ = invoke("checkpoint", "payments")
    assert status == 0
    assert ["checkpoint", "7"] in [line.split() for line in out.splitlines()]


def test_dispose(answer: Callable[..., Any], job: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.savepoints.savepoint as savepoints

    gone: list[str] = []
    monkeypatch.setattr(savepoints, "dispose", gone.append)
    assert answer("savepoint", "--dispose", "/sp/1") == {"disposed": "/sp/1"}
    monkeypatch.setenv("PENSTOCK_TOKEN", str(job.entry.token))
    assert answer("savepoint", "-d", "/sp/2", "-m", str(job.serving.address)) == {"disposed": "/sp/2"}
    assert gone == ["/sp/1", "/sp/2"]


def test_a_job_elsewhere(
    answer: Callable[..., Any], invoke: Invoke, job: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address, token = str(job.serving.address), str(job.entry.token)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "another machine"))
    for command in (["list"], ["savepoint", "payments"]):
        status, _, err = invoke(*command, "--jobmanager", address)
        assert status == 1
        assert "PENSTOCK_TOKEN" in err
    monkeypatch.setenv("PENSTOCK_TOKEN", token)
    assert [one["id"] for one in answer("list", "-m", address)] == [job.id]
    assert answer("savepoint", "payments", "-m", f"http://{address}")["savepoint"] == "/default/savepoint-1"
    assert answer("cancel", job.id[:6], "-m", address) == {
        "id": job.id, "name": "payments", "state": None, "savepoint": None,
    }  # fmt: skip
    status, _, err = invoke("cancel", "payments", "-m", "127.0.0.1:1")
    assert status == 1
    assert "does not answer" in err


def test_a_job_of_one_s_own_at_its_address_needs_no_variable(answer: Callable[..., Any], job: Served) -> None:
    """Its token is in the registry, which only its owner can read."""
    port = str(job.serving.address).rpartition(":")[2]
    for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"http://127.0.0.1:{port}"):
        assert [one["id"] for one in answer("list", "-m", address)] == [job.id]
        assert answer("checkpoint", "payments", "-m", address)["checkpoint"] == 7


def test_a_token_is_sent_only_where_it_belongs(invoke: Invoke, job: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        asked: list[bytes] = []

        def stranger() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(1 << 16))

        thread = threading.Thread(target=stranger)
        thread.start()
        assert invoke("list", "-m", f"127.0.0.1:{listener.getsockname()[1]}")[0] == 1
        thread.join(60)
    assert asked[0].startswith(b"GET ")
    assert b"Bearer" not in asked[0]


def test_which_job_is_meant(invoke: Invoke, job: Served) -> None:
    status, _, err = invoke("checkpoint", "nobody")
    assert status == 1
    assert "No job 'nobody' runs on this machine." in err
    assert invoke("checkpoint", job.id[:3])[0] == 1  # too short to be sure
    ended("yesterday")
    status, _, err = invoke("checkpoint", "yesterday")
    assert status == 1
    assert f"Job 'yesterday' ({'e' * 32}) does not run: it is FINISHED." in err
    with served() as twin:
        status, _, err = invoke("checkpoint", "payments", "--json")
        assert status == 1
        error = json.loads(err)
        assert error["error"] == "JobNotFound"
        for one in (job, twin):
            assert one.id in error["happened"]
        assert invoke("checkpoint", twin.id)[0] == 0
    assert (job.job.asked, twin.job.asked) == ([], [("checkpoint",)])


def test_a_run_of_before_is_not_meant_while_one_runs(invoke: Invoke, job: Served) -> None:
    ended("payments")
    assert invoke("checkpoint", "payments")[0] == 0


def test_a_job_that_takes_no_commands(invoke: Invoke) -> None:
    with served(enabled=False):
        status, _, err = invoke("cancel", "payments")
        assert status == 1
        assert f"SIGTERM to its process {os.getpid()}" in err


def test_the_job_s_own_error_is_shown(invoke: Invoke, job: Served) -> None:
    job.job.error = PreCommitFailed("The disk is full.", safe="All.", to_do="Make room.")
    status, out, err = invoke("savepoint", "payments", "--json")
    assert (status, out) == (1, "")
    assert json.loads(err) == {
        "error": "PreCommitFailed", "happened": "The disk is full.", "safe": "All.", "to_do": "Make room.",
    }  # fmt: skip


def test_an_answer_that_was_missed_is_in_the_registry(
    answer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ended for its savepoint, and its server was gone before it was asked again."""
    from penstock.ops.server import serving as served_by
    from penstock.ops.server.client import Client

    monkeypatch.setattr(served_by, "FETCH_SECONDS", 0.0)
    ask = Client.ask
    with served() as job:

        def too_late(self: Client, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            if "/savepoints/" in path:
                job.thread.join(60)
            return ask(self, method, path, body)

        monkeypatch.setattr(Client, "ask", too_late)
        assert answer("stop", "payments")["savepoint"] == "/default/savepoint-1"


@pytest.mark.parametrize(
    "arguments",
    [
        ["savepoint"], ["savepoint", "job", "--dispose", "/sp"], ["cancel"], ["cancel", "-s"], ["stop"],
        ["stop", "job", "--no-savepoint", "--drain"], ["savepoint", "job", "--type", "parquet"], ["logs"],
        ["run", "-d", "--no-supervise", __file__], ["run", "-p", "many", __file__],
        ["run", "--standby", "--no-supervise", __file__],
    ],
)  # fmt: skip
def test_bad_usage_is_2(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke(*arguments)[0] == 2


def test_logs(invoke: Invoke) -> None:
    log = Registry().log_file("e" * 32)
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree ü\n")
    Registry().put(Entry("e" * 32, "payments", State.FINISHED, start=5, end=6, log=str(log)))
    Registry().put(Entry("d" * 32, "payments", State.FINISHED, start=1, end=2, log="/elsewhere"))
    assert invoke("logs", "payments") == (0, "one\ntwo\nthree ü\n", "")
    assert invoke("logs", "eeee", "-n", "1") == (0, "three ü\n", "")
    log.with_name(f"{log.name}.1").write_text("before\n")  # it has begun anew
    assert invoke("logs", "payments")[1] == "before\none\ntwo\nthree ü\n"
    assert invoke("logs", "payments", "-n", "4")[1] == "before\none\ntwo\nthree ü\n"
    assert invoke("logs", "payments", "--follow", "-n", "0")[:2] == (0, "")
    status, _, err = invoke("logs", "dddd")
    assert status == 1
    assert "has no log" in err


def test_a_log_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", screen)
    write = _writer()
    for part in (b"\x1b[1;31mred\x1b[0m \x1b]52;c;x\x07 \xc3", b"\xbc\n"):
        write(part)
    assert screen.getvalue() == "red �]52;c;x� ü\n"


def test_long_work_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for terminal in (True, False):
        monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
        with Output().working("Almost there …"):
            pass
        out, err = capfd.readouterr()
        assert out == ""
        assert ("Almost" in err) is terminal


@pytest.mark.parametrize("command", ["stop", "logs", "show", "ui", "cancel", "savepoint"])
def test_shells_are_told_the_names(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, job: Served, command: str) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"penstock {command} pay")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert invoke()[1].split() == ["payments"]


def test_times_as_a_person_reads_them() -> None:
    assert [duration_text(ms) for ms in (0, 7_999, 65_000, 3_600_000, 93_784_000)] == [
        "0s",
        "7s",
        "1m 5s",
        "1h 0m",
        "1d 2h",
    ]


def test_a_failed_job_s_stop_is_1(invoke: Invoke) -> None:
    class Fails(Steered):
        def stop(self) -> None:
            self.ending.set()

    with served(Fails()) as job:
        job.failure = PreCommitFailed("It broke.")
        status, out, _ = invoke("stop", "--no-savepoint", "payments")
        assert status == 1
        assert "FAILED" in out


EVIL = "acc-1\x1b]0;owned\x07\x1b[2J\x1b]52;c;Y3VybA==\x07\u202e"


def test_what_others_write_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    output = Output()
    output.table(f"Rows {EVIL}", [{f"account {EVIL}": EVIL, "total": 3}])
    output.record(f"Savepoint {EVIL}", {f"path {EVIL}": f"/sp/{EVIL}"})
    output.line(EVIL)
    output.error(ControlError(EVIL, safe=EVIL, to_do=EVIL))
    with output.working(EVIL), output.progress(EVIL) as display:
        display.describe(EVIL)
        display(Step(EVIL, 1, 2, EVIL))
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "acc-1" in text
        assert not [part for part in ("\x1b]", "\x1b[2J", "\x07", "\u202e") if part in text]
