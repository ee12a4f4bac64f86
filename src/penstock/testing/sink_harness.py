"""For tests of a sink: a target to write to, and the steps of an epoch as a driver takes them.

Every committable travels through JSON and every step opens a fresh committer, as after a restart.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline

PATIENCE = 60.0  # seconds one step may take: generous, because a contract is not a benchmark


class SinkHarness(ABC):
    """One empty target and the sink that writes to it."""

    @abstractmethod
    def make_sink(self) -> TwoPhaseSink: ...

    @abstractmethod
    def read_visible(self) -> list[Any]:
        """The rows that an ordinary reader sees now, in any order, in the form of `expected`."""

    @abstractmethod
    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        """`n` different rows in the sink's shape, numbered from `start`."""

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of `batch` as `read_visible` returns them."""
        return [tuple(row.values()) for row in batch.to_pylist()]

    def special(self) -> pa.RecordBatch | None:
        """Rows with nulls, empty values and text in many scripts; None if the target has no such thing."""
        return None

    def large(self) -> pa.RecordBatch | None:
        """A row with a value of some hundred kilobytes."""
        return None

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """Let the other system end a prepared writer, as its timeout or its administrator would. False: it cannot."""
        return False


class SinkSteps:
    """The steps of an epoch against one harness; use them for your own tests too."""

    harness: SinkHarness
    uid = "contract"

    @cached_property
    def job(self) -> str:
        """A job of its own for every test, so that tests may share one running system."""
        return f"job-{uuid.uuid4().hex[:8]}"

    def scope(self, generation: int = 1, uid: str | None = None) -> SinkScope:
        return SinkScope(self.job, uid or self.uid, generation)

    def open_writer(
        self, sink: TwoPhaseSink, scope: SinkScope, *, epoch: int, writer: int = 0, attempt: int = 0
    ) -> Writer:
        with closing(sink.open_committer(scope)) as committer:
            hints = json.loads(json.dumps(dict(committer.hints())))
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
        with closing(sink.open_committer(scope)) as committer:
            return list(map(through_json, committer.seal(committables, Deadline(PATIENCE))))

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
        with closing(sink.open_committer(self.scope(generation, uid))) as committer:
            outcomes = committer.commit(epoch, list(map(through_json, committables)), Deadline(seconds))
        assert set(outcomes) == {committable.writer for committable in committables}, "every writer needs an outcome"
        return set(outcomes.values())

    def abort(self, sink: TwoPhaseSink, committables: Sequence[Committable], *, generation: int = 1) -> None:
        with closing(sink.open_committer(self.scope(generation))) as committer:
            committer.abort(list(map(through_json, committables)), Deadline(PATIENCE))

    def sweep(self, sink: TwoPhaseSink, *, generation: int, keep: Collection[Committable] = ()) -> int:
        with closing(sink.open_committer(self.scope(generation))) as committer:
            return committer.abort_dangling(list(map(through_json, keep)), Deadline(PATIENCE))

    def leftovers(self, sink: TwoPhaseSink, *, generation: int) -> Sequence[Leftover] | None:
        with closing(sink.open_committer(self.scope(generation))) as committer:
            return committer.leftovers(Deadline(PATIENCE))

    def assert_visible(self, *batches: pa.RecordBatch) -> None:
        wanted = [row for batch in batches for row in self.harness.expected(batch)]
        visible = self.harness.read_visible()
        assert sorted(map(repr, visible)) == sorted(map(repr, wanted)), f"visible: {visible}\nwanted: {wanted}"


def through_json(committable: Committable) -> Committable:
    """`committable` as read back from the ledger."""
    return Committable(**json.loads(json.dumps(asdict(committable))))


def prepare_and_die(sink: TwoPhaseSink, scope: WriterScope, batch: pa.RecordBatch, patience: float) -> dict[str, Any]:
    """The payload of a writer whose process is killed right after it prepared `batch`, like a lost executor: state that
    lived only in that process cannot help a later commit. It runs this module: a pickled request on stdin, the payload
    as JSON on stdout, then SIGKILL to itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "penstock.testing.sink_harness"],
        input=pickle.dumps((sink, scope, batch)),
        capture_output=True,
        env=environment,
        timeout=patience,
        check=False,
    )
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"the writer's process failed before it could be killed:\n{done.stderr.decode()}")
    payload: dict[str, Any] = json.loads(done.stdout)
    return payload


def main() -> None:
    sink, scope, batch = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent that started this process
    writer = sink.open_writer(scope)
    writer.write(batch)
    sys.stdout.write(json.dumps(dict(writer.pre_commit())))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
