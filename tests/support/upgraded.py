"""Running the job of `jobs/upgraded.py` under some version of Spark, and reading what it has made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.environments import ROOT, variables

SECONDS = 240  # a source that does not know where it stands makes a job that waits for ever


def run_under(python: Path, what: str, folder: Path, **more: str) -> None:
    """In a process of that Python's environment, which must end well. `more`: variables that it finds set."""
    done = subprocess.run(
        [str(python), "-m", "tests.support.jobs.upgraded", what, str(folder)],
        cwd=ROOT,
        env={**variables(python), **more},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def counts_in(folder: Path) -> dict[int, list[int]]:
    """All counts of each key that are visible, ascending."""
    found: dict[int, list[int]] = {}
    for path in folder.glob("part-*"):
        for row in pq.read_table(path).to_pylist():
            found.setdefault(row["key"], []).append(row["count"])
    return {key: sorted(made) for key, made in found.items()}
