"""Spark Declarative Pipelines: `spark-pipelines run` over the project of docs/how-to/connect.md, from Kafka to Kafka.
Python workers and whole pipelines die at every point, and each row is visible once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import fault_case
from tests.support.fault_case import Case
from tests.support.format_points import ALL, FAILS, KILLED, before, parts_of
from tests.support.jobs import spark_pipelines
from tests.support.jobs.spark_pipelines import offsets_of
from tests.support.kafka import assert_copied, assert_nothing_open
from tests.support.verdicts import epochs_of
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.processes import JobProcess
    from tests.support.servers.broker import Broker


@pytest.fixture
def world(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(fault_case, "SCRIPT", Path(spark_pipelines.__file__))
    made = Case(broker.servers, tmp_path / "case")
    yield made
    made.close()


def test_a_killed_pipeline_and_a_retry_of_its_own(world: Case) -> None:
    """The whole pipeline dies between the commits of its first epoch, and is run again. In that run a worker dies
    between decision and commit: `spark-pipelines` starts the flow again by itself, and ends well."""
    kill_at(world, "commit.first")
    assert world.acted("commit.first")
    assert retries(world, "epoch.decided") == 1
    verdict(world)


@pytest.mark.long
@pytest.mark.parametrize("points", parts_of([name for name in ALL if name != FAILS]), ids="+".join)
def test_workers_killed_at_every_point(world: Case, points: Sequence[str]) -> None:
    """SIGKILL to the one Python process that passes the point, in a flow that `spark-pipelines` starts again."""
    tried = sum(retries(world, point) for point in points)
    assert all(map(world.acted, points))
    sys.stdout.write(f"workers killed: {len(points)}, retries of spark-pipelines: {tried}\n")
    finish(world)


@pytest.mark.long
@pytest.mark.parametrize("points", parts_of(KILLED), ids="+".join)
def test_pipelines_killed_at_every_point(world: Case, points: Sequence[str]) -> None:
    """SIGKILL to the pipeline with its JVM and all workers, while one of them hangs at the point."""
    for point in points:
        for first in before(point):
            kill_at(world, first)
        kill_at(world, point)
    assert all(map(world.acted, points))
    sys.stdout.write(f"pipelines killed: {len(points)}\n")
    finish(world)


def retries(world: Case, point: str) -> int:
    """One run in which the first worker that passes the point dies; how often the flow was tried again. An abort needs
    a failure before the decision."""
    world.source.feed(100)
    acts = {**dict.fromkeys(before(point), "crash"), point: "crash"}
    run = world.start(acts if point != "epoch.aborted" else {FAILS: "raise", **acts})
    ends_well(run)
    return run.log.read_text().count("has FAILED")


def kill_at(world: Case, point: str) -> None:
    """One run that is killed at the point, or after its rows are visible, where it does not pass it."""
    world.source.feed(100)
    run = world.start({point: "hang"})
    until(lambda: world.acted(point) or run.status is not None, lambda: f"{point} to be passed\n{run.tail()}", 150)
    run.kill()


def finish(world: Case) -> None:
    world.source.feed(100)
    ends_well(world.start())
    verdict(world)


def verdict(world: Case) -> None:
    servers, config = world.servers, world.config
    assert config.copy_to is not None
    assert_nothing_open(servers, config.name)
    assert_copied(
        world.source, servers, config.copy_to, epochs_of(offsets_of(config), config.source, world.source.places)
    )


def ends_well(run: JobProcess) -> None:
    assert run.wait(200) == 0, run.tail()
    assert "Run is COMPLETED" in run.log.read_text(), run.tail()
