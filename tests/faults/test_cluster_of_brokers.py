"""Three brokers, and one of them is killed or stands still at every step of an epoch: the job goes on with the others.

The one that is hit has a part in what happens just then: it coordinates a transaction of the job, leads a partition
that is written, or leads the cluster. One job runs through a whole walk, and one fault meets it at each step in turn.
Over the three walks of a kind every step has met the loss of every part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import Blow, Roles
from tests.support.failpoint_actions import DRIVER, WORKER, at, feed_until, started_anew, worker_failpoints
from tests.support.fault_case import Case, Endless
from tests.support.servers.broker import Broker
from tests.support.servers.kafka_cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long  # three brokers take a minute to start beside other tests, and each loss some seconds

log = logging.getLogger(__name__)

PARTS = ("coordinator", "leader", "controller")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.start(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def roles(cluster: Cluster) -> Roles:
    return Roles(cluster)


@pytest.fixture(scope="module")
def endless(cluster: Cluster, session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endless]:
    made = Endless(session, lambda: Case(cluster.servers, tmp_path_factory.mktemp("brokers"), restarts=1000))
    yield made
    made.close()


def holder(roles: Roles, world: Case, part: str) -> Callable[[], Broker]:
    """Who has this part at the moment it is asked."""
    assert world.config.copy_to is not None
    topic = world.config.copy_to
    ways: dict[str, Callable[[], Broker]] = {
        "coordinator": lambda: roles.coordinator(world.config.name),
        "leader": lambda: roles.leader(topic),
        "controller": roles.controller,
    }
    return ways[part]


def all_is_well(roles: Roles, world: Case) -> None:
    """Everything is visible, and the cluster whole again, before the next one is hit."""
    world.wait_visible(seconds=180)
    assert world.config.copy_to is not None
    roles.wait_whole(world.config.copy_to, world.source.topic)


@pytest.mark.parametrize("start", range(len(PARTS)))
@pytest.mark.parametrize("kind", ["kill", "pause"])
def test_a_broker_is_lost_at_every_step(
    roles: Roles, endless: Endless, session: SparkSession, kind: str, start: int
) -> None:
    for number, point in enumerate((*DRIVER, *WORKER)):
        part = PARTS[(number + start) % len(PARTS)]
        with endless.world(warm=True) as (world, _):
            log.info("%s the %s at %s", kind, part, point)
            blow = Blow(holder(roles, world, part), kind)
            if point in DRIVER:
                with at(point, blow.begin) as passed:
                    feed_until(passed, world)
            else:
                world.once.joinpath(point).unlink(missing_ok=True)
                world.release.unlink(missing_ok=True)
                with worker_failpoints(session, world, {point: "hang"}), started_anew():
                    world.source.feed(100)
                    world.wait_acted(point, seconds=120)
                    blow.begin()
                    world.release.touch()
                    blow.wait_over()
                    world.wait_visible(seconds=180)
            blow.wait_over()
            all_is_well(roles, world)


def test_every_broker_is_restarted_in_turn_while_rows_come(cluster: Cluster, roles: Roles, endless: Endless) -> None:
    """What an upgrade does: each is stopped in order, comes back, and only then the next."""
    with endless.world(warm=True) as (world, _):
        for broker in cluster.brokers:
            world.source.feed(200)
            broker.restart()
            world.source.feed(200)
            all_is_well(roles, world)


def test_two_of_three_are_lost_and_come_back(cluster: Cluster, roles: Roles, endless: Endless) -> None:
    """With two brokers gone no row has enough replicas, and the controllers have no majority: nothing is committed, and
    nothing is given up. What was fed comes out when they are back."""
    lost = cluster.brokers[1:]

    def lose() -> None:
        for broker in lost:
            broker.kill()

    with endless.world(warm=True) as (world, run):
        with at("epoch.sealed", lose) as passed:
            feed_until(passed, world)
        assert not world.visible(), "two replicas must have a commit before it counts"
        assert run.alive
        cluster.restart(lost)
        all_is_well(roles, world)
