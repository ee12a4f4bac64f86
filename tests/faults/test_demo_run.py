"""The demo's own machinery (start, kill, restart, judge) against a stand-in for the job, so that it runs in seconds.

The stand-in keeps Penstock's promise in the simplest way there is: a decision is a file. It starts two helpers, one of
which leaves the process group as Spark's Python workers do, to see that a kill reaches every process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from penstock.processes import all_running
from tests.support.demo import run as demo
from tests.support.demo.run import Demo, DemoOptions, JobProcess, run_demo

STAND_IN = """
import json, os, pathlib, subprocess, sys, time
import pyarrow as pa, pyarrow.parquet as pq
from tests.support.demo.result import true_payments

home, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
flaw = os.environ.get("STAND_IN_FLAW", "")
events = open(os.environ["PENSTOCK_EVENTS"], "a", buffering=1)
helpers = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], process_group=0)]
(home / "helpers").open("a").write("".join(f"{one.pid}\\n" for one in helpers))

def say(event, **more):
    events.write(json.dumps({"time": time.time(), "event": event, "generation": 1, **more}) + "\\n")

def commit(query, epoch, rows):
    done = home / "out" / query / f"part-{query}-e{epoch:010d}-w00000-00.parquet"
    done.parent.mkdir(parents=True, exist_ok=True)
    if not done.exists():
        pq.write_table(rows, home / "aside")
        (home / "aside").rename(done)
    if flaw == "repeat" and epoch == 3:
        pq.write_table(rows, done.with_name(done.name.replace("-00.", "-01.")))

say("started")
ledger = home / "ledger"
ledger.mkdir(exist_ok=True)
table, size, epoch, sums = true_payments(count), 200, 0, {}
while epoch * size < count:
    rows = table.slice(epoch * size, size)
    touched = {}
    for row in rows.to_pylist():
        n, total = sums.get(row["account"], (0, 0))
        sums[row["account"]] = touched[row["account"]] = (n + 1, total + row["amount"])
    pairs = [(account, *pair) for account, pair in touched.items()]
    totals = pa.table(dict(zip(("account", "n", "total"), zip(*pairs))))
    decision, finished = ledger / f"{epoch}.decided", ledger / f"{epoch}.finished"
    if not finished.exists():
        for query, part in (("payments", rows), ("totals", totals)):
            found = decision.exists()
            if not found:
                say("opened", query=query, epoch=epoch)
                time.sleep(0.01)
                say("precommitted", query=query, epoch=epoch, rows=len(part))
        decision.touch()
        for query, part in (("payments", rows), ("totals", totals)):
            if found:
                commit(query, epoch, part)
                say("committed", query=query, epoch=epoch, rows=len(part), recovery=True)
                say("recovered", query=query, epoch=epoch + 1, action="finished")
            else:
                say("decided", query=query, epoch=epoch)
                if not (flaw == "lose" and epoch == 3):
                    commit(query, epoch, part)
                say("committed", query=query, epoch=epoch, rows=len(part), commit_ms=1.0)
        finished.touch()
    epoch += 1
say("stopped")
for one in helpers:
    one.kill()
sys.exit(3 if flaw == "fail" else 0)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(_fresh(tmp_path / "demo")))
    return tmp_path / "demo"


def _fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_killed_twice_and_nothing_lost(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(DemoOptions(rows=12_000, kills=2, json=True, seed=5, keep=True)) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["payments"]["found"], result["payments"]["ok"], result["totals"]["ok"]) == (12_000, True, True)
    assert len(result["killed_after"]) == len(result["recovery_seconds"]) == 2
    assert not any(alive(int(pid)) for pid in (stand_in / "helpers").read_text().split())
    assert result["folder"] == str(stand_in)


def alive(pid: int) -> bool:
    return pid in all_running()


@pytest.mark.parametrize(
    ("flaw", "says"), [("lose", "200 lost"), ("repeat", "200 duplicated"), ("fail", "exit status 3")]
)
def test_a_flawed_job_does_not_pass(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flaw: str, says: str
) -> None:
    monkeypatch.setenv("STAND_IN_FLAW", flaw)
    assert run_demo(DemoOptions(rows=2_000, kills=0)) == 1
    shown = capsys.readouterr().out
    assert says in shown
    assert stand_in.exists()  # what could be looked into is kept
    assert str(stand_in) in shown


def test_what_it_does_is_shown_line_by_line(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(DemoOptions(rows=2_000, kills=1, seed=1)) == 0
    lines = capsys.readouterr().out
    assert "job started again" in lines
    assert "kill 1: SIGKILL after" in lines
    assert "Nothing lost, nothing twice, nothing wrong" in lines
    assert not stand_in.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    helpers: list[int] = []

    def interrupt(self: Demo, text: str) -> None:
        if text == "job started":
            while not (stand_in / "helpers").exists():
                time.sleep(0.01)
            time.sleep(0.2)
            helpers.extend(map(int, (stand_in / "helpers").read_text().split()))
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Demo, "note", interrupt)
    assert run_demo(DemoOptions(rows=10_000_000, kills=1)) == 130
    assert not stand_in.exists()
    assert len(helpers) == 2
    assert not any(alive(pid) for pid in helpers)


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMMAND", ("true",))
    job = JobProcess(tmp_path, 1, ())
    assert job.events() == []
    file = tmp_path / "events-1.jsonl"
    file.write_text('{"event": "started"}\n{"eve')
    assert job.events() == [{"event": "started"}]
    with file.open("a") as more:
        more.write('nt": "opened"}\n')
    assert job.events() == [{"event": "opened"}]
    assert job.events() == []
    while job.status is None:
        time.sleep(0.01)
    assert job.kill() is False


def test_a_failure_shows_the_end_of_the_job_s_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMMAND", ("printf", "%s\\n"))
    job = JobProcess(tmp_path, 1, [f"line {number}" for number in range(30)])
    while job.status is None:
        time.sleep(0.01)
    shown = job.failure("ended with exit status 3.").happened
    assert shown.endswith("\n  line 28\n  line 29")
    assert "line 4\n" not in shown
