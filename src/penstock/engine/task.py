"""What runs in a Spark task: one writer, from its first row to prepared.

A task answers with one JSON line: its committable, or an error that no retry can cure. Errors that a retry may cure
are raised, so that Spark tries the task again by its own rules.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import SinkScope, TwoPhaseSink, WriterScope
from penstock.engine.channel import Channel, Route, Writing, open_channel
from penstock.engine.checksum import FLAT, checksum_of, sum_of_hashes
from penstock.errors import PenstockError, from_json
from penstock.failpoints import failpoint
from penstock.spark.executor_list import TaskFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

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
    """What the writers of one output are told in one attempt at an epoch."""

    scope: SinkScope
    epoch: int
    attempt: int
    writing: Writing = field(default_factory=Writing)
    hints: Mapping[str, Any] = field(default_factory=dict)


def writer_task(
    sink: TwoPhaseSink, assignment: Assignment, *, rule: int = FLAT, names: list[str] | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`. `rule` is the one by which the rows were summed; `names` are the columns' own,
    where they had to be called otherwise."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield answer_of(report(context, run_writer(context, sink, assignment, batches, rule=rule, names=names)))

    return run


def run_writer(
    context: TaskContext,
    sink: TwoPhaseSink,
    own: Assignment,
    batches: Iterator[pa.RecordBatch],
    *,
    rule: int,
    names: list[str] | None,
) -> dict[str, Any]:
    """One writer, in a task; what it came to."""
    task = context.partitionId(), context.taskAttemptId()
    named = batches if names is None else (batch.rename_columns(names) for batch in batches)
    return _write(sink, WriterScope(own.scope, own.epoch, own.attempt, *task, own.hints), named, own.writing, rule)


def report(context: TaskContext, result: Mapping[str, Any]) -> str:
    """What a task answers: the result, and which try of which stage came to it."""
    return json.dumps({**result, "attempt": context.attemptNumber(), "stage": context.stageId()})


def _write(
    sink: TwoPhaseSink, scope: WriterScope, batches: Iterator[pa.RecordBatch], writing: Writing, rule: int = FLAT
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
            if writing.route is Route.COUNT:
                continue
            if channel is None:
                channel = open_channel(sink, scope, writing, batch.schema)
                failpoint("task.opened")
            channel.write(batch)
        if channel is not None:
            result = channel.finish()
    except PenstockError as error:
        _abort(channel)
        if error.retryable:
            raise TaskFault(error) from error
        return {"error": error.to_json()}
    except BaseException:
        _abort(channel)
        raise
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


def _abort(channel: Channel | None) -> None:
    if channel is not None:
        # The failure under way is what matters; what abort leaves behind, the driver's sweep finds by prefix.
        with contextlib.suppress(Exception):
            channel.abort()


def parse(line: str) -> dict[str, Any]:
    """What one task reported."""
    found: dict[str, Any] = json.loads(line)
    return found


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


def stage_of(answer: Mapping[str, Any]) -> int:
    """In which stage the task ran."""
    return int(answer["stage"])
