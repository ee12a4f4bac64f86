"""The power fails at every step, and the disk loses all that was not synced. Nothing is lost, nothing doubled.

The disk is the driver's: ledger, in-flight log, staged and final files, savepoints, and Spark's own log and state,
which Spark does not sync. Kafka and PostgreSQL are real, and elsewhere. Spark's part is played by `small_spark`, so
that every step can be the last one, in milliseconds; `tests/integration/test_recovery_log.py` has a real query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.contracts.sink import TwoPhaseSink
from penstock.errors import SavepointIncomplete
from penstock.failpoints import POINTS, InjectedFault, hooked
from penstock.savepoints.savepoint import HeldQuery, Kind, Taker, read, verify
from penstock.sinks.files import FileSink
from penstock.storage.local import LocalTree
from tests.support.failpoint_actions import LOGGED
from tests.support.kafka_harness import KafkaHarness
from tests.support.postgres import PostgresHarness
from tests.support.power import Disk, PowerCut, fails
from tests.support.servers.broker import Broker
from tests.support.servers.postgres import Postgres
from tests.support.small_spark import SmallSpark
from tests.support.verdicts import assert_none, number_anomalies

#: Every step of an epoch and of a recovery, and, in this process too, of a writer.
STEPS = [name for name, where in POINTS.items() if where in ("driver", "worker", "power") and name not in LOGGED]
LOG_STEPS = [*LOGGED, "epoch.decided", "epoch.committed", "recover.committed", "recover.restored", "ledger.aside"]
EPOCH = 5  # numbers a start reads, at least


class Target:
    """Where the rows go: a sink, its rows, and what a reader sees, as numbers."""

    def __init__(self, sink: TwoPhaseSink, rows: Callable[[int, int], pa.RecordBatch], seen: Callable[[], list[int]]):
        self.sink, self.rows, self.seen = sink, rows, seen


def files(folder: Path) -> Target:
    import pyarrow.parquet as pq

    def seen() -> list[int]:
        return [
            number for file in (folder / "out").glob("*.parquet") for number in pq.read_table(file)["n"].to_pylist()
        ]

    rows = lambda first, last: pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})  # noqa: E731
    return Target(FileSink(str(folder / "out")), rows, seen)


@pytest.fixture
def kafka(broker: Broker) -> Target:
    harness = KafkaHarness(broker.servers, "60s")

    def rows(first: int, last: int) -> pa.RecordBatch:
        numbers = [str(number).encode() for number in range(first, last)]
        return pa.RecordBatch.from_pydict(
            {"key": pa.array(numbers, pa.binary()), "value": pa.array(numbers, pa.binary())}
        )

    return Target(harness.make_sink(), rows, lambda: [int(row[-1]) for row in harness.read_visible()])


@pytest.fixture
def postgres_table(postgres: Postgres) -> Target:
    harness = PostgresHarness(postgres, "two_phase")

    def rows(first: int, last: int) -> pa.RecordBatch:
        return harness.rows(last - first, first)

    return Target(harness.make_sink(), rows, lambda: [row[0] for row in harness.read_visible()])


def cut_everywhere(disk: Disk, target: Target, steps: list[str], *, as_one: bool = True, **settings: Any) -> None:
    """The power fails once at each step; after each cut the job starts again and goes on."""
    query = SmallSpark(disk.root, target.sink, target.rows, **settings)
    until = 0
    with disk.watched(as_one=as_one):
        for step in steps:
            until += EPOCH
            if step == "recover.restored":  # with epochs that Spark's log has lost
                query.run(until)
                query.run(until := until + 4 * EPOCH)
                disk.cut()
            elif step.startswith("recover."):  # with a decision that nobody has carried out
                cut_at(disk, query, "epoch.decided", until)
                until += EPOCH
            if step == "epoch.aborted":
                with pytest.raises(PowerCut), hooked(step, fails), hooked("epoch.precommitted", _raise):
                    query.run(until)
                disk.cut()
            else:
                cut_at(disk, query, step, until)
        query.run(until + EPOCH)
        disk.cut()
        query.run(until + 2 * EPOCH)
    assert_none(number_anomalies(range(until + 2 * EPOCH), target.seen()), f"recoveries: {query.actions}")


def cut_at(disk: Disk, query: SmallSpark, step: str, until: int) -> None:
    with pytest.raises(PowerCut), hooked(step, fails):
        query.run(until)
    disk.cut()


def _with(state: bool) -> list[str]:
    """Where there is state, Spark's log is synced with it, and never has to be restored."""
    return [step for step in STEPS if step != "recover.restored" or not state]


def _raise() -> None:
    raise InjectedFault("Failed on purpose.")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "disk")


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("as_one", [True, False], ids=["a disk", "mounted by FUSE"])
def test_into_files(disk: Disk, stateful: bool, as_one: bool) -> None:
    cut_everywhere(disk, files(disk.root), _with(stateful), as_one=as_one, stateful=stateful)


@pytest.mark.parametrize("stateful", [False, pytest.param(True, marks=pytest.mark.long)])
def test_into_kafka(disk: Disk, kafka: Target, stateful: bool) -> None:
    cut_everywhere(disk, kafka, _with(stateful), stateful=stateful)


def test_into_postgres(disk: Disk, postgres_table: Target) -> None:
    cut_everywhere(disk, postgres_table, STEPS)


@pytest.mark.parametrize("timeout", ["0s", "60s"], ids=["all by the log", "beside the log"])
def test_through_the_in_flight_log(disk: Disk, timeout: str) -> None:
    steps = LOG_STEPS if timeout == "0s" else ["task.logged", "epoch.decided", "epoch.committed", "recover.restored"]
    cut_everywhere(disk, files(disk.root), steps, unaligned=True, aligned_timeout=timeout)


def test_a_savepoint_is_whole_or_none(disk: Disk) -> None:
    """Whatever is there after a cut is either no savepoint, and says so, or one that can be restored."""
    target, points = files(disk.root), [name for name, where in POINTS.items() if where == "savepoint"]
    query = SmallSpark(disk.root, target.sink, target.rows)
    plan: Any = SimpleNamespace(uid="out", positions=[], sinks={"out": target.sink}, output_mode="append")
    spark: Any = SimpleNamespace(version="4")

    def take() -> str:
        query.run(40)  # after a cut: to where it was
        standing = HeldQuery(plan, f"file:{query.spark}", query.log.next_epoch()[0] - 1, 1)
        taker = Taker(query.job, spark, lambda: nullcontext([standing]), mode="exactly_once")
        return taker.take(f"file:{disk.root}/savepoints", Kind.NATIVE).path

    with disk.watched():
        query.run(40)
        for point in points:
            with pytest.raises(PowerCut), hooked(point, fails):
                take()
            disk.cut()
            for left in (disk.root / "savepoints").glob("*"):
                with contextlib.suppress(SavepointIncomplete):
                    verify(LocalTree(left), read(LocalTree(left)))
        path = take()
        disk.cut()
    whole = LocalTree(Path(path.removeprefix("file:")))
    verify(whole, read(whole))
    assert_none(number_anomalies(range(40), target.seen()))
