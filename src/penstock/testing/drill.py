"""`penstock drill` in a test: the drill runs in processes of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import from_json
from penstock.ops.process.supervisor import penstock_command


def drill(script: str | Path, *options: str, seconds: float = 180, html: str | Path | None = None) -> Mapping[str, Any]:
    """What a drill of the job in `script` has found: the JSON of `penstock drill`, whose `options` these are, with
    `mistakes`, `not_judged` and `seed`. Raises its error where the job cannot be drilled."""
    given = [*options, *(() if html is None else ("--html", str(html)))]
    command = penstock_command("drill", "--json", "--seconds", f"{seconds:g}", *given, str(script))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        last = done.stderr.strip().rpartition("\n")[2]
        raise from_json(last) if last.startswith("{") else RuntimeError(done.stderr)  # of the job's file, or of Spark
    facts: Mapping[str, Any] = json.loads(done.stdout)
    return facts


def fixture(seconds: float = 60) -> Any:
    """A pytest fixture, for a conftest.py: `drill = fixture()`. A test calls it with the job's file, and the report is
    `drill.html` in the test's `tmp_path`."""
    import pytest

    @pytest.fixture
    def drill_job(tmp_path: Path) -> Callable[..., Mapping[str, Any]]:
        return lambda script, *options: drill(script, *options, seconds=seconds, html=tmp_path / "drill.html")

    return drill_job
