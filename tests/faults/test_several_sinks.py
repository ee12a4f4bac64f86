"""A driver dies by SIGKILL at every point there is, one after the other, and its successor goes on each time. Its query
has state and three outputs under one decision: once a successor has recovered, a Kafka topic, a PostgreSQL table and a
folder of Parquet files hold the same epochs, row for row; rows that come twice are let through once, whoever died."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from tests.support.atomicity import Observation, epoch_atomicity
from tests.support.failpoint_actions import DRIVER
from tests.support.jobs import split
from tests.support.jobs.split import Split
from tests.support.kafka import Input, Tail, assert_nothing_open, create_topic
from tests.support.processes import JobProcess
from tests.support.servers.broker import Broker
from tests.support.servers.postgres import Postgres
from tests.support.verdicts import assert_none, number_anomalies
from tests.support.waiting import until

#: Where a run that is not to die waits to be looked at: all that was decided is visible, and no epoch has begun.
RECOVERED = "recover.swept"
#: Every epoch passes `commit.first` three times, once for each sink: the second time two are visible in part.
ACTIONS = {**dict.fromkeys(DRIVER, "crash"), "commit.first": "crash@2"}
#: What a successor can find: nothing under way, an attempt that failed, prepared and undecided, committed in part. The
#: simulation dies everywhere, and `make long` at each point here.
USUAL = (RECOVERED, "epoch.aborted", "epoch.sealed", "commit.first")
#: One task fails, so that an attempt is aborted.
RAISING = "task.written"

Rows = Counter[tuple[int, int]]
"""Epoch and id of each row that a reader sees."""


class World:
    """A topic to read, the three outputs, and one reader that looks at all of them."""

    def __init__(self, broker: Broker, postgres: Postgres, folder: Path) -> None:
        self.folder, self.once, self.release = folder, folder / "once", folder / "release"
        self.once.mkdir(parents=True)
        self.source = Input(broker.servers, create_topic(broker.servers, 2, prefix="in"))
        self.config = Split(
            name=f"split-{uuid4().hex[:8]}",
            servers=broker.servers,
            source=self.source.topic,
            storage=str(folder / "checkpoints"),
            topic=create_topic(broker.servers, 2, prefix="out"),
            dsn=postgres.dsn,
            table=f"split_{uuid4().hex[:8]}",
            folder=str(folder / "files"),
        )
        self._open = ExitStack()
        self._topic = self._open.enter_context(Tail(broker.servers, self.config.topic))
        self._database = self._open.enter_context(psycopg.connect(postgres.dsn, autocommit=True))
        self._files: dict[str, Rows] = {}
        self.runs: list[JobProcess] = []
        self.looks: list[Observation] = []

    def start(self, points: dict[str, str]) -> JobProcess:
        self.release.unlink(missing_ok=True)
        if points.get(RECOVERED) == "hang":
            (self.once / RECOVERED).unlink(missing_ok=True)
        environment = {
            failpoints.VARIABLE: ";".join(f"{name}={action}" for name, action in points.items()),
            failpoints.ONCE: str(self.once),
            failpoints.RELEASE: str(self.release),
        }
        arguments = [str(self.config.write(self.folder / "config.json"))]
        self.runs.append(JobProcess(Path(split.__file__), arguments, self.folder, environment=environment))
        self._open.enter_context(self.runs[-1])
        return self.runs[-1]

    def look(self, *, settled: bool = False) -> dict[str, Rows]:
        """Look at all three, one after the other, and remember it."""
        began = time.time()
        seen = {"topic": self._in_topic(), "table": self._in_table(), "files": self._in_files()}
        by_epoch = {sink: Counter(epoch for epoch, _ in rows.elements()) for sink, rows in seen.items()}
        self.looks.append(Observation(began, by_epoch, settled=settled, took=time.time() - began))
        return seen

    def settled(self) -> dict[str, Rows]:
        """Look when no commit is under way: the three must agree."""
        seen = self.look(settled=True)
        assert seen["topic"] == seen["table"] == seen["files"], {
            sink: sorted({epoch for epoch, _ in rows}) for sink, rows in seen.items()
        }
        return seen

    def visible(self) -> bool:
        """Whether every row that was fed is in every output."""
        return all(rows.total() >= len(self.source.rows) for rows in self.look().values())

    def commits(self) -> dict[int, tuple[float, float]]:
        """When each epoch was decided, and when its commit was complete, by what the runs have said."""
        told = [event for run in self.runs for event in run.events()]
        ends = {event["epoch"]: event["time"] for event in told if event["event"] == "committed"}
        begins = {event["epoch"]: event["time"] for event in told if event["event"] == "decided"}
        return {epoch: (begins[epoch], end) for epoch, end in ends.items()}

    def prepared(self) -> list[str]:
        like = f"{self.config.name}%"
        found = self._database.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (like,)).fetchall()
        return [gid for (gid,) in found]

    def staged(self) -> list[Path]:
        return list(Path(self.config.folder).glob("_penstock/**/staged/*"))

    def close(self) -> None:
        self._open.close()

    def _in_topic(self) -> Rows:
        return Counter((row["epoch"], row["id"]) for row in self._topic.read())

    def _in_table(self) -> Rows:
        try:
            return Counter(self._database.execute(f"SELECT epoch, id FROM {self.config.table}".encode()).fetchall())
        except psycopg.errors.UndefinedTable:
            return Counter()

    def _in_files(self) -> Rows:
        for path in Path(self.config.folder).glob("part-*"):
            if path.name not in self._files:
                table = pq.read_table(path)
                self._files[path.name] = Counter(zip(table["epoch"].to_pylist(), table["id"].to_pylist(), strict=True))
        return sum(self._files.values(), Counter())


@pytest.fixture
def world(broker: Broker, postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    made = World(broker, postgres, tmp_path / "world")
    yield made
    made.close()


@pytest.mark.long  # the simulation kills drivers of several sinks at every step
@pytest.mark.parametrize(
    "deadly",
    [
        pytest.param(list(USUAL), id="usual"),
        pytest.param(list(ACTIONS), id="all"),
    ],
)
def test_three_sinks_agree_wherever_the_driver_is_killed(world: World, deadly: list[str]) -> None:
    """One chain: each run dies at the first point that it passes and that no run before it has died at. One that gets
    through recovery waits there until all three outputs have been looked at.

    `recover.committed` and `recover.finished` follow from the deaths between decision and log; `commit.first` from
    every epoch having several writers; `epoch.aborted` needs an attempt that fails, so one task raises."""
    died: list[str] = []
    compared = 0
    while True:
        world.source.feed(100, again=20)  # some of them before the death, some after it
        left = {point: action for point, action in ACTIONS.items() if point in deadly and point not in died}
        run = world.start({RECOVERED: "hang", **left, RAISING: "raise"})
        until(lambda: recovered(world, run, died), lambda: f"recovery; died at {died}\n{run.tail()}")  # noqa: B023
        if run.status is None:
            world.settled()
            compared += 1
            world.release.touch()
            until(lambda: over(world, run, left), lambda: f"a death or the end; died at {died}\n{run.tail()}")  # noqa: B023
        if run.status is None:
            break
        assert run.wait() == -signal.SIGKILL, run.tail()
        new = [point for point in left if (world.once / point).exists() and point not in died]
        assert new, f"it was killed, but at no point; died before at {died}\n{run.tail()}"
        died += new

    run.terminate()
    assert run.wait() == 0, run.tail()
    assert sorted(died) == sorted(deadly)
    assert (world.once / RAISING).exists()
    assert compared >= len([point for point in deadly if point.startswith("epoch.")]), "looked after each of these"

    seen = world.settled()
    for name, rows in seen.items():
        assert_none(number_anomalies((row.id for row in world.source.rows), (n for _, n in rows.elements())), name)
    sizes = {sink: Counter(epoch for epoch, _ in rows.elements()) for sink, rows in seen.items()}
    atomic = epoch_atomicity(world.looks, sizes, dict.fromkeys(sizes, world.commits()))
    assert atomic.ok, atomic.lines()
    assert_nothing_open(world.config.servers, world.config.name)
    assert world.prepared() == []
    assert world.staged() == []


def recovered(world: World, run: JobProcess, died: Sequence[str]) -> bool:
    """Whether the run is dead, or waits after its recovery."""
    return run.status is not None or (RECOVERED in died and (world.once / RECOVERED).exists())


def over(world: World, run: JobProcess, left: dict[str, str]) -> bool:
    """Whether the run is dead, or through with everything. One that is through with its rows gets more."""
    if run.status is not None:
        return True
    if any((world.once / point).exists() for point in left):
        return False  # it dies at this moment: after some points its rows are visible already
    if not world.visible():
        return False
    if not left:
        return True
    world.source.feed(100)
    return False
