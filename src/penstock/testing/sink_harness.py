"""What a test of a sink needs: a target to write to, and the steps of an epoch as a driver takes them.

Every committable travels through JSON and every step opens a fresh committer, because that is what a restart does.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

#: Seconds one step may take: generous, because a contract is not a benchmark.
PATIENCE = 60.0


class SinkHarness(ABC):
    """One empty target and the sink that writes to it."""

    @abstractmethod
    def make_sink(self) -> TwoPhaseSink: ...

    @abstractmethod
    def read_visible(self) -> list[Any]:
        """What an ordinary reader sees now, in any order, in the form of `expected`."""

    @abstractmethod
    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        """`n` different rows in the sink's shape, numbered from `start`."""

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of `batch` as `read_visible` returns them."""
        return [tuple(row.values()) for row in batch.to_pylist()]

    def special(self) -> pa.RecordBatch | None:
        """Rows with nulls, empty values and text from all over the world; None if the target has no such thing."""
        return None

    def large(self) -> pa.RecordBatch | None:
        """A row with a value of some hundred kilobytes."""
        return None

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """Let the other system end a prepared writer, as its timeout or its administrator would. False: it cannot."""
        return False


class SinkSteps:
    """The steps of an epoch against one harness; a story of your own is told with them too."""

    harness: SinkHarness
    uid = "contract"

    @property
    def job(self) -> str:
        """A job of its own for every test, so that tests may share one running system."""
        if not hasattr(self, "_job"):
            self._job = f"job-{uuid.uuid4().hex[:8]}"
        return self._job

    def scope(self, generation: int = 1, uid: str | None = None) -> SinkScope:
        return SinkScope(self.job, uid or self.uid, generation)

    def open_writer(
        self, sink: TwoPhaseSink, scope: SinkScope, *, epoch: int, writer: int = 0, attempt: int = 0
    ) -> Writer:
        committer = sink.open_committer(scope)
        try:
            hints = json.loads(json.dumps(dict(committer.hints())))
        finally:
            committer.close()
        return sink.open_writer(WriterScope(scope, epoch, attempt, writer, attempt, hints))

    def prepare(
        self,
        sink: TwoPhaseSink,
        batches: Sequence[pa.RecordBatch],
        *,
        epoch: int = 0,
        generation: int = 1,
        attempt: int = 0,
        uid: str | None = None,
    ) -> list[Committable]:
        """One writer for each batch, all prepared and sealed."""
        scope = self.scope(generation, uid)
        committables = []
        for number, batch in enumerate(batches):
            writer = self.open_writer(sink, scope, epoch=epoch, writer=number, attempt=attempt)
            writer.write(batch)
            committables.append(Committable(scope.uid, number, batch.num_rows, 0, writer.pre_commit()))
        return self.seal(sink, scope, committables)

    def seal(self, sink: TwoPhaseSink, scope: SinkScope, committables: Sequence[Committable]) -> list[Committable]:
        committer = sink.open_committer(scope)
        try:
            return [through_json(one) for one in committer.seal(committables, Deadline(PATIENCE))]
        finally:
            committer.close()

    def commit(
        self,
        sink: TwoPhaseSink,
        committables: Sequence[Committable],
        *,
        epoch: int = 0,
        generation: int = 1,
        uid: str | None = None,
        seconds: float = PATIENCE,
    ) -> set[Outcome]:
        committer = sink.open_committer(self.scope(generation, uid))
        try:
            outcomes = committer.commit(epoch, [through_json(one) for one in committables], Deadline(seconds))
        finally:
            committer.close()
        assert set(outcomes) == {one.writer for one in committables}, "every writer needs an outcome"
        return set(outcomes.values())

    def abort(self, sink: TwoPhaseSink, committables: Sequence[Committable], *, generation: int = 1) -> None:
        committer = sink.open_committer(self.scope(generation))
        try:
            committer.abort([through_json(one) for one in committables], Deadline(PATIENCE))
        finally:
            committer.close()

    def sweep(self, sink: TwoPhaseSink, *, generation: int, keep: Collection[Committable] = ()) -> int:
        committer = sink.open_committer(self.scope(generation))
        try:
            return committer.abort_dangling([through_json(one) for one in keep], Deadline(PATIENCE))
        finally:
            committer.close()

    def leftovers(self, sink: TwoPhaseSink, *, generation: int) -> Sequence[Leftover] | None:
        committer = sink.open_committer(self.scope(generation))
        try:
            return committer.leftovers(Deadline(PATIENCE))
        finally:
            committer.close()

    def assert_visible(self, *batches: pa.RecordBatch) -> None:
        wanted = [row for batch in batches for row in self.harness.expected(batch)]
        found = self.harness.read_visible()
        assert sorted(map(repr, found)) == sorted(map(repr, wanted)), f"visible: {found}\nwanted: {wanted}"


def through_json(committable: Committable) -> Committable:
    """`committable` as the ledger gives it back."""
    body: Mapping[str, Any] = json.loads(json.dumps(asdict(committable)))
    return Committable(**body)
