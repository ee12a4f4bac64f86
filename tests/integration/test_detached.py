"""`penstock run` with real processes and a job without Spark: left in the background, killed, failing, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.process.registry import Entry, Registry
from tests.support.servers.processes import end_process
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]

#: What `Job.run` does, as far as commands can tell.
SCRIPT = f"""
import signal, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.fake_job import Steered
from penstock.config.resolve import resolve
from penstock.ops.process import lifeline
from penstock.events import Events
from penstock.ops.server.serving import serving

job, events = Steered("payments"), Events()

def end(*_):
    lifeline.report(stopping=True)
    job.ending.set()

signal.signal(signal.SIGTERM, end)
print("the job begins", sys.argv[1:], flush=True)
with serving(job, resolve(), events):
    events.emit("started", query="out", generation=1)
    while not job.ending.wait(0.05):
        pass
print("the job ends", flush=True)
"""

Penstock = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    registry = Registry()
    yield registry
    for entry in registry.entries():
        for pid in (entry.supervisor if entry.supervised else None, entry.pid if entry.driven else None):
            if pid is not None:
                end_process(pid, 20)


@pytest.fixture
def penstock(registry: Registry, tmp_path: Path) -> Penstock:
    """The command as the shell starts it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    return run


def done(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def entry_of(registry: Registry, run: str) -> Entry:
    entry = registry.get(run)
    assert entry is not None
    return entry


def test_a_detached_job(penstock: Penstock, registry: Registry, tmp_path: Path) -> None:
    """It runs in a session of its own, keeps its id when its driver is killed, and ends when it is told to."""
    (tmp_path / "job.py").write_text(SCRIPT)
    started = done(penstock("run", "-d", "--json", "job.py", "--its", "own"))
    assert (started["name"], started["state"]) == ("payments", "RUNNING")
    run = started["id"]
    first = entry_of(registry, run)
    assert first.pid is not None
    assert first.supervisor is not None
    assert os.getsid(first.supervisor) == first.supervisor  # no terminal's end reaches it
    [listed] = done(penstock("list", "--json"))
    assert (listed["id"], listed["script"]) == (run, str(tmp_path / "job.py"))

    os.kill(first.pid, signal.SIGKILL)
    second = until(
        lambda: one if (one := entry_of(registry, run)).state == "RUNNING" and one.pid != first.pid else None,
        "the job to run again",
    )
    assert (second.id, second.start, second.restarts) == (run, first.start, 1)
    assert second.address != first.address or second.token != first.token

    stopped = done(penstock("stop", "payments", "-p", "/sp", "--json"))
    assert stopped == {"id": run, "name": "payments", "state": "FINISHED", "savepoint": "/sp/savepoint-1"}
    assert not entry_of(registry, run).supervised
    assert done(penstock("list", "--json")) == []
    [ended] = done(penstock("list", "-a", "--json"))
    assert (ended["state"], ended["savepoint"], ended["restarts"]) == ("FINISHED", "/sp/savepoint-1", 1)
    log = penstock("logs", "payments").stdout
    assert log.count("the job begins ['--its', 'own']") == 2
    assert "was killed by SIGKILL" in log
    assert log.count("the job ends") == 1


def test_a_job_that_runs_is_not_started_a_second_time(penstock: Penstock, registry: Registry, tmp_path: Path) -> None:
    """Unless the new run is to take over; a job of the same name with other checkpoints is another job."""
    (tmp_path / "job.py").write_text(SCRIPT)
    first = done(penstock("run", "-d", "--json", "job.py"))["id"]
    refused = penstock("run", "-d", "--json", "job.py")
    assert (refused.returncode, refused.stdout) == (1, "")
    error = json.loads(refused.stderr)
    assert error["happened"].startswith(f"Job 'payments' runs already: {first}, RUNNING.")
    assert "--take-over" in error["to_do"]
    assert entry_of(registry, first).state == "RUNNING"
    (tmp_path / "elsewhere").mkdir()
    other = ("-D", "execution.checkpointing.dir=elsewhere")
    started = {done(penstock("run", "-d", "--json", *more, "job.py"))["id"] for more in (other, ["--take-over"])}
    assert len({first, *started}) == 3
    for run in (first, *started):
        assert done(penstock("cancel", run, "--json"))["state"] == "CANCELED"


def test_following_a_log_to_the_job_s_end(penstock: Penstock, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    started = done(penstock("run", "-d", "--json", "job.py"))
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "logs", "payments", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert any("the job begins" in line for line in following.stdout)  # before the job has ended
        supervisor = entry_of(registry, started["id"]).supervisor
        assert supervisor is not None
        os.kill(supervisor, signal.SIGTERM)
        rest = following.stdout.read()
    assert following.returncode == 0
    assert "the job ends" in rest
    assert "stopped" in rest
    assert entry_of(registry, started["id"]).state == "FINISHED"


FAILING = "from penstock.errors import TopicMissing\nraise TopicMissing('No topic.', safe='All.', to_do='Make it.')"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (FAILING, "TopicMissing: No topic."),
        (SCRIPT.replace("    while not", "    " + FAILING.replace("\n", "\n    ") + "\n    while not"), "No topic."),
        ("1 / 0", "ZeroDivisionError"),
    ],
    ids=["before it runs", "while it runs", "another's error"],
)
def test_a_detached_job_that_fails_at_once(
    penstock: Penstock, registry: Registry, tmp_path: Path, script: str, said: str
) -> None:
    """Its error is the command's, and `list -a` still knows it."""
    (tmp_path / "job.py").write_text(script.replace('events.emit("started"', 'events.emit("nothing"'))
    result = penstock("run", "-d", "--json", "job.py")
    assert (result.returncode, result.stdout) == (1, "")
    error = json.loads(result.stderr)
    assert said in error["happened"]
    [entry] = registry.entries()
    assert str(registry.log_file(entry.id)) in error["to_do"]
    assert (entry.state, entry.supervised) == ("FAILED", False)
    assert said.rpartition(": ")[2] in registry.log_file(entry.id).read_text()


def test_settings_that_cannot_be_are_refused_before_anything_starts(
    penstock: Penstock, registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    result = penstock("run", "-d", "-p", "0", "job.py")
    assert result.returncode == 1
    assert "parallelism.default" in result.stderr
    assert registry.entries() == []


def test_a_job_in_the_foreground_is_known_too(penstock: Penstock, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "run", "job.py"]
    output = tmp_path / "output.txt"
    with output.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as process:
        until(lambda: [one for one in registry.entries() if one.state == "RUNNING"], output.read_text)
        assert done(penstock("cancel", "payments", "--json"))["state"] == "CANCELED"
        assert process.wait(60) == 0
    result = penstock("logs", "payments")
    assert result.returncode == 1
    assert "its output went to the process that started it" in result.stderr
