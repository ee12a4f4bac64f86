"""`penstock drill` in a test: the drill runs in processes of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import from_json
from penstock.ops.process.supervisor import penstock_command


@dataclass(frozen=True)
class Drilled:
    """What a drill has found. `facts` is what `penstock drill --json` prints; what is in its `not_judged` is no
    mistake."""

    facts: Mapping[str, Any]

    @property
    def mistakes(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.facts["mistakes"])

    def __str__(self) -> str:
        lines = [f"{each['kind']}: {each['where']}: {each['why']}" for each in self.mistakes]
        return "\n".join([*lines, f"drilled with --seed {self.facts['seed']}"])


def drill(script: str | Path, *options: str, seconds: float = 180, html: str | Path | None = None) -> Drilled:
    """Drill the job in `script` in processes of its own; `options` are those of `penstock drill`. Raises its error
    where the job cannot be drilled."""
    given = [*options, *(() if html is None else ("--html", str(html)))]
    command = penstock_command("drill", "--json", "--seconds", f"{seconds:g}", *given, str(script))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise from_json(done.stderr.strip().rpartition("\n")[2])
    return Drilled(json.loads(done.stdout))


def fixture(seconds: float = 60) -> Any:
    """A pytest fixture, for a conftest.py: `drill = fixture()`. A test calls it with the job's file, and
    the report is in the test's `tmp_path`."""
    import pytest

    @pytest.fixture
    def drill_job(tmp_path: Path) -> Callable[..., Drilled]:
        return lambda script, *options: drill(script, *options, seconds=seconds, html=tmp_path / "drill.html")

    return drill_job
