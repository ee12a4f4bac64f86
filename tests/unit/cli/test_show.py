"""`penstock show`: what it gathers from a job, and what it shows."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from penstock.cli.output import Output
from penstock.cli.show import JobFacts, read_facts, render
from penstock.errors import PreCommitFailed
from penstock.ops.process.registry import Entry, Registry, State, now_ms
from penstock.processes import mark
from tests.support.command import run_command
from tests.support.fake_job import served

Invoke = Callable[..., tuple[int, str, str]]
ID = "ab" * 16


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the command as the shell would: exit status, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capfd, *arguments)

    return call


RUN = {
    "run": {"id": ID, "restarts": 2},
    "queries": [
        {
            "uid": "out", "generation": 3, "epoch": 41, "phase": "commit", "phase_since": 1, "watermark": 99,
            "rows_per_second": 1234.5, "rows_total": 9, "p50_ms": 50, "p99_ms": 99, "lag": 12, "inflight_bytes": 1500,
            "error": "late", "sources": [], "committed": 77,
        }
    ],
}  # fmt: skip


class Answers:
    """A server with the paths of the contract. `asked` has each path that was asked for; `bodies` may be changed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: dict[str, Any] = {
            f"/penstock/v1/runs/{ID}": RUN,
            f"/penstock/v1/runs/{ID}/exceptions": {
                "exceptions": [
                    {"time": number, "query": "out", "error": "PreCommitFailed", "happened": f"It broke {number}."}
                    for number in (1000, 5000, 3000, 2000)
                ]
            },
        }


@contextmanager
def answering() -> Iterator[tuple[Answers, Entry]]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append(self.path)
            body = answers.bodies.get(urlsplit(self.path).path)
            status, data = (404, {"errors": ["Not found"]}) if body is None else (200, body)
            text = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    entry = Entry(
        ID, "payments", State.RUNNING, start=now_ms() - 65_000, pid=os.getpid(), pid_mark=mark(os.getpid()),
        address=f"127.0.0.1:{server.server_port}", token="t",
    )  # fmt: skip
    Registry().put(entry)
    try:
        yield answers, entry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_everything_that_a_server_tells() -> None:
    with answering() as (answers, entry):
        job = read_facts(entry)
        assert job.queries is not None
        [query] = job.queries
        assert query.pop("phase_ms") > 0
        assert query == {
            "uid": "out", "epoch": 41, "generation": 3, "phase": "commit", "rows_per_second": 1234.5, "p50_ms": 50,
            "p99_ms": 99, "lag": 12, "inflight_bytes": 1500, "watermark": 99, "error": "late",
            "committed": 77, "sums": None,
        }  # fmt: skip
        assert [exception["time"] for exception in job.exceptions] == [5000, 3000, 2000]
        assert job.restarts == 2
        assert len(answers.asked) == 2  # a look is cheap for the job


@pytest.mark.parametrize(
    "body",
    [
        {"queries": 7},
        {"queries": [7, {"uid": 8}, {}]},
        [],
        b"<html>",
        {"queries": [{"uid": "out", "epoch": "x", "sources": 3}]},
        {"queries": [{"uid": "out", "epoch": True, "phase": 9, "phase_since": [], "sources": [{"partitions": [1]}]}]},
        {"queries": [{"uid": "out", "epoch": float("nan"), "phase_since": float("inf"), "rows_per_second": {}}]},
    ],
)
def test_answers_of_another_shape_break_nothing(body: Any) -> None:
    with answering() as (answers, entry):
        for path in answers.bodies:
            answers.bodies[path] = body
        shown(read_facts(entry))


def test_a_server_that_does_not_answer_is_a_note() -> None:
    job = read_facts(Entry(ID, "payments", State.RUNNING, address="127.0.0.1:1", token="t"))
    assert job.queries is None
    assert "does not answer" in str(job.note)
    starting = read_facts(Entry(ID, "payments", State.CREATED))
    assert starting.note == "It is CREATED and cannot be asked yet."


# Printed


def test_as_json_it_is_one_document(invoke: Invoke) -> None:
    with served() as job:
        status, out, err = invoke("show", "payments", "--json")
        assert (status, err) == (0, "")
        told = json.loads(out)
        assert (told["id"], told["state"], told["restarts"]) == (job.id, "RUNNING", 0)
        assert told["queries"][0]["uid"] == "out"
        assert told["queries"][0]["epoch"] == 12
        assert "token" not in told


