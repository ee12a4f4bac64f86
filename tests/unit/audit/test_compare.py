"""Decided beside visible: what is lost, doubled or changed is named with its epoch and writer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.audit.compare import CHANGED, NO_LONGER, NOT_PROVABLE, Decided, Finding, Part, Visible, compare
from penstock.engine.hashing import finish, hash_rows, values_of
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST

LAYOUTS = [(False,), (True,)]
ROWS = {(epoch, writer): [f"{epoch}/{writer}/{row}" for row in range(4)] for epoch in (3, 4) for writer in (0, 1)}


def part(rows: Sequence[str]) -> Part:
    made = Part("here", LAYOUTS)
    made.add([values_of(pa.array(rows, pa.string()))], len(rows))
    return made


def decided(epoch: int, writer: int) -> Decided:
    rows = ROWS[epoch, writer]
    columns = [values_of(pa.array(rows))]
    total = sum(int(each) for each in finish(hash_rows(columns, len(rows)), columns, (True,)))
    return Decided("q", "s", epoch, 1, writer, len(rows), total % 2**64)


DECIDED = [decided(*key) for key in ROWS]


def visible(**changed: list[str] | None) -> Visible:
    """As decided, but for the parts named `eEPOCH_wWRITER`."""
    found = Visible()
    for (epoch, writer), rows in ROWS.items():
        rows_there = changed.get(f"e{epoch}_w{writer}", rows)
        if rows_there is not None:
            found.parts[epoch, 1, writer] = part(rows_there)
    return found


def facts(findings: Sequence[Finding]) -> list[tuple[str, int | None, int | None, int]]:
    return [(finding.kind, finding.epoch, finding.writer, finding.rows) for finding in findings]


def test_what_is_visible_as_decided_is_no_finding() -> None:
    assert compare(DECIDED, visible()) == []


@pytest.mark.parametrize(
    ("rows", "kind", "count"),
    [
        (ROWS[4, 1][1:], LOST, 1),
        ([*ROWS[4, 1], ROWS[4, 1][2]], DUPLICATE, 1),
        ([*ROWS[4, 1], "never sent"], ABORTED, 1),
        ([*ROWS[4, 1][1:], "another"], CHANGED, 1),
        ([*ROWS[4, 1][1:], ROWS[4, 1][1]], CHANGED, 1),
    ],
)
def test_one_row_that_differs_is_named_with_its_epoch_and_writer(rows: list[str], kind: str, count: int) -> None:
    assert facts(compare(DECIDED, visible(e4_w1=rows))) == [(kind, 4, 1, count)]


def test_a_writer_that_is_not_visible_beside_one_that_is_tears_the_epoch() -> None:
    assert facts(compare(DECIDED, visible(e4_w1=None))) == [(LOST, 4, 1, 4)]
    assert facts(compare(DECIDED, visible(e4_w0=None, e4_w1=None))) == [(LOST, 4, 0, 4), (LOST, 4, 1, 4)]


def test_what_the_place_has_given_up_is_no_anomaly() -> None:
    seen = visible(e3_w0=ROWS[3, 0][2:])
    seen.gone[3, 1, 0] = "retention"
    assert facts(compare(DECIDED, seen)) == [(NO_LONGER, 3, 0, 2)]
    whole = visible()
    whole.gone[3, 1, 0] = "retention"
    assert compare(DECIDED, whole) == []


def test_rows_of_no_writer_are_copies_or_were_never_sent() -> None:
    seen = visible()
    seen.others = [part([ROWS[3, 1][0], "alien"])]
    assert facts(compare(DECIDED, seen)) == [(DUPLICATE, 3, 1, 1), (ABORTED, None, None, 1)]
    assert facts(compare(DECIDED, seen, shared=True)) == [(DUPLICATE, 3, 1, 1)]


def test_a_part_that_was_moved_as_a_whole_is_there() -> None:
    seen = visible(e4_w0=None)
    seen.others = [part(ROWS[4, 0])]
    assert compare(DECIDED, seen) == []


def test_where_no_checksum_fits_nothing_is_claimed_of_them() -> None:
    """Other columns than Spark hashed: the numbers of rows are compared, and that is all that is claimed."""
    seen = visible(e4_w1=ROWS[4, 1][1:])
    for found in seen.parts.values():
        found.sums = [1, 2]
    assert facts(compare(DECIDED, seen)) == [(LOST, 4, 1, 1), (NOT_PROVABLE, None, None, 0)]
    assert facts(compare(DECIDED, Visible(unprovable="so it is"))) == [(NOT_PROVABLE, None, None, 0)]


def test_writers_that_the_place_cannot_tell_apart_are_compared_together() -> None:
    seen = Visible(group=lambda writer: writer.epoch)
    seen.parts = {3: part(ROWS[3, 0] + ROWS[3, 1]), 4: part(ROWS[4, 0] + ROWS[4, 1][:-1])}
    assert facts(compare(DECIDED, seen)) == [(LOST, 4, None, 1)]
