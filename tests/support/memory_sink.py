"""A two-phase sink in this process's memory, with a hand on its gate: it can be made to block, refuse and lose."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import SystemUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.deadline import Deadline


class MemorySink(TwoPhaseSink):
    """`visible` is what a reader sees, in the order in which it became visible."""

    def __init__(self) -> None:
        self.prepared: dict[str, tuple[int, list[Any]]] = {}
        self.committed: dict[str, list[Any]] = {}
        self.visible: list[Any] = []
        self.open = threading.Event()
        self.open.set()
        self.away = False
        self.names = itertools.count()
        self.lock = threading.Lock()

    def open_writer(self, scope: WriterScope) -> Writer:
        return _Writer(self, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        return _Committer(self, scope)

    def lose(self) -> None:
        """As if everything prepared had expired."""
        self.prepared.clear()


class _Writer(Writer):
    def __init__(self, sink: MemorySink, scope: WriterScope) -> None:
        self._sink = sink
        self._name = f"{scope.sink.prefix}-{next(sink.names)}"
        self._generation, self._rows = scope.sink.generation, list[Any]()

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.open.wait()
        if self._sink.away:
            raise SystemUnavailable("The memory is away.")
        self._rows.extend(batch.column(0).to_pylist())

    def pre_commit(self) -> Mapping[str, Any]:
        self._sink.open.wait()
        self._sink.prepared[self._name] = (self._generation, self._rows)
        return {"name": self._name}

    def abort(self) -> None:
        self._sink.prepared.pop(self._name, None)


class _Committer(Committer):
    def __init__(self, sink: MemorySink, scope: SinkScope) -> None:
        self._sink, self._scope = sink, scope

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        return {one.writer: self._one(one.payload["name"]) for one in committables}

    def _one(self, name: str) -> Outcome:
        sink = self._sink
        if sink.away:
            return Outcome.UNKNOWN
        with sink.lock:
            if name in sink.committed:
                return Outcome.ALREADY_COMMITTED
            if name not in sink.prepared:
                return Outcome.LOST
            _, rows = sink.prepared.pop(name)
            sink.committed[name] = rows
            sink.visible.extend(rows)
            return Outcome.COMMITTED

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        for one in committables:
            self._sink.prepared.pop(one.payload["name"], None)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        if self._sink.away:
            raise SystemUnavailable("The memory is away.")
        kept = {one.payload["name"] for one in keep}
        mine = [
            name
            for name, (generation, _) in self._sink.prepared.items()
            if name.rpartition("-")[0] == self._scope.prefix
            and generation <= self._scope.generation
            and name not in kept
        ]
        for name in mine:
            self._sink.prepared.pop(name, None)
        return len(mine)
