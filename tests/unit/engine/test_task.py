"""One writer's task, without Spark: what it reports, what it raises, what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.preparation import left_strays, ran_again
from penstock.engine.task import Route, Writing, attempt_of, committable, write_rows
from penstock.errors import SystemUnavailable, ValueTooLarge
from penstock.spark.executors import TaskFault, fault_in

SCOPE = WriterScope(SinkScope("job", "out", 3), epoch=5, attempt=1, partition=2, task_attempt=77)


class Recorder(TwoPhaseSink):
    """Remembers what happened to its writers; fails where it is told to."""

    def __init__(self, **failing: BaseException) -> None:
        self.failing = failing
        self.steps: list[str] = []
        self.columns: list[str] = []
        self.rows = 0

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.failing:
            raise self.failing[name]

    def open_writer(self, scope: WriterScope) -> Writer:
        assert scope is SCOPE
        self.step("open")
        return RecordingWriter(self)

    def open_committer(self, scope: SinkScope) -> Committer:
        raise NotImplementedError


class RecordingWriter(Writer):
    def __init__(self, sink: Recorder) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.columns = batch.schema.names
        self._sink.rows += batch.num_rows
        self._sink.step("write")

    def pre_commit(self) -> Mapping[str, Any]:
        self._sink.step("pre_commit")
        return {"written": self._sink.rows}

    def abort(self) -> None:
        self._sink.step("abort")


def batches(*groups: list[int]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        values = pa.array([str(number) for number in group])
        yield pa.RecordBatch.from_arrays([values, pa.array(group, pa.int64())], names=["value", HASH_COLUMN])


def run(sink: Recorder, *groups: list[int], writing: bool = True) -> dict[str, Any]:
    return write_rows(sink, SCOPE, batches(*groups), Writing(Route.SINK if writing else Route.COUNT))


def test_rows_are_written_without_their_hashes_and_counted() -> None:
    sink = Recorder()
    told = {"writer": 2, "rows": 3, "checksum": 6, "row_bytes": 13, "payload": {"written": 3}}
    assert run(sink, [1, 2], [3]) == told, "a row: 8 bytes of hash, one of text, an offset of 4"
    assert sink.steps == ["open", "write", "write", "pre_commit"]
    assert sink.columns == ["value"]


def test_without_rows_nothing_is_opened() -> None:
    sink = Recorder()
    assert run(sink, [], []) == {"writer": 2, "rows": 0, "checksum": 0, "row_bytes": 0, "payload": {}}
    assert sink.steps == []


def test_the_checksum_does_not_depend_on_order_or_batches_and_wraps() -> None:
    hashes = [int(number) for number in np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1000)]
    expected = sum(number % 2**64 for number in hashes) % 2**64
    for groups in ([hashes], [sorted(hashes)], [hashes[500:], hashes[:500]], [[number] for number in hashes]):
        assert run(Recorder(), *groups)["checksum"] == expected


def test_a_writer_that_only_proves_writes_nothing() -> None:
    sink = Recorder()
    told = {"writer": 2, "rows": 2, "checksum": 3, "row_bytes": 13, "payload": {}}
    assert run(sink, [1, 2], writing=False) == told
    assert sink.steps == []


@pytest.mark.parametrize("where", ["open", "write", "pre_commit"])
def test_what_no_retry_can_cure_is_reported(where: str) -> None:
    error = ValueTooLarge("A row of 5 bytes.", safe="nothing of it is visible.", to_do="smaller rows.")
    sink = Recorder(**{where: error})
    answer = json.loads(json.dumps(run(sink, [1])))
    assert sink.steps[-1] == ("abort" if where != "open" else "open")
    with pytest.raises(ValueTooLarge) as raised:
        committable("out", answer)
    assert str(raised.value) == str(error)


@pytest.mark.parametrize("where", ["open", "write", "pre_commit"])
def test_what_a_retry_may_cure_is_raised_so_that_spark_retries(where: str) -> None:
    error = SystemUnavailable('Broker {"1"} is away.', safe="all.", to_do="wait.")
    sink = Recorder(**{where: error})
    with pytest.raises(TaskFault) as raised:
        run(sink, [1])
    found = fault_in(f"Job aborted: Traceback …\n  TaskFault: {raised.value}\n\tat java.lang.Thread")
    assert type(found) is SystemUnavailable
    assert str(found) == str(error)


def test_a_strangers_error_passes_as_it_is() -> None:
    sink = Recorder(write=ZeroDivisionError("division by zero"))
    with pytest.raises(ZeroDivisionError):
        run(sink, [1])
    assert sink.steps[-1] == "abort"


def test_an_abort_that_fails_hides_nothing() -> None:
    sink = Recorder(write=ZeroDivisionError(), abort=OSError("gone"))
    with pytest.raises(ZeroDivisionError):
        run(sink, [1])


@pytest.mark.parametrize("text", ["", "penstock-task-error", "penstock-task-error {half end-of-penstock-task-error"])
def test_text_without_an_error_of_ours(text: str) -> None:
    assert fault_in(text) is None


def test_what_a_task_says_becomes_a_committable() -> None:
    answer = json.loads(json.dumps({**run(Recorder(), [4, 5]), "attempt": 3}))
    one = committable("out", answer)
    assert (one.id, one.rows, one.checksum, one.payload) == (("out", 2), 2, 9, {"written": 2})
    assert attempt_of(answer) == 3


class Tracker:
    """Spark's bookkeeping: what it says of a stage, one answer after the other; the last one repeats."""

    def __init__(self, *answers: tuple[int, int] | None) -> None:
        self._answers = list(answers)

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802 - Spark's name
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return answer and SimpleNamespace(currentAttemptId=answer[0], numCompletedTasks=answer[1], numTasks=4)


