"""Rows in the binary form of bulk execution, read back by the protocol's rules."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.sinks.mysql.encode import lines, tuples
from penstock.sinks.mysql.loading import packed

NUMBERS = {0x01: "<b", 0x02: "<h", 0x03: "<i", 0x08: "<q", 0x05: "<d"}


class Reader:
    """As the server reads a packet: plainly, a value after the other."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        ready = packed(batch)
        self._types, self._data, self._at = ready.types, bytes(ready.rows), 0

    def rows(self) -> list[list[Any]]:
        found = []
        while self._at < len(self._data):
            found.append([self._value(*self._types[at : at + 2]) for at in range(0, len(self._types), 2)])
        return found

    def _value(self, kind: int, flags: int) -> Any:
        if self._take("<B") == 1:
            return None
        if kind in NUMBERS:
            return self._take(NUMBERS[kind].upper() if flags else NUMBERS[kind])
        if kind == 0x0C:
            assert self._take("<B") == 11
            parts: list[Any] = [self._take(form) for form in ("<H", "<B", "<B", "<B", "<B", "<B", "<I")]
            return dt.datetime(*parts)
        length = self._take("<B")
        if length > 250:
            size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[length]
            length = int.from_bytes(self._bytes(size), "little")
        raw = self._bytes(length)
        return raw.decode() if kind == 0xFD else raw

    def _take(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        assert self._at <= len(self._data)
        return self._data[self._at - count : self._at]


MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=300),
        st.none() | MOMENTS,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.binary(max_size=300),
        st.none() | st.integers(0, 2**64 - 1),
    ),
    max_size=12,
)
TYPES = [pa.int64(), pa.string(), pa.timestamp("us"), pa.float64(), pa.binary(), pa.uint64()]


@given(ROWS, st.integers(0, 3))
def test_rows_read_back_to_the_same_rows(rows: list[tuple[Any, ...]], skipped: int) -> None:
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(TYPES)]
    batch = pa.RecordBatch.from_arrays(arrays, names=list("abcdef")).slice(skipped)
    assert Reader(batch).rows() == [list(row) for row in rows[skipped:]]


@pytest.mark.parametrize("length", [0, 250, 251, 65_535, 65_536, 1 << 24])
def test_lengths_of_every_size(length: int) -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["x" * length, None, "y"], "n": [1, 2, 3]})
    assert Reader(batch).rows() == [["x" * length, 1], [None, 2], ["y", 3]]


def test_values_of_every_kind() -> None:
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 1)
    columns = {
        "flag": (pa.array([True, None]), 1),
        "tiny": (pa.array([-128, None], pa.int8()), -128),
        "unsigned": (pa.array([255, None], pa.uint8()), 255),
        "small": (pa.array([-32768, None], pa.int16()), -32768),
        "whole": (pa.array([2**31 - 1, None], pa.int32()), 2**31 - 1),
        "single": (pa.array([0.1, None], pa.float32()), "0.1"),  # as text: a double of these bits is another number
        "money": (pa.array([Decimal("1.50"), None]), "1.50"),
        "day": (pa.array([dt.date(2024, 2, 29), None]), "2024-02-29"),
        "clock": (pa.array([dt.time(1, 2, 3, 4), None]), "01:02:03.000004"),
        "zoned": (pa.array([moment, None], pa.timestamp("us", "Asia/Tokyo")), moment),
        "coarse": (pa.array([moment.replace(microsecond=0), None], pa.timestamp("s")), moment.replace(microsecond=0)),
        "words": (pa.array(["a", None]).dictionary_encode(), "a"),
        "nothing": (pa.nulls(2), None),
    }
    batch = pa.RecordBatch.from_arrays([array for array, _ in columns.values()], names=list(columns))
    assert Reader(batch).rows() == [[value for _, value in columns.values()], [None] * len(columns)]


def test_times_that_have_no_binary_form_go_as_text_for_the_server_to_refuse() -> None:
    late = pa.array([253_402_300_800_000_000], pa.timestamp("us"))
    assert Reader(pa.RecordBatch.from_arrays([late], names=["at"])).rows() == [["10000-01-01 00:00:00.000000"]]


def test_bytes_behind_a_null_are_nobody_s() -> None:
    array = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(struct.pack("<3i", 0, 3, 5)), pa.py_buffer(b"xxxok")]
    )
    assert Reader(pa.RecordBatch.from_arrays([array], names=["a"])).rows() == [[None], ["ok"]]


def test_numbers_that_are_none_are_named() -> None:
    with pytest.raises(DataError, match="'price'"):
        packed(pa.RecordBatch.from_pydict({"price": [float("nan")]}))


@given(st.lists(st.none() | st.decimals(-1, 1, allow_nan=False, places=37), min_size=1, max_size=6))
@example([Decimal("1.23E-7"), None, Decimal(0), Decimal("-0.0000000123456789012345678901234567890")])
def test_decimals_are_digits_whichever_way_they_go(values: list[Decimal | None]) -> None:
    """A literal with an exponent would be a DOUBLE: of 38 digits 16 would be left."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.decimal128(38, 37))], names=["price"])
    wanted = [None if one is None else f"{one:.37f}" for one in values]
    assert Reader(batch).rows() == [[one] for one in wanted]
    assert bytes(tuples(batch)).decode() == "".join(f"({one or 'NULL'})," for one in wanted)
    assert bytes(lines(batch)).decode() == "".join(f"{one or chr(92) + 'N'}\n" for one in wanted)


def test_decimals_of_whole_hundreds_are_digits_too() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal("12300")], pa.decimal128(5, -2))], names=["price"])
    assert (bytes(tuples(batch)), Reader(batch).rows()) == (b"(12300),", [["12300"]])
