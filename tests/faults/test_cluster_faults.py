"""On a standalone cluster of two workers: what dies, stands still, goes away by itself or comes late, one at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import processes
from tests.support.cluster_chaos import CONF, EXECUTOR_MEMORY
from tests.support.fault_case import Case
from tests.support.processes import JobProcess, state
from tests.support.servers.spark import SparkCluster, SparkWorker
from tests.support.waiting import until

pytestmark = pytest.mark.long

PATIENCE = 120.0  # executors start, one JVM each


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster.start(tmp_path_factory.mktemp("spark"), workers=2, memory=EXECUTOR_MEMORY) as started:
        yield started


@pytest.fixture
def world(case: Callable[..., Case], cluster: SparkCluster) -> Callable[..., Case]:
    """Copy and count on the cluster, with these settings of Spark's."""

    def make(**conf: str) -> Case:
        return case(count=True, master=cluster.url, conf={**CONF, **conf}, restarts=1000)

    return make


def begin(one: Case, points: str = "") -> JobProcess:
    """Start it, and see its first rows through."""
    one.source.feed(200)
    run = one.start(points)
    one.wait_visible(run, PATIENCE)
    return run


def finish(one: Case, run: JobProcess) -> None:
    one.source.feed(200)
    one.wait_visible(run, PATIENCE)
    one.finish(run)


def gone(pid: int) -> None:
    until(lambda: not processes.exists(pid) or state(pid) == "Z", f"process {pid} to go", PATIENCE)


def test_executors_lost_between_prepare_and_decision_commit_what_they_prepared(
    world: Callable[..., Case], cluster: SparkCluster
) -> None:
    """The decision needs none of them: their transactions are committed by the driver, in the first attempt."""
    one = world()
    one.source.feed(200)
    run = one.start("epoch.sealed=hang")
    one.wait_acted("epoch.sealed", run, PATIENCE)
    killed = cluster.executors()
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    for pid in killed:
        gone(pid)
    one.release.touch()
    one.wait_visible(run, PATIENCE)
    failed = [event for event in run.events() if event["event"] == "restarting"]
    finish(one, run)
    assert not [event for event in failed if event.get("query") == "copy"], failed
    assert one.manifests("copy")[0]["epoch"] == 0


@pytest.mark.parametrize("points", ["task.opened=hang", "task.prepared=hang"], ids=["open", "prepared"])
def test_an_executor_lost_before_it_has_reported(
    world: Callable[..., Case], cluster: SparkCluster, points: str
) -> None:
    """Its task runs again elsewhere, within the epoch; what it had opened or prepared is aborted."""
    folder = Path(cluster.folder)
    once, release = folder / f"once-{points[5:9]}", folder / f"release-{points[5:9]}"
    once.mkdir()
    one = world(
        **{
            "spark.executorEnv.PENSTOCK_FAILPOINTS": points,
            "spark.executorEnv.PENSTOCK_FAILPOINTS_ONCE": str(once),
            "spark.executorEnv.PENSTOCK_FAILPOINTS_RELEASE": str(release),
        },
    )
    one.source.feed(200)
    run = one.start()
    name = points.partition("=")[0]
    until(lambda: (once / name).exists(), lambda: f"{name} to be passed\n{run.tail()}", PATIENCE)
    for pid in cluster.executors():
        os.kill(pid, signal.SIGKILL)
    release.touch()
    one.wait_visible(run, PATIENCE)
    finish(one, run)


def test_an_executor_killed_in_the_middle_of_a_real_time_query(
    case: Callable[..., Case], cluster: SparkCluster
) -> None:
    """Its tasks run again in another one, behind what is visible already."""
    one = case(master=cluster.url, conf=CONF, checkpoints={"latency": "20ms", "interval": "1s"}, restarts=1000)
    run = begin(one)
    for number in range(2):
        until(lambda: len(cluster.executors()) == 2, "two executors", PATIENCE)
        one.source.feed(1000)
        os.kill(cluster.executors()[number], signal.SIGKILL)
        one.source.feed(1000)
        one.wait_visible(run, PATIENCE)
    finish(one, run)


def test_a_worker_killed_and_back(world: Callable[..., Case], cluster: SparkCluster) -> None:
    one = world()
    run = begin(one)
    worker: SparkWorker = cluster.workers[0]
    worker.kill()
    one.source.feed(200)
    one.wait_visible(run, PATIENCE)  # the other one is enough
    worker.restart()
    finish(one, run)


def test_a_master_that_is_away_keeps_nobody_waiting(world: Callable[..., Case], cluster: SparkCluster) -> None:
    """Executors that there are go on; after its restart the master gives new ones."""
    one = world()
    run = begin(one)
    cluster.master.kill()
    one.source.feed(200)
    one.wait_visible(run, PATIENCE)
    cluster.master.restart()
    for pid in cluster.executors():
        os.kill(pid, signal.SIGKILL)
    finish(one, run)


def test_a_paused_executor_wakes_up_after_another_has_done_its_work(
    world: Callable[..., Case], cluster: SparkCluster
) -> None:
    one = world()
    run = begin(one)
    until(lambda: len(cluster.executors()) == 2, "two executors", PATIENCE)
    paused = cluster.executors()[0]
    os.kill(paused, signal.SIGSTOP)
    try:
        one.source.feed(200)
        one.wait_visible(run, PATIENCE)  # Spark gives it up after `spark.network.timeout`
    finally:
        os.kill(paused, signal.SIGCONT)
    finish(one, run)


def test_speculation(world: Callable[..., Case], cluster: SparkCluster) -> None:
    """Two attempts at one task may both prepare; the one that Spark counts is committed, the other one aborted."""
    one = world(
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.01",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "1ms",
        }
    )
    run = begin(one)
    for _ in range(5):
        one.source.feed(200)
        one.wait_visible(run, PATIENCE)
    finish(one, run)


def test_dynamic_allocation_removes_idle_executors_and_brings_them_back(
    world: Callable[..., Case], cluster: SparkCluster
) -> None:
    one = world(
        **{
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
            "spark.dynamicAllocation.executorIdleTimeout": "2s",
            "spark.dynamicAllocation.minExecutors": "0",
        }
    )
    run = begin(one)
    until(lambda: not cluster.executors(), "idle executors to be removed", PATIENCE)
    one.source.feed(200)
    one.wait_visible(run, PATIENCE)
    finish(one, run)


def test_executors_are_decommissioned(world: Callable[..., Case], cluster: SparkCluster) -> None:
    one = world(**{"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"})
    run = begin(one)
    leaving = cluster.executors()[0]
    os.kill(leaving, signal.SIGPWR)
    one.source.feed(200)
    one.wait_visible(run, PATIENCE)
    gone(leaving)
    finish(one, run)


def test_without_retries_of_tasks_the_epoch_replays(world: Callable[..., Case], cluster: SparkCluster) -> None:
    one = world(**{"spark.task.maxFailures": "1"})
    run = begin(one)
    for _ in range(2):
        for pid in cluster.executors():
            os.kill(pid, signal.SIGKILL)
        one.source.feed(200)
        one.wait_visible(run, PATIENCE)
    finish(one, run)


def test_a_paused_driver_finds_its_executors_again_or_others(world: Callable[..., Case], cluster: SparkCluster) -> None:
    one = world()
    run = begin(one)
    run.stop_all()
    for pid in cluster.executors():
        os.kill(pid, signal.SIGKILL)
    run.continue_all()
    finish(one, run)