@pytest.mark.parametrize(
    ("answers", "again"),
    [
        ([(0, 4)], False),
        ([(1, 3)], True),  # its second run did what the first had left
        ([(0, 1), (0, 3), (0, 4)], False),  # the bookkeeping was behind
        ([None, (0, 3), (1, 0)], True),
        ([(0, 3)], True),  # ended, as we know, but not by its first run
        ([None], True),
    ],
)
def test_a_stage_that_ran_again_is_noticed(answers: list[tuple[int, int] | None], again: bool) -> None:
    assert ran_again(Tracker(*answers), {7}, Deadline(0.05)) is again  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "attempts", "speculation", "stage", "strays"),
    [
        ("spark://here", [0, 0], "false", (0, 4), False),
        ("spark://here", [0, 0], "false", (1, 2), True),
        ("local-cluster[2,1,1024]", [0, 0], "false", (1, 2), True),
        ("spark://here", [0, 1], "false", (0, 4), True),
        ("local[2]", [0, 0], "true", None, True),
        ("local[2]", [0, 0], "false", None, False),
        ("local[2,4]", [0, 2], "false", None, True),
    ],
)
def test_when_earlier_attempts_may_have_left_something(
    master: str, attempts: list[int], speculation: str, stage: tuple[int, int] | None, strays: bool
) -> None:
    spark = Context(master, speculation, stage)
    answers = [{"attempt": attempt, "stage": 7} for attempt in attempts]
    assert left_strays(answers, spark) is strays  # type: ignore[arg-type]
    assert left_strays(answers, spark) is strays  # type: ignore[arg-type]
    assert spark.asked <= 1, "it cannot change, and to ask is slow"


class Context:
    """As much of a SparkContext as tells of races between tasks."""

    def __init__(self, master: str, speculation: str, stage: tuple[int, int] | None) -> None:
        self.master, self._speculation, self._stage, self.asked = master, speculation, stage, 0

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        self.asked += 1
        return {"spark.speculation": self._speculation}

    def statusTracker(self) -> Tracker:  # noqa: N802 - Spark's name
        return Tracker(self._stage)
