"""A driver with unaligned checkpoints dies by SIGKILL at every point of the in-flight log, one after the other, and its
successor goes on each time. All other points: `test_several_sinks.py`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import pytest

from penstock.failpoints import POINTS
from tests.support.failpoint_actions import LOGGED
from tests.support.fault_case import Case
from tests.support.processes import JobProcess
from tests.support.waiting import until

#: Where an epoch that goes through the in-flight log differs.
UNALIGNED = [name for name in LOGGED if POINTS[name] == "driver"]
#: Recorded and not delivered, decided and not committed: the simulation dies at every point of the drainer.
USUAL = ["inflight.recorded", "drain.decided"]
#: Where it does not; `test_several_sinks.py` has them in `make test`.
COMMON = ["epoch.decided", "epoch.committed", "recover.committed", "commit.first"]


@pytest.mark.long  # the simulation kills drivers with the in-flight log at every step
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(USUAL, id="usual"),
        pytest.param([*UNALIGNED, *COMMON], id="all"),
    ],
)
def test_driver_killed_at_every_point_with_the_in_flight_log(case: Callable[..., Case], points: list[str]) -> None:
    """Each run dies at the first point that it passes and that no run before it has died at, until one gets through.
    Each epoch is delivered by the drainer."""
    world = case(checkpoints={"unaligned": True})
    chain(world, points, "task.logged")
    assert not list(world.folder.glob("checkpoints/*/*/inflight/*/*/logs/*")), "delivered, but not removed"


def chain(world: Case, deadly: Sequence[str], raising: str) -> None:
    points = {**dict.fromkeys(deadly, "crash"), raising: "raise"}
    died: list[str] = []
    while True:
        world.source.feed(100)  # a new epoch for both queries, whatever the last run had come to
        run = world.start(points)

        until(
            lambda: over(world, run, deadly, died),  # noqa: B023
            lambda: f"the job to die or get through; died at {died}\n{run.tail()}",  # noqa: B023
        )
        if run.status is None:
            break
        assert run.wait() == -signal.SIGKILL, run.tail()
        new = [point for point in deadly if world.acted(point) and point not in died]
        assert new, f"it was killed, but at no point; died before at {died}"
        died += new
    world.finish(run)
    assert sorted(died) == sorted(deadly)
    assert world.acted(raising)


def over(world: Case, run: JobProcess, deadly: Sequence[str], died: Sequence[str]) -> bool:
    """Whether the run is dead, or through with everything. One that is through with its rows gets more."""
    if run.status is not None:
        return True
    if any(world.acted(point) for point in deadly if point not in died):
        return False  # it dies at this moment: after some points its rows are visible already
    if not world.visible():
        return False
    if len(died) == len(deadly):
        return True
    world.source.feed(100)
    return False


@pytest.mark.long
@pytest.mark.core("kills")
def test_driver_killed_after_the_decision_and_in_the_middle_of_the_commit(case: Callable[..., Case]) -> None:
    """From Kafka to Kafka, with state. In `make test` `test_several_sinks.py` has these points, among all others."""
    chain(case(count=True), ["epoch.decided", "commit.first"], "task.prepared")
