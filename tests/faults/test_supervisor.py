"""`penstock run` under faults: what is started again, what is not, and that nothing is left behind.

Almost everything is shown by tiny programs that kill themselves; one real job shows that it holds for exactly-once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.ops.process.lifeline import CRASHED, FAILED, GAVE_UP
from penstock.processes import end_session, session_members
from tests.support.fault_case import SCRIPT, Case
from tests.support.processes import command, descendants
from tests.support.supervised import OFTEN, Supervised
from tests.support.waiting import until

#: Counts its runs in a file beside it, then does what its argument says.
PROGRAM = """
import os, pathlib, signal, sys, time
from penstock.errors import SystemUnavailable, TopicMissing
from penstock.ops.process import lifeline
from penstock.config.restart_strategy import RestartStrategy
from penstock.engine.restarts import Restarts

runs = pathlib.Path(__file__).with_name("runs")
with runs.open("a") as file:
    file.write(f"{os.getpid()}\\n")
number = len(runs.read_text().splitlines())

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise OSError(28, "No space left on device")

def wait_for_the_end():
    def end(*_):
        runs.with_name("ended").write_text("cleanly")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    runs.with_name("waiting").touch()
    while True:
        time.sleep(1)

exec(sys.argv[1])
sys.exit()  # as a job would: a program that just ends has started none
"""


class Tiny:
    """Runs `PROGRAM` under supervision, in a folder of its own."""

    def __init__(self, folder: Path, open_processes: ExitStack) -> None:
        self.folder, self._open = folder, open_processes
        (folder / "program.py").write_text(PROGRAM)

    def __call__(self, action: str, *options: str) -> Supervised:
        run = Supervised(self.folder, [*options, str(self.folder / "program.py"), action])
        return self._open.enter_context(run)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text().splitlines())

    def wait_for(self, name: str, run: Supervised) -> None:
        until(lambda: (self.folder / name).exists(), lambda: f"{name}\n{run.tail()}")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Tiny]:
    with ExitStack() as processes:
        yield Tiny(tmp_path, processes)


def test_a_driver_that_crashes_is_started_again(tiny: Tiny) -> None:
    """Killed, or ended by an error that may pass; until it is through."""
    run = tiny("{1: die, 2: fail}.get(number, int)()", *OFTEN)
    assert run.wait() == 0, run.tail()
    assert tiny.runs == 3
    assert run.actions() == ["started", "restarting", "started", "restarting", "started", "done"]
    killed, failed = [event for event in run.told() if event["action"] == "restarting"]
    assert killed["reason"] == "was killed by SIGKILL"
    assert failed["reason"].startswith(f"ended with status {CRASHED} (OSError: [Errno 28]")
    assert failed["verdict"] == "retry"


def test_fixed_delay_gives_up_after_its_attempts(tiny: Tiny) -> None:
    fixed = ("fixed-delay.attempts=2", "fixed-delay.delay=20ms", "type=fixed-delay")
    run = tiny("die()", *(f"-Drestart-strategy.{option}" for option in fixed))
    assert run.wait() == GAVE_UP, run.tail()
    assert tiny.runs == 3
    assert run.actions() == ["started", "restarting"] * 2 + ["started", "gave_up"]


def test_with_none_the_first_crash_is_the_last(tiny: Tiny) -> None:
    run = tiny("die()", "-D", "restart-strategy.type=none")
    assert run.wait() == GAVE_UP, run.tail()
    assert tiny.runs == 1


def test_a_strategy_set_in_code_counts(tiny: Tiny) -> None:
    run = tiny("lifeline.report(strategy=RestartStrategy.fixed_delay(1, '20ms').to_dict()); die()")
    assert run.wait() == GAVE_UP, run.tail()
    assert tiny.runs == 2


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("raise TopicMissing('There is no such topic.')", FAILED),
        ("raise TypeError('a mistake in the program')", FAILED),
        ("error = SystemUnavailable('away'); Restarts(RestartStrategy.none()).delay(error); raise error", GAVE_UP),
        ("sys.exit(7)", 7),
        ("lifeline.report(stopping=True); die()", 128 + signal.SIGKILL),
    ],
    ids=["fatal", "mistake", "gave up inside", "its own status", "died while stopping"],
)
def test_what_is_never_started_again(tiny: Tiny, action: str, status: int) -> None:
    run = tiny(action, *OFTEN)
    assert run.wait() == status, run.tail()
    assert tiny.runs == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_passed_on(tiny: Tiny, number: signal.Signals) -> None:
    run = tiny("wait_for_the_end()", *OFTEN)
    tiny.wait_for("waiting", run)
    os.kill(run.pid, number)
    assert run.wait() == 0, run.tail()
    assert (tiny.folder / "ended").exists()
    assert tiny.runs == 1
    assert run.actions() == ["started", "stopped"]


def test_a_stop_ends_the_pause_before_a_restart(tiny: Tiny) -> None:
    run = tiny("die()", "-Drestart-strategy.type=fixed-delay", "-Drestart-strategy.fixed-delay.delay=1h")
    until(lambda: "restarting" in run.actions(), run.tail)
    run.terminate()
    assert run.wait() == 128 + signal.SIGTERM, run.tail()
    assert tiny.runs == 1


def test_a_supervisor_that_is_killed_leaves_no_orphan(tiny: Tiny) -> None:
    """The driver ends as cleanly as after a stop."""
    run = tiny("wait_for_the_end()", *OFTEN)
    tiny.wait_for("waiting", run)
    os.kill(run.pid, signal.SIGKILL)
    until(lambda: not run.members(), run.tail)
    assert (tiny.folder / "ended").read_text() == "cleanly"


def test_without_supervision_the_status_says_whether_to_start_again(tiny: Tiny) -> None:
    assert tiny("raise SystemUnavailable('away')", "--no-supervise").wait() == CRASHED
    assert tiny("raise TopicMissing('gone')", "--no-supervise").wait() == FAILED
    assert tiny.runs == 2


def test_what_a_driver_leaves_behind_is_killed(tmp_path: Path) -> None:
    """Also where it has a process group of its own, as Spark's Python workers have."""
    grandchild = "import os, time; os.setpgid(0, 0); open('ready', 'w').close(); time.sleep(600)"
    text = f"import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {grandchild!r}])\nos._exit(3)"
    leader = subprocess.Popen([sys.executable, "-c", text], start_new_session=True, cwd=tmp_path)
    leader.wait()
    until(lambda: (tmp_path / "ready").exists(), "the grandchild")
    left = session_members(leader.pid)
    assert len(left) == 1
    assert end_session(leader.pid, patience=0) == left
    assert session_members(leader.pid) == []


