"""Unaligned checkpoints: a real broker stands still, and checkpoints go on completing; later all is there, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fault_case import Case, Running, running
from tests.support.servers.broker import Broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALIGNED = 1.0  # seconds for which the sink is waited for
DURING = 6  # checkpoints that must complete while the sink stands still
UNALIGNED: dict[str, Any] = {
    "unaligned": True,
    "aligned_timeout": f"{ALIGNED:g}s",
    "abort_timeout": "5s",
    "commit_timeout": "10s",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The sink's own broker: the source's goes on when this one stands still."""
    with Broker.start(tmp_path_factory.mktemp("target"), heap="512m") as broker:
        yield broker


@pytest.fixture
def standing(target: Broker) -> Iterator[Broker]:
    """`standing.pause()` is undone however the test ends."""
    yield target
    target.resume()


def seen(run: Running, name: str) -> list[Any]:
    return [event for event in list(run.events) if event["event"] == name]


def waited_for(run: Running) -> list[Any]:
    """The epochs that became visible in their sink at once. Those that did not had waited for it as long as they
    should, or queued behind one that had: whatever the machine is busy with, no epoch takes the log for nothing."""
    logged = {event["epoch"]: event for event in seen(run, "logged")}
    hasty = [event for event in logged.values() if not event["behind"] and event["seconds"] < ALIGNED]
    assert not hasty, "while the sink keeps up, it is waited for"
    return [event["epoch"] for event in seen(run, "committed") if event["epoch"] not in logged]


def feed_until(world: Case, enough: Callable[[], bool], what: str) -> None:
    """Small portions, each an epoch of its own."""

    def more() -> bool:
        if enough():
            return True
        world.source.feed(20)
        return False

    until(more, what, 120)


def test_checkpoints_complete_while_the_sink_stands_still(
    case: Callable[..., Case], session: SparkSession, standing: Broker
) -> None:
    world = case(sink_servers=standing.servers, checkpoints=UNALIGNED)
    with running(world.build(session)) as run:
        world.source.feed(100)
        world.wait_visible(run)
        feed_until(world, lambda: bool(waited_for(run)), "an epoch that the sink takes in time")
        world.wait_visible(run)
        until(lambda: len(seen(run, "drained")) == len(seen(run, "logged")), "the log to be empty")
        before, earlier = len(seen(run, "completed")), len(seen(run, "logged"))

        standing.pause()
        feed_until(world, lambda: len(seen(run, "completed")) >= before + DURING, "checkpoints to go on completing")
        logged = seen(run, "logged")
        assert len(logged) >= earlier + DURING - 1
        assert logged[-1]["backlog_bytes"] > 0
        assert len(world.commits()) >= before + DURING - 1

        standing.resume()
        world.wait_visible(run, 120)
        until(lambda: len(seen(run, "drained")) == len(seen(run, "logged")), "the log to be delivered")
        assert [event["epoch"] for event in seen(run, "drained")] == [event["epoch"] for event in seen(run, "logged")]

        again = len(waited_for(run))
        feed_until(world, lambda: len(waited_for(run)) > again, "the sink to be waited for again")
        world.wait_visible(run)
        run.stop()
    world.assert_exact()
    assert not list(Path(world.config.storage).rglob("*.arrow"))


def test_a_driver_killed_while_the_sink_stands_still(
    case: Callable[..., Case], session: SparkSession, standing: Broker
) -> None:
    """What was in the log then is delivered by the next run, before anything newer."""
    world = case(count=True, sink_servers=standing.servers, checkpoints=UNALIGNED)
    run = world.start()
    world.source.feed(100)
    world.wait_visible(run)
    standing.pause()
    feed_until(world, lambda: len(run.events("logged")) >= DURING, f"epochs to go into the log\n{run.tail()}")
    run.kill()
    standing.resume()
    world.source.feed(100)
    world.finish_here(session)


def test_the_log_is_limited(case: Callable[..., Case], session: SparkSession, standing: Broker) -> None:
    """Beyond its limit the job slows down; it goes on as soon as the sink takes what is in the log."""
    world = case(sink_servers=standing.servers, checkpoints={**UNALIGNED, "inflight_limit": "3kb"})
    with running(world.build(session)) as run:
        world.source.feed(100)
        world.wait_visible(run)
        standing.pause()
        feed_until(world, lambda: bool(seen(run, "throttled")), "the log to be full")
        completed = len(seen(run, "completed"))
        world.source.feed(100)
        assert len(seen(run, "completed")) == completed
        standing.resume()
        world.wait_visible(run, 120)
        assert seen(run, "flowing")
        run.stop()
    world.assert_exact()
