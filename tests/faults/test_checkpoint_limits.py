"""Timeout, tolerable failures, pause, concurrency and callbacks, on a job that runs over a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CheckpointInfo
from penstock.errors import CheckpointExpired
from penstock.failpoints import hooked
from tests.support.failpoint_actions import worker_failpoints
from tests.support.fault_case import Case, Running, running
from tests.support.kafka import assert_nothing_open
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The time of an attempt is up once workers are at these points, of which the first hangs, and never before: how
    long an epoch takes decides nothing."""

    def expire(world: Case, *points: str) -> None:
        class Timer(threading.Timer):
            def run(self) -> None:
                while not self.finished.wait(0.02):
                    if all(map(world.acted, ("task.written", *points))) and not expired.is_set():
                        expired.set()
                        self.function(*self.args)

        expired = threading.Event()
        monkeypatch.setattr("penstock.engine.attempt.threading.Timer", Timer)

    return expire


def seen(run: Running, name: str) -> list[Any]:
    return [event for event in list(run.events) if event["event"] == name]


def test_a_checkpoint_that_takes_too_long_is_aborted_and_tried_again(
    case: Callable[..., Case], session: SparkSession, hanging: Callable[..., None]
) -> None:
    """Tolerated: the query goes on, the epoch is retried, and the attempt that hung has left nothing open."""
    world = case(checkpoints={"tolerable_failures": 1})
    hanging(world)
    with worker_failpoints(session, world, {"task.written": "hang"}), running(world.build(session)) as run:
        world.source.feed(100)
        until(lambda: seen(run, "checkpoint_failed"), "the checkpoint to time out")
        failed = seen(run, "checkpoint_failed")[0]
        assert failed["error"].startswith("CheckpointExpired")
        assert (failed["in_row"], failed["tolerated"]) == (1, True)
        world.wait_visible(run)
        assert not seen(run, "restarting")
        world.release.touch()
        run.stop()
    world.assert_exact()


def test_more_failures_than_tolerated_fail_the_job(
    case: Callable[..., Case], session: SparkSession, hanging: Callable[..., None]
) -> None:
    """Which then restarts or, without a restart strategy, ends with the reason; nothing stays open. One writer hangs
    and the other has prepared: a task that begins after the end would leave its transaction to the next start."""
    world = case(restarts=0)
    hanging(world, "task.prepared")
    world.source.feed(100)  # in one epoch, which has rows for both writers
    points = {"task.written": "hang", "task.prepared": "delay(0)"}
    with worker_failpoints(session, world, points), running(world.build(session)) as run:
        with pytest.raises(CheckpointExpired, match="not prepared after 120 s"):
            run.join()
        world.release.touch()
    assert_nothing_open(world.servers, world.config.name)
    with running(world.build(session)) as run:
        world.wait_visible(run)
        run.stop()
    world.assert_exact()


def test_a_pause_lies_between_two_checkpoints(case: Callable[..., Case], session: SparkSession) -> None:
    world = case(checkpoints={"min_pause": "2s"})
    with running(world.build(session)) as run:
        until(lambda: world.source.feed(10) or len(seen(run, "completed")) >= 3, "some checkpoints")
        run.stop()
    ends = {event["epoch"]: event["time"] for event in seen(run, "completed")}
    starts = {event["epoch"]: event["time"] for event in seen(run, "opened")}
    pauses = [starts[epoch + 1] - end for epoch, end in ends.items() if epoch + 1 in starts]
    assert pauses
    assert (
        min(pauses) >= 1
    )  # an event may be emitted after its moment; without a pause this is below a tenth of a second


def test_the_next_epoch_is_prepared_while_one_commits(case: Callable[..., Case], session: SparkSession) -> None:
    """With two at a time: one is held in its commit, the next completes, the third has to wait."""
    world = case(checkpoints={"max_concurrent": 2})
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(60)

    with running(world.build(session)) as run:
        world.source.feed(100)
        world.wait_visible(run)
        with hooked("drain.opened", hold):
            world.source.feed(10)
            assert held.wait(60)
            first = len(seen(run, "completed"))
            until(lambda: world.source.feed(10) or len(seen(run, "completed")) > first, "the next to complete")
            until(lambda: world.source.feed(10) or seen(run, "throttled"), "the third to wait")
            waiting = len(seen(run, "completed"))
            assert len(seen(run, "drained")) < waiting
            go_on.set()
        world.wait_visible(run)
        run.stop()
    world.assert_exact()


def test_callbacks_are_called_and_cannot_break_anything(
    case: Callable[..., Case], session: SparkSession, hanging: Callable[..., None]
) -> None:
    world = case(checkpoints={"tolerable_failures": 1})
    hanging(world)
    job = world.build(session)
    complete: list[CheckpointInfo] = []
    aborted: list[CheckpointInfo] = []

    @job.on_checkpoint_complete
    def note(info: CheckpointInfo) -> None:
        complete.append(info)
        raise RuntimeError("not today")

    job.on_checkpoint_aborted(aborted.append)
    with worker_failpoints(session, world, {"task.written": "hang"}), running(job) as run:
        world.source.feed(100)
        world.wait_visible(run)
        world.release.touch()
        run.stop()
    world.assert_exact()
    assert [info.epoch for info in complete] == [event["epoch"] for event in seen(run, "completed")]
    assert all(info.error is None and info.query == "copy" for info in complete)
    assert len(seen(run, "callback_failed")) == len(complete)
    assert {info.error and info.error.partition(":")[0] for info in aborted} == {"CheckpointExpired"}
    assert len(aborted) == len(seen(run, "checkpoint_failed"))
