"""Some histories of the deterministic simulation, those it went wrong in before, and a few bugs that it must find.

In a process of their own: the order in sets of text is part of a history, and time is patched there. `make simulate`
runs more, `make simulate PLANTED=1` plants all bugs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


def test_no_history_shows_an_anomaly() -> None:
    """As many as one core with nothing else to do runs in twenty seconds."""
    assert "histories with anomalies: 0" in run("--histories", "1600", "--workers", "1")


def test_what_went_wrong_once_does_not_again() -> None:
    run("--stories")


@pytest.mark.parametrize("bug", ["commit, then decide", "files: a commit does not sync", "a holder that cannot renew"])
def test_a_planted_bug_is_found(bug: str) -> None:
    assert "1 of 1 found" in run("--planted", "--bug", bug, "--histories", "3000", "--workers", "1")


def test_a_history_is_the_same_every_time() -> None:
    assert run("--only", "3") == run("--only", "3")
