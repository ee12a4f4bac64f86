"""Records of the marks topic: their text is a durable format, read by the Java writer too."""

from __future__ import annotations

import pytest

from penstock.contracts.lanes import Lane, Mark, Opening, parse_record
from penstock.errors import LedgerCorrupt, LedgerFromTheFuture

QUERY = "0b1c7d2e-2f6a-4f0e-9a57-8f2a3c6d1e11"
Q = QUERY
WRITTEN = {
    Opening(QUERY, 3): f"1 {QUERY} 3 open",
    Mark(QUERY, 3, 120): f"1 {QUERY} 3 mark 120 0 0 0 0",
    Mark(QUERY, 3, 120, part=2, digest=4_294_967_295, rows=77, micros=8_100): (
        f"1 {QUERY} 3 mark 120 2 4294967295 77 8100"
    ),
}


@pytest.mark.parametrize("record", WRITTEN, ids=WRITTEN.get)
def test_a_record_is_the_text_that_the_format_says(record: Opening | Mark) -> None:
    assert record.to_bytes() == WRITTEN[record].encode()
    assert parse_record(WRITTEN[record].encode()) == record


@pytest.mark.parametrize("version", ["0", "2", "17"])
def test_another_format_is_refused_by_name(version: str) -> None:
    with pytest.raises(LedgerFromTheFuture, match=f"format {version}; this version of Penstock knows 1"):
        parse_record(f"{version} {Q} 3 open".encode())


@pytest.mark.parametrize(
    "value",
    [
        "", "1", "2", "one two", "open", f"x {Q} 3 open", f" {Q} 3 open", f"1 {Q} 3", f"1 {Q} three open",
        f"1 {Q} 3 open 4", f"1 {Q} 3 mark 120 0 0 0", f"1 {Q} 3 mark 120 0 0 0 0 0", f"1 {Q} 3 mark a 0 0 0 0",
        f"1 {Q} 3 close", f"1 {Q} 03 open", f"1  {Q} 3 open", f"1 {Q} 3 open\n", f"1 {Q} 3 mark 1_0 0 0 0 0",
    ],
)  # fmt: skip
def test_whatever_else_is_in_the_topic_is_no_record(value: str) -> None:
    with pytest.raises(LedgerCorrupt, match="not Penstock's"):
        parse_record(value.encode())


def test_bytes_that_are_no_text_are_no_record() -> None:
    with pytest.raises(LedgerCorrupt, match="xff"):
        parse_record(b"1 q\xff 3 open")


def test_a_lane_is_written_as_its_records_key() -> None:
    assert str(Lane("orders", 7)) == "orders-7"
    assert sorted([Lane("b", 0), Lane("a", 10), Lane("a", 9)]) == [Lane("a", 9), Lane("a", 10), Lane("b", 0)]


def test_marks_are_ordered_by_offset_and_part() -> None:
    assert Mark(QUERY, 1, 5, 2).position > Mark(QUERY, 9, 5, 1).position > Mark(QUERY, 9, 4, 7).position
