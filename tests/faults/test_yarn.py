"""Jobs on a real YARN with checkpoints on HDFS: what dies is started again by YARN, also while the old one lives."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from penstock import failpoints
from penstock.processes import session_members
from tests.support.fault_case import Case
from tests.support.servers.hadoop import Hadoop
from tests.support.waiting import until
from tests.support.yarn import SETTINGS, Application, client_environment, send

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # a dozen JVMs come and go on a small machine

PATIENCE = 300.0


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with Hadoop.start(tmp_path_factory.mktemp("hadoop"), nodes=2, settings=SETTINGS) as started:
        yield started


def test_client_mode(case: Callable[..., Case], hadoop: Hadoop) -> None:
    """The driver is here, executors are containers: one of them dies, then the driver."""
    world = case(storage=f"{hadoop.hdfs}/checkpoints", master="yarn")
    world.source.feed(100)
    with world.start(**client_environment(hadoop)) as first:
        world.wait_visible(first, PATIENCE)
        executors = [
            leader for node in hadoop.nodes for name, leader in node.containers.items() if not name.endswith("_000001")
        ]
        for leader in executors:
            send(leader, signal.SIGKILL)
        assert executors
        world.source.feed(100)
        world.wait_visible(first, PATIENCE)
        world.source.feed(100)
        first.kill()
    world.source.feed(100)
    with world.start(**client_environment(hadoop)) as second:
        world.wait_visible(second, PATIENCE)
        second.terminate()
        assert second.wait(PATIENCE) == 0, second.tail()
    world.assert_exact()


def test_cluster_mode_with_a_master_that_dies_and_one_that_only_stood_still(
    case: Callable[..., Case], hadoop: Hadoop
) -> None:
    """Attempt 1 is killed with an epoch prepared. Attempt 2 stands still with an epoch decided, and its node with it,
    so that YARN takes both for lost; attempt 3 takes over. Then 2 wakes up, cut off from the resource manager, which
    would have told it to go."""
    world = case(storage=f"{hadoop.hdfs}/checkpoints", master="yarn")
    world.source.feed(100)
    job = Application.submit(
        hadoop,
        world,
        {
            failpoints.VARIABLE: "epoch.sealed=hang;epoch.decided=hang",
            failpoints.ONCE: str(world.once),
            failpoints.RELEASE: str(world.release),
        },
    )
    node, container = job.attempt(1)
    until(lambda: world.acted("epoch.sealed"), job.tail, PATIENCE)
    send(node.containers[container], signal.SIGKILL)

    node, container = job.attempt(2)
    until(lambda: world.acted("epoch.decided"), job.tail, PATIENCE)
    old = node.containers[container]
    stopped = [leader for leader in node.containers.values() if session_members(leader)]
    node.pause()
    for leader in stopped:
        send(leader, signal.SIGSTOP)

    job.attempt(3)
    world.source.feed(100)
    until(world.visible, job.tail, PATIENCE)
    hadoop.resource_manager.pause()
    world.release.touch()
    for leader in stopped:
        send(leader, signal.SIGCONT)
    superseded = "Superseded: Generation 2 of query 'copy' has been superseded by generation 3."
    until(lambda: superseded in job.output(node, container), job.tail, PATIENCE)
    world.source.feed(100)
    until(world.visible, job.tail, PATIENCE)

    hadoop.resource_manager.resume()
    node.resume()
    until(lambda: not session_members(old), "the old master to be gone", PATIENCE)
    world.source.feed(100)
    until(world.visible, job.tail, PATIENCE)
    recovered = {event["generation"]: event["action"] for event in job.told("recovered")}
    assert sorted(recovered) == [1, 2, 3]
    assert recovered[3] == "finished", "what the second attempt had decided is carried out, not computed again"
    assert job.stop() == "SUCCEEDED", job.tail()
    world.assert_exact()
