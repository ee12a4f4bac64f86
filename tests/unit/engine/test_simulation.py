"""Some histories of the deterministic simulation, those it went wrong in before, and a few bugs that it must find.

In a process of their own: the order in sets of text is part of a history, and time is patched there. `make simulate`
runs more, `make simulate PLANTED=1` plants all bugs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.simulation.schedule import Fault, shrunk

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
    """Nor has a story become idle: with the bug planted that it is about, it goes wrong."""
    run("--stories")


@pytest.mark.parametrize(
    "bug",
    [
        "commit, then decide",
        "files: a commit does not sync",
        "a holder that cannot renew",
        "Kafka: an answer of a former coordinator is believed",
    ],
)
def test_a_planted_bug_is_found_and_told_in_few_steps(bug: str) -> None:
    told = run("--planted", "--bug", bug, "--histories", "3000", "--workers", "1")
    assert "1 of 1 found" in told
    story = told.partition("What goes wrong on the way:\n")[2]
    faults, _, history = story.partition("The history:\n")
    assert 1 <= len(re.findall(r"^  \d+\. .+ of process \d$", faults, re.MULTILINE)) <= 10
    assert "driver 1 starts" in history
    assert "✗" in history
    assert re.search(r"The end:\n  ⇒ \w", history)


def test_a_long_list_of_faults_is_shrunk_to_what_it_takes() -> None:
    faults = [Fault(1 + number % 4, number, "pause", size=100) for number in range(60)]
    tries = []

    def fails(less: Sequence[Fault]) -> bool:
        tries.append(len(less))
        sizes = {fault.nth: fault.size for fault in less}
        return {7, 31, 52} <= sizes.keys() and sizes[31] >= 10

    assert [(fault.nth, fault.size) for fault in shrunk(faults, fails)] == [(7, 1), (31, 10), (52, 1)]
    assert len(tries) <= 300


def test_a_history_is_the_same_every_time() -> None:
    assert run("--only", "3") == run("--only", "3")
