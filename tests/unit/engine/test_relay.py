"""Epochs that begin and end in different processes, without Spark: a driver that calls the parts as Spark does, and
dies in any of them, or loses a worker there, and goes on as Spark would."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.engine import relay as engine
from penstock.engine.relay import Opened, Relay
from penstock.errors import (
    BarrierOverwritten,
    ConfigurationError,
    DuplicateUid,
    LedgerError,
    ReplayDiffers,
    SchemaMismatch,
    StrayTask,
    Superseded,
    WritersLost,
)
from penstock.failpoints import POINTS, hooked
from penstock.storage.local import LocalStorage
from tests.support.memory_sink import MemorySink

SCHEMA = pa.schema([("n", pa.int32())])
SKIPPED = {"recover.finished", "commit.first"}  # Spark's log is never completed here; the memory has no such point
DRIVER = [
    name
    for name, where in POINTS.items()
    if where == "driver" and name not in SKIPPED and not name.startswith(("inflight.", "drain."))
]
WORKER = ["task.opened", "task.written", "task.prepared"]


class Died(BaseException):
    """What no code of the product may catch."""


class Task:
    """As a task of Spark sees itself."""

    def __init__(self, number: int, identity: int, batch: int) -> None:
        self._number, self._identity, self._batch = number, identity, batch

    def partitionId(self) -> int:  # noqa: N802
        return self._number

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._identity

    def attemptNumber(self) -> int:  # noqa: N802
        return 0

    def stageId(self) -> int:  # noqa: N802
        return 0

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return str(self._batch)


class World:
    """A query of ten rows an epoch, in two tasks; its checkpoint, ledger and sink outlive every driver."""

    def __init__(self, folder: Path) -> None:
        self.sink, self.checkpoint = MemorySink(), folder / "checkpoint"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "11111111-2222-3333-4444-555555555555"}))
        self.drivers = self.tasks = 0
        self.changed: Sequence[int] | None = None  # what a plan that is not deterministic gives

    def driver(self) -> Driver:
        self.drivers += 1
        return Driver(self, f"driver-{self.drivers}")

    def ledger(self) -> Ledger:
        return Ledger(LocalStorage(self.checkpoint / "_penstock"))

    def expected(self) -> list[int]:
        return list(range(10 * len(list((self.checkpoint / "commits").iterdir()))))


class Driver:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.relay = Relay(world.sink, "out", "job", str(world.checkpoint), None, name, Checkpoints())

    def new_worker(self) -> None:
        """The worker that commits is another one from now on."""
        for run in engine._runs.values():
            run.close()
        engine._runs.clear()

    def begin(self) -> int:
        """Spark cuts the next epoch, or takes up the one that it finds in its log."""
        log = self.world.checkpoint
        batch = len(list((log / "commits").iterdir()))
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": batch, "conf": {}}
        offsets = log / "offsets" / str(batch)
        if not offsets.exists():
            offsets.write_text(f"v1\n{json.dumps(metadata)}\n{json.dumps({'to': 10 * (batch + 1)})}")
        return batch

    def open(self) -> Opened:
        return self.relay.open(SCHEMA)

    def write(self, opened: Opened, batch: int) -> list[str]:
        rows = self.world.changed or range(10 * batch, 10 * batch + 10)
        return [self._task(opened, batch, number, [row for row in rows if row % 2 == number]) for number in (0, 1)]

    def _task(self, opened: Opened, batch: int, number: int, rows: Sequence[int]) -> str:
        self.world.tasks += 1
        batches = [pa.RecordBatch.from_pydict({"n": pa.array(part, pa.int32())}) for part in (rows, [])]
        task: Any = Task(number, self.world.tasks, batch)
        return self.relay.write(opened, lambda rows: rows, {"n": False}, iter(batches), task, "job")

    def finish(self, reports: Sequence[str], batch: int) -> None:
        self.relay.commit(reports, batch)
        (self.world.checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def epoch(self) -> Opened:
        batch = self.begin()
        opened = self.open()
        self.finish(self.write(opened, batch), batch)
        return opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.driver().new_worker()


def test_a_run_registers_once_and_goes_on_by_tickets(world: World) -> None:
    driver = world.driver()
    opened = [driver.epoch() for _ in range(4)]
    assert [one.goes_on for one in opened] == [False, True, True, True]
    assert {one.generation for one in opened} == {1}
    assert sorted(world.sink.visible) == world.expected() == list(range(40))


def test_a_ticket_is_good_for_one_epoch(world: World) -> None:
    driver = world.driver()
    driver.epoch()
    driver.begin()
    assert driver.open().goes_on
    assert not driver.open().goes_on, "the first attempt was given up, and its tasks may still run"


def test_a_committing_worker_that_was_replaced_leaves_no_ticket(world: World) -> None:
    driver = world.driver()
    driver.epoch()
    driver.new_worker()
    opened = [driver.epoch() for _ in range(3)]
    assert [one.goes_on for one in opened] == [True, False, True]
    assert sorted(world.sink.visible) == world.expected()


@pytest.mark.parametrize("whole", [True, False], ids=["driver", "worker"])
@pytest.mark.parametrize("first", [0, 2], ids=["first epoch", "later epoch"])
@pytest.mark.parametrize("point", [*DRIVER, *WORKER])
def test_every_row_once_whatever_dies(world: World, point: str, first: int, whole: bool) -> None:
    """A driver, or the worker that it waits for; after that Spark calls abort, and the query is started again."""
    driver = world.driver()
    for _ in range(first):
        driver.epoch()
    if point.startswith("recover."):  # not passed with a ticket
        world.ledger().tear()
    if point == "recover.committed":
        with hooked("epoch.decided", _die), pytest.raises(Died):
            driver.epoch()
        driver.new_worker()
    fails = hooked("epoch.precommitted", _fail) if point == "epoch.aborted" else contextlib.nullcontext()
    passed: list[str] = []
    with fails, hooked(point, lambda: _die(passed)), pytest.raises(Died):
        driver.epoch()
    driver.new_worker()
    if whole:
        driver = world.driver()
    else:
        driver.relay.abort()
    for _ in range(3):
        driver.epoch()
    assert passed, "the driver did not pass the point"
    assert sorted(world.sink.visible) == world.expected()
    assert not world.sink.prepared, "something is left open"


def _die(passed: list[str] | None = None) -> None:
    if passed is not None:
        passed.append("died")
    raise Died


def _fail() -> None:
    raise LedgerError("failed on purpose")


def test_abort_after_the_decision_leaves_it(world: World) -> None:
    driver = world.driver()
    driver.epoch()
    with hooked("epoch.decided", _die), pytest.raises(Died):
        driver.epoch()
    driver.new_worker()
    driver.relay.abort()
    assert len(world.sink.prepared) == 2, "a decided epoch was aborted"
    opened = driver.epoch()
    assert opened.action == "verify"
    assert sorted(world.sink.visible) == world.expected()


def test_abort_before_the_decision_frees_what_is_prepared(world: World) -> None:
    driver = world.driver()
    batch = driver.begin()
    reports = driver.write(driver.open(), batch)
    assert len(world.sink.prepared) == 2
    driver.relay.abort()
    assert not world.sink.prepared
    with pytest.raises(Superseded):  # a commit that Spark had given up, and that still ran
        driver.finish(reports, batch)
    assert not world.sink.visible


def test_a_decided_epoch_whose_replay_differs_stops_by_name(world: World) -> None:
    driver = world.driver()
    with hooked("epoch.decided", _die), pytest.raises(Died):
        driver.epoch()
    world.changed = range(100, 110)
    with pytest.raises(ReplayDiffers, match="the replay differs"):
        world.driver().epoch()
    assert sorted(world.sink.visible) == list(range(10))
    assert not world.sink.prepared


def test_what_is_lost_after_the_decision_is_written_again(world: World) -> None:
    driver = world.driver()
    driver.epoch()
    with hooked("epoch.decided", _die), pytest.raises(Died):
        driver.epoch()
    world.sink.lose()
    driver = world.driver()
    assert driver.epoch().action == "void"
    assert sorted(world.sink.visible) == world.expected()


def test_a_part_that_is_lost_is_repaired_with_proof(world: World) -> None:
    driver = world.driver()
    with hooked("epoch.decided", _die), pytest.raises(Died):
        driver.epoch()
    world.sink.prepared.popitem()
    opened = world.driver().epoch()
    assert opened.action == "repair"
    assert len(opened.lost) == 1
    assert sorted(world.sink.visible) == world.expected()
    assert not world.sink.prepared


def test_lost_between_decision_and_commit_stops_and_the_next_start_replays(world: World) -> None:
    driver = world.driver()
    with hooked("epoch.confirmed", world.sink.lose), pytest.raises(WritersLost):
        driver.epoch()
    driver.relay.abort()
    driver.epoch()
    assert sorted(world.sink.visible) == world.expected()


def test_a_driver_that_was_superseded_stops(world: World) -> None:
    old = world.driver()
    old.epoch()
    batch = old.begin()
    reports = old.write(old.open(), batch)
    new = world.driver()
    again = new.write(new.open(), batch)
    with pytest.raises(Superseded):
        old.finish(reports, batch)
    old.relay.abort()
    assert len(world.sink.prepared) == 2, "it aborted what is the newer driver's"
    new.finish(again, batch)
    new.epoch()
    assert sorted(world.sink.visible) == world.expected()


def test_an_abort_that_is_superseded_while_it_registers_is_left_to_the_newer_run(world: World) -> None:
    old, new = world.driver(), world.driver()
    batch = old.begin()
    old.write(old.open(), batch)
    opened: list[Opened] = []

    def take_over() -> None:
        if not opened:
            opened.append(Opened(0, 0, "", "", False, None, (), 0, {}))
            opened[0] = new.open()

    with hooked("recover.registered", take_over):
        old.relay.abort()
    new.finish(new.write(opened[0], batch), batch)
    assert sorted(world.sink.visible) == world.expected()
    assert not world.sink.prepared


def test_a_driver_that_hung_before_its_epoch_stops_by_name(world: World) -> None:
    old = world.driver()
    old.epoch()
    old.begin()
    new = world.driver()
    new.write(new.open(), 1)
    with pytest.raises(Superseded):
        old.open()


def test_a_driver_that_hung_between_decision_and_look_commits_nothing(world: World) -> None:
    """The newer one saw the decision, and commits it; or it did not, and the decision is void."""
    old = world.driver()
    old.epoch()
    batch = old.begin()
    reports = old.write(old.open(), batch)
    new = world.driver()
    opened: list[Opened] = []
    with hooked("epoch.decided", lambda: opened.append(new.open())), pytest.raises(Superseded):
        old.finish(reports, batch)
    assert opened[0].action == "verify"
    new.finish(new.write(opened[0], batch), batch)
    assert sorted(world.sink.visible) == world.expected()


def test_a_barrier_that_another_driver_has_written_over_is_not_decided_on(world: World) -> None:
    driver = world.driver()
    driver.epoch()
    batch = driver.begin()
    reports = driver.write(driver.open(), batch)
    offsets = world.checkpoint / "offsets" / str(batch)
    offsets.write_text(offsets.read_text().replace("20", "17"))
    with pytest.raises(BarrierOverwritten):
        driver.finish(reports, batch)
    driver.relay.abort()
    assert not world.sink.prepared
    assert sorted(world.sink.visible) == list(range(10))


def test_tasks_of_another_epoch_write_nothing(world: World) -> None:
    driver = world.driver()
    driver.begin()
    opened = driver.open()
    with pytest.raises(StrayTask):
        driver.write(opened, 7)
    assert not world.sink.prepared


def test_the_same_query_again_in_the_same_driver(world: World) -> None:
    driver = world.driver()
    for _ in range(2):
        driver.epoch()
    again = Driver(world, driver.name)
    again.epoch()
    assert sorted(world.sink.visible) == world.expected()


def test_two_queries_with_one_uid_in_one_ledger(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    (other.checkpoint / "metadata").write_text(json.dumps({"id": "99999999-2222-3333-4444-555555555555"}))
    for place in (world, other):
        driver = place.driver()
        driver.relay = Relay(place.sink, "out", "job", str(place.checkpoint), str(tmp_path), driver.name, Checkpoints())
        if place is world:
            driver.epoch()
        else:
            driver.begin()
            with pytest.raises(DuplicateUid, match="two queries have the uid 'out'"):
                driver.open()


def test_a_checkpoint_out_of_reach(world: World) -> None:
    relay = Relay(world.sink, "out", "job", "hdfs://somewhere/checkpoint", None, "driver", Checkpoints())
    with pytest.raises(ConfigurationError, match="through Spark only"):
        relay.open(SCHEMA)


def test_another_folder_than_the_querys(world: World, tmp_path: Path) -> None:
    relay = Relay(world.sink, "out", "job", str(tmp_path / "empty"), None, "driver", Checkpoints())
    with pytest.raises(LedgerError, match="no epoch that is under way"):
        relay.open(SCHEMA)


def test_a_job_has_the_name_that_it_was_given_or_one_of_its_ledger(world: World) -> None:
    driver = world.driver()
    assert driver.relay.job_name() == "job"
    nameless = Relay(world.sink, "out", None, str(world.checkpoint), None, "driver", Checkpoints())
    assert nameless.job_name() == f"penstock-{world.ledger().identity()}" == nameless.job_name()


# The columns that writers get


def test_the_columns_are_those_that_the_sink_makes_of_the_plans() -> None:
    given: list[pa.RecordBatch] = []

    def fit(batch: pa.RecordBatch) -> pa.RecordBatch:
        given.append(batch)
        return batch.select(["n", "at"]).append_column("more", pa.array(["x"], pa.string()))

    plan = StructType().add("at", TimestampType()).add("n", IntegerType(), nullable=False).add("dropped", StringType())
    columns = engine.fitted(fit, plan)
    expected = {"n": pa.int32(), "at": pa.timestamp("us", "UTC"), "more": pa.string()}
    assert dict(zip(columns.names, columns.types, strict=True)) == expected
    [batch] = given
    assert (batch.schema.names, batch.num_rows) == (["at", "n", "dropped"], 1)
    assert all(column.null_count == 1 for column in batch.columns), "no value of the user's"


def test_a_column_whose_values_cannot_be_summed_is_refused_by_name() -> None:
    plan = StructType().add("n", IntegerType()).add("span", DayTimeIntervalType())
    with pytest.raises(SchemaMismatch, match=r"by format\('penstock'\): duration\[us\] cannot be hashed\.") as refused:
        engine.fitted(lambda batch: batch, plan)
    assert refused.value.__cause__ is None
    nested = StructType().add("list", ArrayType(IntegerType())).add("map", MapType(StringType(), IntegerType()))
    assert engine.fitted(lambda batch: batch, nested).names == ["list", "map"]
