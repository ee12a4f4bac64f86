"""What a drill accuses a job of, and what it leaves open."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.audit.compare import Decided, Finding
from penstock.drill.run import Ran
from penstock.drill.verdict import (
    OTHER_ROWS,
    Drill,
    Mistake,
    Result,
    differ,
    is_torn,
    other_columns,
    out_of_order,
    page_of,
)
from penstock.testing.anomalies import DUPLICATE, LOST, ORDER

pytestmark = pytest.mark.unit


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def kinds(expected: pa.Table, actual: pa.Table) -> list[str]:
    return [kind for kind, _, _ in differ(expected, actual, "the plan")]


def test_rows_in_another_order_are_the_same() -> None:
    assert kinds(table(id=[1, 2, 2]), table(id=[2, 1, 2])) == []


def test_lost_doubled_and_other_rows_are_told_apart_with_examples() -> None:
    assert kinds(table(id=[1, 2]), table(id=[1])) == ["lost"]
    assert kinds(table(id=[1, 2]), table(id=[1, 2, 2])) == ["doubled"]
    assert kinds(table(id=[1, 2]), table(id=[1, 3])) == [OTHER_ROWS]
    assert kinds(table(id=[1]), table(id=[1, 3])) == [OTHER_ROWS]
    ((_, why, examples),) = differ(table(id=[1, 2]), table(id=[1, 3]), "the Python function stamp")
    assert "the Python function stamp" in why
    assert examples == ["3, calm: 2"]


def test_the_last_digits_of_a_float_are_no_difference() -> None:
    assert kinds(table(sum=[0.1 + 0.2 + 0.3]), table(sum=[0.3 + 0.2 + 0.1])) == []
    assert kinds(table(at=[1795124056.1234]), table(at=[1795124056.1251])) == [OTHER_ROWS]


def test_a_column_that_differs_is_named() -> None:
    left, right = table(id=[1, 2], at=[1.5, 2.5]), table(id=[1, 2], at=[1.75, 2.5])
    assert other_columns(left, right) == ["at"]
    assert other_columns(left, table(id=[1, 3], at=[1.5, 7.5])) == []


def test_a_field_of_json_that_differs_is_named() -> None:
    left = table(value=[b'{"id": 1, "at": 5}', b'{"id": 2, "at": 6}'])
    assert other_columns(left, table(value=[b'{"id": 1, "at": 7}', b'{"id": 2, "at": 6}'])) == ["at"]
    assert other_columns(table(value=[b"no JSON"]), table(value=[b"neither"])) == []


def test_other_columns_than_those_of_the_calm_run_are_other_rows() -> None:
    assert kinds(table(id=[1]), table(name=["a"])) == [OTHER_ROWS]


def of_key(*rows: tuple[bytes | None, bytes]) -> pa.Table:
    return pa.table([[row[0] for row in rows], [row[1] for row in rows]], names=["key", "value"])


def test_order_is_judged_within_a_key_and_by_rows_that_are_there_once() -> None:
    calm = of_key((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"x"), (b"c", b"y"), (b"c", b"x"))
    assert list(out_of_order(calm, of_key((b"b", b"1"), (b"a", b"1"), (b"a", b"2"), (b"c", b"y"), (b"c", b"x")))) == []
    ((kind, _, examples),) = out_of_order(calm, of_key((b"a", b"2"), (b"b", b"1"), (b"a", b"1")))
    assert kind == ORDER
    assert examples


def test_an_epoch_is_torn_where_other_rows_of_it_are_visible() -> None:
    decided = [Decided("q", "out", epoch, 1, writer, 10, 0) for epoch in (0, 1) for writer in (0, 1)]
    assert is_torn(Finding(LOST, "q", "out", 10, "", 1, 0), decided)
    assert not is_torn(Finding(LOST, "q", "out", 20, "", 1, None), decided)
    assert not is_torn(Finding(DUPLICATE, "q", "out", 10, "", 1, 0), decided)


@pytest.mark.parametrize("ended", ["stopped", "failed", "hung"])
def test_a_calm_run_that_has_not_read_the_same_input_is_no_witness(ended: str) -> None:
    result = Result("job", 7, calm=Ran(ended, "no memory"))
    drill = Drill.__new__(Drill)
    drill._result = result
    drill._compare(None, None, ())  # type: ignore[arg-type]
    assert result.mistakes == []
    assert result.not_judged == ["the calm run did not end in its time: no memory"]


def test_the_status_accuses_only_for_mistakes() -> None:
    result = Result("job", 7)
    assert (result.status, result.verdict) == (0, "Every row arrived exactly once.")
    result.not_judged.append("the sink")
    assert result.status == 3
    result.mistakes.append(Mistake(OTHER_ROWS, "sink out", "why"))
    assert result.status == 1


def test_the_report_holds_everything_and_loads_nothing() -> None:
    result = Result("job", 7, mistakes=[Mistake(OTHER_ROWS, "sink out", "</script><b>", ("1, calm: 2",))])
    result.drilled = Ran(faults=[{"at": 1.0, "kind": "kill", "target": "jvm", "lasts": 0.0}])
    page = page_of(result)
    data = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(result.to_dict()))
    assert not any(word in page for word in ("src=", "href=", "@import", "url("))
