"""What runs in a Spark task: one writer, from its first row to prepared.

A task reports one JSON line: its committable, or an error that no retry can fix. Errors that a retry may fix are
raised, so that Spark retries the task by its own rules. The driver chooses the route of the rows for each output and
epoch (`Route`); a `Channel` implements it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight import LogWriter
from penstock.contracts.sink import SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.engine.checksum import FLAT, HASH_COLUMN, checksum_of, sum_of_hashes
from penstock.errors import PenstockError, from_json
from penstock.failpoints import failpoint
from penstock.spark.executors import TaskFault

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

    from penstock.engine.aside import Refused, Sifter


_QUEUED = 4  # batches between the two; enough to keep both busy, little to hold in memory


class SideWriter:
    """The sink's writer beside the log, in a thread of its own; `offer` and `finish` never wait past its deadline.

    If the writer blocks, or is still busy at the deadline, the task goes on without it: the log is complete by itself.
    The thread aborts its transaction when it wakes up; what it never gets to abort, the driver finds by its name."""

    def __init__(self, sink: TwoPhaseSink, scope: WriterScope, seconds: float) -> None:
        self._sink, self._scope = sink, scope
        self._deadline = time.monotonic() + seconds
        self._batches: queue.Queue[pa.RecordBatch | None] = queue.Queue(_QUEUED)
        self._given_up = threading.Event()
        self._ended = threading.Event()
        self._payload: Mapping[str, Any] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-side-writer", daemon=True)
        self._thread.start()

    def finish(self) -> Mapping[str, Any] | None:
        """What the sink prepared; None if it was given up. Raises what no later delivery could cure."""
        self.offer(None)
        if not self._given_up.is_set() and not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            self.give_up()
        error = self._error
        if error is not None and not (isinstance(error, PenstockError) and error.retryable):
            raise error
        return None if self._given_up.is_set() else self._payload

    def give_up(self) -> None:
        """Go on without the sink; its thread aborts when it comes back to life."""
        self._given_up.set()

    def offer(self, batch: pa.RecordBatch | None) -> None:
        """Hand over rows, or None after the last, unless the sink was given up."""
        while not self._given_up.is_set() and not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                # Room is taken at once even when time is up: only a sink that makes others wait is given up.
                self._batches.put(batch, timeout=min(0.05, max(0.0, self._deadline - time.monotonic())) or 0.001)
                return
            if time.monotonic() >= self._deadline:
                self.give_up()

    def _run(self) -> None:
        writer: Writer | None = None
        try:
            writer = self._sink.open_writer(self._scope)
            while (batch := self._next()) is not None:
                writer.write(batch)
            failpoint("task.written")
            if not self._given_up.is_set():
                self._payload = writer.pre_commit()
                failpoint("task.prepared")
        except BaseException as error:
            self._error = error
            self._given_up.set()
        finally:
            self._ended.set()
            if self._given_up.is_set() and writer is not None:
                with contextlib.suppress(Exception):
                    writer.abort()

    def _next(self) -> pa.RecordBatch | None:
        while not self._given_up.is_set():
            with contextlib.suppress(queue.Empty):
                return self._batches.get(timeout=0.1)
        return None


class Route(Enum):
    """Where the rows of an output go."""

    SINK = "sink"  # into a transaction of the sink, left prepared
    COUNT = "count"  # nowhere: counted and summed, to prove a replay
    DIRECT = "direct"  # into the sink and visible at once (at-least-once)
    LOG = "log"  # into the in-flight log alone
    TEE = "tee"  # into the log and, while it keeps up, a transaction of the sink


@dataclass(frozen=True, slots=True)
class Writing:
    """`log` is the folder of log files, `seconds` how long a tee waits for the sink."""

    route: Route = Route.SINK
    log: str = ""
    seconds: float = 0.0


class _IntoSink:
    """Open from the first row on."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows with their hashes in the last column."""
        self._writer.write(batch.drop_columns([HASH_COLUMN]))

    def finish(self) -> Mapping[str, Any]:
        """No more rows come. What is returned becomes part of the task's answer."""
        failpoint("task.written")
        payload = dict(self._writer.pre_commit())
        failpoint("task.prepared")
        return {"payload": payload}

    def abort(self) -> None:
        """Undo it all; called after any failure."""
        self._writer.abort()


class _IntoLog:
    """The same, into the in-flight log."""

    def __init__(self, log: LogWriter, side: SideWriter | None) -> None:
        self._log, self._side = log, side

    def write(self, batch: pa.RecordBatch) -> None:
        if self._side is not None:
            self._side.offer(batch.drop_columns([HASH_COLUMN]))
        self._log.write(batch)

    def finish(self) -> Mapping[str, Any]:
        file = self._log.close()
        failpoint("task.logged")
        payload = None if self._side is None else self._side.finish()
        return {"payload": None if payload is None else dict(payload), "log": file.to_json()}

    def abort(self) -> None:
        if self._side is not None:
            self._side.give_up()
        self._log.discard()


Channel: TypeAlias = "_IntoSink | _IntoLog | Sifter"


