"""Writers in the streaming plan: a task writes for the epoch it is told of, or not at all; an answer counts for the
attempt it was given to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from py4j.protocol import Py4JError

from penstock.contracts.sink import SinkScope
from penstock.epoch.channel import Route, Writing
from penstock.epoch.jobs import Jobs
from penstock.epoch.planned import PROPERTY, Planned, from_text, to_text
from penstock.epoch.task import Assignment
from penstock.errors import PenstockError, PreCommitFailed, StrayTask

SCOPE = SinkScope("job", "out", 3)
OWN = Assignment(SCOPE, 7, 2, Writing(Route.TEE, "file:/logs/ä", 1.5), {"committed": {"a": 1}, "mode": None})


def test_what_is_told_arrives() -> None:
    assert from_text(to_text(OWN), SCOPE, "7") == OWN


@pytest.mark.parametrize("route", list(Route))
def test_every_way_can_be_told(route: Route) -> None:
    own = Assignment(SCOPE, 0, 1, Writing(route))
    assert from_text(to_text(own), SCOPE, "0") == own


def test_hints_of_a_thousand_writers_are_packed() -> None:
    hints = {"committed": {f"job:out-g000003-{number:06d}": number for number in range(1000)}}
    own = Assignment(SCOPE, 7, 2, hints=hints)
    text = to_text(own)
    assert len(text) < len(json.dumps(hints)) / 3
    assert from_text(text, SCOPE, "7") == own


@pytest.mark.parametrize(
    ("text", "batch", "why"),
    [
        (None, "7", "told of no epoch"),
        (to_text(OWN), "8", "runs for batch 8, but was told of epoch 7"),
        (to_text(OWN), None, "runs for batch None"),
        (to_text(Assignment(SinkScope("job", "out", 2), 7, 2)), "7", "run 2 of job 'job'"),
        (to_text(Assignment(SinkScope("job", "other", 3), 7, 2)), "7", "sink 'other'"),
        (to_text(Assignment(SinkScope("foreign", "out", 3), 7, 2)), "7", "job 'foreign'"),
        (to_text(OWN).replace('"version":1', '"version":2'), "7", "version 2 of the format"),
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


# In the driver


class Frame:
    """A frame of lines, as much of it as is asked for; remembers which property was set when it was collected."""

    def __init__(self, *answers: Any, error: BaseException | None = None, known: bool = True) -> None:
        self.answers, self._error, self._known = answers, error, known
        self.properties: dict[str, str | None] = {}
        self.seen: list[str | None] = []
        self.by: list[str] = []
        self.conf = Conf()

    sparkSession = sparkContext = _jdf = property(lambda self: self)  # noqa: N815 - Spark's names

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value

    def queryExecution(self) -> Frame:  # noqa: N802
        return self

    analyzed = queryExecution

    def rdd(self) -> Frame:
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

    def getUTF8String(self, _: int) -> Row:  # noqa: N802
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
    frame, jobs = Frame(*[answer(writer=number) for number in range(40)]), Planned(0)
    assert run(frame, jobs) == run(frame, jobs) == list(frame.answers)
    frame.answers = frame.answers[:3]
    assert run(frame, jobs) == run(frame, jobs) == list(frame.answers)
    assert frame.by == ["rdd", "frame", "frame", "rdd"]


def test_a_plan_that_holds_no_rdd_is_run_once_all_the_same() -> None:
    frame = Frame(answer(), known=False)
    assert run(frame) == [answer()]
    assert frame.by == ["frame"]


def test_without_partitions_nobody_answers() -> None:
    assert run(Frame()) == []


@pytest.mark.parametrize("of", [[3, 7, 1], [3, 6, 2], [2, 7, 2], None])
def test_an_answer_to_another_attempt_does_not_count(of: Any) -> None:
    """As it would be given by rows that were kept from the attempt before."""
    with pytest.raises(PreCommitFailed, match="gave an answer to"):
        run(Frame(answer(), answer(of=of)))


def test_an_error_that_a_task_reports_is_passed_on() -> None:
    line = {"error": PenstockError("No.").to_json(), "attempt": 0, "stage": 1}
    assert run(Frame(line)) == [line]


def test_a_replay_summed_by_another_rule_is_not_begun() -> None:
    frame = Frame(answer())
    with pytest.raises(PreCommitFailed, match="rule 1, and the decision's were by 0"):
        run(frame, Planned(1), rule=0)
    assert frame.seen == []
    assert run(frame, Planned(0), rule=0) == [answer()]


def test_small_rows_lift_the_bound_for_the_next_epoch() -> None:
    frame, jobs = Frame(answer()), Planned(0)
    run(frame, jobs)
    assert frame.conf["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    frame.answers = (answer(row_bytes=1_000_000),)
    run(frame, jobs)
    assert frame.conf["spark.sql.execution.arrow.maxBytesPerBatch"] == str(64 << 20)
