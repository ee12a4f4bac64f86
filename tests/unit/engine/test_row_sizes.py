"""The bound on bytes of a batch is lifted only for rows that were small, and always comes back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.contracts.sink import SinkScope
from penstock.engine import output_jobs as module
from penstock.engine import task
from penstock.engine.checksum import FLAT, NESTED
from penstock.engine.output_jobs import SMALL, RowSizes
from penstock.engine.task import Assignment

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
USUAL, UNBOUNDED = str(64 << 20), "2147483647"


class Conf(dict[str, str]):
    """A session's settings."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


def bound(sizes: RowSizes, usual: str = USUAL, rows: str = "20000") -> str:
    """What it is while output `out` is written."""
    conf = Conf({BYTES: usual, ROWS: rows})
    with sizes.bound_batches(conf, "out"):
        during = conf[BYTES]
    assert conf[BYTES] == usual
    return during


def told(*bytes_per_row: float) -> RowSizes:
    sizes = RowSizes()
    sizes.learn("out", bytes_per_row)
    return sizes


def test_it_stays_until_rows_were_seen() -> None:
    assert bound(RowSizes()) == USUAL
    assert bound(told()) == USUAL
    assert bound(told(0.0, 0.0)) == USUAL


def test_the_session_is_not_asked_for_rows_before_sizes_are_known() -> None:
    conf = Conf({BYTES: USUAL})
    with RowSizes().bound_batches(conf, "out"):
        assert conf == {BYTES: USUAL}


def test_it_is_lifted_for_the_smallest_rows_and_batches() -> None:
    assert bound(told(1.0), rows="1") == UNBOUNDED
    assert bound(told(1.0), rows="0") == USUAL, "which is no limit"


def test_it_is_lifted_for_small_rows() -> None:
    assert bound(told(100.0, 0.0)) == UNBOUNDED
    assert bound(told(100.0), usual=f"{USUAL}b") == UNBOUNDED


def test_the_largest_rows_count() -> None:
    assert bound(told(SMALL / 20000, 10.0)) == UNBOUNDED
    assert bound(told(10.0, SMALL / 20000 + 1)) == USUAL


def test_it_comes_back_when_rows_grow_and_goes_when_they_shrink() -> None:
    sizes = told(100.0)
    sizes.learn("out", [10_000.0])
    assert bound(sizes) == USUAL
    sizes.learn("out", [100.0])
    assert bound(sizes) == UNBOUNDED


def test_outputs_are_apart() -> None:
    sizes = RowSizes()
    sizes.learn("other", [100.0])
    assert bound(sizes) == USUAL


def test_what_the_user_set_stays() -> None:
    assert bound(told(1.0), usual="1000000") == "1000000"
    assert bound(told(1.0), rows="0") == USUAL, "without a bound on rows it is the only one"


def test_it_comes_back_after_a_failure() -> None:
    conf = Conf({BYTES: USUAL, ROWS: "20000"})
    with pytest.raises(OSError, match="gone"), told(1.0).bound_batches(conf, "out"):
        raise OSError("gone")
    assert conf[BYTES] == USUAL


# In a session of the query's own, for its next epoch


class Asked:
    """Gives a session's settings, and counts how often."""

    def __init__(self, usual: str = USUAL, rows: str = "20000") -> None:
        self.conf, self.times = Conf({BYTES: usual, ROWS: rows}), 0

    def __call__(self) -> Conf:
        self.times += 1
        return self.conf


def next_bounds(asked: Asked, *epochs: float) -> list[str]:
    """What the bound is after epochs whose largest rows had these sizes."""
    sizes, found = RowSizes(), []
    for bytes_per_row in epochs:
        sizes.learn("out", [bytes_per_row])
        sizes.bound_next(asked, "out")
        found.append(asked.conf[BYTES])
    return found


