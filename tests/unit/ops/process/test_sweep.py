"""What dead drivers leave behind is ended beside whatever else is done."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from penstock.ops.process import supervisor
from penstock.ops.process.supervisor import Sweeper
from penstock.processes import session_members

LEAVES_A_CHILD = (
    "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); os._exit(3)"
)


def dead_driver() -> subprocess.Popen[bytes]:
    """A driver that has ended and left a process behind."""
    driver = subprocess.Popen([sys.executable, "-c", LEAVES_A_CHILD], start_new_session=True)
    driver.wait()
    return driver


def test_nobody_waits_for_the_sweep_until_the_end() -> None:
    sweeper, drivers = Sweeper(patience=0.5), [dead_driver(), dead_driver()]
    for driver in drivers:
        sweeper.begin(driver.pid)
    assert all(session_members(driver.pid) for driver in drivers)
    sweeper.close()
    assert not any(session_members(driver.pid) for driver in drivers)


def test_another_child_that_has_ended_is_left_to_who_waits_for_it() -> None:
    """The next driver may crash while the first one's leftovers are swept: its status must not be lost."""
    sweeper, first = Sweeper(patience=0.0), dead_driver()
    second = subprocess.Popen([sys.executable, "-c", "import os; os._exit(75)"], start_new_session=True)
    time.sleep(0.3)
    sweeper.begin(first.pid)
    sweeper.close()
    assert second.wait() == 75


def test_what_was_killed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    sweeper, driver = Sweeper(patience=0.0), dead_driver()
    [left] = session_members(driver.pid)
    with caplog.at_level("WARNING", supervisor.log.name):
        sweeper.begin(driver.pid)
        sweeper.close()
    assert f"were killed: {left}" in caplog.text
