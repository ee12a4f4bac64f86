"""The files of the hashmap backend: records and compressed streams."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark_state.store_rows import records, snapshot

ROWS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=30)


def array(rows: list[bytes]) -> pa.Array:
    return pa.array(rows, pa.binary())


def expected(rows: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(struct.pack(">i", len(part)) + part for row in rows for part in row)


def unpacked(data: bytes) -> bytes:
    return bytes(pa.input_stream(pa.py_buffer(data), compression="zstd").read())


@given(ROWS)
def test_records(rows: list[tuple[bytes, bytes]]) -> None:
    keys, values = array([key for key, _ in rows]), array([value for _, value in rows])
    assert bytes(records(keys, values)) == expected(rows)
    assert bytes(records(keys[1:], values[1:])) == expected(rows[1:])


@pytest.mark.parametrize("size", [0, 1, 700_000])
def test_a_snapshot_ends_with_its_mark(size: int) -> None:
    """In more than one frame, and with nothing at all."""
    rows = [(struct.pack(">q", n), bytes(n % 97)) for n in range(size // 50)]
    halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    batches = [(array([key for key, _ in half]), array([value for _, value in half])) for half in halves]
    assert unpacked(b"".join(snapshot(batches))) == expected(rows) + b"\xff\xff\xff\xff"
