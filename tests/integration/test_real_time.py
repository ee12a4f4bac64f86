"""A job in real time on a real broker: run, stopped, killed, saved, restored, and changed to micro-batches and back. In
the end each row is visible once, in its key's order."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.checkpoint.spark_log import SparkLog
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.errors import MarksLost
from penstock.failpoints import POINTS
from penstock.storage.local import LocalStorage
from tests.support.fault_case import Case, running
from tests.support.kafka import Input, create_topic
from tests.support.servers.broker import Broker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REAL_TIME = {"latency": "20ms", "interval": "1s"}
EPOCHS: dict[str, Any] = {}
DRIVER = [name for name, where in POINTS.items() if where == "lanes"]


@pytest.fixture
def world(broker: Broker, tmp_path: Path) -> Iterator[Case]:
    world = Case(broker.servers, tmp_path / "world", checkpoints=REAL_TIME, master="local[4]")
    yield world
    world.close()


def mode(world: Case, checkpoints: dict[str, Any]) -> None:
    world.config = replace(world.config, checkpoints=checkpoints)


def spark_log(world: Case, history: str = "spark") -> SparkLog:
    return SparkLog(LocalStorage(Path(world.config.storage) / world.config.name / "copy" / history))


def restore(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """From now on jobs start with -s."""
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.state-recovery.path": path}))


def test_it_runs_and_records_and_goes_on_after_a_stop(world: Case, session: SparkSession) -> None:
    for round_ in range(2):
        with running(world.build(session)) as run:
            world.source.feed(100)
            world.wait_visible(run)
            before = len(run.all("completed"))
            world.source.feed(100)
            world.wait_visible(run)
            run.wait(lambda: len(run.all("completed")) > before, "an epoch")  # noqa: B023
            assert run.job.status()["queries"]["copy"]["running"]
            run.stop()
        world.assert_exact()
        log = spark_log(world)
        barrier = log.newest_complete()
        assert barrier is not None
        assert barrier.lanes is not None
        assert barrier.lanes.closed
        assert barrier.lanes.query == log.query_id()
        rows = sum(barrier.offsets[0][world.source.topic].values())
        assert rows == 200 * (round_ + 1)
        assert sum(event["rows"] for event in run.all("checkpoint")) == 200


def test_micro_batches_then_real_time_then_micro_batches(world: Case, session: SparkSession) -> None:
    for checkpoints in (EPOCHS, REAL_TIME, EPOCHS, REAL_TIME):
        mode(world, checkpoints)
        world.source.feed(100)
        with running(world.build(session)) as run:
            world.wait_visible(run)
            run.stop()
        world.assert_exact()


def test_micro_batches_close_the_lanes_of_a_driver_that_was_killed(world: Case, session: SparkSession) -> None:
    world.source.feed(100)
    killed = world.start()
    world.wait_visible(killed)
    world.source.feed(500)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    note = spark_log(world).newest_complete()
    assert note is not None
    assert note.lanes is not None
    assert not note.lanes.closed
    mode(world, EPOCHS)
    world.source.feed(100)
    world.finish_here(session)


def test_the_driver_is_killed_at_every_step(world: Case) -> None:
    died: list[str] = []
    while True:
        world.source.feed(50)
        run = world.start(dict.fromkeys(DRIVER, "crash"))
        until(lambda: run.status is not None or world.visible(), lambda: f"an end after {died}\n{run.tail()}")  # noqa: B023
        if run.status is None:
            run.terminate()
        if run.wait() == 0:
            break
        new = [point for point in DRIVER if world.acted(point) and point not in died]
        assert new, f"it ended at no point; before at {died}\n{run.tail()}"
        died += new
    assert sorted(died) == sorted(DRIVER)
    world.assert_exact()


@pytest.mark.parametrize(
    "then", [pytest.param(REAL_TIME, id="real time", marks=pytest.mark.long), pytest.param(EPOCHS, id="micro-batches")]
)
def test_its_own_checkpoint_is_restored_after_a_kill(
    world: Case, session: SparkSession, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore fences the lanes of the dead driver and copies what they have made visible, not what it recorded."""
    world.config = replace(world.config, checkpoints={**REAL_TIME, "interval": "1h"})
    world.source.feed(100)
    killed = world.start()
    world.wait_visible(killed)
    killed.kill()
    killed.wait()
    barrier = spark_log(world).newest_complete()
    assert barrier is not None
    assert sum(barrier.offsets[0][world.source.topic].values()) == 0
    world.source.feed(100)
    mode(world, then)
    restore(monkeypatch, f"{world.config.storage}/{world.config.name}")
    [restored] = world.finish_here(session).all("restored")
    assert restored["beyond"] == {}


@pytest.mark.parametrize("then", [REAL_TIME, EPOCHS], ids=["real time", "micro-batches"])
def test_a_savepoint_while_rows_come_is_restored(
    world: Case, session: SparkSession, tmp_path: Path, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restored job reads what the savepoint has not, and nothing twice."""
    with running(world.build(session)) as run:
        world.source.feed(200)
        world.wait_visible(run)
        path = run.job.savepoint(str(tmp_path / "savepoints"))
        assert run.alive
        world.source.feed(100)
        world.wait_visible(run)
        ending = run.job.stop_with_savepoint(str(tmp_path / "savepoints"))
        run.join()
    world.assert_exact()
    saved = SparkLog(LocalStorage(Path(path) / "queries/copy/spark")).newest_complete()
    last = SparkLog(LocalStorage(Path(ending) / "queries/copy/spark")).newest_complete()
    assert saved is not None
    assert last is not None
    topic = world.source.topic
    assert sum(saved.offsets[0][topic].values()) == 200
    assert sum(last.offsets[0][topic].values()) == 300
    world.source.feed(100)
    mode(world, then)
    restore(monkeypatch, ending)
    assert world.finish_here(session).all("restored")


def test_marks_that_are_gone_stop_it(world: Case, session: SparkSession) -> None:
    from confluent_kafka.admin import AdminClient

    with running(world.build(session)) as run:
        world.source.feed(100)
        world.wait_visible(run)
        run.stop()
    marks = f"penstock.{world.config.name}.copy.marks.{world.source.topic}"
    admin = AdminClient({"bootstrap.servers": world.servers})
    admin.delete_topics([marks])[marks].result(30)
    until(lambda: marks not in admin.list_topics(timeout=10).topics, "the marks to be gone")
    with pytest.raises(MarksLost, match="lost marks"):
        world.build(session).run()
    world.assert_exact()


def test_a_new_partition_gets_a_lane(world: Case, session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark finds it at the end of a batch, here after seconds."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    from penstock.engine.real_time import RealTimeQuery

    made: Callable[..., Any] = RealTimeQuery
    monkeypatch.setattr(
        "penstock.engine.real_time.RealTimeQuery", lambda *args: made(*args, batch="5 seconds"), raising=True
    )
    topic = create_topic(world.servers, 1, prefix="in")  # the session has two slots
    world.source, world.config = Input(world.servers, topic), replace(world.config, source=topic)
    with running(world.build(session)) as run:
        world.source.feed(100)
        world.wait_visible(run)
        admin = AdminClient({"bootstrap.servers": world.servers})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        world.source.feed(300)
        world.wait_visible(run)
        until(lambda: len((spark_log(world).newest_complete()).offsets[0][topic]) == 2, "the lane in the ledger")  # type: ignore[union-attr]
        run.stop()
