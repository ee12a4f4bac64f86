"""What `make matrix` shows of versions that have not run, and how its environments are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import run_matrix

from penstock.supply.versions import VERSIONS
from tests.support import environments


def test_a_version_that_has_not_run_is_shown_as_such() -> None:
    first, *others = [one.patch for one in VERSIONS]
    ran = {"spark": first, "python": "3.11.7", "date": "2026-11-16", "results": {"log": {"passed": 4, "failed": 1}}}
    _, _, row, *rest = run_matrix.table({first: ran}).splitlines()
    assert row.startswith(f"| {first} | 3.11.7 | 4 passed, 1 failed | not run |")
    assert [line.split(" | ")[0] for line in rest] == [f"| {patch}" for patch in others]
    assert all("passed" not in line and line.count("not run") == len(run_matrix.THEMES) for line in rest)


@pytest.mark.parametrize("reached", [True, False])
def test_pip_installs_what_uv_cannot_reach(monkeypatch: pytest.MonkeyPatch, reached: bool) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        by_uv = Path(command[0]).name == "uv"
        return subprocess.CompletedProcess(command, int(by_uv and not reached), "", "no route")

    monkeypatch.setattr(subprocess, "run", run)
    environments._install(Path("there/bin/python"), Path("locked.txt"))
    assert Path(commands[0][0]).name == "uv"
    by_pip = [command[:3] for command in commands[1:]]
    assert by_pip == ([] if reached else [[sys.executable, "-m", "pip"]])
    assert all({"there/bin/python", "locked.txt"} <= set(command) for command in commands)