def test_a_job_elsewhere(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with served() as job:
        address, token = str(job.serving.address), str(job.entry.token)
        monkeypatch.setenv("PENSTOCK_TOKEN", token)
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "other"))
        told = json.loads(invoke("show", "-m", address, "payments", "--json")[1])
        assert (told["name"], told["queries"][0]["epoch"]) == ("payments", 12)
        assert invoke("show", "-m", address, "orders")[0] == 1
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    assert invoke("show", "-m", "127.0.0.1:1", "payments")[0] == 1


def test_a_job_that_is_not_there_is_1(invoke: Invoke) -> None:
    status, out, err = invoke("show", "nobody", "--json")
    assert (status, out) == (1, "")
    assert json.loads(err)["error"] == "JobNotFound"


def test_a_job_that_has_failed_is_shown_with_its_three_sentences(invoke: Invoke) -> None:
    with served() as job:
        job.failure = PreCommitFailed("It broke.", safe="All rows.", to_do="Start it again.")
    status, out, _ = invoke("show", "payments")
    assert status == 0
    for part in ("FAILED", "What happened: It broke.", "What is safe: All rows.", "What to do: Start it again."):
        assert part in out


def shown(job: JobFacts) -> str:
    file = io.StringIO()
    render(Output(Console(file=file, force_terminal=True, width=160, height=50, color_system=None)), job)
    return file.getvalue()


def test_it_is_shown_with_all_there_is_to_know() -> None:
    with answering() as (_, entry):
        text = shown(read_facts(entry))
    for part in (
        "payments",
        "RUNNING",
        "1m 5s",
        "out",
        "41",
        "commit",
        "1,234",
        "50 ms",
        "99 ms",
        "12",
        "1.5 kB",
        "late",
    ):
        assert part in text
    assert "Newest exceptions" in text
    assert "It broke 5000." in text
    assert "It broke 1000." not in text


def test_what_strangers_write_cannot_leave_its_place() -> None:
    error = {"error": "X[b]", "happened": "\x1b[2J[red]boo\x07", "safe": "[/]", "to_do": ""}
    entry = Entry(ID, "\x1b]0;title\x07", State.FAILED, error=error)
    text = shown(JobFacts(entry))
    assert "X[b]" in text
    assert "[2J[red]boo" in text
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text
    assert "\x07" not in text


def test_a_job_that_shows_a_certificate_of_its_own(invoke: Invoke, tmp_path: Path) -> None:
    from tests.support.servers.security import make_security

    with served(certificate=str(make_security(tmp_path / "tls", {}).keystore)):
        _, out, _ = invoke("show", "payments", "--json")
    told = json.loads(out)
    assert (told["note"], [query["uid"] for query in told["queries"]]) == (None, ["out"])


def test_show_describes_one_job(invoke: Invoke) -> None:
    with answering() as (_, entry):
        Registry().put(replace(entry, script="/jobs/payments.py", storage="/var/lib/penstock", log="/logs/it.log"))
        status, out, _ = invoke("show", "payments")
        assert status == 0
        rows = [line.split() for line in out.splitlines()]
        for row in (["id", ID], ["checkpoints", "/var/lib/penstock/payments"], ["program", "/jobs/payments.py"],
                    ["log", "/logs/it.log"], ["driver", str(os.getpid())]):  # fmt: skip
            assert row in rows
        assert ["out", "41", "commit"] in [row[:3] for row in rows]
        shown = json.loads(invoke("show", ID[:8], "--json")[1])
        assert (shown["name"], shown["queries"][0]["lag"]) == ("payments", 12)
    error = {"error": "TopicMissing", "happened": "No topic.", "safe": "All.", "to_do": "Make it."}
    Registry().put(Entry("e" * 32, "gone", State.FAILED, start=5, end=6, error=error))
    _, out, _ = invoke("show", "gone")
    for text in ("FAILED", "What happened: No topic.", "What to do: Make it."):
        assert text in out
    assert invoke("show", "nothing-of-the-sort")[0] == 1
