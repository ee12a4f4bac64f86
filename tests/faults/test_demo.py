"""The demo for real: Spark, SIGKILL, and a verdict. Short runs of what `make demo` shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run_demo(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.demo", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.count("\n") == 1, f"only the result belongs on standard output\n{done.stdout}\n{done.stderr}"
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(900)  # a minute; the limit is for machines that do much else
def test_one_kill_and_nothing_lost() -> None:
    status, result = run_demo("--rows", "20000", "--kills", "1", "--seed", "7")
    assert status == 0, result
    assert result["ok"]
    assert (result["rows"], result["payments"]["found"]) == (20_000, 20_000)
    assert all(result[name]["ok"] for name in ("payments", "totals"))
    assert len(result["killed_after"]) == len(result["recovery_seconds"]) == 1
    assert result["epochs"] > 4
    assert result["folder"] is None
