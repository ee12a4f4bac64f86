"""A sink whose rows stand where they were written, log files in memory, and actors that take turns: the parts of the
tests that lead tasks and drainers of the in-flight log step by step."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.engine import drainer as drainer_module
from penstock.engine.drainer import MARK, Drainer
from penstock.errors import SystemUnavailable

TASKS, DRAINER = "tasks", "drainer"
ENOUGH = 400  # steps; a run of this size takes a tenth


class Death(BaseException):
    """The driver's process is gone."""


class Turns:
    """Two actors of which one moves at a time. `schedule` says after which steps the turn changes; `dies_at`, at which
    step the process does."""

    def __init__(self, schedule: Collection[int], dies_at: int | None) -> None:
        self._changed = threading.Condition()
        self._schedule, self._dies_at = frozenset(schedule), dies_at
        self._running, self._waiting, self._stuck = TASKS, {TASKS, DRAINER}, False
        self.steps, self.dead = 0, False

    def step(self, actor: str, *, blocked: bool = False) -> None:
        """Called before each step, by the actor whose turn it is; returns when it may take it."""
        with self._changed:
            if self.dead:
                raise Death
            self.steps += 1
            if self.steps == self._dies_at:
                self._die()
            assert self.steps < ENOUGH, "they wait for each other"
            if blocked or self.steps in self._schedule:
                assert not (blocked and self._stuck and len(self._waiting) == 1), "nobody is left to wait for"
                self._stuck = blocked
                self._pass_on(actor)
            while self._running != actor and not self.dead:
                self._changed.wait()
            if self.dead:
                raise Death

    def leave(self, actor: str) -> None:
        with self._changed:
            self._waiting.discard(actor)
            if self._running == actor:
                self._pass_on(actor)

    def _pass_on(self, actor: str) -> None:
        self._running = next((one for one in sorted(self._waiting) if one != actor), actor)
        self._changed.notify_all()

    def _die(self) -> None:
        self.dead = True
        self._changed.notify_all()
        raise Death


@dataclass
class Trouble:
    """Which writers the sink refuses, and whose transactions it loses once they are prepared: (epoch, writer)."""

    refused: frozenset[tuple[int, int]] = frozenset()
    lost: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Partition(TwoPhaseSink):
    """Rows in the order in which they were written, each by a transaction."""

    trouble: Trouble
    turns: Any
    rows: list[tuple[str, int, int]] = field(default_factory=list)  # transaction, key, number
    state: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)  # transactions, in the order in which they became visible
    names: Iterator[int] = field(default_factory=itertools.count)

    def open_writer(self, scope: WriterScope) -> Writer:
        return _Writer(self, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        return _Committer(self, scope)

    def visible(self) -> list[tuple[int, int]]:
        return [(key, number) for name, key, number in self.rows if self.state[name] == "committed"]


class _Writer(Writer):
    def __init__(self, sink: Partition, scope: WriterScope) -> None:
        self._sink, self._scope = sink, scope
        self._actor = DRAINER if scope.sink.uid.endswith(MARK) else TASKS
        self._name = f"{scope.sink.prefix}-{next(sink.names)}"
        self._place = (scope.epoch, scope.partition)

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.turns.step(self._actor)
        if self._actor == TASKS and self._place in self._sink.trouble.refused:
            raise SystemUnavailable("Not now.")
        self._sink.state[self._name] = "open"
        for key, number in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self._sink.rows.append((self._name, key, number))

    def pre_commit(self) -> Mapping[str, Any]:
        lost = self._actor == TASKS and self._place in self._sink.trouble.lost
        self._sink.state[self._name] = "aborted" if lost else "prepared"
        return {"name": self._name}

    def abort(self) -> None:
        self._sink.state[self._name] = "aborted"


class _Committer(Committer):
    def __init__(self, sink: Partition, scope: SinkScope) -> None:
        self._sink, self._scope = sink, scope

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes = {}
        for one in committables:
            self._sink.turns.step(DRAINER)
            name = one.payload["name"]
            state = self._sink.state[name]
            if state == "prepared":
                self._sink.state[name] = "committed"
                self._sink.shown.append(name)
            outcomes[one.writer] = {
                "prepared": Outcome.COMMITTED,
                "committed": Outcome.ALREADY_COMMITTED,
                "aborted": Outcome.LOST,
            }[state]
        return outcomes

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        for one in committables:
            self._sink.turns.step(DRAINER)
            self._abort(one.payload["name"])

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {one.payload["name"] for one in keep}
        mine = [one for one in self._sink.state if one.rpartition("-")[0] == self._scope.prefix and one not in kept]
        for name in mine:
            self._abort(name)
        return 0

    def _abort(self, name: str) -> None:
        if self._sink.state[name] != "committed":
            self._sink.state[name] = "aborted"


class Files:
    """A folder of log files in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def stage(self, name: str) -> Any:
        return _File(self, name)

    def read(self, name: str) -> bytes:
        if name not in self.held:
            raise FileNotFoundError(name)
        return self.held[name]

    def remove(self, name: str) -> bool:
        return self.held.pop(name, None) is not None

    def names(self, folder: str) -> list[str]:
        return list(self.held)


class _File:
    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name, self._parts = files, name, list[bytes]()
        self.stream = self

    def write(self, data: Any) -> None:
        self._parts.append(bytes(data))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def finish(self) -> int:
        self._files.held[self._name] = b"".join(self._parts)
        return len(self._files.held[self._name])


class OneAfterTheOther(contextlib.nullcontext[Any]):
    """A pool of no threads."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(self)

    def map(self, work: Callable[[Any], Any], given: Sequence[Any]) -> Iterator[Any]:
        return map(work, given)


def led(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Everything in memory, and the drainer's threads led by the test."""
    files = Files()
    monkeypatch.setattr("penstock.checkpoint.inflight.task_tree", lambda _: files)
    monkeypatch.setattr("penstock.checkpoint.inflight.task_tree", lambda _: files)
    for of_a_disk in ("confirm", "make_folder"):
        monkeypatch.setattr(f"penstock.engine.inflight.{of_a_disk}", lambda *_: None)
    monkeypatch.setattr(Drainer, "start", lambda _: None)
    monkeypatch.setattr(drainer_module, "ThreadPoolExecutor", OneAfterTheOther)
    return files
