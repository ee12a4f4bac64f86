"""The order of rows with the in-flight log, in a sink whose rows stand where they were written: a topic's partition.

Tasks and drainer are the real ones, led step by step: a step is one thing done to the sink, or one call of the
manager's. Every schedule with few changes of turn is tried, with each writer refused and each transaction lost, and
with the driver dying at each step."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight import LogWriter
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.drainer import MARK, Drainer, WriteTurn
from penstock.engine.inflight import InFlight
from penstock.engine.task import Route
from penstock.errors import PenstockError, SystemUnavailable
from penstock.events import Events
from penstock.storage.storage import Storage
from penstock.testing.oracle import compare
from tests.support.inflight_steps import DRAINER, TASKS, Death, Partition, Trouble, Turns, led
from tests.support.key_order import out_of_order
from tests.support.memory_storage import MemoryStorage

WRITERS = 2


@dataclass
class Run:
    """A job's life: a driver, and its successor where it dies."""

    trouble: Trouble
    schedule: Collection[int]
    epochs: int
    dies_at: int | None = None
    kept: dict[str, Storage] = field(default_factory=dict)
    decided: dict[int, list[Committable]] = field(default_factory=dict)
    finished: int = 0
    generation: int = 0

    def live(self) -> Partition:
        self.sink = Partition(self.trouble, Turns(self.schedule, self.dies_at))
        self._one_driver()
        if self.sink.turns.dead:
            self.sink.turns = Turns(self.schedule, None)
            self._one_driver()
        return self.sink

    def _one_driver(self) -> None:
        self.generation = Ledger(self._storage("ledger")).register({})
        driver = InFlight(
            job="job", query="query", sinks={"out": self.sink}, location="memory", storage=self._storage(""),
            ledger=Ledger(self._storage("ledger")), ledger_of=lambda where: Ledger(self._storage(where)),
            events=Events(), checkpoints=Checkpoints(max_concurrent=3),
        )  # fmt: skip
        driver.open("id", self.generation)
        self._recover(driver)
        driver.start()
        drainer = driver._drainers["out"]
        done = threading.Event()
        errors: list[BaseException] = []
        actors = [
            threading.Thread(target=self._act, args=(TASKS, lambda: self._tasks(driver, done), errors), daemon=True),
            threading.Thread(target=self._act, args=(DRAINER, lambda: self._drain(drainer, done), errors), daemon=True),
        ]
        for actor in actors:
            actor.start()
        for actor in actors:
            actor.join()
        if errors:
            raise errors[0]

    def _act(self, actor: str, work: Callable[[], None], errors: list[BaseException]) -> None:
        try:
            self.sink.turns.step(actor, blocked=actor == DRAINER)
            work()
        except Death:
            pass
        except BaseException as error:
            errors.append(error)
            self.sink.turns.dead = True
        finally:
            self.sink.turns.leave(actor)

    def _recover(self, driver: InFlight) -> None:
        """As the coordinator does: what is decided is recorded, what is not is aborted."""
        for epoch, committables in self.decided.items():
            if epoch >= self.finished:
                driver.commit(epoch, committables, lambda *_: {})
                self.finished = epoch + 1
        committer = self.sink.open_committer(SinkScope("job", "out", self.generation))
        committer.abort_dangling(driver.prepared(), Deadline(1))

    def _tasks(self, driver: InFlight, done: threading.Event) -> None:
        for epoch in range(self.finished, self.epochs):
            self.sink.turns.step(TASKS)
            writing = driver.writing("out", 0.0)
            found = [self._task(epoch, writer, writing) for writer in range(WRITERS)]
            self.sink.turns.step(TASKS)
            self.decided[epoch] = driver.sealed(found, lambda own, _: own)
            self.sink.turns.step(TASKS)
            driver.commit(epoch, self.decided[epoch], lambda *_: {})
            self.finished = epoch + 1
        done.set()

    def _task(self, epoch: int, writer: int, writing: Any) -> Committable:
        """A writer with one row, of a key that another writer had in the epoch before."""
        columns = [pa.array([(epoch + writer) % WRITERS]), pa.array([epoch]), pa.array([epoch], pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, names=["key", "number", HASH_COLUMN])
        name = f"{epoch:010d}.g{self.generation:08d}.a1.p{writer}.t0.arrow"
        log = LogWriter(writing.log, name, batch.schema)
        log.write(batch)
        prepared = None
        if writing.route is Route.TEE:
            side = self.sink.open_writer(WriterScope(SinkScope("job", "out", self.generation), epoch, 1, writer, 0))
            try:
                side.write(batch.drop_columns([HASH_COLUMN]))
                prepared = dict(side.pre_commit())
            except SystemUnavailable:
                pass
        return Committable("out", writer, 1, epoch, {"log": log.close().to_json(), "prepared": prepared})

    def _drain(self, drainer: Drainer, done: threading.Event) -> None:
        while True:
            entry = drainer._backlog.first()
            if entry is None:
                if done.is_set():
                    return
                self.sink.turns.step(DRAINER, blocked=True)
                continue
            try:
                if not drainer._recovered:
                    drainer._recover()
                drainer._deliver(entry)
            except PenstockError as error:
                drainer._recovered = False
                if not error.retryable:
                    raise

    def _storage(self, where: str) -> Storage:
        return self.kept.setdefault(where, MemoryStorage(where))


@pytest.fixture(autouse=True)
def led_by_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    led(monkeypatch)


@contextlib.contextmanager
def waiting_by_turns(run: Run) -> Iterator[None]:
    """The drainer's wait for its turn is a step as well: the tasks go on meanwhile."""

    def wait(turn: WriteTurn) -> None:
        turn._changed.release()
        try:
            run.sink.turns.step(DRAINER, blocked=True)
        finally:
            turn._changed.acquire()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTurn, "_wait", wait)
        yield


