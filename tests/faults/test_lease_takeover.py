"""Two supervisors with the same program and the same checkpoint folder, as on two machines: one runs the job, the other
waits for the lease. The one that runs dies, stands still and wakes up, is shut down, or is stopped by its user."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.checkpoint import layout
from penstock.ops.process.lifeline import LOST_TURN
from penstock.ops.process.registry import HOME_VARIABLE, Registry, State
from tests.support.fault_case import SCRIPT, Case
from tests.support.supervised import OFTEN, Supervised
from tests.support.waiting import until

LEASE = "-Dhigh-availability.lease=10s"

#: Holds the lease as a job does, over a folder; runs until it is told to end.
PROGRAM = """
import os, pathlib, signal, sys, time
from penstock.checkpoint.lease_log import LeaseLog
from penstock.ops.turn import JobLease, TurnEnd, held
from penstock.ops.process import lifeline
from penstock.storage.local import LocalStorage

here = pathlib.Path(__file__).parent
end = [TurnEnd.STOPPED]

def hand_over(*_):
    end[0] = TurnEnd.HANDED_OVER

words = LeaseLog(LocalStorage(here / "job"))
lease = JobLease(words, float(os.environ["LEASE_SECONDS"]), warm=os.environ["WARM"] == "yes")
lifeline.report(ready=True)
lifeline.await_turn()
if not lease.take_or_leave():
    lease.wait()
signal.signal(signal.SIGTERM, hand_over)
lifeline.report(running=True)
with held(lease, lambda: end[0]):
    with (here / "turns").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while end[0] is not TurnEnd.HANDED_OVER and not (here / "then").exists():
        time.sleep(0.01)
    if (here / "then").exists():
        exec((here / "then").read_text())
