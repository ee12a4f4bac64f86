"""The power fails under a real Spark: all processes die at once, and the disk loses what was not synced. The job comes
up by itself, nothing is lost, nothing doubled. `test_power_cut.py` has every step in milliseconds, with Spark's part
played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SavepointIncomplete
from penstock.failpoints import POINTS
from penstock.savepoints.savepoint import read, verify
from penstock.storage.local import LocalTree
from penstock.testing.anomalies import DUPLICATE
from tests.faults.test_savepoint_kills import RESTORE, ask, files, options, taken
from tests.support.failpoint_actions import LOGGED
from tests.support.fault_case import Case
from tests.support.jobs.power import PowerJob
from tests.support.power_record import CUTS, Machine, RealDisk
from tests.support.power_world import PATIENCE, PowerWorld
from tests.support.processes import JobProcess
from tests.support.run_job import Kafka
from tests.support.servers.broker import Broker

#: In the order of an epoch. Up to its decision, a job that starts again is in its first epoch again.
UNDECIDED = [
    "recover.registered",
    "recover.looked",
    "recover.claimed",
    "recover.swept",
    "ledger.aside",
    "epoch.opened",
    "task.opened",
    "task.written",
    "task.prepared",
    "epoch.precommitted",
    "epoch.aborted",
    "epoch.sealed",
]
#: Each but the last leaves a decision that is not carried out.
DECIDED = [
    "epoch.decided",
    "recover.registered",
    "recover.looked",
    "recover.claimed",
    "recover.committed",
    "recover.finished",
]
COMMITTING = ["epoch.confirmed", "commit.first", "epoch.committed"]
TENTH = ["epoch.opened", "task.prepared", "epoch.precommitted", "epoch.sealed", *DECIDED, *COMMITTING]
INFLIGHT = [*LOGGED, "epoch.decided", "recover.committed", "epoch.committed", "drain.decided", "ledger.aside"]
PLANS: dict[str, dict[str, Any]] = {
    "stateless": {"plan": "copy"},
    "from files": {"plan": "files"},
    "hashmap": {"backend": "hashmap"},
    "rocksdb": {"backend": "rocksdb"},
    "changelog": {"backend": "changelog"},
    "join": {"plan": "join"},
    "join with changelog": {"plan": "join", "backend": "changelog"},
}


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """For `make power-cuts`: how often the power failed, and what was lost."""
    before = len(CUTS)
    yield
    cuts = CUTS[before:]
    request.node.user_properties += [("cuts", len(cuts)), ("taken", sum(cut.count for cut in cuts))]


def cut_at_each(world: PowerWorld, points: list[str], passing: int = 1) -> None:
    """One run after the other, each up to the next of `points`, in the first epoch of the run, or a later one."""
    for point in points:
        world.cut_at(point, 1 if point.startswith("recover.") else passing)


def finish(world: PowerWorld) -> None:
    world.finish()
    assert sum(cut.count for cut in world.machine.cuts) >= len(world.points), f"the cuts took nothing\n{world.story()}"


def test_with_state_in_the_first_epoch_and_the_tenth(tmp_path: Path) -> None:
    world = PowerWorld(tmp_path, rows=800)
    world.cut_at("epoch.decided")
    world.cut_at("commit.first", 10)
    finish(world)


@pytest.mark.long
def test_a_sync_that_is_missing_is_found(tmp_path: Path) -> None:
    """A planted bug: decisions are not synced. After a cut the epoch is written a second time."""
    machine = Machine(tmp_path / "disk", forgets=r"/ledger/epochs")
    world = PowerWorld(tmp_path, machine=machine, rows=100, plan="copy")
    world.cut_at("epoch.committed", 2)
    world.complete()
    assert [anomaly.kind for anomaly in world.anomalies()] == [DUPLICATE]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2, 102])
@pytest.mark.parametrize("plan", PLANS)
def test_at_every_point_of_the_first_epoch(tmp_path: Path, plan: str, seed: int) -> None:
    world = PowerWorld(tmp_path, seed=seed, **PLANS[plan])
    cut_at_each(world, [*UNDECIDED, *DECIDED])
    finish(world)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", COMMITTING)
@pytest.mark.parametrize("plan", PLANS)
def test_while_the_first_epoch_is_committed(tmp_path: Path, plan: str, point: str) -> None:
    for seed in (0, 1, 2):
        world = PowerWorld(tmp_path / str(seed), seed=seed, **PLANS[plan])
        world.cut_at(point)
        finish(world)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2, 102])
@pytest.mark.parametrize("plan", PLANS)
def test_at_every_point_of_the_tenth_epoch(tmp_path: Path, plan: str, seed: int) -> None:
    world = PowerWorld(tmp_path, seed=seed, rows=2400, **PLANS[plan])
    cut_at_each(world, TENTH, passing=10)
    finish(world)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_where_each_file_is_synced_by_itself(tmp_path: Path) -> None:
    """As on FUSE, where one call for the whole file system reaches no disk."""
    world = PowerWorld(tmp_path, machine=Machine(tmp_path / "disk", apart=True), rows=1600)
    cut_at_each(world, ["epoch.sealed", *DECIDED])
    cut_at_each(world, ["epoch.precommitted", *DECIDED, *COMMITTING], passing=10)
    finish(world)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("timeout", ["0s", "60s"], ids=["all by the log", "beside the log"])
def test_through_the_in_flight_log(tmp_path: Path, timeout: str) -> None:
    points = INFLIGHT if timeout == "0s" else ["task.logged", "epoch.decided", "recover.committed", "epoch.committed"]
    world = PowerWorld(tmp_path, rows=1200, checkpoints={"unaligned": True, "aligned_timeout": timeout})
    cut_at_each(world, points)
    cut_at_each(world, points, passing=4)
    finish(world)


@pytest.fixture
def real_disk(tmp_path: Path) -> Iterator[RealDisk]:
    if not RealDisk.works(tmp_path / "probe"):
        pytest.skip("this user may not mount a file system")
    disk = RealDisk(tmp_path / "real")
    yield disk
    disk.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plan", PLANS)
def test_on_a_real_file_system(tmp_path: Path, real_disk: RealDisk, plan: str) -> None:
    world = PowerWorld(tmp_path / "world", machine=real_disk, rows=2400, **PLANS[plan])
    cut_at_each(world, ["epoch.opened", "epoch.sealed", *DECIDED])
    cut_at_each(world, TENTH, passing=10)
    finish(world)


def into_kafka(folder: Path, broker: Broker, **config: Any) -> PowerWorld:
    """Every cut takes the disk of the job; the broker, which is on another machine, keeps what it has."""
    kafka = Kafka(broker.servers)
    topic = kafka.topic()

    def visible(_: PowerJob) -> list[int]:
        return [int(value) for value in kafka.values(topic).elements()]

    return PowerWorld(folder, read=visible, servers=broker.servers, topic=topic, **config)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plan", ["stateless", "changelog"])
def test_into_kafka(broker: Broker, tmp_path: Path, plan: str) -> None:
    world = into_kafka(tmp_path, broker, rows=1600, **PLANS[plan])
    cut_at_each(world, [*UNDECIDED, *DECIDED])
    cut_at_each(world, [*DECIDED, *COMMITTING], passing=10)
    finish(world)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", COMMITTING)
def test_while_the_first_epoch_is_committed_to_kafka(broker: Broker, tmp_path: Path, point: str) -> None:
    for seed in (0, 2):
        world = into_kafka(tmp_path / str(seed), broker, seed=seed, rows=200, backend="changelog")
        world.cut_at(point)
        finish(world)


# While a standby takes over

TAKEOVER = ["recover.registered", "recover.claimed", "recover.committed", "recover.finished", "recover.swept"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("passing", [1, 10], ids=["first epoch", "tenth epoch"])
def test_while_a_standby_takes_over(tmp_path: Path, passing: int) -> None:
    """The holder of the lease dies with a decision that is not carried out; the power fails while the next one takes
    it over. Then both start again."""
    world = PowerWorld(tmp_path, seed=2, rows=400 if passing == 1 else 1600)
    for point in TAKEOVER:
        world.cut_takeover(point, "epoch.decided", passing)
    world.complete_supervised()
    world.finish()
    assert any(cut.count for cut in world.machine.cuts), f"the cuts took nothing\n{world.story()}"


# Jobs from Kafka to Kafka


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "disk")


ROWS = pytest.mark.parametrize("rows", [10, 100], ids=["first epoch", "tenth epoch"])  # with ten in each
SEED = pytest.mark.parametrize("seed", [0, 2])


def feed(world: Case, run: JobProcess, rows: int) -> None:
    """An epoch, or ten, since the job started."""
    before = max(world.commits(), default=-1)
    world.source.feed(rows)
    world.wait_visible(run, PATIENCE)
    assert max(world.commits()) - before >= rows // 10 - 1, "the last one is visible before it is in Spark's log"


@pytest.mark.long
@pytest.mark.timeout(1200)
@SEED
@ROWS
def test_during_a_savepoint(case: Callable[..., Case], machine: Machine, seed: int, rows: int) -> None:
    """What a cut leaves of it is whole or is refused."""
    world = case(count=True, storage=str(machine.root / "checkpoints"), rows_per_epoch=10)
    folder = machine.root / "savepoints"
    for number, point in enumerate(name for name, where in POINTS.items() if where == "savepoint"):
        run = world.start({point: "crash"}, **machine.environment)
        feed(world, run, rows)
        assert ask("savepoint", world.config.name, str(folder)).returncode != 0
        assert run.wait() == -9, run.tail()
        machine.cut(seed + number)
        for left in folder.glob("*"):
            with contextlib.suppress(SavepointIncomplete):
                verify(LocalTree(left), read(LocalTree(left)))
    world.source.feed(100)
    world.finish(world.start(**machine.environment))


@pytest.mark.long
@pytest.mark.timeout(1200)
@SEED
@ROWS
def test_during_a_restore(case: Callable[..., Case], machine: Machine, seed: int, rows: int) -> None:
    """The savepoint outlives every cut, what a restore had begun is begun anew, and one that was recorded is done."""
    world = case(count=True, storage=str(machine.root / "checkpoints"), rows_per_epoch=10, partitions=None)
    run = world.start(**options(parallelism_default=2), **machine.environment)
    feed(world, run, rows)
    made = taken("stop", world.config.name, "-p", str(machine.root / "savepoints"))
    assert run.wait() == 0, run.tail()
    machine.cut(0)
    before = files(made)
    for number, point in enumerate(RESTORE):
        backend = "rocksdb" if number % 2 else "hashmap"
        wish = options(
            execution_state__recovery_path=made,
            penstock_restore_id=f"{number:032x}",
            parallelism_default=3 + number,
            state_backend_type=backend,
        )
        run = world.start({point: "crash"}, **wish, **machine.environment)
        assert run.wait(PATIENCE) == -9, run.tail()
        assert world.acted(point)
        machine.cut(seed + number)
        assert files(made) == before
    run = world.start(**wish, **machine.environment)
    world.source.feed(100)
    world.finish(run)
    assert run.events("restored") == [], "the last one was recorded before the power failed"
    assert files(made) == before
