"""Writers in the streaming plan: a task writes for the epoch it is told of, or not at all; an answer counts for the
attempt it was given to."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JError

from penstock.contracts.sink import SinkScope
from penstock.engine.checksum import HASH_COLUMN, checksum_of
from penstock.engine.output_jobs import PROPERTY, SPARK_BATCH, Jobs, Planned, from_text, planned_task, to_text
from penstock.engine.task import Assignment, Route, Writing
from penstock.errors import PenstockError, PreCommitFailed, StrayTask, from_json
from tests.support.memory_sink import MemorySink

SCOPE = SinkScope("job", "out", 3)
OWN = Assignment(SCOPE, 7, 2, Writing(Route.TEE, "file:/logs/ä", 1.5), {"committed": {"a": 1}, "mode": None})


def test_what_is_told_arrives() -> None:
    assert from_text(to_text(OWN), SCOPE, "7") == OWN


@pytest.mark.parametrize("route", list(Route))
def test_every_way_can_be_told(route: Route) -> None:
    own = Assignment(SCOPE, 0, 1, Writing(route))
    assert from_text(to_text(own), SCOPE, "0") == own


def test_what_is_short_can_be_read() -> None:
    assert json.loads(to_text(OWN))["hints"] == OWN.hints


def test_hints_of_a_thousand_writers_are_packed() -> None:
    hints = {"committed": {f"job:out-g000003-{number:06d}": number for number in range(1000)}}
    own = Assignment(SCOPE, 7, 2, hints=hints)
    text = to_text(own)
    assert len(text) < len(json.dumps(hints)) / 3
    assert from_text(text, SCOPE, "7") == own


@pytest.mark.parametrize(
    ("text", "batch", "why"),
    [
        (None, "7", "has no assignment"),
        (to_text(OWN), "8", "runs for batch 8, but its assignment is for epoch 7"),
        (to_text(OWN), None, "runs for batch None"),
        (to_text(Assignment(SinkScope("job", "out", 2), 7, 2)), "7", "run 2, of job 'job'"),
        (to_text(Assignment(SinkScope("job", "out", 4), 7, 2)), "7", "run 4, of job 'job'"),
        (to_text(Assignment(SinkScope("job", "other", 3), 7, 2)), "7", "sink 'other'"),
        (to_text(Assignment(SinkScope("foreign", "out", 3), 7, 2)), "7", "job 'foreign'"),
        (to_text(OWN).replace('"version":1', '"version":2'), "7", "version 2 of the format"),
        (to_text(OWN).replace('"version":1', '"version":0'), "7", "version 0 of the format"),
        (to_text(OWN).replace('"tee"', '"by pigeon"'), "7", "cannot read"),
        ("", "7", "cannot read"),
        ("{}", "7", "cannot read"),
        ("[7]", "7", "cannot read"),
        ("zlib:AAAA", "7", "cannot read"),
        ("zlib:ä", "7", "cannot read"),
    ],
)
def test_a_task_that_is_not_told_its_own_epoch_is_refused(text: str | None, batch: str | None, why: str) -> None:
    with pytest.raises(StrayTask) as raised:
        from_text(text, SCOPE, batch)
    assert why in str(raised.value)
    assert "it wrote nothing" in str(raised.value)


# In a task


class Context:
    """As much of a task as is asked for."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return 4

    def taskAttemptId(self) -> int:  # noqa: N802
        return 77

    def attemptNumber(self) -> int:  # noqa: N802
        return 1

    def stageId(self) -> int:  # noqa: N802
        return 9


def in_task(monkeypatch: pytest.MonkeyPatch, sink: MemorySink, **properties: str) -> list[dict[str, Any]]:
    """What the task of an epoch with three rows answers."""
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: Context(**properties))
    hashes = pa.array([1, 2, 3], pa.int64())
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), hashes], names=["c0", "c1"])
    run = planned_task(sink, SCOPE, rule=1, names=["a.b", HASH_COLUMN])
    return [json.loads(line) for answer in run(iter([batch])) for line in answer.column("result").to_pylist()]


def test_a_task_writes_for_the_epoch_that_it_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    told = to_text(Assignment(SCOPE, 7, 2))
    [found] = in_task(monkeypatch, sink, **{PROPERTY: told, SPARK_BATCH: "7"})
    [(name, (generation, rows))] = sink.prepared.items()
    assert (generation, rows) == (3, ["a", "b", "c"])
    told_back = {"writer": 4, "rows": 3, "checksum": checksum_of(6, 1), "payload": {"name": name}}
    assert {key: found[key] for key in told_back} == told_back
    assert (found["of"], found["attempt"], found["stage"]) == ([3, 7, 2], 1, 9)


@pytest.mark.parametrize("batch", ["8", None])
def test_a_task_of_another_batch_writes_nothing(monkeypatch: pytest.MonkeyPatch, batch: str | None) -> None:
    sink = MemorySink()
    [found] = in_task(monkeypatch, sink, **{PROPERTY: to_text(OWN)}, **({SPARK_BATCH: batch} if batch else {}))
    assert isinstance(from_json(found["error"]), StrayTask)
    assert "payload" not in found
    assert (found["attempt"], found["stage"]) == (1, 9)
    assert not sink.prepared


