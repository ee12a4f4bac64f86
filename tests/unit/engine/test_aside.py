"""The rows of one task between a sink and its aside sink, without Spark: which go where, what the decision holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.record import SinkShare, sums_of
from penstock.contracts.sink import REFUSED, TRACE, Aside, Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.engine import aside as module
from penstock.engine.aside import Refused, Sifter
from penstock.engine.checksum import HASH_COLUMN, MODULO
from penstock.errors import AsideLimitExceeded, ConfigurationError, DataError, ReplayDiffers

SCOPE = WriterScope(SinkScope("job", "out", 3), epoch=5, attempt=1, partition=2, task_attempt=77)
ASIDE = WriterScope(SinkScope("job", "out.aside", 3), epoch=5, attempt=1, partition=2, task_attempt=77)


class Numbers(TwoPhaseSink):
    """Takes each number once, and no negative one. Odd negative ones are seen in the columns, even ones only by
    trying; a number twice only by trying, too."""

    def __init__(self, *, tries: bool = True) -> None:
        self.tries, self.rows, self.ended, self.pieces = tries, list[Any](), "", 0

    def open_writer(self, scope: WriterScope) -> Writer:
        return (TryingWriter if self.tries else NumbersWriter)(self)

    def open_committer(self, scope: SinkScope) -> Committer:
        raise NotImplementedError


class NumbersWriter(Writer):
    def __init__(self, sink: Numbers) -> None:
        self._sink = sink

    def unfit(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        numbers = batch.column(0).to_pylist()
        return {index: "odd" for index, number in enumerate(numbers) if number < 0 and number % 2}

    def write(self, batch: pa.RecordBatch) -> None:
        assert batch.num_columns == 1
        for number in batch.column(0).to_pylist():
            if isinstance(number, int) and (number < 0 or number in self._sink.rows):
                raise DataError("no such row")
            self._sink.rows.append(number)

    def pre_commit(self) -> Mapping[str, Any]:
        self._sink.ended = "prepared"
        return {"name": "n"}

    def abort(self) -> None:
        self._sink.ended = "aborted"


class TryingWriter(NumbersWriter):
    def try_write(self, batches: Sequence[pa.RecordBatch]) -> str | None:
        before, self._sink.pieces = list(self._sink.rows), self._sink.pieces + 1
        try:
            for batch in batches:
                self.write(batch)
        except DataError as error:
            self._sink.rows = before
            return error.happened
        return None


def batches(*groups: Sequence[int]) -> list[pa.RecordBatch]:
    """Equal numbers have equal hashes; the offset is the row's number."""
    made, first = [], 0
    for group in groups:
        numbers = np.array(group, np.int64)
        at = (3 << 48) + np.arange(first, first + len(group))
        columns = [pa.array(numbers), pa.array(at), pa.nulls(len(group), pa.string()), pa.array(numbers * 7919)]
        made.append(pa.RecordBatch.from_arrays(columns, names=["n", *TRACE, HASH_COLUMN]))
        first += len(group)
    return made


def sift(
    main: Numbers | None,
    other: Numbers | None,
    *groups: Sequence[int],
    decided: Refused | None = None,
    limit: str = "99",
) -> Mapping[str, Any]:
    sifter = Sifter((main, SCOPE), Aside("out", limit, "t"), (other, ASIDE), decided, 0)
    for batch in batches(*groups):
        sifter.write(batch)
    return sifter.finish()


def test_each_row_is_in_one_of_the_two_sinks() -> None:
    main, other = Numbers(), Numbers()
    answer = sift(main, other, [1, -1, 2], [-2, 3, 2], [4])
    assert main.rows == [1, 2, 3, 4]
    found = [json.loads(text) for text in other.rows]
    assert [(body["row"]["n"], body["reason"], body["source"]["offset"]) for body in found] == [
        (-1, "odd", 1), (-2, "no such row", 3), (2, "no such row", 5),
    ]  # fmt: skip
    assert found[0] == {
        "version": 1, "reason": "odd", "sink": "out", "epoch": 5,
        "source": {"topic": "t", "partition": 3, "offset": 1}, "row": {"n": -1},
    }  # fmt: skip
    assert (answer["rows"], answer["aside"]["rows"]) == (4, 3)
    assert answer["checksum"] == sum([1, 2, 3, 4]) * 7919
    refused = {"odd": [[-7919 % MODULO, 0]], "no such row": [[-2 * 7919 % MODULO, 0], [2 * 7919, 1]]}
    assert answer["aside"]["payload"] == {REFUSED: refused, "name": "n"}


def test_without_a_refused_row_the_aside_sink_is_not_opened() -> None:
    main, other = Numbers(), Numbers()
    answer = sift(main, other, [1, 2], [3])
    assert (main.rows, main.ended, main.pieces, other.ended) == ([1, 2, 3], "prepared", 1, "")
    assert answer["aside"] == {"rows": 0, "checksum": 0, "payload": {REFUSED: {}}}


