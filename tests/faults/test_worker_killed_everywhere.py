"""Every Python worker dies by SIGKILL at every point there is, and the job goes on by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.case import Case, running
from tests.support.points import DRIVER, WORKER, at, worker_failpoint
from tests.support.processes import kill_workers
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("point", DRIVER)
def test_workers_killed_while_the_driver_is_at(case: Callable[..., Case], session: SparkSession, point: str) -> None:
    """A portion goes through before, so that there are workers with open producers to be killed."""
    world = case(count=True)
    world.source.feed(100)
    killed: list[int] = []
    with running(world.build(session)) as run:
        until(world.visible, "the first portion")
        with at(point, lambda: killed.append(kill_workers(os.getpid()))) as passed:
            world.source.feed(100)
            until(passed.is_set, f"{point} to be passed")
            until(world.visible, "the second portion")
        world.source.feed(100)
        until(world.visible, "the third portion")
        run.stop()
    assert killed[0] > 0
    world.assert_exact()


@pytest.mark.parametrize("point", WORKER)
def test_worker_killed_at(case: Callable[..., Case], session: SparkSession, point: str) -> None:
    world = case(count=True)
    world.source.feed(100)
    with worker_failpoint(session, world, point, "crash"), running(world.build(session)) as run:
        until(world.visible, "the first portion")
        world.source.feed(100)
        until(world.visible, "the second portion")
        run.stop()
    assert world.acted(point)
    assert [event for event in run.events if event["event"] == "restarting"]
    world.assert_exact()
