"""Deterministic simulation of a sink under the epoch protocol: many short histories in one process, in each of which
drivers are killed, paused and overtaken where chance says. docs/how-to/write-a-sink.md has an example.

Protocol, ledger and recovery are the real ones. At every call of your writer and committer and of the ledger, a driver
may be killed, just before the call or just after it. Between two calls it may stand still while another one takes over,
and then go on. To let it die inside your own code, such as between two requests of a fake client, call
`place("request")` there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.checkpoint.decision import CheckpointState, Committable, Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.driver import LedgerRun, explain_stop
from penstock.errors import Superseded
from penstock.events import Events
from penstock.storage.storage import AlreadyExists, Storage
from penstock.testing.anomalies import Row, find_anomalies
from penstock.testing.sink_harness import SinkHarness, through_json

_EPOCHS, _WRITERS, _ROWS = 3, 2, 2
_FAULTY = 4  # drivers that may meet a fault; those after them are left in peace
_QUERY, _UID = "simulated", "out"
_SECONDS = 60.0
_ENOUGH = 3_000  # steps; a history takes a hundred

_running: list[_History] = []


class Killed(BaseException):
    """The process is gone; nothing may catch this and go on."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """At the `nth` call of a driver: `kill` just before it, `killed` just after; or `pause` for so many steps."""

    driver: int
    nth: int
    kind: str
    steps: int = 0


@dataclass
class Simulated:
    """What was run: calls, and faults by their kind."""

    histories: int = 0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)


def place(label: str) -> None:
    """Inside a sink or its fake client: here the driver may be killed. Does nothing outside a simulation."""
    if _running:
        _running[-1].call(label, lambda: None)


def simulate(make: Callable[[], SinkHarness], *, histories: int = 300, seed: int = 0) -> Simulated:
    """Run so many histories, each on a new harness with an empty target. `AssertionError` where rows are lost, doubled
    or torn, something stays open, or the job does not come to its end: with the shortest history that shows it, told
    step by step, and its seed, to run it again with `histories=1`."""
    done = Simulated()
    for number in range(seed, seed + histories):
        faults = _by_chance(Random(number))
        history = _History(make(), faults)
        wrong = history.run()
        done.histories += 1
        done.calls += history.calls
        done.faults.update(fault.kind for fault in history.happened)
        if wrong:
            for fault in list(faults):
                less = [other for other in faults if other != fault]
                faults = less if _History(make(), less).run() else faults
            history = _History(make(), faults)
            wrong = history.run() or wrong
            told = [*history.story, *(f"⇒ {anomaly}" for anomaly in wrong)]
            raise AssertionError("\n  ".join([f"seed {number}: {wrong[0]}", *told]))
    return done


def _by_chance(random: Random) -> list[_Fault]:
    kinds = [random.choice(("kill", "killed", "pause")) for _ in range(random.choice((1, 1, 2, 3, 4)))]
    # Half of them fall into a recovery.
    return [
        _Fault(
            random.randint(1, min(number, _FAULTY)), random.randint(1, random.choice((12, 80))), kind,
            random.randint(1, 40),
        )
        for number, kind in enumerate(kinds, 1)
    ]  # fmt: skip


class _Memory(Storage):
    """A folder of small files that outlives the drivers."""

    location, scheme = "memory://simulated", "memory"

    def __init__(self, history: _History) -> None:
        self._files: dict[str, bytes] = {}
        self._history = history

    def create(self, name: str, data: bytes) -> None:
        if not self._history.call(f"create {name}", lambda: self._files.setdefault(name, data) is data):
            raise AlreadyExists(name)

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def list(self, folder: str) -> list[str]:
        start = f"{folder}/"
        found = self._history.call(f"list {folder}", lambda: [name for name in self._files if name.startswith(start)])
        return sorted(name.removeprefix(start) for name in found)

    def sizes(self, folder: str = "") -> dict[str, int]:
        return {name: len(data) for name, data in self._files.items() if name.startswith(folder)}

    def delete(self, name: str) -> None:
        self._files.pop(name, None)

    def delete_folder(self, folder: str) -> bool:
        raise NotImplementedError


@dataclass
class _Driver:
    number: int
    steps: Iterator[None]
    calls: int = 0
    sleeps_until: int = 0


class _History:
    """Drivers of one job over one ledger and one target: generators that stop between two calls for each other."""

    def __init__(self, harness: SinkHarness, faults: Sequence[_Fault]) -> None:
        self._harness, self._sink = harness, harness.make_sink()
        self._faults = {(fault.driver, fault.nth): fault for fault in faults}
        self._storage = _Memory(self)
        self._drivers: list[_Driver] = []
        self._current: _Driver | None = None
        self._started = self._complete = self._steps = 0
        self._tasks = itertools.count()
        self._at_rest = False
        self.story, self.happened, self.calls = list[str](), list[_Fault](), 0

    def run(self) -> list[str]:
        """What is wrong in the end."""
        _running.append(self)
        try:
            for start in range(4):
                self._start()
                while self._drivers and self._steps < _ENOUGH:
                    self._move()
                if start > 0 and self._at_rest:
                    return self._anomalies()
                self._faults.clear()  # in peace a start must complete what is left, or find nothing to do
                self._at_rest = False
            return ["stuck: the job does not come up again"]
        finally:
            _running.pop()

    def call(self, label: str, work: Callable[[], Any]) -> Any:
        """One call of the driver that moves: a place to die."""
        driver = self._current
        if driver is None:
            return work()
        self.calls += 1
        driver.calls += 1
        fault = self._faults.pop((driver.number, driver.calls), None)
        if fault is None:
            return work()
        self.happened.append(fault)
        if fault.kind == "pause":
            self._tell(f"✗ stands still at: {label}")
            driver.sleeps_until = self._steps + fault.steps
            self._start()
            return work()
        self._tell(f"✗ is killed just {'before' if fault.kind == 'kill' else 'after'}: {label}")
        if fault.kind == "killed":
            self._current = None  # a call on its way out is no place
            work()
        raise Killed

    def _move(self) -> None:
        self._steps += 1
        awake = [driver for driver in self._drivers if driver.sleeps_until <= self._steps]
        # One that wakes up goes on at once, in the middle of what the others do.
        self._current = driver = max(awake or self._drivers, key=lambda each: (each.sleeps_until, each.number))
        try:
            next(driver.steps, None)
            if driver.steps.gi_frame is None:  # type: ignore[attr-defined]
                self._drivers.remove(driver)
        except Killed:
            self._drivers.remove(driver)
            self._start()
        finally:
            self._current = None

    def _start(self) -> None:
        if self._started < _FAULTY or not self._faults:
            self._started += 1
            self._drivers.append(_Driver(self._started, self._drive(self._started)))
            self.story.append(f"driver {self._started} starts")

    def _tell(self, text: str) -> None:
        self.story.append(f"driver {self._current.number if self._current else '?'} {text}")

    def _anomalies(self) -> list[str]:
        batches = [(epoch, self._rows(epoch, number)) for epoch in range(_EPOCHS) for number in range(_WRITERS)]
        sent = [Row(repr(row), 0, epoch) for epoch, batch in batches for row in self._harness.expected(batch)]
        visible = [Row(repr(row), 0) for row in self._harness.read_visible()]
        committer = self._sink.open_committer(SinkScope("job", _UID, 1 << 30))
        left = [leftover.name for leftover in committer.leftovers(Deadline(_SECONDS)) or ()]
        committer.close()
        found = [str(anomaly) for anomaly in find_anomalies(sent, visible, ordered=False)]
        return found + [f"left open: {', '.join(left)}"] * bool(left)

    def _rows(self, epoch: int, writer: int) -> Any:
        return self._harness.rows(_ROWS, (epoch * _WRITERS + writer) * _ROWS)

    def _drive(self, number: int) -> Iterator[None]:
        sinks, where = {_UID: self._sink}, self._storage.location
        run = LedgerRun(
            job="job", query=_QUERY, sinks=sinks, ledger=Ledger(self._storage), events=Events(), where=where,
            query_id=lambda: _QUERY,
        )  # fmt: skip
        try:
            resume = yield from self._carry_out(run, protocol.recover())
            self._tell(f"recovers as generation {resume.generation}: {resume.action}, epoch {resume.epoch} next")
            for epoch in range(resume.epoch, _EPOCHS):
                replay = resume.replay if epoch == resume.epoch else None
                yield from self._carry_out(run, protocol.run_epoch(run.generation, epoch, replay))
                self._log(epoch)
            self._at_rest = True
        except protocol.ProtocolStop as stop:
            error = explain_stop(stop, _QUERY, where)
            self._tell(f"ends: {error.happened}")
            if not isinstance(error, Superseded) and self._faults:
                self._start()
        except Exception as error:
            self._tell(f"ends with {type(error).__name__}: {error}")
            if self._faults:
                self._start()
        finally:
            if self._current is not None:
                run.committers.close()

    def _carry_out(self, run: LedgerRun, steps: Generator[Any, Any, Any]) -> Generator[None, None, Any]:
        reply: Any = None
        while True:
            try:
                action = steps.send(reply)
            except StopIteration as end:
                return end.value
            yield
            reply = yield from self._perform(run, action)

    def _perform(self, run: LedgerRun, action: Any) -> Generator[None, None, Any]:
        ledger, committer = run.ledger, run.committers
        match action:
            case protocol.Register():
                return run.register(run.facts())
            case protocol.NewestGeneration():
                return run.newest_generation()
            case protocol.Look():
                run.next_epoch = epoch = self._complete
                return CheckpointState(epoch, True, ledger.decisions_since(epoch, _QUERY), ledger.claims(_QUERY))
            case protocol.WriteClaim(claim):
                run.claim(claim)
            case protocol.PreCommit(epoch, _):
                return (yield from self._prepare(run, epoch))
            case protocol.Decide(decision):
                ledger.decide(decision, query=_QUERY, barrier=None)
                self._tell(f"has decided epoch {decision.id.epoch}")
            case protocol.Commit(decision):
                outcomes: dict[Any, Outcome] = {}
                for one in decision.to_commit:
                    yield
                    label = f"commit writer {one.writer} of epoch {decision.id.epoch}"
                    outcomes |= self.call(label, lambda one=one: run.commit(decision.id.epoch, [one]))  # type: ignore[misc]
                return outcomes
            case protocol.FinishLog(epoch, _):
                self._log(epoch)
            case protocol.Sweep(keep):
                self.call("sweep", lambda: committer.abort_dangling(keep, Deadline(_SECONDS)))
        return True

    def _prepare(self, run: LedgerRun, epoch: int) -> Generator[None, None, Any]:
        written, hints = [], run.committers[_UID].hints()
        for number in range(_WRITERS):
            yield
            scope = WriterScope(run.scope(_UID), epoch, 1, number, next(self._tasks), hints)
            try:
                writer = self.call("open a writer", lambda scope=scope: self._sink.open_writer(scope))  # type: ignore[misc]
                self.call("write", lambda writer=writer, number=number: writer.write(self._rows(epoch, number)))  # type: ignore[misc]
                payload = self.call("pre_commit", writer.pre_commit)
                written.append(through_json(Committable(_UID, number, _ROWS, epoch * 100 + number, payload)))
            except Exception as error:
                return protocol.Failed(error)
        yield
        try:
            return protocol.Prepared(self.call("seal", lambda: run.committers.seal(written, Deadline(_SECONDS))))
        except Exception as error:
            return protocol.Failed(error)

    def _log(self, epoch: int) -> None:
        def log() -> None:
            self._complete = max(self._complete, epoch + 1)

        self.call(f"log epoch {epoch} as complete", log)
