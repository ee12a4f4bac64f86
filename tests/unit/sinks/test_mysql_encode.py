"""Rows as text for the server: what is escaped, what is null, where a batch is cut."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import DataError, SchemaMismatch
from penstock.sinks.mysql.types import chunks, lines, load_statement


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def unescaped(field: bytes) -> str | None:
    """As the server reads a field of LOAD DATA."""
    if field == b"\\N":
        return None
    text, at = "", 0
    characters = field.decode()
    while at < len(characters):
        if characters[at] == "\\":
            at += 1
            text += {"t": "\t", "n": "\n"}.get(characters[at], characters[at])
        else:
            text += characters[at]
        at += 1
    return text


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.binary(max_size=5)), min_size=1, max_size=8))
def test_lines_read_back_to_the_same_rows(rows: list[tuple[str | None, bytes | None]]) -> None:
    given = pa.RecordBatch.from_arrays(
        [pa.array([one for one, _ in rows], pa.string()), pa.array([two for _, two in rows], pa.binary())],
        names=["text", "raw"],
    )
    # A newline inside a field follows its backslash as the letter n, so every raw newline ends a row.
    found = [line.split(b"\t") for line in bytes(lines(given)).split(b"\n")[:-1]]
    assert [(unescaped(text), None if raw == b"\\N" else bytes.fromhex(raw.decode())) for text, raw in found] == rows


def test_lines_of_every_kind() -> None:
    given = batch(
        id=[1, None],
        flag=[True, None],
        price=[Decimal("1.50"), None],
        ratio=[0.1, None],
        day=[dt.date(2024, 2, 29), None],
        at=pa.array([0, None], pa.timestamp("us", "Asia/Tokyo")),
        local=pa.array([1, None], pa.timestamp("us")),
    )
    whole = b"1\t1\t1.50\t0.1\t2024-02-29\t1970-01-01 00:00:00.000000\t1970-01-01 00:00:00.000001\n"
    assert bytes(lines(given)) == whole + b"\t".join([b"\\N"] * 7) + b"\n"
    assert bytes(lines(given.slice(1))) == b"\t".join([b"\\N"] * 7) + b"\n"


def test_values_of_every_other_kind() -> None:
    moment = dt.datetime(1969, 12, 31, 23, 59, 59)
    columns = {
        "tiny": (pa.array([-128], pa.int8()), b"-128"),
        "unsigned": (pa.array([255], pa.uint8()), b"255"),
        "large": (pa.array([2**64 - 1], pa.uint64()), b"18446744073709551615"),
        "single": (pa.array([0.1], pa.float32()), b"0.1"),  # a double of these bits is another number
        "clock": (pa.array([dt.time(1, 2, 3, 4)]), b"01:02:03.000004"),
        "coarse": (pa.array([moment], pa.timestamp("s")), b"1969-12-31 23:59:59.000000"),
        "late": (pa.array([253_402_300_800_000_000], pa.timestamp("us")), b"10000-01-01 00:00:00.000000"),
        "words": (pa.array(["a"]).dictionary_encode(), b"a"),
        "nothing": (pa.nulls(1), b"\\N"),
    }
    given = pa.RecordBatch.from_arrays([array for array, _ in columns.values()], names=list(columns))
    assert bytes(lines(given)) == b"\t".join(text for _, text in columns.values()) + b"\n"


def test_bytes_behind_a_null_are_not_sent() -> None:
    array = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(struct.pack("<3i", 0, 3, 5)), pa.py_buffer(b"xxxok")]
    )
    assert bytes(lines(pa.RecordBatch.from_arrays([array], names=["a"]))) == b"\\N\nok\n"


@given(st.lists(st.none() | st.decimals(-1, 1, allow_nan=False, places=37), min_size=1, max_size=6))
@example([Decimal("1.23E-7"), None, Decimal(0), Decimal("-0.0000000123456789012345678901234567890")])
def test_decimals_are_digits(values: list[Decimal | None]) -> None:
    """A number with an exponent would be a DOUBLE: of 38 digits 16 would remain."""
    given = pa.RecordBatch.from_arrays([pa.array(values, pa.decimal128(38, 37))], names=["price"])
    wanted = ["\\N" if value is None else f"{value:.37f}" for value in values]
    assert bytes(lines(given)).decode() == "".join(f"{text}\n" for text in wanted)


def test_decimals_of_whole_hundreds_are_digits_too() -> None:
    given = pa.RecordBatch.from_arrays([pa.array([Decimal("12300")], pa.decimal128(5, -2))], names=["price"])
    assert bytes(lines(given)) == b"12300\n"


def test_the_statements_name_columns_and_turn_digits_into_bytes() -> None:
    statement = load_statement("`d`.`t`", ("id", "odd `name`", "raw"), ("bigint", "string", "binary"))
    assert statement.endswith("(`id`, `odd ``name```, @b2) SET `raw` = UNHEX(@b2)")
    assert "TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'" in statement


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_is_refused_by_column(value: float) -> None:
    with pytest.raises(DataError, match="'price'"):
        lines(batch(id=[1, 2], price=[1.0, value]))
    assert bytes(lines(batch(price=[None, 1.0]))) == b"\\N\n1\n"


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.duration("us")])
def test_what_no_column_takes_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="'odd'"):
        lines(pa.RecordBatch.from_arrays([pa.array([None], kind)], names=["odd"]))


def test_a_batch_is_cut_by_its_size() -> None:
    given = batch(text=["x" * 1000] * 100)
    pieces = list(chunks(given, 10_000))
    assert pa.concat_batches(pieces).equals(given)
    assert {piece.num_rows for piece in pieces[:-1]} == {9}
    assert [piece.num_rows for piece in chunks(batch(text=["x" * 1000] * 3), 10)] == [1, 1, 1]