def test_a_sink_that_gets_no_row_prepares_nothing() -> None:
    main, other = Numbers(), Numbers()
    assert sift(main, other, [-1, -2])["payload"] == {}
    assert (main.ended, other.ended) == ("aborted", "prepared")


def test_a_sink_that_can_take_nothing_back_gets_what_its_columns_show() -> None:
    main, other = Numbers(tries=False), Numbers()
    sift(main, other, [1, -1])
    assert (main.rows, len(other.rows)) == ([1], 1)
    with pytest.raises(DataError, match="no such row"):
        sift(Numbers(tries=False), Numbers(), [1, -2])


@given(st.lists(st.lists(st.integers(-4, 6), max_size=12), max_size=4), st.integers(1, 8))
def test_a_replay_goes_by_the_decision_alone(groups: list[list[int]], piece: int) -> None:
    """Into both, into one, or only counted: the same rows, the same checksums; whatever the sink would refuse now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", piece)
        main, other = Numbers(), Numbers()
        answer = sift(main, other, *groups)
    decided = answer["aside"]["payload"][REFUSED]
    assert sorted(main.rows) == sorted({number for group in groups for number in group if number >= 0})
    for again, beside in ((Numbers(), Numbers()), (Numbers(), None), (None, Numbers()), (None, None)):
        replay = sift(again, beside, *groups, decided=decided)
        for name in ("rows", "checksum"):
            assert (replay[name], replay["aside"][name]) == (answer[name], answer["aside"][name])
        assert replay["aside"]["payload"][REFUSED] == decided
        assert again is None or sorted(again.rows) == sorted(main.rows)
        assert beside is None or sorted(beside.rows) == sorted(other.rows)


def test_a_sink_that_refuses_now_what_was_decided_for_it_stops_the_epoch() -> None:
    main = Numbers()
    main.rows = [1]
    with pytest.raises(ReplayDiffers, match="refuses rows now that were decided for it: no such row"):
        sift(main, Numbers(), [1, -1], decided={"odd": [[-7919 % MODULO, 0]]})


def test_a_task_stops_as_soon_as_the_epoch_has_too_many() -> None:
    main = Numbers()
    with pytest.raises(AsideLimitExceeded, match="Epoch 5 would set aside 3 rows"):
        sift(main, Numbers(), [-1, -3, -5], [1], limit="1%, 2")
    assert main.rows == []


@pytest.mark.parametrize(
    ("limit", "rows", "allowed"),
    [("1%", 1_000, 10), ("1%", 5, 1), ("0.5%", 1_000, 5), ("7", 10, 7), ("1%, 7", 1_000, 7), ("50%", 1 << 20, 10_000)],
)
def test_a_limit_is_a_share_a_number_or_both(limit: str, rows: int, allowed: int) -> None:
    Aside("out", limit).check(0, allowed, rows)
    with pytest.raises(AsideLimitExceeded, match=f"aside_limit allows {limit}"):
        Aside("out", limit).check(0, allowed + 1, rows)


@pytest.mark.parametrize("limit", ["", "few", "1 %", "-1", "1%,", "1.5"])
def test_what_is_no_limit_is_refused(limit: str) -> None:
    with pytest.raises(ConfigurationError, match="no limit of rows"):
        Aside("out", limit)


def test_the_sum_is_true_or_says_that_it_cannot_be_counted() -> None:
    shares = [SinkShare("out", 7, 1), SinkShare("out.aside", 2, 1)]
    both = {"out": {"out": 7}, "aside": 2}
    assert sums_of(shares, {"a": 4, "b": 6}, "out.aside", "", True) == {"in": {"a": 4, "b": 6}, **both, "filtered": 1}
    counted = {**both, "not_countable": "Spark has counted 10 rows read"}
    assert sums_of(shares, {"a": 10}, "out.aside", "", False) == counted
    assert sums_of(shares, {"a": 8}, "out.aside", "", True)["not_countable"] == "Spark has counted 8 rows read"
    assert sums_of(shares, None, "out.aside", "", True)["not_countable"] == "Spark has counted 0 rows read"
    assert sums_of(shares, {"a": 9}, "out.aside", "why", True) == {**both, "not_countable": "why"}


def test_a_record_holds_what_python_has_no_value_for() -> None:
    other = Numbers()
    day, moment = pa.array([-3_000_000], pa.int32()).cast(pa.date32()), pa.array([1], pa.timestamp("us", "UTC"))
    columns = [pa.array([-1], pa.int64()), day, moment, pa.array([b"\xff"]), pa.array([5], pa.int64())]
    sifter = Sifter((Numbers(), SCOPE), Aside("out", "9"), (other, ASIDE), None, 0)
    sifter.write(pa.RecordBatch.from_arrays(columns, names=["n", "day", "at", "raw", HASH_COLUMN]))
    [body] = map(json.loads, other.rows)
    assert body["row"] == {"n": -1, "day": "-6244-04-12", "at": "1970-01-01 00:00:00.000001Z", "raw": "/w=="}
    assert body["source"] is None
