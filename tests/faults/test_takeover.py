"""A standby under faults: it takes over, is replaced, dies in its turn, or finds the first driver still alive.

Tiny programs show what the supervisor does; real jobs, that nothing is lost or doubled.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.cli.program import Start
from penstock.failpoints import POINTS
from penstock.ops.process.lifeline import FAILED, Driver, Orders
from penstock.ops.process.supervisor import python_command
from penstock.processes import session_members
from tests.support.fault_case import SCRIPT, Case
from tests.support.processes import ROOT, command, descendants, state
from tests.support.supervised import OFTEN, Supervised
from tests.support.waiting import until

#: Says that it runs when its turn has come, then waits for the end, or does what the file `then` says.
PROGRAM = """
import os, pathlib, signal, sys, time
from penstock.ops.process import lifeline

here = pathlib.Path(__file__).parent
lifeline.report(ready=True)
lifeline.await_turn()
with (here / "turns").open("a") as file:
    file.write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
lifeline.report(running=True)
while not (here / "then").exists():
    time.sleep(0.01)
exec((here / "then").read_text())
"""


class Tiny:
    """`PROGRAM` under a supervisor that keeps a standby."""

    def __init__(self, folder: Path, program: str = PROGRAM) -> None:
        self.folder = folder
        (folder / "program.py").write_text(program)
        self.run = Supervised(folder, [*OFTEN, "--standby", str(folder / "program.py")])

    @property
    def turns(self) -> list[int]:
        file = self.folder / "turns"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_ready(self, number: int) -> int:
        """The `number`-th standby, once it is ready."""
        until(lambda: len(self.run.standbys) >= number, self.run.tail)
        standby = self.run.standbys[number - 1]
        until(lambda: self.run.ready(standby), self.run.tail)
        return standby


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Tiny]:
    tiny = Tiny(tmp_path)
    with tiny.run:
        yield tiny


def test_a_standby_waits_takes_over_and_is_replaced(tiny: Tiny) -> None:
    for number in (1, 2):
        standby = tiny.wait_ready(number)
        active = tiny.turns[-1]
        assert active == tiny.run.drivers[-1] != standby
        os.kill(active, signal.SIGKILL)
        until(lambda: tiny.turns[-1] == standby, tiny.run.tail)  # noqa: B023
    last = tiny.wait_ready(3)
    tiny.run.terminate()
    assert tiny.run.wait(patient=True) == 0, tiny.run.tail()
    assert last not in tiny.turns
    assert len(tiny.turns) == 3
    round_ = ["standby", "standby_ready"]
    assert tiny.run.actions() == ["started", *round_, *["restarting", "started", *round_] * 2, "stopped"]


def test_a_standby_that_dies_is_replaced_and_the_job_goes_on(tiny: Tiny) -> None:
    os.kill(tiny.wait_ready(1), signal.SIGKILL)
    second = tiny.wait_ready(2)
    assert len(tiny.turns) == 1
    assert "restarting" not in tiny.run.actions()
    os.kill(tiny.turns[0], signal.SIGKILL)
    until(lambda: tiny.turns[-1] == second, tiny.run.tail)


@pytest.mark.parametrize(
    ("then", "status"), [("sys.exit(0)", 0), ("raise TypeError('a mistake')", FAILED)], ids=["done", "failed for good"]
)
def test_the_standby_ends_with_the_job(tiny: Tiny, then: str, status: int) -> None:
    standby = tiny.wait_ready(1)
    (tiny.folder / "then").write_text(then)
    assert tiny.run.wait(patient=True) == status, tiny.run.tail()
    assert standby not in tiny.turns
    assert session_members(standby) == []


def test_a_supervisor_that_is_killed_takes_the_standby_along(tiny: Tiny) -> None:
    standby = tiny.wait_ready(1)
    os.kill(tiny.run.pid, signal.SIGKILL)
    until(lambda: not session_members(standby) and not session_members(tiny.turns[0]), tiny.run.tail)
    assert standby not in tiny.turns


def test_a_program_that_never_runs_a_job_has_no_standby(tmp_path: Path) -> None:
    """It would do everything twice."""
    program = "import pathlib, time\npathlib.Path(__file__).with_name('ran').open('a').write('x')\ntime.sleep(2)\n"
    tiny = Tiny(tmp_path, program)
    with tiny.run as run:
        assert run.wait() == 1, run.tail()
    assert (tmp_path / "ran").read_text() == "x"
    assert "started no job" in run.tail()
    assert run.actions() == ["started", "failed"]


# Real jobs


class Kept:
    """A real job under a supervisor that keeps a standby. A failpoint acts when it is armed, once each time."""

    def __init__(self, world: Case, *points: str) -> None:
        self.world = world
        for point in points:
            self.world.once.joinpath(point).touch()
        text = ";".join(f"{point}=crash" for point in points)
        environment = {failpoints.VARIABLE: text, failpoints.ONCE: str(world.once)}
        config = world.config.write(world.folder / "config.json")
        self.run = Supervised(world.folder, [*OFTEN, "--standby", str(SCRIPT), str(config)], environment)

    def arm(self, point: str) -> None:
        self.world.once.joinpath(point).unlink()

    def wait_ready(self) -> int:
        """The newest standby, once the job runs and it is ready."""
        until(lambda: self._spare() is not None, lambda: f"a standby to be ready\n{self.run.tail()}", 120)
        spare = self._spare()
        assert spare is not None
        return spare

    def _spare(self) -> int | None:
        last = self.run.standbys[-1:]
        return last[0] if last and self.run.ready(last[0]) and last[0] not in self.run.drivers else None

    def finish(self) -> None:
        self.world.wait_visible(self.run)
        self.run.terminate()
        assert self.run.wait(patient=True) == 0, self.run.tail()
        self.world.assert_exact()


def test_a_real_job_is_taken_over(case: Callable[..., Case]) -> None:
    """Its driver dies between the decision and the commits; the standby, which had touched nothing, finishes the epoch
    and goes on."""
    world = case(rows_per_epoch=100)
    world.source.feed(300)
    kept = Kept(world, "epoch.decided")
    with kept.run:
        world.wait_visible(kept.run)
        standby = kept.wait_ready()
        assert generations(world) == 1
        kept.arm("epoch.decided")
        world.source.feed(300)
        until(lambda: kept.run.drivers[-1] == standby, kept.run.tail)
        kept.finish()
    assert kept.run.drivers[1] == standby
    assert generations(world) == 2


#: Passed by a standby that takes over and finds a decision.
RECOVERY = [name for name, process in POINTS.items() if name.startswith("recover.") and process == "driver"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_standby_is_killed_in_its_turn_at_every_point(case: Callable[..., Case]) -> None:
    """The first driver dies with a decision that nobody carried out, the standby dies while it recovers that, at one
    point after the other; a third driver finds what both have left."""
    world = case(rows_per_epoch=100)
    world.source.feed(100)
    kept = Kept(world, "epoch.decided", "ledger.aside", *RECOVERY)
    with kept.run:
        for point in (*RECOVERY, "ledger.aside"):
            world.wait_visible(kept.run)
            standby = kept.wait_ready()
            kept.arm("epoch.decided")
            if point != "ledger.aside":
                kept.arm(point)
            world.source.feed(100)
            until(lambda: world.acted("epoch.decided"), kept.run.tail)
            if point == "ledger.aside":
                kept.arm(point)  # only now: a driver that works passes it as well
            until(lambda: standby in kept.run.drivers[:-1], kept.run.tail, 120)  # noqa: B023
            assert world.acted(point), kept.run.tail()
        kept.finish()


@pytest.mark.long
def test_a_standby_that_is_killed_never_touches_the_job(case: Callable[..., Case]) -> None:
    """Its driver first, then its JVM: the job has not noticed, and the next one takes over."""
    world = case(rows_per_epoch=100)
    world.source.feed(100)
    kept = Kept(world)
    with kept.run:
        world.wait_visible(kept.run)
        os.kill(kept.wait_ready(), signal.SIGKILL)
        until(lambda: len(kept.run.standbys) == 2, kept.run.tail)
        second = kept.wait_ready()
        [java] = [pid for pid in descendants(second) if "org.apache.spark.deploy" in command(pid)]
        os.kill(java, signal.SIGKILL)
        world.source.feed(100)
        world.wait_visible(kept.run)
        until(lambda: len(kept.run.standbys) == 3, kept.run.tail, 120)
        assert len(kept.run.drivers) == 1
        assert generations(world) == 1
        third = kept.wait_ready()
        os.kill(kept.run.drivers[0], signal.SIGKILL)
        world.source.feed(100)
        until(lambda: kept.run.drivers[-1] == third, kept.run.tail)
        kept.finish()


# Both alive: the test is the supervisor, and gives a false alarm


@contextmanager
def driver(world: Case, *, standby: bool, hang: str = "") -> Iterator[Driver]:
    """Started as a supervisor would, with its words in a log of the world's folder."""
    environment = {
        failpoints.VARIABLE: f"{hang}=hang" if hang else "",
        failpoints.ONCE: str(world.once),
        failpoints.RELEASE: str(world.release),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    config = world.config.write(world.folder / "config.json")
    file = Start(uuid.uuid4().hex, str(SCRIPT), [str(config)]).write()
    own = python_command("from penstock.cli.program import driver_main; driver_main()", str(file))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        started = Driver(own, Orders(standby=standby))
    try:
        yield started
    finally:
        for pid in session_members(started.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: started.ended() is not None, "the driver to end")
        started.close()


def stand_still(leader: int) -> bool:
    """SIGSTOP to every process of the session; whether all have stopped."""
    moving = [pid for pid in session_members(leader) if state(pid) != "T"]
    for pid in moving:
        os.kill(pid, signal.SIGSTOP)
    return not moving


@pytest.mark.long
@pytest.mark.parametrize("point", ["task.written", "epoch.sealed", "epoch.decided", "commit.first"])
def test_a_false_alarm_is_harmless(case: Callable[..., Case], point: str) -> None:
    """The first driver only stands still, in the middle of an epoch. The standby takes over, the first one goes on: it
    finds itself superseded, touches nothing, and ends for good."""
    world = case()
    world.source.feed(100)
    with ExitStack() as drivers:
        first = drivers.enter_context(driver(world, standby=False, hang=point))
        world.wait_acted(point)
        second = drivers.enter_context(driver(world, standby=True))
        until(lambda: second.report.ready, "the standby to be ready", 120)
        assert generations(world) == 1
        until(lambda: stand_still(first.pid), "the first driver to stand still")
        second.take_over()
        world.source.feed(100)
        world.wait_visible()
        world.release.touch()
        for pid in session_members(first.pid):
            os.kill(pid, signal.SIGCONT)
        until(lambda: first.ended() is not None, "the first driver to leave")
        end = first.ended()
        assert end is not None
        assert end.status == FAILED
        assert "Superseded" in (end.report.error or "")
        world.source.feed(100)
        world.wait_visible()
        second.signal(signal.SIGTERM)
        until(lambda: second.ended() is not None, "the second driver to end")
        last = second.ended()
        assert last is not None
        assert last.status == 0
    assert generations(world) == 2
    world.assert_exact()


def generations(world: Case) -> int:
    """How many runs have registered."""
    folder = Path(world.config.storage) / world.config.name / "copy" / "ledger" / "generations"
    return len(list(folder.iterdir()))
