"""Two runs of a job over one in-flight log: one takes over from the other at any step, and is itself held up at any.

A run starts as the coordinator starts it (register, read the backlog, ask for newer runs, commit what is decided,
sweep), and then its drainer delivers. Backlog, ledgers and drainers are the real ones, over a storage in memory; a step
is whatever another run could see or change. The newest run must end with everything delivered, once and in order,
whatever the older one does: that one may end with nothing left to do, or superseded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import CheckpointState, Committable, WriterId
from penstock.checkpoint.inflight import Backlog, LogWriter
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.engine import drainer as drainer_module
from penstock.engine import protocol
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.drainer import Drainer
from penstock.engine.inflight import InFlight
from penstock.errors import PenstockError, Superseded
from penstock.events import Events
from tests.support.inflight_steps import Files, Partition, Trouble, led
from tests.support.memory_storage import MemoryStorage

OLD, NEW = "old", "new"
WRITERS, EPOCHS = 2, 3
FOR_EVER = 10_000
SEEN = ("generations", "backlog", "drained", "epochs")


class Relay:
    """One run moves at a time: `legs` says which, and for how many steps."""

    def __init__(self, legs: Sequence[tuple[str, int]]) -> None:
        self._changed = threading.Condition()
        self._legs = [(name, steps) for name, steps in legs if steps]
        self.taken = {OLD: 0, NEW: 0}

    def step(self, _: str = "", *, blocked: bool = False) -> None:
        name = threading.current_thread().name
        if name not in self.taken:
            return
        with self._changed:
            while self._legs[0][0] != name:
                self._changed.wait()
            self.taken[name] += 1
            assert self.taken[name] < FOR_EVER, "it does not come to its end"
            _, left = self._legs[0]
            self._legs[0] = (name, left - 1)
            if left == 1:
                self._legs.pop(0)
                self._changed.notify_all()

    def leave(self, name: str) -> None:
        with self._changed:
            self._legs = [leg for leg in self._legs if leg[0] != name]
            self._changed.notify_all()


class Seen(MemoryStorage):
    """Each look and each change is a step."""

    relay: Relay

    def create(self, name: str, data: bytes) -> None:
        self.relay.step()
        super().create(name, data)

    def list(self, folder: str) -> list[str]:
        if folder.rpartition("/")[2] in SEEN:
            self.relay.step()
        return super().list(folder)

    def delete(self, name: str) -> None:
        if "backlog/" in name:
            self.relay.step()
        super().delete(name)


@dataclass
class World:
    """Epochs 0 and 1 wait in the backlog and epoch 2 is decided, by a run with max_concurrent 3 that is dead. `teed`:
    tasks had prepared them at the sink, too. `reads_first`: what a run reads of the backlog at its start, it has read
    before it registered."""

    files: Files
    teed: bool
    lost: frozenset[tuple[int, int]] = frozenset()
    max_concurrent: int = 3
    reads_first: bool = False
    kept: dict[str, Seen] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)

    def live(self, legs: Sequence[tuple[str, int]]) -> Relay:
        self.files.held.clear()
        self.relay = Relay(legs)
        self.sink = Partition(Trouble(lost=self.lost), self.relay)
        self._before()
        threads = [threading.Thread(target=self._run, args=(name,), name=name, daemon=True) for name in (OLD, NEW)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.relay

    def storage(self, where: str) -> Seen:
        if where not in self.kept:
            self.kept[where] = Seen(where)
            self.kept[where].relay = self.relay
        return self.kept[where]

    def _inflight(self, max_concurrent: int) -> InFlight:
        return InFlight(
            job="job", query="query", sinks={"out": self.sink}, location="memory", storage=self.storage(""),
            ledger=Ledger(self.storage("ledger")), ledger_of=lambda where: Ledger(self.storage(where)),
            events=Events(), checkpoints=Checkpoints(max_concurrent=max_concurrent),
        )  # fmt: skip

    def _before(self) -> None:
        first = self._inflight(3)
        first.open("id", Ledger(self.storage("ledger")).register({}))
        for epoch in range(EPOCHS):
            own = [self._written(epoch, writer) for writer in range(WRITERS)]
            if epoch < EPOCHS - 1:
                first.commit(epoch, own, lambda *_: {})
            else:
                self.decided = own

    def _written(self, epoch: int, writer: int) -> Committable:
        checksum = epoch * WRITERS + writer
        columns = [pa.array([(epoch + writer) % WRITERS]), pa.array([epoch]), pa.array([checksum], pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, names=["key", "number", HASH_COLUMN])
        log = LogWriter("memory", f"{epoch:010d}.g00000001.a1.p{writer}.t0.arrow", batch.schema)
        log.write(batch)
        prepared = None
        if self.teed:
            side = self.sink.open_writer(WriterScope(SinkScope("job", "out", 1), epoch, 1, writer, 0))
            side.write(batch.drop_columns([HASH_COLUMN]))
            prepared = dict(side.pre_commit())
        return Committable("out", writer, 1, checksum, {"log": log.close().to_json(), "prepared": prepared})

    def _run(self, name: str) -> None:
        try:
            self._start(self._inflight(self.max_concurrent))
        except BaseException as error:
            self.failures[name] = error
        finally:
            self.relay.leave(name)

    def _start(self, inflight: InFlight) -> None:
        """As the coordinator's recovery, whose decision every run honours, then as its drainer's thread."""
        ledger = Ledger(self.storage("ledger"))
        early = Backlog(self.storage(""), "id/out", "memory") if self.reads_first else None
        generation = self.generations[threading.current_thread().name] = ledger.register({})
        inflight.open("id", generation)
        if early is not None:
            own = inflight._backlogs["out"]
            own._entries, own._drained = early._entries, early._drained
        if ledger.newest_generation() > generation:
            raise Superseded("Before it did anything.")
        committer = self.sink.open_committer(SinkScope("job", "out", generation))

        def commit(epoch: int, committables: Sequence[Committable], _: Deadline) -> dict[WriterId, Any]:
            answers = committer.commit(epoch, committables, Deadline(1))
            return {one.id: answers[one.writer] for one in committables}

        inflight.commit(EPOCHS - 1, self.decided, commit)
        committer.abort_dangling(inflight.prepared(), Deadline(1))
        inflight.start()
        drainer = inflight._drainers.get("out")
        while drainer is not None:
            try:
                if not drainer._recovered:
                    drainer._recover()
                entry = drainer._backlog.first()
                if entry is None:
                    return
                drainer._deliver(entry)
            except PenstockError as error:
                drainer._recovered = False
                if not error.retryable:
                    raise

    def verdict(self) -> list[str]:
        """What is wrong."""
        newest = max(self.generations, key=lambda name: self.generations[name])
        wrong = [
            f"the {'newest' if name == newest else 'older'} run ended: {failure!r}"
            for name, failure in self.failures.items()
            if name == newest or not isinstance(failure, Superseded)
        ]
        for key in range(WRITERS):
            by_time = [
                number for one in self.sink.shown for name, own, number in self.sink.rows if (name, own) == (one, key)
            ]
            by_place = [number for own, number in self.sink.visible() if own == key]
            for how, found in (("became visible", by_time), ("are written", by_place)):
                if found != list(range(EPOCHS)):
                    wrong.append(f"of key {key}, epochs {found} {how}")
        return wrong


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    return led(monkeypatch)


SCENES: dict[str, dict[str, Any]] = {
    "by the log": {"teed": False},
    "by the log, read before the registration": {"teed": False, "reads_first": True},
    "prepared": {"teed": True},
    "prepared, first lost": {"teed": True, "lost": frozenset({(0, 0)})},
    "prepared, second lost": {"teed": True, "lost": frozenset({(1, 0), (1, 1)})},
    "prepared, no longer concurrent": {"teed": True, "max_concurrent": 1},
    "prepared, last lost, no longer concurrent": {"teed": True, "max_concurrent": 1, "lost": frozenset({(2, 1)})},
}


def explored(files: Files, scene: dict[str, Any], *, every: int = 1) -> Iterator[Any]:
    """The older run goes some steps, the newer one some, the older one to its end, the newer one to its; and what is
    wrong then. `every`: only every so many steps."""
    alone = World(files, **scene)
    longest = max(alone.live([(OLD, FOR_EVER), (NEW, FOR_EVER)]).taken.values())
    for before in range(1, longest + 1, every):
        for between in range(0, 2 * longest, every):
            world = World(files, **scene)
            taken = world.live([(OLD, before), (NEW, between), (OLD, FOR_EVER), (NEW, FOR_EVER)]).taken
            wrong = world.verdict()
            if wrong:
                yield (before, between), wrong
            if between > taken[NEW]:
                break


EVERY_SCENE = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())


@EVERY_SCENE
def test_whenever_one_run_takes_over_from_another_everything_is_delivered_once_and_in_order(
    files: Files, scene: dict[str, Any]
) -> None:
    assert list(explored(files, scene, every=4)) == []


@pytest.mark.long
@EVERY_SCENE
def test_the_same_at_every_step(files: Files, scene: dict[str, Any]) -> None:
    assert list(explored(files, scene)) == []


# Each rule, broken


def _goes_by_the_backlog_of_the_start(patch: pytest.MonkeyPatch) -> None:
    real = Drainer._look

    def look(own: Drainer) -> CheckpointState:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(own._backlog, "reload", lambda: None)
            return real(own)

    patch.setattr(Drainer, "_look", look)


def _looks_at_the_first_entry_only(patch: pytest.MonkeyPatch) -> None:
    def look(ledger: Ledger, query_id: str | None, epoch: int, *, waits: bool) -> CheckpointState:
        return CheckpointState(epoch, waits, ledger.decisions(epoch, query_id), ledger.claims(query_id))

    patch.setattr(drainer_module, "look", look)


def _commits_at_once_while_others_wait(patch: pytest.MonkeyPatch) -> None:
    def in_turn(own: InFlight, uid: str, epoch: int) -> bool:
        backlog = own._backlogs[uid]
        return epoch > backlog.drained and all(entry.epoch != epoch for entry in backlog.entries())

    patch.setattr(InFlight, "_in_turn", in_turn)


def _numbers_its_runs_by_itself(patch: pytest.MonkeyPatch) -> None:
    perform = Drainer._perform

    def register(own: Drainer, action: Any) -> Any:
        if not isinstance(action, protocol.Register):
            return perform(own, action)
        own._run.number = own._ledger.register({})
        own._run.open_committers()
        return own._run.number

    patch.setattr(Drainer, "_perform", register)
    patch.setattr(drainer_module._DrainRun, "newest_generation", lambda own: own.ledger.newest_generation())
    patch.setattr(drainer_module._DrainRun, "refuse_superseded", lambda _: None)


def _never_asks_for_newer_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drainer_module._DrainRun, "refuse_superseded", lambda _: None)


READ_FIRST = "by the log, read before the registration"

# To look at the first entry only does no harm by itself: where the backlog is read after the registration, an epoch is
# decided only when those before it are marked. Later decisions count where a mark was lost, see `test_drainer`.
BROKEN = {
    "reads the backlog, then registers": (READ_FIRST, [_goes_by_the_backlog_of_the_start]),
    "and looks at the first entry only": (
        READ_FIRST,
        [_goes_by_the_backlog_of_the_start, _looks_at_the_first_entry_only],
    ),
    "commits at once while others wait": ("prepared, no longer concurrent", [_commits_at_once_while_others_wait]),
    "numbers its runs by itself": ("by the log", [_numbers_its_runs_by_itself]),
    "never asks for newer runs": ("by the log", [_never_asks_for_newer_runs]),
}


@pytest.mark.parametrize(("scene", "broken"), BROKEN.values(), ids=BROKEN.keys())
def test_the_exploration_sees_each_rule_broken(
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    scene: str,
    broken: Sequence[Callable[[pytest.MonkeyPatch], None]],
) -> None:
    for one in broken:
        one(monkeypatch)
    assert any(explored(files, SCENES[scene]))
