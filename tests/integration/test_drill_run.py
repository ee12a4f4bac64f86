"""How a drill strikes a job and ends it, with a stand-in for the job: a supervisor that restarts a driver, which has a
worker and reports epochs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from penstock.drill import run as drill_run
from penstock.drill.run import JobRun, Ran, Schedule
from penstock.processes import mark, session_members

STAND_IN = """
import json, os, signal, subprocess, sys, time

events = open(os.environ["PENSTOCK_EVENTS"], "a", buffering=1)
report = lambda event, **more: events.write(json.dumps({"time": time.time(), "event": event, **more}) + "\\n")
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
if sys.argv[1] == "driver":
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "pyspark.daemon"])
    for epoch in range(int(sys.argv[2])):
        time.sleep(0.05)
        report("completed", query="out", epoch=epoch)
        if stopping:
            break
    worker.kill()
    sys.exit(0)
while True:
    driver = subprocess.Popen([sys.executable, __file__, "driver", sys.argv[1]], start_new_session=True)
    report("supervisor", action="started", pid=driver.pid)
    while driver.poll() is None:
        time.sleep(0.02)
        if stopping:
            driver.send_signal(signal.SIGTERM)
    if driver.returncode >= 0 or stopping:
        sys.exit(driver.returncode)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRun:
    return made(tmp_path, monkeypatch, epochs=10_000)


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, *, epochs: int) -> JobRun:
    script = folder / "stand_in.py"
    script.write_text(STAND_IN)
    (folder / "hard").mkdir()
    monkeypatch.setattr(drill_run, "penstock_command", lambda *_: [sys.executable, str(script), str(epochs)])
    return JobRun(script, "job", folder / "hard", {})


def struck(ran: Ran, kind: str) -> list[str]:
    return [fault["target"] for fault in ran.faults if fault["kind"] == kind]


def assert_nothing_runs(ran: Ran) -> None:
    drivers = [event["pid"] for event in ran.events if event["event"] == "supervisor"]
    assert not [pid for driver in drivers for pid in session_members(driver)]


def test_killed_drivers_are_followed_by_others_and_all_end_with_the_drill(job: JobRun) -> None:
    schedule = Schedule(1, ["kill"])
    ran = job.run(60, schedule, enough=lambda now: struck(now, "kill").count("driver") >= 2)
    assert ran.ended == "stopped"
    assert len([event for event in ran.events if event["event"] == "supervisor"]) >= 3
    assert_nothing_runs(ran)


def test_a_paused_process_goes_on(job: JobRun) -> None:
    ran = job.run(60, Schedule(1, ["stop"]), enough=lambda now: len(struck(now, "stop")) >= 2)
    assert ran.ended == "stopped"
    assert_nothing_runs(ran)


def test_a_command_of_the_user_is_a_fault(job: JobRun, tmp_path: Path) -> None:
    proof = tmp_path / "restarted"
    ran = job.run(60, Schedule(1, ["restart"]), f"touch {proof}", enough=lambda now: bool(struck(now, "restart")))
    assert proof.exists()
    assert struck(ran, "restart")[0] == f"touch {proof} (exit status 0)"


def test_an_input_that_ends_is_done_and_a_program_that_fails_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = made(tmp_path, monkeypatch, epochs=3).run(60)
    assert (ran.ended, ran.completed(), ran.faults) == ("done", {"out": 2}, [])
    monkeypatch.setattr(drill_run, "penstock_command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    assert JobRun(tmp_path / "x.py", "job", tmp_path / "hard", {}).run(60).ended == "failed"


def test_what_does_not_end_is_killed(job: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver is stopped for good, from outside: it never takes the signal."""
    monkeypatch.setattr(drill_run, "_LEAVE_SECONDS", 1.0)

    def freeze(ran: Ran) -> bool:
        drivers = [event["pid"] for event in ran.events if event["event"] == "supervisor"]
        monkeypatch.setattr(drill_run, "_signal", lambda pid, number: number == signal.SIGKILL and kill(pid))
        for driver in drivers:
            os.kill(driver, signal.SIGSTOP)
        return bool(drivers)

    ran = job.run(60, enough=freeze)
    assert ran.ended == "hung"
    end = time.monotonic() + 10
    drivers = [event["pid"] for event in ran.events if event["event"] == "supervisor"]
    while any(map(mark, drivers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(mark, drivers))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
