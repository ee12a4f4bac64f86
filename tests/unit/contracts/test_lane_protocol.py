"""The protocol of lanes, action by action. `test_lanes_exploration.py` has every interleaving."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from penstock.contracts import lanes as lp
from penstock.contracts.lanes import Mark, Opening
from penstock.errors import MarksLost, ReplayDiffers, Superseded, SystemUnavailable
from tests.support import lane_model
from tests.support.lane_traces import follow

OWNER = lp.Owner("q", 3)
OPENING = lp.SendOpening(Opening("q", 3))
BEGUN = Mark("q", 3, 10)
CUT, END, BEGIN = lane_model.Signal.CUT, lane_model.Signal.END, lane_model.Signal.BEGIN
TAKE = lane_model.Take()


class Played:
    """A coroutine whose actions are expected one by one."""

    def __init__(self, coroutine: Generator[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.action = next(coroutine)

    def then(self, expected: Any, answer: Any = None) -> Played:
        assert self.action == expected
        self.action = self._coroutine.send(answer)
        return self

    def ends(self, expected: Any, answer: Any = None) -> Any:
        assert self.action == expected
        with pytest.raises(StopIteration) as end:
            self._coroutine.send(answer)
        return end.value.value

    def opens(self, found: Mark | None) -> Played:
        return self.then(lp.Init()).then(OPENING, 77).then(lp.ReadMark(77), found)

    def row(self, offset: int, digest: int = 0) -> Played:
        row = lane_model.Row(offset, digest)
        return self.then(TAKE, row).then(lane_model.SendRow(row))

    def drop(self, offset: int, digest: int = 0) -> Played:
        return self.then(TAKE, lane_model.Row(offset, digest))

    def commits(self, signal: lane_model.Signal | lane_model.Next, mark: Mark, answer: bool = True) -> Played:
        return self.then(TAKE, signal).then(lp.SendMark(mark)).then(lp.Commit(), answer)


def driver() -> Played:
    return Played(lp.open_by_driver(OWNER))


def task(begun: Mark | None = BEGUN, *, multiplies: bool = False) -> Played:
    return Played(lane_model.run_task(OWNER, begun, multiplies=multiplies))


def mark(offset: int, part: int = 0, digest: int = 0, rows: int = 0) -> Mark:
    return Mark("q", 3, offset, part, digest, rows)


# The driver.


@pytest.mark.parametrize("found", [None, Mark("q", 2, 5), Mark("q", 3, 5), Mark("another", 9, 5)])
def test_a_driver_commits_the_mark_that_it_begins_with(found: Mark | None) -> None:
    played = driver().opens(found).then(lp.Begin(found), BEGUN).then(lp.SendMark(BEGUN))
    assert played.ends(lp.Commit(), True) == BEGUN


def test_a_driver_leaves_a_lane_to_a_newer_generation() -> None:
    played = driver().opens(Mark("q", 4, 5))
    with pytest.raises(Superseded, match="Generation 3 of query q has lost a lane to generation 4 of query q"):
        played.then(lp.Abort())


def test_a_driver_that_must_not_begin_aborts() -> None:
    played = driver().opens(None).then(lp.Begin(None), MarksLost("gone"))
    with pytest.raises(MarksLost, match="gone"):
        played.then(lp.Abort())


def test_a_driver_without_an_answer_opens_anew_and_finds_its_mark() -> None:
    played = driver().opens(None).then(lp.Begin(None), BEGUN).then(lp.SendMark(BEGUN)).then(lp.Commit(), False)
    assert played.opens(BEGUN).ends(lp.Abort()) == BEGUN


def test_a_driver_without_an_answer_opens_anew_and_begins_again() -> None:
    played = driver().opens(None).then(lp.Begin(None), BEGUN).then(lp.SendMark(BEGUN)).then(lp.Commit(), False)
    played = played.opens(None).then(lp.Begin(None), mark(11)).then(lp.SendMark(mark(11)))
    assert played.ends(lp.Commit(), True) == mark(11)


def test_a_clean_stop_without_an_answer_is_not_superseded_by_its_own_mark() -> None:
    closing = Mark("q", 4, 10)
    played = driver().opens(BEGUN).then(lp.Begin(BEGUN), closing).then(lp.SendMark(closing)).then(lp.Commit(), False)
    assert played.opens(closing).ends(lp.Abort()) == closing


# A task.


def test_a_task_drops_what_is_visible_and_marks_what_it_sends() -> None:
    played = task().opens(BEGUN).drop(8).drop(9).row(10).row(12).commits(CUT, mark(13, rows=2))
    played.then(TAKE, CUT).row(13).commits(CUT, mark(14, rows=3))
    assert played.action == TAKE


def test_an_opening_is_committed_though_there_was_no_row() -> None:
    """Else its transaction would hold up all readers until it expires."""
    played = task().opens(mark(12)).commits(CUT, mark(12)).then(TAKE, CUT)
    assert played.action == TAKE


def test_the_counters_of_an_earlier_owner_are_not_carried_on() -> None:
    task().opens(Mark("q", 3, 10, rows=900, micros=4)).row(10).commits(CUT, mark(11, rows=1))


@pytest.mark.parametrize("found", [Mark("q", 4, 50), Mark("another", 1, 50)])
def test_a_task_stops_where_another_run_has_the_lane(found: Mark) -> None:
    played = task().opens(found)
    with pytest.raises(Superseded, match=f"generation {found.generation} of query {found.query}"):
        played.then(lp.Abort())


@pytest.mark.parametrize("found", [None, Mark("q", 3, 9), Mark("q", 2, 50)])
def test_a_task_misses_its_drivers_mark(found: Mark | None) -> None:
    played, there = (
        task().opens(found),
        f"the newest mark is offset {found.offset} (part 0)" if found else "there is no mark",
    )
    with pytest.raises(MarksLost) as lost:
        played.then(lp.Abort())
    assert f": offset 10 (part 0) is known to be visible, but {there}." in lost.value.happened


@pytest.mark.parametrize("found", [None, Mark("q", 2, 50), Mark("another", 9, 50)])
def test_a_task_in_an_added_partition_waits_for_its_driver(found: Mark | None) -> None:
    played = task(None).opens(found).then(lp.Abort()).then(lane_model.Wait())
    played.opens(mark(0)).row(0).commits(CUT, mark(1, rows=1))


def test_a_task_in_an_added_partition_stops_for_a_newer_run() -> None:
    played = task(None).opens(Mark("q", 4, 0))
    with pytest.raises(Superseded):
        played.then(lp.Abort())


def test_a_commit_without_an_answer_was_carried_out() -> None:
    played = task().opens(BEGUN).row(10).commits(CUT, mark(11, rows=1), False).opens(mark(11))
    played.row(11).commits(CUT, mark(12, rows=2)).then(TAKE, CUT)
    assert played.action == TAKE


@pytest.mark.parametrize("found", [BEGUN, mark(12)], ids=["not carried out", "another attempt has gone on"])
def test_a_slice_that_is_not_the_newest(found: Mark) -> None:
    played = task().opens(BEGUN).row(10).commits(CUT, mark(11, rows=1), False).opens(found)
    with pytest.raises(SystemUnavailable, match="did not commit the slice up to offset 11") as stop:
        played.then(lp.Abort())
    assert stop.value.retryable


def test_marks_that_were_committed_are_missed_at_the_next_opening() -> None:
    played = task().opens(BEGUN).row(10).commits(CUT, mark(11, rows=1)).row(11).commits(CUT, mark(12, rows=2), False)
    played.opens(BEGUN)
    with pytest.raises(MarksLost, match=r"offset 11 .*newest mark is offset 10"):
        played.then(lp.Abort())


def test_a_batch_ends_and_another_goes_on() -> None:
    played = task().opens(BEGUN).row(10).commits(END, mark(11, rows=1)).then(TAKE, END).then(TAKE, BEGIN)
    played.drop(10).row(11).commits(END, mark(12, rows=2))
    assert played.action == TAKE


def test_nothing_stays_open_behind_a_batch_that_ended_without_an_answer() -> None:
    played = task().opens(BEGUN).row(10).commits(END, mark(11, rows=1), False).opens(mark(11)).then(lp.Abort())
    played.then(TAKE, CUT).row(11).commits(CUT, mark(12, rows=2))


# Several rows from one source row.


def test_a_mark_inside_a_source_row() -> None:
    played = task(multiplies=True).opens(BEGUN).row(10, 1).row(10, 2).commits(CUT, mark(10, 2, 2, rows=2))
    played.row(10, 3).row(11, 1).commits(CUT, mark(11, 1, 1, rows=4))


def test_the_rest_of_a_source_row_follows() -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22)).drop(9, 5).drop(10, 11).drop(10, 22).row(10, 33)
    played.commits(CUT, mark(10, 3, 33, rows=1))


def test_a_source_row_that_was_visible_as_a_whole() -> None:
    task(multiplies=True).opens(mark(10, 2, 22)).drop(10, 11).drop(10, 22).row(11, 1).commits(CUT, mark(11, 1, 1, 1))


@pytest.mark.parametrize("rows", [[(10, 11), (10, 99)], [(10, 11), (10, 21)], [(10, 22), (11, 1)], [(11, 1)]])
def test_other_rows_than_those_that_are_visible(rows: list[tuple[int, int]]) -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22))
    for offset, digest in rows[:-1]:
        played.drop(offset, digest)
    with pytest.raises(ReplayDiffers, match=f"offset {rows[-1][0]} gives other rows than before: 2 of them"):
        played.drop(*rows[-1])


def test_at_the_end_of_a_batch_its_last_source_row_is_complete() -> None:
    played = task(multiplies=True).opens(BEGUN).row(10, 1).commits(CUT, mark(10, 1, 1, rows=1))
    played.commits(END, mark(11, rows=1)).then(TAKE, BEGIN).row(11, 1)


def test_the_next_source_row_shows_that_the_one_before_is_complete() -> None:
    played = task(multiplies=True).opens(BEGUN).row(10, 1).row(10, 2).commits(lane_model.Next(14), mark(14, rows=2))
    played.row(14, 1).commits(CUT, mark(14, 1, 1, rows=3))


def test_the_next_source_row_is_not_behind_the_mark() -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22)).drop(9, 1).commits(lane_model.Next(10), mark(10, 2, 22))
    played.drop(10, 11).drop(10, 22).commits(lane_model.Next(11), mark(11)).row(11, 1)


def test_the_next_source_row_does_not_stand_for_rows_that_did_not_come() -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22)).drop(9, 1).commits(lane_model.Next(11), mark(10, 2, 22))
    with pytest.raises(ReplayDiffers):
        played.drop(11, 1)


def test_the_next_source_row_is_another_one() -> None:
    task(multiplies=True).opens(BEGUN).row(10, 1).commits(lane_model.Next(10), mark(10, 1, 1, rows=1)).row(10, 2)


def test_a_mark_between_source_rows_does_not_move() -> None:
    task().opens(BEGUN).row(10).commits(lane_model.Next(14), mark(11, rows=1)).then(TAKE, lane_model.Next(15)).row(15)


def test_a_batch_that_ends_before_the_mark_does_not_move_it() -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22)).drop(9, 1).commits(END, mark(10, 2, 22))
    played.then(TAKE, BEGIN).drop(10, 11).drop(10, 22).commits(END, mark(11))


def test_a_batch_that_ends_with_fewer_rows_than_are_visible() -> None:
    played = task(multiplies=True).opens(mark(10, 2, 22)).drop(10, 11)
    with pytest.raises(ReplayDiffers):
        played.then(TAKE, END)


def test_a_new_task_must_prove_the_rows_again() -> None:
    played = task(multiplies=True).opens(mark(10, 1, 11)).drop(10, 11).then(TAKE, BEGIN)
    with pytest.raises(ReplayDiffers):
        played.drop(11, 1)


def test_a_plan_that_gives_several_rows_though_it_must_not() -> None:
    played = task().opens(BEGUN).row(10)
    with pytest.raises(ReplayDiffers, match="offset 10"):
        played.drop(10)


# Traces of the Java writer.

TASK = ["task q 3 single 10 0", "init", "open 77", "read q 3 10 0 0"]
ADDED = ["abort", "wait", "init", "open 80", "read q 3 0 0 0", "row 0 0"]
SEVERAL = ["task q 3 several 10 0", "init", "open 77", "read q 3 10 2 22"]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        TASK[:2],
        [*TASK, "drop 9 0", "row 10 0", "row 12 0", "mark 13 0 0", "commit", "row 13 0"],
        [*TASK, "mark 10 0 0", "commit", "end", "begin", "drop 9 0", "row 10 0", "end", "mark 11 0 0", "commit"],
        [*TASK, "row 10 0", "mark 11 0 0", "unsure", "init", "open 80", "read q 3 11 0 0", "row 11 0"],
        [*TASK, "row 10 0", "mark 11 0 0", "unsure", "init", "open 80", "read q 3 10 0 0", "abort", "gone"],
        [*TASK, "row 10 0", "failed", *TASK, "row 10 0", "abort", "failed", *TASK],
        [*TASK, "row 10 0", "mark 11 0 0", "failed"],
        [*TASK[:3], "read q 4 10 0 0", "abort", "superseded"],
        [*TASK[:3], "read none", "abort", "lost"],
        ["task q 3 single none", *TASK[1:3], "read none", *ADDED],
        [*SEVERAL, "drop 10 11", "drop 10 22", "row 10 33", "mark 10 3 33", "commit", "end", "mark 11 0 0", "commit"],
        [*SEVERAL, "drop 10 11", "drop 10 22", "next 14", "mark 14 0 0", "commit", "row 14 5"],
        [*SEVERAL, "drop 10 11", "differs 10 23"],
        [*SEVERAL, "drop 10 11", "end", "differs"],
    ],
)  # fmt: skip
def test_a_trace_of_the_model(lines: list[str]) -> None:
    assert follow(lines) is None


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["init"], "begins with a task"),
        ([TASK[0], "open 77"], r"line 2, 'open 77': the model goes on with Init"),
        ([*TASK[:2], "read none"], "SendOpening"),
        ([*TASK, "row 9 0"], "the model says 'drop'"),
        ([*TASK, "drop 10 0"], "the model says 'row'"),
        ([*TASK, "row 10 0", "commit"], "the model goes on with Take"),
        ([*TASK, "row 10 0", "mark 12 0 0"], "the mark is 11 0 0"),
        ([*TASK, "row 10 0", "mark 11 0 0", "row 11 0"], "goes on with Commit"),
        ([*TASK, "row 10 0", "mark 11 0 0", "unsure", "row 11 0"], "goes on with Init"),
        ([*TASK, "row 10 0", "mark 11 0 0", "unsure", "commit"], "goes on with Init"),
        ([*TASK, "row 10 0", "mark 11 0 0", "commit", "mark 11 0 0"], "nothing is to be marked"),
        ([*TASK, "mark 10 0 0", "commit", "next 11"], "nothing is to be marked"),
        ([*TASK[:3], "read q 4 10 0 0", "row 10 0"], "goes on with Abort"),
        ([*TASK[:3], "read q 4 10 0 0", "abort", "lost"], "ends with 'superseded'"),
        ([*TASK[:3], "read none", "abort", "lost", "init"], "ends with ''"),
        ([*TASK, "row 10 0", "abort", "row 11 0"], "ends with 'failed'"),
        ([*SEVERAL, "drop 10 11", "drop 10 23"], "the model says 'differs'"),
        ([*SEVERAL, "drop 10 11", "differs 10 22"], "the model says 'drop'"),
    ],
)
def test_a_trace_that_leaves_the_model(lines: list[str], complaint: str) -> None:
    assert complaint in (follow(lines) or "")
