"""The Kafka broker dies by SIGKILL at every point there is and comes back with its data; the job goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.failpoint_actions import DRIVER, WORKER, at, feed_until, mostly_long, started_anew, worker_failpoints
from tests.support.fault_case import Case, Endless
from tests.support.kafka import transactions
from tests.support.servers.broker import Broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this module's own, to be killed."""
    with Broker.start(tmp_path_factory.mktemp("mortal"), heap="512m") as started:
        yield started


@pytest.fixture(scope="module")
def endless(mortal: Broker, session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endless]:
    made = Endless(session, lambda: Case(mortal.servers, tmp_path_factory.mktemp("outages"), restarts=1000))
    yield made
    made.close()


class Outage:
    """Kills the broker at once and brings it back from another thread, so that whoever goes on meets nobody.

    At once, but for the milliseconds in which a commit that it has acknowledged is on its way to the partitions. Kafka
    4.3.1 on one node, killed just then, may forget it: it comes back, finds no leader for the partitions because it is
    not yet unfenced, takes them for deleted ("likely deleted already and hence can be skipped"), and calls the
    transaction complete. Its rows stay invisible for ever, whichever client wrote them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._return = threading.Thread(target=broker.restart)

    def begin(self) -> None:
        until(self._settled, "commits under way to reach the partitions", 10)
        self._broker.kill()
        self._return.start()

    def _settled(self) -> bool:
        return not any(state.startswith("Prepare") for state in transactions(self._broker.servers, "").values())

    def wait_over(self) -> None:
        self._return.join(90)
        assert self._broker.running


USUAL = ("recover.committed", "commit.first", "task.written")


@pytest.mark.parametrize("point", mostly_long(DRIVER, *USUAL))
def test_broker_killed_while_the_driver_is_at(mortal: Broker, endless: Endless, point: str) -> None:
    outage = Outage(mortal)
    with endless.world() as (world, _), at(point, outage.begin) as passed:
        feed_until(passed, world)
        outage.wait_over()
        world.wait_visible()


@pytest.mark.parametrize("point", mostly_long(WORKER, *USUAL))
def test_broker_killed_while_a_worker_is_at(
    mortal: Broker, endless: Endless, session: SparkSession, point: str
) -> None:
    outage = Outage(mortal)
    with endless.world() as (world, _):
        world.release.unlink(missing_ok=True)
        with worker_failpoints(session, world, {point: "hang"}), started_anew():
            world.source.feed(100)
            world.wait_acted(point)
            outage.begin()
            world.release.touch()
            outage.wait_over()
            world.wait_visible()
