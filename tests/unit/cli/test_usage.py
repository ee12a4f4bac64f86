"""Help: whole names in 80 columns, groups, examples that the command line takes; and plain errors in a pipe."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli import usage
from penstock.cli.main import app
from penstock.cli.output import Output
from penstock.errors import ControlError
from tests.support.command import run_command


def commands(command: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its path."""
    command = command or get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path}{name} ")
    if not hasattr(command, "commands"):
        yield path.strip(), command


COMMANDS = dict(commands())
PATHS = list(COMMANDS)


@pytest.mark.parametrize("path", ["", "dev", "dev kafka", "transactions", *PATHS])
def test_help_fits_80_columns_with_whole_names(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run_command(monkeypatch, capfd, *path.split(), "-h")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"\{|\[\[|<bool>|<list|<file>|\w\.\.\.", out)
    command = COMMANDS.get(path)
    for parameter in command.params if command is not None else ():
        for name in (*parameter.opts, *parameter.secondary_opts):
            assert parameter.param_type_name == "argument" or re.search(rf"(^|\s){name}\b", out), name
    if command is not None:
        assert f"penstock {path}" in out.partition("Examples:")[2]


def test_every_command_is_in_a_group(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in usage.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted({path.split()[0] for path in PATHS})
    assert all(any(f"{line} ".startswith(f"penstock {path} ") for line in usage.EXAMPLES) for path in PATHS)
    _, out, _ = run_command(monkeypatch, capfd, "--help")
    assert all(f"{title}:" in out for title in usage.GROUPS)


@pytest.mark.parametrize("example", usage.EXAMPLES)
def test_an_example_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.py").touch()
    words = shlex.split(example)[1:]
    [path] = [path for path in PATHS if words[: len(path.split())] == path.split()]
    COMMANDS[path].make_context(path, words[len(path.split()) :]).close()


def test_an_error_in_a_pipe_is_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Output().error(ControlError("The job is " + "very " * 60 + "busy.", safe="All.", to_do="Wait."))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"ControlError: The job is {'very ' * 60}busy.", "What is safe: All.", "What to do: Wait."]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("penstock run -D execution.checkpointing.int", ["execution.checkpointing.interval="]),
        ("penstock config -D execution.checkpointing.int", ["execution.checkpointing.interval="]),
    ],
)
def test_settings_are_completed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, expected: list[str]
) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run_command(monkeypatch, capfd)[1].split() == expected