def test_the_next_epoch_is_planned_with_the_bound_that_this_one_calls_for() -> None:
    epochs = 0.0, 100.0, 100.0, 10_000.0, 0.0, 100.0
    assert next_bounds(Asked(), *epochs) == [USUAL, UNBOUNDED, UNBOUNDED, USUAL, USUAL, UNBOUNDED]


def test_an_epoch_without_rows_brings_the_bound_back() -> None:
    assert next_bounds(Asked(), 100.0, 0.0) == [UNBOUNDED, USUAL]


def test_the_session_is_asked_only_where_the_bound_changes() -> None:
    asked = Asked()
    next_bounds(asked, 0.0, 0.0)
    assert asked.times == 0
    next_bounds(asked, *[100.0] * 50)
    assert asked.times == 2, "once to know it, once to change it"


def test_what_the_user_set_stays_for_the_next_epoch_too() -> None:
    assert next_bounds(Asked("1000000"), 1.0, 1.0) == ["1000000"] * 2
    assert next_bounds(Asked(rows="0"), 1.0) == [USUAL]


# Where each epoch has a writer of its own


class Plan:
    """A frame that knows what was done to it."""

    def __init__(self, steps: list[Any], conf: Conf, reports: list[dict[str, Any]]) -> None:
        self.steps, self._conf, self._reports = steps, conf, reports
        self.sparkSession = SimpleNamespace(conf=conf)

    def then(self, *step: Any) -> Plan:
        return Plan([*self.steps, step], self._conf, self._reports)

    def mapInArrow(self, writer: Any, schema: str) -> Plan:  # noqa: N802
        return self.then("map", writer, schema)

    def collect(self) -> list[tuple[str]]:
        self.steps.append(self._conf[BYTES])
        return [(json.dumps(report),) for report in self._reports]


@pytest.mark.parametrize(("rule", "used"), [(None, FLAT), (NESTED, NESTED)])
def test_an_epochs_rows_are_shaped_hashed_and_written_by_its_assignment(
    monkeypatch: pytest.MonkeyPatch, rule: int | None, used: int
) -> None:
    """And the bound follows from the rows of the epoch before."""
    ran: list[Plan] = []
    first = Assignment(SinkScope("job", "out", 3), 7, 1)
    sink: Any = SimpleNamespace(shape=lambda frame: frame.then("shape"), resolve=lambda kept, after: None)

    def with_plain_names(plan: Plan) -> tuple[Plan, list[str]]:
        ran.append(plan.then("names"))
        return ran[-1], ["a.b"]

    def writer_task(given: Any, assign: Any, *, rule: int, names: list[str]) -> Any:
        assert (given, assign(None) in (first, other), names) == (sink, True, ["a.b"])
        return ("writer", rule)

    monkeypatch.setattr(module, "rule_for", lambda plan: FLAT if plan.steps == [("shape",)] else None)
    monkeypatch.setattr(module, "with_hashes", lambda plan, by: plan.then("hash", by))
    monkeypatch.setattr(task, "with_plain_names", with_plain_names)
    monkeypatch.setattr(task, "writer_task", writer_task)
    jobs, conf = module.EachEpoch(), Conf({BYTES: USUAL, ROWS: "20000"})
    reports: list[dict[str, Any]] = [{"rows": 3, "row_bytes": 100.0}, {"rows": 0}]
    collected: list[Any] = []
    monkeypatch.setattr(Plan, "collect", lambda plan, real=Plan.collect: collected.append(plan) or real(plan))
    other = Assignment(SinkScope("job", "other", 3), 7, 1)
    for own, bound_of_epoch in ((first, USUAL), (first, UNBOUNDED), (other, USUAL)):
        frame: Any = Plan([], conf, reports)
        assert jobs.run(frame, sink, lambda own=own: own, rule) == reports  # type: ignore[misc]
        writer = ("map", ("writer", used), "result string")
        assert collected[-1].steps == [("shape",), ("hash", used), ("names",), writer, bound_of_epoch]
        assert conf[BYTES] == USUAL