def open_channel(sink: TwoPhaseSink, scope: WriterScope, writing: Writing, schema: pa.Schema) -> Channel:
    """The channel for one writer; called with its first row."""
    match writing.route:
        case Route.SINK:
            return _IntoSink(sink.open_writer(scope))
        case Route.DIRECT:
            return _IntoSink(sink.open_direct_writer(scope))
        case Route.TEE | Route.LOG:
            side = SideWriter(sink, scope, writing.seconds) if writing.route is Route.TEE else None
            return _IntoLog(LogWriter(writing.log, _log_name(scope), schema), side)
    raise AssertionError(writing)


def _log_name(scope: WriterScope) -> str:
    """Unique over all runs and attempts; the epoch and the generation are read from it when leftovers are removed."""
    tried = f"a{scope.attempt}.p{scope.partition}.t{scope.task_attempt}"
    return f"{scope.epoch:010d}.g{scope.sink.generation:08d}.{tried}.arrow"


RESULT_SCHEMA = "result string"


def with_plain_names(frame: DataFrame) -> tuple[DataFrame, list[str] | None]:
    """`frame` with names that Spark can look up, and its own names where it has others: Spark takes a dot for a field
    of a struct."""
    names = frame.columns
    if not any("." in name or "`" in name for name in names):
        return frame, None
    return frame.toDF(*(f"c{number}" for number in range(len(names)))), names


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the writers of one output, and its `aside`, do in one attempt. `refused`: what a decided epoch set aside."""

    scope: SinkScope
    epoch: int
    attempt: int
    writing: Writing = field(default_factory=Writing)
    hints: Mapping[str, Any] = field(default_factory=dict)
    aside: Assignment | None = None
    refused: Refused | None = None

    @property
    def of(self) -> list[int]:
        """What no other attempt has."""
        return [self.scope.generation, self.epoch, self.attempt]


def writer_task(
    sink: TwoPhaseSink, assign: Callable[[TaskContext], Assignment], *, rule: int = FLAT, names: list[str] | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`. `assign` says what the task is to do; `rule` is the one by which the rows were
    summed; `names` are the columns' own, where they had to be called otherwise."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        named = batches if names is None else (batch.rename_columns(names) for batch in batches)
        try:
            assignment = assign(context)
        except PenstockError as error:
            yield answer_of(report(context, {"error": error.to_json()}))
            return
        task = context.partitionId(), context.taskAttemptId()
        scope = WriterScope(assignment.scope, assignment.epoch, assignment.attempt, *task, assignment.hints)
        sift = None
        if assignment.aside is not None:
            from penstock.engine.aside import sifting

            sift = sifting(sink, scope, assignment, assignment.aside, rule)
        result = write_rows(sink, scope, named, assignment.writing, rule, sift)
        yield answer_of(report(context, {**result, "of": assignment.of}))

    return run


def report(context: TaskContext, result: Mapping[str, Any]) -> str:
    """What a task answers: the result, and which try of which stage came to it."""
    return json.dumps({**result, "attempt": context.attemptNumber(), "stage": context.stageId()})


def write_rows(
    sink: TwoPhaseSink,
    scope: WriterScope,
    batches: Iterator[pa.RecordBatch],
    writing: Writing,
    rule: int = FLAT,
    sift: Callable[[], Sifter] | None = None,
) -> dict[str, Any]:
    channel: Channel | None = None
    rows = total = 0
    row_bytes = 0.0
    result: Mapping[str, Any] = {"payload": {}}
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows += batch.num_rows
            total += sum_of_hashes(batch)
            row_bytes = max(row_bytes, batch.nbytes / batch.num_rows)
            if writing.route is Route.COUNT and sift is None:
                continue
            if channel is None:
                channel = sift() if sift is not None else open_channel(sink, scope, writing, batch.schema)
                failpoint("task.opened")
            channel.write(batch)
        if channel is not None:
            result = channel.finish()
    except BaseException as error:
        if channel is not None:
            # The failure under way is what matters; what abort leaves behind, the driver's sweep finds by prefix.
            with contextlib.suppress(Exception):
                channel.abort()
        if not isinstance(error, PenstockError):
            raise
        if error.retryable:
            raise TaskFault(error) from error
        return {"error": error.to_json()}
    checksum = checksum_of(total, rule)
    return {"writer": scope.partition, "rows": rows, "checksum": checksum, "row_bytes": round(row_bytes), **result}


def answer_of(line: str) -> pa.RecordBatch:
    """One row of one string. From bytes: to make an array of Python's objects, or an object of numpy's, Arrow imports
    pandas, which takes a quarter of a second and 40 MB in every worker that needs it for nothing else."""
    import pyarrow as pa

    text = line.encode()
    ends = struct.pack("=2i", 0, len(text))
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    return pa.RecordBatch.from_arrays([column], names=["result"])


def committable(sink: str, answer: Mapping[str, Any]) -> Committable:
    """What one task reported; an error that it reported is raised."""
    if "error" in answer:
        raise from_json(answer["error"])
    payload = {"log": answer["log"], "prepared": answer["payload"]} if "log" in answer else answer["payload"]
    return Committable(sink, answer["writer"], answer["rows"], answer["checksum"], payload)


def row_bytes_of(answer: Mapping[str, Any]) -> float:
    """The size of a row, in the batch of the largest rows that a task has seen."""
    return float(answer.get("row_bytes", 0))


def attempt_of(answer: Mapping[str, Any]) -> int:
    """Which attempt of its task reported; above 0, earlier ones failed and may have left something open. Spark counts
    anew when it runs a stage again."""
    return int(answer["attempt"])