# In the driver


class Frame:
    """A frame of lines, as much of it as is asked for; remembers which property was set when it was collected."""

    def __init__(self, *answers: Any, error: BaseException | None = None, known: bool = True) -> None:
        self.answers, self._error, self._known = answers, error, known
        self.properties: dict[str, str | None] = {}
        self.seen: list[str | None] = []
        self.by: list[str] = []
        self.asked = 0
        self.conf = Conf()

    sparkSession = sparkContext = _jdf = property(lambda self: self)  # noqa: N815 - Spark's names

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value

    def queryExecution(self) -> Frame:  # noqa: N802
        return self

    analyzed = queryExecution

    def rdd(self) -> Frame:
        self.asked += 1
        if not self._known:
            raise Py4JError("Method rdd([]) does not exist")
        return self

    def collect(self) -> list[Row]:
        self._run("rdd")
        return [Row(json.dumps(answer)) for answer in self.answers]

    def collectAsList(self) -> Row:  # noqa: N802
        self._run("frame")
        return Row("[" + ", ".join(f"[{json.dumps(answer)}]" for answer in self.answers) + "]")

    def _run(self, by: str) -> None:
        self.by.append(by)
        self.seen.append(self.properties.get(PROPERTY))
        if self._error is not None:
            raise self._error


class Row:
    """What gives a text when it is asked for it the way Spark is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def getUTF8String(self, column: int) -> Row:  # noqa: N802
        assert column == 0
        return self

    def toString(self) -> str:  # noqa: N802
        return self._text


class Conf(dict[str, str]):
    def __init__(self) -> None:
        arrow = "spark.sql.execution.arrow"
        super().__init__({f"{arrow}.maxBytesPerBatch": str(64 << 20), f"{arrow}.maxRecordsPerBatch": "20000"})

    def set(self, key: str, value: str) -> None:
        self[key] = value


def answer(**changed: Any) -> dict[str, Any]:
    told = {"writer": 0, "rows": 1, "checksum": 5, "row_bytes": 80, "payload": {"text": 'a], [{"ä'}}
    return {**told, "attempt": 0, "stage": 1, "of": [3, 7, 2], **changed}


def run(frame: Frame, jobs: Jobs | None = None, rule: int | None = None) -> list[Any]:
    sink: Any = None
    return (jobs or Planned(0)).run(frame, sink, lambda: OWN, rule)  # type: ignore[arg-type]


def test_the_property_is_there_while_the_tasks_run_and_no_longer() -> None:
    frame = Frame(answer(), answer(writer=1))
    assert run(frame) == [answer(), answer(writer=1)]
    assert frame.seen == [to_text(OWN)]
    assert frame.properties == {PROPERTY: None}


def test_the_property_goes_when_the_tasks_fail() -> None:
    frame = Frame(error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        run(frame)
    assert frame.properties == {PROPERTY: None}


def test_many_answers_are_had_at_once() -> None:
    frame, jobs = Frame(*[answer(writer=number) for number in range(33)]), Planned(0)
    assert run(frame, jobs) == run(frame, jobs) == list(frame.answers)
    frame.answers = frame.answers[:32]
    assert run(frame, jobs) == run(frame, jobs) == list(frame.answers)
    assert frame.by == ["rdd", "frame", "frame", "rdd"]


def test_a_plan_that_holds_no_rdd_is_run_once_all_the_same() -> None:
    frame, jobs = Frame(answer(), known=False), Planned(0)
    assert run(frame, jobs) == run(frame, jobs) == [answer()]
    assert frame.by == ["frame", "frame"]
    assert frame.asked == 1


def test_without_partitions_nobody_answers() -> None:
    assert run(Frame()) == []


@pytest.mark.parametrize("of", [[3, 7, 1], [3, 6, 2], [2, 7, 2], None])
def test_an_answer_to_another_attempt_does_not_count(of: Any) -> None:
    """As it would be given by rows that were kept from the attempt before."""
    with pytest.raises(PreCommitFailed, match=re.escape(f"gave an answer to {of}, not to [3, 7, 2]")):
        run(Frame(answer(), answer(of=of)))


def test_an_error_that_a_task_reports_is_passed_on() -> None:
    line = {"error": PenstockError("No.").to_json(), "attempt": 0, "stage": 1}
    assert run(Frame(line)) == [line]


def test_a_replay_summed_by_another_rule_is_not_begun() -> None:
    frame = Frame(answer())
    with pytest.raises(PreCommitFailed, match="rule 1, and the decision's were by 0"):
        run(frame, Planned(1), rule=0)
    with pytest.raises(PreCommitFailed, match="rule 0, and the decision's were by 1"):
        run(frame, Planned(0), rule=1)
    assert frame.seen == []
    assert run(frame, Planned(0), rule=0) == [answer()]


def test_small_rows_lift_the_bound_for_the_next_epoch() -> None:
    frame, jobs = Frame(answer()), Planned(0)
    run(frame, jobs)
    assert frame.conf["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    frame.answers = (answer(row_bytes=1_000_000),)
    run(frame, jobs)
    assert frame.conf["spark.sql.execution.arrow.maxBytesPerBatch"] == str(64 << 20)
