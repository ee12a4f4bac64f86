"""Every Python worker dies by SIGKILL at every point there is, and the job goes on by itself."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.failpoint_actions import DRIVER, WORKER, at, feed_until, mostly_long, started_anew, worker_failpoints
from tests.support.fault_case import Case, Endless
from tests.support.processes import kill_workers
from tests.support.servers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def endless(broker: Broker, session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endless]:
    """A stateless and a stateful query."""
    made = Endless(session, lambda: Case(broker.servers, tmp_path_factory.mktemp("workers"), count=True, restarts=1000))
    yield made
    made.close()


@pytest.mark.parametrize(
    "point",
    mostly_long(DRIVER, "epoch.precommitted", "commit.first"),
)
def test_workers_killed_while_the_driver_is_at(endless: Endless, point: str) -> None:
    killed: list[int] = []
    with endless.world(warm=True) as (world, _), at(point, lambda: killed.append(kill_workers(os.getpid()))) as passed:
        feed_until(passed, world)
        world.wait_visible()
    assert killed[0] > 0


@pytest.mark.parametrize("point", WORKER)
def test_worker_killed_at(endless: Endless, session: SparkSession, point: str) -> None:
    with endless.world() as (world, run):
        told = len(run.events)
        with worker_failpoints(session, world, {point: "crash"}), started_anew():
            world.source.feed(100)
            world.wait_visible()
        assert world.acted(point)
        restarts = [event for event in itertools.islice(run.events, told, None) if event["event"] == "restarting"]
        assert len(restarts) >= 2, "to begin with, and when the worker had died"