sys.exit()  # as a job would: a program that just ends has started none
"""


class Two:
    """`PROGRAM` under supervisors that share a folder."""

    def __init__(self, folder: Path, opened: ExitStack, *, warm: bool = False, seconds: float = 5.0) -> None:
        self.folder, self._open = folder, opened
        self._environment = {"LEASE_SECONDS": str(seconds), "WARM": "yes" if warm else "no"}
        self._options = [*OFTEN, *(["--standby"] if warm else [])]
        (folder / "program.py").write_text(PROGRAM)

    def start(self) -> Supervised:
        run = Supervised(self.folder, [*self._options, str(self.folder / "program.py")], self._environment)
        return self._open.enter_context(run)

    @property
    def turns(self) -> list[int]:
        file = self.folder / "turns"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def pair(self) -> tuple[Supervised, Supervised]:
        """One that runs the job, and one that waits."""
        first = self.start()
        until(lambda: has(first, "has_lease"), first.tail)
        second = self.start()
        until(lambda: has(second, "awaits_lease"), second.tail)
        return first, second

    def wait_turn(self, run: Supervised, number: int) -> None:
        until(lambda: len(self.turns) == number and run.drivers[-1] == self.turns[-1], run.tail)

    def words(self) -> list[dict[str, object]]:
        folder = self.folder / "job" / layout.LEASE
        return [json.loads(file.read_text())["body"] for file in sorted(folder.glob("*.json"))]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def has(run: Supervised, action: str) -> bool:
    return action in run.actions()


def die(run: Supervised) -> None:
    """As a machine does: all at once, so that nothing is left to hand over."""
    run.stop_all()
    run.kill()


@pytest.mark.long
def test_a_supervisor_that_dies_with_its_driver_is_followed(tmp_path: Path, opened: ExitStack) -> None:
    """The waiting one has no driver meanwhile."""
    two = Two(tmp_path, opened)
    first, second = two.pair()
    until(lambda: len(second.members()) == 1, second.tail)
    die(first)
    two.wait_turn(second, 2)
    assert [word["turn"] for word in two.words()][-1] == 2


def test_one_that_stood_still_waits_for_its_turn_again(tmp_path: Path, opened: ExitStack) -> None:
    """It says why its driver has ended, and does not fight back; it is there when the other one dies."""
    two = Two(tmp_path, opened)
    first, second = two.pair()
    first.stop_all()
    two.wait_turn(second, 2)
    first.continue_all()
    until(lambda: has(first, "lost_turn"), first.tail)
    until(lambda: first.actions()[-1] == "awaits_lease", first.tail)
    assert first.status is None
    assert "LeaseLost" in next(one["reason"] for one in first.told() if one["action"] == "lost_turn")
    assert f"status {LOST_TURN}" in first.tail()
    assert len(two.turns) == 2
    die(second)
    two.wait_turn(first, 3)


@pytest.mark.parametrize(
    ("warm", "number"),
    [(False, signal.SIGTERM), (True, signal.SIGTERM), (False, signal.SIGKILL)],
    ids=["cold", "warm", "killed alone"],
)
def test_one_that_is_shut_down_hands_over(
    tmp_path: Path, opened: ExitStack, warm: bool, number: signal.Signals
) -> None:
    """Without waiting for the lease to run out: it is an hour long."""
    two = Two(tmp_path, opened, warm=warm, seconds=3600.0)
    first, second = two.pair()
    os.kill(first.pid, number)
    assert first.wait(patient=True) == (0 if number == signal.SIGTERM else -number), first.tail()
    two.wait_turn(second, 2)
    assert "released" in [word["standing"] for word in two.words()]


@pytest.mark.parametrize(
    ("then", "status"), [("", 0), ("raise TypeError('a mistake')", 1)], ids=["stopped", "failed for good"]
)
def test_a_job_that_has_ended_is_not_started_elsewhere(
    tmp_path: Path, opened: ExitStack, then: str, status: int
) -> None:
    two = Two(tmp_path, opened, seconds=3600.0)
    first, second = two.pair()
    (tmp_path / "then").write_text(then)
    assert first.wait(patient=True) == status, first.tail()
    assert second.wait(patient=True) == status, second.tail()
    assert len(two.turns) == 1
    (tmp_path / "then").unlink()
    third = two.start()  # somebody starts it again
    two.wait_turn(third, 2)


def test_who_waits_is_seen_to_and_takes_the_signal(tmp_path: Path, opened: ExitStack) -> None:
    two = Two(tmp_path, opened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
        _, second = two.pair()
        until(lambda: len(second.members()) == 1, second.tail)  # its driver has ended: it waits by itself
        [waiting] = [entry for entry in Registry().entries() if entry.state is State.SUSPENDED]
    assert waiting.supervisor == second.pid
    assert waiting.lease is not None
    assert waiting.lease.startswith("turn 1, on ")
    second.terminate()
    assert second.wait(patient=True) == 128 + signal.SIGTERM
    assert len(two.turns) == 1


@pytest.mark.long
def test_a_storage_that_is_away_ends_the_driver_and_nobody_else_starts_one(tmp_path: Path, opened: ExitStack) -> None:
    """Whoever holds the lease cannot renew it, whoever waits cannot see it. When it is back, one of them goes on."""
    two = Two(tmp_path, opened)
    first, second = two.pair()
    (tmp_path / "job" / layout.LEASE).rename(tmp_path / "aside")
    (tmp_path / "job" / layout.LEASE).write_text("not a folder")
    until(lambda: has(first, "lost_turn"), first.tail)
    assert "could not be renewed" in first.log.read_text()
    assert len(two.turns) == 1
    (tmp_path / "job" / layout.LEASE).unlink()
    (tmp_path / "aside").rename(tmp_path / "job" / layout.LEASE)
    until(lambda: len(two.turns) >= 2, lambda: f"{first.tail()}\n{second.tail()}")


# A real job


def start(world: Case, *options: str) -> Supervised:
    config = world.config.write(world.folder / "config.json")
    return Supervised(world.folder, [*OFTEN, LEASE, *options, str(SCRIPT), str(config)])


def finish(world: Case, run: Supervised) -> None:
    world.wait_visible(run)
    run.terminate()
    assert run.wait(patient=True) == 0, run.tail()
    world.assert_exact()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_job_goes_on_elsewhere_exactly_once(case: Callable[..., Case]) -> None:
    """The holder stands still in the middle of its rows, with its JVM and workers; the other one, which is warm, takes
    over; the first wakes up and waits. Then the second dies as a machine does, and the first takes over again."""
    world = case(rows_per_epoch=50)
    world.source.feed(200)
    with ExitStack() as opened:
        first = opened.enter_context(start(world, "--standby"))
        world.wait_visible(first, 120)
        second = opened.enter_context(start(world, "--standby"))
        until(lambda: has(second, "awaits_lease"), second.tail, 120)
        world.source.feed(400)
        first.stop_all()
        world.source.feed(200)
        until(lambda: has(second, "has_lease"), second.tail)
        world.wait_visible(second, 120)
        first.continue_all()
        until(lambda: has(first, "lost_turn"), first.tail)
        world.source.feed(200)
        world.wait_visible(second)
        until(lambda: first.actions()[-1] in ("awaits_lease", "standby_ready"), first.tail, 120)
        assert first.status is None
        world.source.feed(400)
        die(second)
        world.source.feed(200)
        until(lambda: first.actions().count("has_lease") == 2, first.tail)
        finish(world, first)
    ran = Path(world.config.storage) / world.config.name / "copy" / "ledger" / "generations"
    assert len(os.listdir(ran)) >= 3
