"""A job that is stopped, cancelled or interrupted never claims an epoch that is not visible and leaves nothing open."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.failpoints import hooked
from tests.support.failpoint_actions import mostly_long, worker_failpoints
from tests.support.fault_case import Case, running
from tests.support.kafka import open_transactions, transactions
from tests.support.processes import JobProcess
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assert_log_is_true(world: Case) -> None:
    """Every epoch in Spark's commit log is visible, and nothing is visible that was not decided. Looked at in this
    order it holds while the job goes on as well; a committed row gets the moment its marker takes."""
    logged = world.commits()

    def rows(epochs: set[int]) -> int:
        newest = {manifest["epoch"]: manifest["committables"] for manifest in world.manifests()}
        assert epochs <= newest.keys()
        return sum(row[2] for epoch in epochs for row in newest[epoch])

    until(lambda: len(world.copy.read()) >= rows(logged), f"the rows of the epochs {logged}", 10)
    visible = len(world.copy.values)
    assert visible <= rows({manifest["epoch"] for manifest in world.manifests()})


def assert_stopped_between_epochs(world: Case) -> None:
    """After a clean stop nothing is half done: logged, decided and visible are the same."""
    assert_log_is_true(world)
    assert world.commits() == {manifest["epoch"] for manifest in world.manifests()}
    assert len(world.copy.values) == sum(row[2] for one in world.manifests() for row in one["committables"])
    assert open_transactions(world.servers, world.config.name) == []


def go_on(world: Case, session: SparkSession) -> None:
    """Start the job again, let it finish what it finds and some more, and judge."""
    with running(world.build(session)) as again:
        world.source.feed(100)
        world.wait_visible(again)
        again.stop()
    world.assert_exact()


@pytest.mark.parametrize("point", mostly_long(["task.written", "commit.first"], "commit.first"))
def test_sigterm_in_the_middle_of_an_epoch(case: Callable[..., Case], session: SparkSession, point: str) -> None:
    world = case(rows_per_epoch=100)
    world.source.feed(300)
    run = world.start({point: "hang"})
    world.wait_acted(point, run)
    run.terminate()
    assert run.status is None, "it must finish its epoch first"
    world.release.touch()
    assert run.wait() == 0, run.tail()
    assert world.commits() == {0}
    assert_stopped_between_epochs(world)
    go_on(world, session)


def test_sigterm_to_every_process(case: Callable[..., Case], session: SparkSession) -> None:
    """As some process managers do it: the JVM and the workers are told as well. The driver then cannot end its epoch,
    but must not claim it either."""
    world = case()
    world.source.feed(100)
    run = world.start({"task.written": "hang"})
    world.wait_acted("task.written", run)
    signal_all(run)
    world.release.touch()
    run.wait()
    assert_log_is_true(world)
    go_on(world, session)


def signal_all(run: JobProcess) -> None:
    for pid in run.members():
        with contextlib.suppress(ProcessLookupError):  # it ended with one that was told before it
            os.kill(pid, signal.SIGTERM)


def cancel(session: SparkSession, name: str) -> threading.Thread:
    """Stop Spark's query behind the job's back, from another thread; returns once Spark has marked it as ended."""
    [query] = [query for query in session.streams.active if query.name == f"{name}.copy"]
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    until(lambda: not query.isActive, "Spark to cancel the query")
    return stopping


def test_query_cancelled_in_the_middle_of_tasks(case: Callable[..., Case], session: SparkSession) -> None:
    world = case()
    world.source.feed(100)
    with worker_failpoints(session, world, {"task.written": "hang"}), running(world.build(session)):
        world.wait_acted("task.written")
        stopping = cancel(session, world.config.name)
        assert world.commits() == set()
        world.release.touch()
        stopping.join(60)
        assert_log_is_true(world)
    go_on(world, session)


@pytest.mark.parametrize("point", ["epoch.precommitted", "epoch.decided", "commit.first", "epoch.committed"])
def test_query_cancelled_in_the_middle_of_its_commit(
    case: Callable[..., Case], session: SparkSession, point: str
) -> None:
    world = case()
    world.source.feed(100)
    stopping: list[threading.Thread] = []
    with (
        hooked(point, lambda: stopping.append(cancel(session, world.config.name))),
        running(world.build(session)),
    ):
        until(lambda: stopping, f"{point} to be passed")
        stopping[0].join(60)
        assert_log_is_true(world)
    go_on(world, session)


def test_failed_task_attempts_leave_nothing_open(case: Callable[..., Case]) -> None:
    """With retries allowed, Spark tries a task again within the same epoch, once after an error and once after a
    worker's death; what that one had prepared is swept when the epoch is committed, not only when the job ends."""
    world = case(master="local[2,4]")
    world.source.feed(100)
    run = world.start({"task.written": "raise", "task.prepared": "crash"})
    world.wait_visible(run)
    assert world.acted("task.written")
    assert world.acted("task.prepared")
    until(lambda: not open_transactions(world.servers, world.config.name), "strays to be swept", 15)
    assert [event["count"] for event in run.events("aborted")] == [1]
    assert run.events("failed") == []
    world.source.feed(100)
    world.finish(run)


def test_a_task_that_wakes_late_leaves_nothing_open(case: Callable[..., Case], session: SparkSession) -> None:
    """One task dies and fails the epoch; the other stands still meanwhile, wakes up when the epoch has long been
    replayed, and prepares what nobody asks for any more. Readers would wait behind it until it times out, so it must
    be found even though no further epoch comes."""
    world = case()
    world.source.feed(100)
    points = {"task.opened": "hang", "task.prepared": "crash"}
    with worker_failpoints(session, world, points), running(world.build(session)) as run:
        world.wait_acted("task.prepared")
        world.wait_visible()
        world.release.touch()
        until(lambda: "Empty" not in transactions(world.servers, world.config.name).values(), "the late task to write")
        until(lambda: not open_transactions(world.servers, world.config.name), "what it opened to be aborted", 30)
        world.source.feed(100)
        world.wait_visible()
        run.stop()
    world.assert_exact()