def verdict(run: Run) -> list[str]:
    """What is wrong with what a reader sees."""
    with waiting_by_turns(run):
        seen = run.live().visible()
    whole = compare([(key, epoch) for epoch in range(run.epochs) for key in range(WRITERS)], seen)
    order = out_of_order([key for key, _ in seen], [number for _, number in seen])
    return [*(() if whole.ok else whole.lines()), *map(str, order)]


TROUBLES = {
    "none": Trouble(),
    "first refused": Trouble(refused=frozenset({(0, 0)})),
    "second refused": Trouble(refused=frozenset({(1, 1)})),
    "first lost": Trouble(lost=frozenset({(0, 0)})),
    "first refused, second lost": Trouble(refused=frozenset({(0, 1)}), lost=frozenset({(1, 0)})),
    "first lost, second refused": Trouble(refused=frozenset({(1, 0)}), lost=frozenset({(0, 1)})),
    "both lost": Trouble(lost=frozenset({(0, 0), (0, 1), (1, 1)})),
}
TROUBLED = pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())


def schedules(steps: int, changes: int) -> Iterator[tuple[int, ...]]:
    for count in range(changes + 1):
        yield from itertools.combinations(range(1, steps), count)


def explored(trouble: Trouble, *, epochs: int, steps: int, changes: int) -> Iterator[Any]:
    """What is wrong, and after which steps the turn had changed."""
    for schedule in schedules(steps, changes):
        found = verdict(Run(trouble, schedule, epochs))
        if found:
            yield schedule, found


@TROUBLED
def test_rows_of_a_key_keep_their_order_however_tasks_and_drainer_take_turns(trouble: Trouble) -> None:
    assert not list(explored(trouble, epochs=2, steps=15, changes=2))
    assert not list(explored(trouble, epochs=3, steps=24, changes=1))


@TROUBLED
def test_they_keep_it_when_the_driver_dies_at_any_step(trouble: Trouble) -> None:
    for dies_at in range(2, 24):
        for change in range(1, dies_at, 7):
            assert not verdict(Run(trouble, (change,), 3, dies_at)), (dies_at, change)


def test_what_would_be_aborted_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(TROUBLES["first refused"], (), epochs=3)
    assert not verdict(run)
    assert [number for name, _, number in run.sink.rows if MARK not in name] == [0], "later ones went by the log"


def _never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteTurn, "give_to_tasks", lambda _: True)


def _never_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drainer, "_clear_the_way", lambda *_: None)


@pytest.mark.parametrize("broken", [_never_waits, _never_clears])
def test_the_exploration_sees_each_rule_broken(broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(explored(TROUBLES["first lost"], epochs=2, steps=16, changes=2))
