"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import program
from penstock.dev import kafka as service
from penstock.errors import ConfigurationError, DevelopmentError
from tests.support.command import run_command

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Invoke:
    """Runs the command as the shell would: exit status, stdout, stderr."""
    monkeypatch.setattr(program, "prepare_environment", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capfd, *arguments)

    return call


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom penstock.cli.main import app\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'confluent_kafka', 'kafka', 'rich.table', 'uvicorn'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(invoke: Invoke) -> None:
    status, out, _ = invoke("--help")
    assert status == 0
    for command in ("run", "list", "savepoint", "checkpoint", "stop", "cancel", "logs", "dev"):
        assert command in out


def test_bad_usage_is_2(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("nonsense")[0] == 2
    assert invoke("run", str(tmp_path / "missing.py"))[0] == 2
    assert invoke("savepoint", "--type", "none", "x")[0] == 2


def test_an_error_is_three_sentences_on_stderr(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(port: int | None) -> service.Status:
        raise DevelopmentError(f"Port {port} is [b]taken[/b].", safe="Nothing was started.", to_do="Use another.")

    monkeypatch.setattr(service, "up", fail)
    status, out, err = invoke("dev", "kafka", "up", "--port", "1234")
    assert (status, out) == (1, "")
    for part in ("DevelopmentError", "Port 1234 is [b]taken[/b].", "Nothing was started.", "Use another."):
        assert part in err
    assert "Traceback" not in err


def test_an_error_is_json_where_json_was_asked_for(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(port: int | None) -> service.Status:
        raise DevelopmentError("No.", safe="All.", to_do="Wait.")

    monkeypatch.setattr(service, "up", fail)
    status, out, err = invoke("dev", "kafka", "up", "--json")
    assert (status, out) == (1, "")
    assert json.loads(err) == {"error": "DevelopmentError", "happened": "No.", "safe": "All.", "to_do": "Wait."}


def test_status_speaks_both_languages(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    now = service.Status(True, "127.0.0.1:9092", 77, "/somewhere")
    monkeypatch.setattr(service, "status", lambda: now)
    status, out, _ = invoke("dev", "kafka", "status", "--json")
    assert status == 0
    assert json.loads(out) == {
        "running": True,
        "servers": "127.0.0.1:9092",
        "pid": 77,
        "folder": "/somewhere",
        "note": "",
    }
    status, out, _ = invoke("dev", "kafka", "status")
    assert status == 0
    assert "127.0.0.1:9092" in out
    assert "yes" in out


def test_status_of_nothing_is_1(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    status, out, _ = invoke("dev", "kafka", "status", "--json")
    assert status == 1
    assert json.loads(out)["running"] is False


def test_a_broker_of_before_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    folder = service.service_folder()
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))  # a living process, not a broker
    assert service.status().running is False
    assert "gone" in service.status().note
    assert service.down().running is False  # and this very process was not ended by it
    (folder / "state.json").write_text('{"pid":')
    assert service.status() == service.Status(False)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my_job.py"
    path.write_text(text)
    return str(path)


def test_run_is_python_with_the_scripts_own_arguments(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'hello'")
    text = "import sys, neighbour\nprint(__name__, neighbour.WORD, sys.argv[1:])\nsys.exit()"
    status, out, _ = invoke("run", "--no-supervise", script(tmp_path, text), "--json", "-x", "1", "--help")
    assert status == 0
    assert out.strip() == "__main__ hello ['--json', '-x', '1', '--help']"


def test_a_file_without_a_job_is_an_error(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("penstock.job.job", "penstock.job.dropin"):  # as in a process of its own
        monkeypatch.delitem(sys.modules, module, raising=False)
    status, _, err = invoke("run", "--no-supervise", script(tmp_path, "print('done')"))
    assert status == 1
    assert "my_job.py ran to its end and started no job." in err


def test_ctrl_c_before_the_job_runs_is_130(invoke: Invoke, tmp_path: Path) -> None:
    status, _, err = invoke("run", "--no-supervise", script(tmp_path, "raise KeyboardInterrupt"))
    assert (status, err) == (130, "")


def test_a_savepoint_is_looked_for_before_anything_starts(invoke: Invoke, tmp_path: Path) -> None:
    text, folder = "raise AssertionError('it was run')", tmp_path / "savepoints"
    (folder / "savepoint-shop-0123456789ab").mkdir(parents=True)
    (folder / "savepoint-shop-0123456789ab" / "_metadata").write_text("{}")
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "checkpoints" / "shop").mkdir(parents=True)
    for path, expected in (
        (tmp_path / "none", "none does not exist, or is empty."),
        (folder, "savepoints is not a savepoint; these are in it: savepoint-shop-0123456789ab."),
        (tmp_path, "has no _metadata, so it is not a savepoint."),
        (tmp_path / "checkpoints" / "shop" / "chk-3", "shop is not the folder of a job."),
    ):
        status, _, err = invoke("run", "--no-supervise", "-s", str(path), script(tmp_path, text))
        assert status == 1
        assert "SavepointIncomplete" in err
        assert expected in err


def test_a_path_of_another_file_system_is_left_to_spark(invoke: Invoke, tmp_path: Path) -> None:
    file = script(tmp_path, "raise SystemExit(7)")
    assert invoke("run", "--no-supervise", "-s", "hdfs:///sp/one", file)[0] == 7
    assert invoke("run", "--no-supervise", "-s", "/sp/one", "-D", "spark.hadoop.fs.defaultFS=hdfs://n", file)[0] == 7


def test_run_passes_on_the_exit_status(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("run", "--no-supervise", script(tmp_path, "raise SystemExit(7)"))[0] == 7


def test_run_shows_our_errors_and_not_others(invoke: Invoke, tmp_path: Path) -> None:
    text = "from penstock.errors import DuplicateUid\nraise DuplicateUid('Two.', safe='All.', to_do='Rename.')"
    status, _, err = invoke("run", "--no-supervise", script(tmp_path, text))
    assert status == 1
    assert "DuplicateUid" in err
    assert "Rename." in err
    with pytest.raises(ZeroDivisionError):
        program.execute(Path(script(tmp_path, "1 / 0")), [])


@pytest.fixture
def job_module(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """A stand-in for `penstock.job.job`, so that no Spark is needed here."""

    class Job:
        ran: list[str] = []

        def __init__(self, name: str) -> None:
            self.name, self.started = name, False

        def run(self) -> None:
            self.started = True
            Job.ran.append(self.name)

    module = types.ModuleType("penstock.job.job")
    module.Job = Job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock.job.job", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Job


@pytest.mark.parametrize(
    "text",
    [
        "from penstock.job.job import Job\njob = Job('a')",
        "from penstock.job.job import Job\njob = alias = Job('a')",
        "from penstock.job.job import Job\njob = Job('a')\nif __name__ == '__main__':\n    job.run()",
        "from penstock.job.job import Job\njob, other = Job('a'), Job('b')\njob.run()",
    ],
    ids=["only defined", "two names", "run by itself", "one of two run by itself"],
)
def test_a_job_runs_exactly_once(job_module: Any, tmp_path: Path, text: str) -> None:
    program.execute(Path(script(tmp_path, text)), [])
    assert job_module.ran == ["a"]


def test_two_waiting_jobs_are_refused(job_module: Any, tmp_path: Path) -> None:
    text = "from penstock.job.job import Job\njob, other = Job('a'), Job('b')"
    with pytest.raises(ConfigurationError, match="defines 2 jobs and runs none of them: job, other"):
        program.execute(Path(script(tmp_path, text)), [])
    assert job_module.ran == []


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999999", "x"])
def test_a_port_that_is_none_is_a_misspelt_command(invoke: Invoke, port: str) -> None:
    status, _, err = invoke("dev", "kafka", "up", "--port", port)
    assert status == 2
    assert "--port" in err
