"""The audit's own hash is Spark's: bytes by XXH64, numbers as 4 or 8 bytes, nulls as Spark passes over them."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.checksum import ARROW, FLAT
from penstock.engine.hashing import RowHashes, Values, finish, hash_rows, rule_of, values_of

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def turn(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & MASK


def step(total: int, word: int) -> int:
    return turn((total + word * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int) -> int:
    """The specification of XXH64, row by row."""
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]
    hashed, used = (seed + P5) & MASK, 0
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        used = len(data) // 32 * 4
        for number in range(used):
            lanes[number % 4] = step(lanes[number % 4], words[number])
        hashed = sum(turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            hashed = ((hashed ^ step(0, lane)) * P1 + P4) & MASK
    hashed = (hashed + len(data)) & MASK
    for word in words[used:]:
        hashed = (turn(hashed ^ step(0, word), 27) * P1 + P4) & MASK
    rest = data[len(words) * 8 :]
    if len(rest) >= 4:
        hashed = (turn(hashed ^ (int.from_bytes(rest[:4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
        rest = rest[4:]
    for byte in rest:
        hashed = turn(hashed ^ (byte * P5 & MASK), 11) * P1 & MASK
    hashed = (hashed ^ (hashed >> 33)) * P2 & MASK
    hashed = (hashed ^ (hashed >> 29)) * P3 & MASK
    return hashed ^ (hashed >> 32)


def chain(*columns: bytes | None, nullable: tuple[bool, ...] = ()) -> int:
    hashed = 42
    for column in columns:
        hashed = hashed if column is None else xxh64(column, hashed)
    for column, flagged in zip(columns, nullable, strict=False):
        hashed = xxh64((column is None).to_bytes(4, "little"), hashed) if flagged else hashed
    return hashed


def hashes(columns: list[Values], rows: int, layout: tuple[bool, ...]) -> list[int]:
    return [int(value) for value in finish(hash_rows(columns, rows), columns, layout)]


def test_bytes_of_every_length_null_and_empty() -> None:
    draw = random.Random(1)
    values = [None, b"", *(draw.randbytes(length) for length in range(140))]
    keys = [draw.randbytes(draw.randrange(40)) for _ in values]
    columns = [values_of(pa.array(values, pa.binary())), values_of(pa.array(keys, pa.large_binary()))]
    for layout in ((True, True), (False, True), (False, False)):
        expected = [chain(value, key, nullable=layout) for value, key in zip(values, keys, strict=True)]
        assert hashes(columns, len(values), layout) == expected


def test_a_slice_is_hashed_as_its_own_rows() -> None:
    array = pa.array(["a", None, "bc" * 40, "d"])
    assert hashes([values_of(array.slice(1))], 3, (True,)) == [
        chain(None, nullable=(True,)), chain(b"bc" * 40, nullable=(True,)), chain(b"d", nullable=(True,))
    ]  # fmt: skip
    assert hashes([values_of(array.slice(0, 1))], 1, (False,)) == [chain(b"a")]
    large = array.cast(pa.large_binary())
    assert hashes([values_of(large.slice(1, 2))], 2, (False,)) == [chain(None), chain(b"bc" * 40)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(10, 0), pa.decimal128(30, 0), pa.float64(), pa.bool_()])
def test_numbers_of_a_slice_are_hashed_as_their_own_rows(kind: pa.DataType) -> None:
    array = pa.array(range(9), pa.int32()).cast(kind)
    whole = hashes([values_of(array)], 9, (True,))
    assert hashes([values_of(array.slice(2, 5))], 5, (True,)) == whole[2:7]


def test_a_layout_of_another_number_of_columns_is_refused() -> None:
    columns = [values_of(pa.array([1], pa.int64()))]
    with pytest.raises(ValueError, match="argument"):
        finish(hash_rows(columns, 1), columns, (True, False))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, -1, None], pa.int64()), [(1).to_bytes(8, "little"), b"\xff" * 8, None]),
        (pa.array([1, -1], pa.int16()), [b"\1\0\0\0", b"\xff" * 4]),
        (pa.array([True, False, None]), [b"\1\0\0\0", b"\0\0\0\0", None]),
        (pa.array([0.0, -0.0], pa.float64()), [b"\0" * 8, b"\0" * 8]),
        (pa.array([float("nan")], pa.float32()), [b"\0\0\xc0\x7f"]),
        (pa.array([3], pa.date32()), [b"\3\0\0\0"]),
        (pa.array([5], pa.timestamp("us", "UTC")), [b"\5" + b"\0" * 7]),
        (pa.array([Decimal("-1.50"), None], pa.decimal128(10, 2)), [(-150).to_bytes(8, "little", signed=True), None]),
        (pa.array([Decimal(10**17), Decimal(-1)], pa.decimal128(18, 0)), [(10**17).to_bytes(8, "little"), b"\xff" * 8]),
        (pa.array([Decimal("-1.50"), Decimal("1.28")], pa.decimal128(30, 2)), [b"\xff\x6a", b"\0\x80"]),
        (pa.array([Decimal("-1.28"), Decimal("1.27"), None], pa.decimal128(30, 2)), [b"\x80", b"\x7f", None]),
        (pa.array([Decimal(0), Decimal(-1)], pa.decimal128(19, 0)), [b"\0", b"\xff"]),
        (pa.array([None], pa.decimal128(30, 2)), [None]),
        (pa.array([None, 1], pa.int16()), [None, b"\1\0\0\0"]),
        (pa.array([None, 1.0], pa.float32()), [None, b"\0\0\x80\x3f"]),
        (pa.array([None, 1.0], pa.float64()), [None, b"\0" * 6 + b"\xf0\x3f"]),
        (pa.array([None, 3], pa.date32()), [None, b"\3\0\0\0"]),
        (pa.array([None, 5], pa.timestamp("us")), [None, b"\5" + b"\0" * 7]),
    ],
)
def test_numbers_are_the_bytes_that_spark_hashes(array: pa.Array, expected: list[bytes | None]) -> None:
    assert hashes([values_of(array)], len(array), (False,)) == [chain(value) for value in expected]


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match=r"list<item: int64> cannot be hashed"):
        values_of(pa.array([[1]]))


def test_no_rows() -> None:
    assert hash_rows([values_of(pa.array([], pa.binary()))], 0).dtype == np.uint64


# The rows of a task


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@pytest.mark.parametrize("layout", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("rows", [0, 1, 100])
def test_the_rows_of_a_task_are_hashed_as_spark_hashes_them(layout: tuple[bool, ...], rows: int) -> None:
    numbers, texts = [number or None for number in range(rows)], [f"row {number}" for number in range(rows)]
    batch = pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": pa.array(texts, pa.string())})
    hashed = RowHashes(layout, FLAT).of(batch)
    assert hashed.type == pa.int64()
    assert hashed.null_count == 0
    assert hashed.to_pylist() == [
        signed(chain(number.to_bytes(8, "little") if number else None, text.encode(), nullable=layout))
        for number, text in zip(numbers, texts, strict=True)
    ]


def test_no_warning_of_sums_that_overflow_reaches_the_log() -> None:
    with np.errstate(over="raise"):
        RowHashes([True], FLAT).of(pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int64())}))


MAP = pa.map_(pa.int32(), pa.list_(pa.string()))
NESTED_VALUES: list[tuple[pa.DataType, Any, bytes | None]] = [
    (pa.list_(pa.int32()), [1, None], b"[1, None]"),
    (pa.struct([("b", pa.int32()), ("a", pa.string())]), {"a": "x", "b": None}, b"[None, 'x']"),
    (MAP, [(9, ["a"]), (10, None)], b"[(10, None), (9, ['a'])]"),
    (pa.map_(pa.string(), pa.int32()), [("b", 1), ("a", 2)], b"[('a', 2), ('b', 1)]"),
    (pa.list_(MAP), [[(9, []), (10, [None])], None], b"[[(10, [None]), (9, [])], None]"),
    (pa.struct([("m", MAP)]), {"m": [(9, []), (10, [])]}, b"[[(10, []), (9, [])]]"),
    (
        pa.map_(pa.struct([("m", MAP)]), MAP),
        [({"m": [(9, []), (10, [])]}, [(9, []), (10, [])])],
        b"[([[(10, []), (9, [])]], [(10, []), (9, [])])]",
    ),
    (pa.list_(pa.int32()), None, None),
]


@pytest.mark.parametrize(("kind", "value", "text"), NESTED_VALUES)
def test_nested_columns_are_hashed_as_text_with_the_entries_of_maps_in_order(
    kind: pa.DataType, value: Any, text: bytes | None
) -> None:
    """Two replays may give the entries of a map in any order; all else of a row tells it from others."""
    batch = pa.RecordBatch.from_arrays([pa.array([7], pa.int64()), pa.array([value], kind)], names=["n", "nested"])
    assert rule_of(batch.schema) == ARROW
    [hashed] = RowHashes([False, True], ARROW).of(batch).to_pylist()
    assert hashed == signed(chain((7).to_bytes(8, "little"), text, nullable=(False, True)))
    with pytest.raises(TypeError):
        RowHashes([False, True], FLAT).of(batch)


def test_flat_rows_have_the_rule_of_sparks_own_hash() -> None:
    assert rule_of(pa.schema([("n", pa.int64()), ("text", pa.string())])) == FLAT
    assert rule_of(pa.schema([("n", pa.int64()), ("list", pa.list_(pa.int64()))])) == ARROW