def test_a_real_job(case: Callable[..., Case]) -> None:
    """Its driver is killed in the middle of an epoch, then its JVM is; each time a new driver goes on, the old one's
    processes are gone, and in the end everything is there exactly once. SIGTERM then ends it cleanly."""
    world = case(rows_per_epoch=100)
    world.source.feed(300)
    config = world.config.write(world.folder / "config.json")
    once = {failpoints.VARIABLE: "commit.first=crash", failpoints.ONCE: str(world.once)}
    with Supervised(world.folder, [*OFTEN, str(SCRIPT), str(config)], once) as run:
        world.wait_acted("commit.first", run)
        world.wait_visible(run)
        assert len(run.drivers) == 2
        until(lambda: session_members(run.drivers[0]) == [], "the first driver's processes to be gone")

        [java] = [pid for pid in descendants(run.drivers[1]) if "org.apache.spark.deploy" in command(pid)]
        os.kill(java, signal.SIGKILL)
        world.source.feed(200)
        until(lambda: len(run.drivers) == 3, run.tail)
        world.wait_visible(run)
        until(lambda: session_members(run.drivers[1]) == [], "the second driver's processes to be gone")

        run.terminate()
        assert run.wait(patient=True) == 0, run.tail()
        assert run.actions() == ["started", "restarting"] * 2 + ["started", "stopped"]
    world.assert_exact()
