"""`penstock config`: every option, its value and where it came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import program
from penstock.config import levels as load
from penstock.config.levels import ALL as OPTIONS
from tests.support.command import run_command

Show = Callable[..., dict[str, tuple[str, str]]]
INTERVAL = "execution.checkpointing.interval"

JOB = """
from penstock import Checkpoints, Job, RestartStrategy, StateBackend

job = Job("job", checkpoints=Checkpoints(interval=0.5), state_backend=StateBackend.rocksdb(),
          restart=RestartStrategy.fixed_delay(5, "3s"), conf={"spark.x.password": "hunter2"})
same = job
if __name__ == "__main__":
    raise SystemExit("this must not run")
"""


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    for name in (load.FILE_VARIABLE, load.OPTIONS_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what the command sets is undone
    monkeypatch.setattr(program, "prepare_environment", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capfd, "config", *arguments)

    return call


@pytest.fixture
def show(invoke: Callable[..., tuple[int, str, str]]) -> Show:
    def call(*arguments: str) -> dict[str, tuple[str, str]]:
        status, out, err = invoke(*arguments, "--json")
        assert status == 0, err
        return {row["key"]: (row["value"], row["from"]) for row in json.loads(out)}

    return call


def test_every_option_is_shown_with_its_default(show: Show) -> None:
    assert show() == {option.key: (option.default, "default") for option in OPTIONS}


def test_each_value_says_where_it_came_from(show: Show, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("execution.checkpointing.timeout: 5 min\nparallelism.default: 3\n")
    (tmp_path / "job.py").write_text(JOB)
    rows = show("job.py", "-D", "parallelism.default=4", "-D", "restart-strategy.fixed-delay.attempts=9")
    assert rows[INTERVAL] == ("0.5 s", "code")
    assert rows["execution.checkpointing.timeout"] == ("5 min", "penstock.yaml")
    assert rows["parallelism.default"] == ("4", "-D")
    assert rows["state.backend.type"] == ("rocksdb", "code")
    assert rows["restart-strategy.fixed-delay.attempts"] == ("9", "-D")
    assert rows["restart-strategy.fixed-delay.delay"] == ("3 s", "code")
    assert rows["execution.checkpointing.mode"] == ("exactly_once", "default")
    assert rows["spark.x.password"] == ("***", "code")


def test_another_file(show: Show, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(f"{INTERVAL}: 1 s\n")
    (tmp_path / "other.yaml").write_text(f"{INTERVAL}: 2 s\njobmanager.rpc.port: 6123\n")
    rows = show("--config", "other.yaml")
    assert rows[INTERVAL] == ("2 s", "other.yaml")
    assert rows["jobmanager.rpc.port"] == ("", "other.yaml, ignored")


def test_a_table_for_people(invoke: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = invoke("-D", f"{INTERVAL}=7 s", "-D", "spark.a.token=hunter2")
    assert status == 0
    assert [line.split() for line in out.splitlines() if line.startswith(INTERVAL)] == [[INTERVAL, "7", "s", "-D"]]
    assert "hunter2" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-D", "execution.checkpointing.intervall=1"], f"did you mean {INTERVAL}?"),
        (["--config", "missing.yaml"], "missing.yaml cannot be read"), (["none.py"], "has 0 jobs at module level"),
    ],
)  # fmt: skip
def test_errors(invoke: Callable[..., tuple[int, str, str]], tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "none.py").write_text("import penstock\n")
    status, out, err = invoke(*arguments)
    assert (status, out) == (1, "")
    assert said in err


@pytest.mark.parametrize("option", ["nonsense", "=1"])
def test_an_option_without_a_value_is_a_misspelt_command(
    invoke: Callable[..., tuple[int, str, str]], option: str
) -> None:
    status, out, err = invoke("-D", option)
    assert (status, out) == (2, "")
    assert "is not KEY=VALUE" in err
