"""The in-flight log through a power cut: what was not synced is gone, and still no decided row is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable
from penstock.engine.inflight import InFlight
from penstock.engine.task import Route, Writing, committable, write_rows
from penstock.errors import PreCommitFailed, StorageNotShared
from penstock.failpoints import POINTS, hooked
from tests.support.inflight_world import World, batch, rows, scope
from tests.support.power import Disk, PowerCut


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk").watched() as disk:
        yield disk


@pytest.fixture
def world(disk: Disk) -> Iterator[World]:
    (disk.root / "checkpoint").mkdir()  # by Spark, which does not sync it
    made = World(disk.root / "checkpoint" / "inflight")
    yield made
    for driver in made.made:
        driver.close()


def logged(world: World, driver: InFlight, epoch: int, *numbers: int) -> Committable:
    """One epoch as tasks and coordinator take it, up to the decision; the sink takes nothing now."""

    writing = Writing(Route.LOG, driver.writing("out", 0.0).log)
    told = write_rows(world.sink, scope(epoch=epoch), iter([batch(*numbers)]), writing)
    [sealed] = driver.sealed([committable("out", told)], lambda own, _: own)
    return sealed


def succeeded(world: World, disk: Disk, where: Path) -> tuple[World, InFlight]:
    """The machine comes up again with what its disk has kept; the sink was elsewhere."""
    disk.copy_durable(where)
    after = World(where / "checkpoint" / "inflight")
    after.sink, after.generation = world.sink, world.generation
    return after, after.driver()


def test_a_file_is_durable_when_its_epoch_may_be_decided(world: World, disk: Disk, tmp_path: Path) -> None:
    one = logged(world, world.driver(), 0, 1, 2)
    after, driver = succeeded(world, disk, tmp_path / "after")
    driver.commit(0, [one], lambda *_: {})  # as recovery does, by the decision
    assert after.drained(driver) == rows(1, 2)
    driver.close()


def test_folders_that_a_task_made_before_it_died_are_made_durable(world: World, disk: Disk, tmp_path: Path) -> None:
    (world.folder / "id" / "out" / "logs").mkdir(parents=True)
    one = logged(world, world.driver(), 0, 1, 2)
    after, driver = succeeded(world, disk, tmp_path / "after")
    driver.commit(0, [one], lambda *_: {})
    assert after.drained(driver) == rows(1, 2)
    driver.close()


def test_a_recorded_epoch_is_durable(world: World, disk: Disk, tmp_path: Path) -> None:
    driver = world.driver()
    driver.commit(0, [logged(world, driver, 0, 1, 2)], lambda *_: {})
    after, driver = succeeded(world, disk, tmp_path / "after")
    assert driver.pending == 1
    assert after.drained(driver) == rows(1, 2)
    driver.close()


@pytest.mark.parametrize("folder", ["backlog", "drained"])
def test_what_a_run_that_died_has_left_is_durable_before_it_is_relied_on(
    world: World, disk: Disk, tmp_path: Path, folder: str
) -> None:
    first = world.driver()
    one = logged(world, first, 0, 1, 2)
    first.commit(0, [one], lambda *_: {})
    if folder == "drained":
        world.drained(first)
    disk.forget(world.folder / "id" / "out" / folder)
    second = world.driver()
    second.commit(0, [one], lambda *_: {})  # by recovery, which then completes Spark's log
    after, third = succeeded(world, disk, tmp_path / "after")
    assert (third.pending, third._backlogs["out"].drained) == ((1, -1) if folder == "backlog" else (0, 0))
    assert after.drained(third) == rows(1, 2)
    third.close()


@pytest.mark.parametrize("point", [name for name in POINTS if name.startswith("drain.")])
@pytest.mark.parametrize("route", [Route.LOG, Route.TEE])
def test_the_drainer_is_succeeded_after_a_power_cut_anywhere(
    world: World, disk: Disk, tmp_path: Path, point: str, route: Route
) -> None:
    def cut() -> None:
        disk.copy_durable(tmp_path / "after")
        raise PowerCut

    driver = world.driver()
    world.epoch(driver, 0, 1, 2, route=route)
    world.epoch(driver, 1, 3)
    with hooked(point, cut):
        driver.start()
        driver.wait_empty(lambda: False)
    assert isinstance(driver.failure, PowerCut)
    driver.close()
    after = World(tmp_path / "after" / "checkpoint" / "inflight")
    after.sink, after.generation = world.sink, world.generation
    successor = after.driver()
    assert after.drained(successor) == rows(1, 2, 3)
    successor.close()


# Before a decision relies on it, the driver looks


def test_a_file_the_driver_does_not_see_is_not_decided_on(world: World) -> None:
    driver = world.driver()
    one = Committable("out", 0, 2, 3, {"log": {"name": "elsewhere.arrow", "bytes": 9, "crc": 1}, "prepared": None})
    with pytest.raises(StorageNotShared, match=r"elsewhere\.arrow.*driver does not see it") as refused:
        driver.sealed([one], lambda own, _: own)
    assert not refused.value.retryable
    assert "executors share" in refused.value.to_do


@pytest.mark.parametrize(
    "harm",
    [lambda path: path.write_bytes(path.read_bytes()[:-1]), lambda path: path.write_bytes(bytes(path.stat().st_size))],
    ids=["cut off", "emptied"],
)
def test_a_file_that_is_not_as_it_was_written_is_not_decided_on(world: World, harm: Callable[[Path], Any]) -> None:
    driver = world.driver()
    one = logged(world, driver, 0, 1, 2)
    [path] = world.folder.rglob("*.arrow")
    harm(path)
    with pytest.raises(PreCommitFailed, match="not as its writer left it"):
        driver.sealed([one], lambda own, _: own)


def test_it_looks_also_where_the_sink_has_prepared_everything(world: World) -> None:
    """The commit there may still fail, and then the log is all there is."""
    driver = world.driver()
    one = Committable("out", 0, 2, 3, {"log": {"name": "gone.arrow", "bytes": 9, "crc": 1}, "prepared": {"name": "x"}})
    with pytest.raises(StorageNotShared):
        driver.sealed([one], lambda own, _: own)
