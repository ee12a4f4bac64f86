"""The judge must find every fault, count it exactly, and never see one that is not there."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SchemaMismatch
from penstock.testing.oracle import compare
from tests.support.atomicity import Observation, epoch_atomicity

ids = st.integers(min_value=0, max_value=40)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, int]:
    """Rows, the same rows after drops, copies and strangers, shuffled, and how many there were of each."""
    rows = draw(st.lists(ids, unique=True, max_size=40))
    dropped = draw(st.sets(st.sampled_from(rows))) if rows else set()
    rest = [row for row in rows if row not in dropped]
    copies = draw(st.lists(st.sampled_from(rest), max_size=10)) if rest else []
    strangers = draw(st.lists(st.integers(min_value=100, max_value=105), max_size=5))
    return rows, draw(st.permutations(rest + copies + strangers)), len(dropped), len(copies), len(strangers)


@settings(deadline=None)  # right or wrong, not fast or slow
@given(damaged())
def test_drops_copies_and_strangers_are_counted_exactly(case: tuple[list[int], list[int], int, int, int]) -> None:
    rows, found, dropped, copies, strangers = case
    verdict = compare(rows, found)
    assert (verdict.lost, verdict.duplicated, verdict.unexpected) == (dropped, copies, strangers)
    assert verdict.ok == (not (dropped or copies or strangers))


@settings(deadline=None)
@given(st.lists(ids), st.lists(ids))
def test_every_way_to_give_the_rows_gives_the_same_verdict(expected: list[int], actual: list[int]) -> None:
    truth = compare(expected, actual).to_dict()
    truth.pop("examples")
    ways: list[Callable[[list[int]], object]] = [
        lambda rows: Counter(rows),
        lambda rows: iter(rows),
        lambda rows: np.array(rows, dtype=np.int64),
        lambda rows: pa.chunked_array([pa.array(rows, pa.int64())]),
        lambda rows: pa.array(list(map(str, rows)), pa.string()),
        lambda rows: pa.table(
            {"id": pa.array(rows, pa.int64()), "twice": pa.array([2 * row for row in rows], pa.int64())}
        ),
    ]
    for way in ways:
        verdict = compare(way(expected), way(actual)).to_dict()
        verdict.pop("examples")
        assert verdict == truth
    assert truth["lost"] + truth["found"] - truth["duplicated"] - truth["unexpected"] == truth["expected"]


def test_a_column_against_a_plain_list() -> None:
    assert compare(range(3), [2, 1, 0]).ok
    assert compare(pa.table({"a": [1], "b": ["x"]}), [(1, "x")]).ok


def test_one_wrong_cell_is_a_lost_row_and_an_unexpected_one() -> None:
    expected = pa.table({"id": [1, 2], "amount": [10, 20]})
    verdict = compare(expected, pa.table({"id": [2, 1], "amount": [20, 11]}))
    assert (verdict.lost, verdict.duplicated, verdict.unexpected) == (1, 0, 1)
    assert verdict.examples == {"lost": [(1, 10)], "unexpected": [(1, 11)]}


def test_missing_values_equal_each_other() -> None:
    assert compare(pa.array([None, 1, None]), pa.array([1, None, None])).ok
    assert compare(pa.array([None, 1]), pa.array([1, None, None])).duplicated == 1


def test_columns_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="cannot be compared"):
        compare(pa.table({"a": [1]}), pa.table({"b": [1]}))
    with pytest.raises(SchemaMismatch, match="cannot be compared"):
        compare(pa.table({"a": [1]}), pa.table({"a": ["one"]}))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (["1"], [1]),
        ([1], [True]),
        ([0], [False]),
        ([1], [Decimal(1)]),
        ([1], [1.0]),
        ([b"a"], ["a"]),
        ([("k", 1)], [("k", True)]),
        ([("k", (1, 2))], [("k", (1, 2.0))]),
        ({1: 3}, {True: 3}),
        (range(1, 2), ["1"]),
        (pa.array([1]), [1.0]),
        ([dt.date(2026, 1, 1)], [dt.datetime(2026, 1, 1)]),
    ],
)
def test_a_value_of_another_kind_is_another_value(expected: Any, actual: Any) -> None:
    for one, other in ((expected, actual), (actual, expected)):
        verdict = compare(one, other)
        assert (verdict.lost, verdict.duplicated, verdict.unexpected) == (verdict.expected, 0, verdict.found)
        assert compare(one, one).ok


def test_the_examples_are_the_values_themselves() -> None:
    assert compare(["1", ("a", 2)], [1, ("a", 2)]).examples == {"lost": ["1"], "unexpected": [1]}
    assert compare([("a", (1, None))], []).examples == {"lost": [("a", (1, None))]}


ONE = [1]
KINDS: dict[str, pa.Array] = {
    "bool": pa.array([True]),
    "int": pa.array(ONE, pa.int32()),
    "double": pa.array([1.0]),
    "decimal": pa.array([Decimal(1)], pa.decimal128(3, 1)),
    "text": pa.array(["1"]),
    "binary": pa.array([b"1"]),
    "date": pa.array(ONE, pa.int32()).cast(pa.date32()),
    "time": pa.array(ONE, pa.time64("us")),
    "duration": pa.array(ONE, pa.duration("us")),
    "moment": pa.array(ONE, pa.timestamp("us", "UTC")),
    "wall clock": pa.array(ONE, pa.timestamp("us")),
    "list": pa.array([[1]]),
    "list of text": pa.array([["1"]]),
    "struct": pa.array([{"a": 1}]),
    "struct of text": pa.array([{"a": "1"}]),
    "struct of another name": pa.array([{"b": 1}]),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(KINDS, 2)))
def test_columns_of_two_kinds_are_never_equal(one: str, other: str) -> None:
    for left, right in ((one, other), (other, one)):
        with pytest.raises(SchemaMismatch):
            compare(KINDS[left], KINDS[right])


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.array([1, None], pa.int8()), pa.array([None, 1], pa.int64())),
        (pa.array([1, None], pa.uint8()), pa.array([None, 1], pa.int64())),
        (pa.array([0.1], pa.float32()), pa.array([0.10000000149011612], pa.float64())),
        (pa.array([Decimal("1.5")], pa.decimal128(2, 1)), pa.array([Decimal("1.50")], pa.decimal128(10, 2))),
        (pa.array(["a"]), pa.array(["a"], pa.large_string())),
        (pa.array(["a"]), pa.array(["a"]).dictionary_encode()),
        (pa.array([b"a"]), pa.array([b"a"], pa.large_binary())),
        (pa.array([1_000], pa.timestamp("ms")), pa.array([1_000_000], pa.timestamp("us"))),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("us", "Europe/Berlin"))),
        (pa.array([None, None]), pa.array([None, None], pa.string())),
    ],
)
def test_the_width_of_a_column_does_not_count(narrow: pa.Array, wide: pa.Array) -> None:
    assert compare(narrow, wide).ok
    assert compare(wide, narrow).ok
    assert compare(pa.table({"a": narrow, "b": narrow}), pa.table({"a": wide, "b": wide})).ok


def test_a_value_that_does_not_fit_the_narrower_column_is_found() -> None:
    assert compare(pa.array([0.1], pa.float32()), pa.array([0.1])).unexpected == 1
    assert compare(pa.array([1], pa.timestamp("ms")), pa.array([1_001], pa.timestamp("us"))).unexpected == 1
    assert compare(pa.array([1, None], pa.int8()), pa.array([300, None], pa.int64())).unexpected == 1


def test_people_and_programs_can_read_a_verdict() -> None:
    good, bad = compare([1, 2], [2, 1]), compare([1, 2, 3], [3, 3, 9])
    assert good.lines() == ["2 rows expected, 2 found: each exactly once"]
    assert bad.lines() == [
        "3 rows expected, 3 found",
        "2 lost, such as 1, 2",
        "1 duplicated, such as 3",
        "1 unexpected, such as 9",
    ]
    assert json.loads(json.dumps(bad.to_dict()))["lost"] == 2


def test_five_million_rows() -> None:
    rows = np.arange(5_000_000)
    found = np.concatenate([rows[::-1][:-3], rows[17:19]])
    verdict = compare(rows, found)
    assert (verdict.lost, verdict.duplicated, verdict.unexpected) == (3, 2, 0)


SIZES = {"rows": {0: 10, 1: 10, 2: 10}, "totals": {0: 3, 1: 3, 2: 0}}


def findings(*looks: Observation) -> list[tuple[str, str, int]]:
    return [(one.kind, one.sink, one.epoch) for one in epoch_atomicity(looks, SIZES).sightings]


def look(at: float, rows: dict[int, int], totals: dict[int, int] | None = None, settled: bool = False) -> Observation:
    return Observation(at, {"rows": rows} if totals is None else {"rows": rows, "totals": totals}, settled)


def test_epochs_that_come_one_by_one_are_fine() -> None:
    verdict = epoch_atomicity([look(1, {}), look(2, {0: 10}), look(3, {0: 10, 1: 10}, {0: 3, 1: 3})], SIZES)
    assert verdict.ok
    assert verdict.lines() == ["3 looks by readers, 4 epochs seen: each wholly or not at all"]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([look(1, {0: 4})], [("torn", "rows", 0)]),
        ([look(1, {0: 20})], [("doubled", "rows", 0)]),
        ([look(1, {0: 10, 7: 1})], [("gap", "rows", 1), ("gap", "rows", 2), ("undecided", "rows", 7)]),
        ([look(1, {1: 10})], [("gap", "rows", 0)]),
        ([look(2, {}), look(1, {0: 10})], [("vanished", "rows", 0)]),
        ([look(1, {0: 10}, {}, settled=True)], [("split", "totals", 0)]),
    ],
)
def test_each_kind_of_finding(looks: list[Observation], expected: list[tuple[str, str, int]]) -> None:
    assert findings(*looks) == expected


def test_sinks_may_differ_while_a_commit_is_under_way_but_not_after_it() -> None:
    assert findings(look(1, {0: 10}, {})) == []
    assert findings(look(1, {0: 10, 1: 10, 2: 10}, {0: 3, 1: 3}, settled=True)) == []  # epoch 2 has no totals


def test_two_readers_do_not_make_each_other_liars() -> None:
    looks = [Observation(1, {"rows": {0: 10}}, reader="a"), Observation(2, {"rows": {}}, reader="b")]
    assert findings(*looks) == []


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=2), st.integers(min_value=1, max_value=9))
def test_any_part_of_any_epoch_is_torn(epoch: int, part: int) -> None:
    seen = dict.fromkeys(range(epoch), 10) | {epoch: part}
    assert findings(look(1, seen)) == [("torn", "rows", epoch)]
    verdict = epoch_atomicity([look(1, seen)], SIZES)
    assert json.loads(json.dumps(verdict.to_dict()))["findings"] == {"torn": 1}
    assert f"{part} of 10 rows of epoch {epoch}" in verdict.lines()[1]


def test_a_commit_under_way_may_be_seen_but_nothing_before_and_nothing_after() -> None:
    commits = {"rows": {0: (10.0, 12.0)}}

    def kinds(at: float, rows: int, took: float = 0.0) -> list[str]:
        verdict = epoch_atomicity([Observation(at, {"rows": {0: rows}}, took=took)], SIZES, commits)
        return [one.kind for one in verdict.sightings] + ["under way"] * verdict.under_way

    assert kinds(9, 10) == ["early"]
    assert kinds(9, 4) == ["under way", "early"][::-1]
    assert kinds(9.5, 10, took=1.0) == []  # the look was still going on when the commit began
    assert kinds(11, 4) == ["under way"]
    assert kinds(11.9, 4, took=1.0) == ["under way"]
    assert kinds(12, 4) == ["torn"]
    assert kinds(11, 20) == ["doubled"]


def test_an_epoch_may_come_late_only_while_its_commit_is_under_way() -> None:
    look_past = [Observation(11, {"rows": {1: 10}})]
    assert epoch_atomicity(look_past, SIZES, {"rows": {0: (10.0, 12.0)}}).ok
    assert epoch_atomicity(look_past, SIZES, {"rows": {0: (10.0, 11.0)}}).count("gap") == 1
    verdict = epoch_atomicity([Observation(11, {"rows": {0: 1}})], SIZES, {"rows": {0: (10.0, 12.0)}})
    assert verdict.lines() == [
        "1 looks by readers, 0 epochs seen: each wholly or not at all, but for 1 looks into a commit under way"
    ]
