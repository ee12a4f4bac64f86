"""Where lanes begin and end."""

from __future__ import annotations

import re

import pytest

from penstock.contracts.lanes import Mark, Owner
from penstock.engine.lanes import Known, begin, end, for_micro_batches
from penstock.errors import MarksLost, NotRestorable, Superseded

OWNER = Owner("q", 3)
P = Mark("q", 1, 10, 2, digest=5)
OURS, THEIRS = "q", "z"
NOTHING: list[Mark | None] = [None, Mark(OURS, 2, 50, rows=7, micros=8), Mark(THEIRS, 2, 50)]


@pytest.mark.parametrize(
    "found", [Mark(OURS, 2, 10, 2, 5), Mark(OURS, 2, 10, 3, 6, rows=7, micros=8), Mark(OURS, 2, 11)]
)
def test_a_lane_goes_on_at_its_mark(found: Mark) -> None:
    assert begin(OWNER, Known(OURS, P), found) == Mark(OURS, 3, found.offset, found.part, found.digest)


@pytest.mark.parametrize("found", [None, Mark(OURS, 2, 10, 1), Mark(OURS, 2, 9, 7)])
def test_a_mark_behind_the_ledger_is_lost(found: Mark | None) -> None:
    there = "there is no mark" if found is None else f"the newest mark is offset {found.offset} (part {found.part})"
    with pytest.raises(MarksLost, match=re.escape(f"offset 10 (part 2) is known to be visible, but {there}.")):
        begin(OWNER, Known(OURS, P), found)


@pytest.mark.parametrize("found", NOTHING)
@pytest.mark.parametrize("position", [None, P])
def test_a_topic_that_was_replaced_has_lost_its_marks(found: Mark | None, position: Mark | None) -> None:
    there = "the newest mark is offset 50" if found else "there is no mark"
    with pytest.raises(MarksLost, match=f"the topic was replaced, but {there}"):
        begin(OWNER, Known(OURS, position, replaced=True), found)


@pytest.mark.parametrize("theirs", ["a", THEIRS])
def test_another_history_that_took_the_lane_is_named(theirs: str) -> None:
    with pytest.raises(Superseded, match=f"Query {theirs} has opened the lanes of query q"):
        begin(OWNER, Known(OURS, P), Mark(theirs, 1, 99))


def test_a_partition_that_was_added_goes_on_at_its_mark_or_begins() -> None:
    assert begin(OWNER, Known(OURS, first=4), Mark(OURS, 2, 7)) == Mark(OURS, 3, 7)
    assert begin(OWNER, Known(OURS, first=4), Mark(THEIRS, 2, 7)) == Mark(OURS, 3, 4)
    assert begin(OWNER, Known(OURS, first=4), None) == Mark(OURS, 3, 4)


@pytest.mark.parametrize("found", NOTHING)
@pytest.mark.parametrize("lanes", [None, THEIRS])
def test_without_lanes_of_this_query_in_the_ledger_marks_mean_nothing(found: Mark | None, lanes: str | None) -> None:
    position = Mark("", 0, 10, 2, digest=5)
    assert begin(OWNER, Known(lanes, position, replaced=True, first=4), found) == Mark(OURS, 3, 10, 2, 5)
    assert begin(OWNER, Known(lanes, first=4), found) == Mark(OURS, 3, 4)
    assert begin(OWNER, Known(), found) == Mark(OURS, 3, 0)


def test_a_clean_stop_is_for_the_next_generation() -> None:
    assert end(OWNER, Known(OURS, P), Mark(OURS, 3, 12, 1, 9, rows=4)) == Mark(OURS, 4, 12, 1, 9)
    with pytest.raises(MarksLost):
        end(OWNER, Known(OURS, P), None)


def test_micro_batches_take_over_between_source_rows_alone() -> None:
    assert for_micro_batches(Mark(OURS, 3, 12)) == 12
    with pytest.raises(NotRestorable, match="2 rows of offset 10 are visible"):
        for_micro_batches(P)
