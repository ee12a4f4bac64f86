"""A second driver beside the first: when it is started, replaced, taken and ended. Drivers here are made up."""

from __future__ import annotations

import signal
from typing import Any, cast

import pytest

from penstock.ops.process.lifeline import CRASHED, Driver, DriverReport, DriverRun
from penstock.ops.process.supervisor import Standby, Sweeper


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class MadeUp:
    """A driver that says and does what the test wants."""

    pids = iter(range(1000, 9999))

    def __init__(self, *, running: bool = False) -> None:
        self.pid = next(self.pids)
        self.report = DriverReport(running=running)
        self.status: int | None = None
        self.asked_to_end = self.closed = False

    def ended(self) -> DriverRun | None:
        return None if self.status is None else DriverRun(self.status, self.report)

    def end(self) -> None:
        self.asked_to_end = True

    def close(self) -> None:
        self.closed = True


class World:
    """A standby whose drivers, clock and news are the test's."""

    def __init__(self) -> None:
        self.clock, self.swept, self.told = Clock(), list[int](), list[str]()
        self.started: list[MadeUp] = []
        self.refuse = False
        self.active = MadeUp(running=True)
        world = self

        class Swept(Sweeper):
            def begin(self, leader: int) -> None:
                world.swept.append(leader)

        def tell(action: str, **_: Any) -> None:
            self.told.append(action)

        self.standby = Standby(self._start, Swept(), tell, clock=self.clock)

    def _start(self) -> Driver:
        if self.refuse:
            raise BlockingIOError("no process left")
        self.started.append(MadeUp())
        return cast("Driver", self.started[-1])

    def tend(self) -> float | None:
        return self.standby.tend(cast("Driver", self.active))

    def begin(self) -> MadeUp:
        """A standby that was just started."""
        self.tend()
        self.clock.now += 5.0
        assert self.tend() is None
        return self.started[-1]


@pytest.fixture
def world() -> World:
    return World()


def test_it_is_started_a_moment_after_the_job_runs(world: World) -> None:
    world.active.report = DriverReport()
    world.clock.now += 1000
    assert world.tend() is None
    assert not world.started
    world.active.report = DriverReport(running=True)
    assert world.tend() == 5.0
    world.clock.now += 4.0
    assert world.tend() == 1.0
    assert not world.started
    world.clock.now += 1.0
    assert world.tend() is None
    assert len(world.started) == 1
    world.clock.now += 1000
    assert world.tend() is None
    assert len(world.started) == 1
    assert world.told == ["standby"]


def test_it_is_told_once_that_it_is_ready(world: World) -> None:
    spare = world.begin()
    spare.report = DriverReport(ready=True)
    world.tend()
    world.tend()
    assert world.told == ["standby", "standby_ready"]


def test_a_standby_takes_over(world: World) -> None:
    """It is then no standby any more, and another one is started when it runs."""
    spare = world.begin()
    assert world.standby.take() is cast("Driver", spare)
    assert world.standby.driver is None
    world.active = spare
    assert world.tend() is None
    spare.report = DriverReport(running=True)
    assert world.begin() is not spare


def test_there_may_be_none_to_take(world: World) -> None:
    assert world.standby.take() is None
    spare = world.begin()
    spare.status = -signal.SIGKILL  # at the same moment as the first
    assert world.standby.take() is None
    assert world.swept == [spare.pid]
    assert spare.closed


def test_one_that_dies_is_replaced_later_each_time(world: World) -> None:
    waits = []
    for _ in range(3):
        spare = world.begin() if not world.started else world.started[-1]
        spare.status = CRASHED
        waits.append(world.tend() or 0.0)
        assert world.swept[-1] == spare.pid
        world.clock.now += 100.0
        world.tend()
    assert 0.8 < waits[0] < 1.2 < waits[1] < 1.8 < waits[2] < 2.6  # each is a little more or less than it should be
    assert len(world.started) == 4
    assert world.told.count("standby_lost") == 3


def test_one_that_does_not_wait_is_the_last(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A program without a job comes to its end, and would again."""
    world.begin().status = 0
    assert world.tend() is None
    world.clock.now += 10_000
    assert world.tend() is None
    assert len(world.started) == 1
    assert "without waiting for its turn" in caplog.text


def test_where_no_process_is_left_it_is_tried_again(world: World) -> None:
    world.refuse = True
    world.tend()
    world.clock.now += 5.0
    wait = world.tend()
    assert wait is not None
    assert wait > 0
    world.refuse = False
    world.clock.now += wait
    world.tend()
    assert len(world.started) == 1


def test_it_ends_with_the_job(world: World) -> None:
    spare = world.begin()
    world.standby.close()
    assert spare.asked_to_end
    assert world.swept == [spare.pid]
    world.standby.close()
    assert world.swept == [spare.pid]
