"""Spark's `xxhash64` of whole columns, computed by numpy over Arrow's or Kafka's bytes.

A checksum in the ledger is a sum of such hashes, made by Spark in the writers' tasks. The audit computes it once more,
from what is visible; and a task of `format("penstock")`, whose rows Spark did not hash, computes it itself. A row's
hash is a chain: each column's hash is the seed of the next, a null leaves the seed as it is, and behind the columns
comes one boolean for each that may be null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.checksum import ARROW, FLAT

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Layout = tuple[bool, ...]
"""Of each column, whether its null is part of the hash: Spark leaves it out where a column is never null."""

_PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_P1, _P2, _P3, _P4, _P5 = map(np.uint64, _PRIMES)
_SEED = 42
_DIGITS = 18  # decimals of more are hashed as bytes


@dataclass(frozen=True, slots=True)
class Values:
    """A column as it is hashed: where each value's bytes begin in `data`, and how many; a negative length is null."""

    data: npt.NDArray[np.uint8]
    starts: I64
    lengths: I64


def hash_rows(columns: Sequence[Values], rows: int) -> U64:
    """The chain over the columns, without the booleans behind it: the same in every layout."""
    hashes = np.full(rows, _SEED, np.uint64)
    for column in columns:
        hashes = np.where(column.lengths < 0, hashes, _hash_column(hashes, column))
    return hashes


def finish(hashes: U64, columns: Sequence[Values], layout: Layout) -> U64:
    """The rows' hashes as Spark has them, where the columns may be null as `layout` says."""
    for column, nullable in zip(columns, layout, strict=True):
        if nullable:  # a boolean is hashed as four bytes
            nulls = (column.lengths < 0).astype(np.uint64)
            hashes = _avalanche(_word4(hashes + _P5 + np.uint64(4), nulls))
    return hashes


def values_of(array: pa.Array) -> Values:
    """An Arrow column as it is hashed. `TypeError` for a type whose hash is not known here."""
    kind, nulls = array.type, np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
    signed: Any
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return values_of(array.cast(pa.large_binary()))
    if pa.types.is_large_binary(kind):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        return Values(np.frombuffer(data or b"", np.uint8), ends[:-1], np.where(nulls, -1, np.diff(ends)))
    if pa.types.is_decimal(kind) and kind.precision > _DIGITS:
        return values_of(pa.array([_java_bytes(value, kind.scale) for value in array.to_pylist()], pa.large_binary()))
    if pa.types.is_decimal(kind):
        wide = array.cast(pa.decimal128(38, kind.scale))  # 16 bytes each, of which 8 hold so few digits
        signed = np.where(nulls, 0, np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset :: 2][: len(array)])
    elif pa.types.is_floating(kind):
        signed = np.ascontiguousarray(_filled(array)) + 0.0  # Spark knows one zero and one NaN
        signed[np.isnan(signed)] = np.nan
    elif pa.types.is_timestamp(kind):
        signed = _filled(array.cast(pa.timestamp("us", kind.tz)).view(pa.int64()))
    elif pa.types.is_date32(kind):
        signed = _filled(array.view(pa.int32()))
    elif pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        signed = _filled(array if pa.types.is_int64(kind) else array.cast(pa.int32()))
    else:
        raise TypeError(f"{kind} cannot be hashed")
    width, numbers = signed.dtype.itemsize, np.frombuffer(signed.tobytes(), np.uint8)
    return Values(numbers, np.arange(len(array)) * width, np.where(nulls, -1, width))


def _filled(array: pa.Array) -> Any:
    return pc.fill_null(array, pa.scalar(0, array.type)).to_numpy(zero_copy_only=False)


def _java_bytes(value: Any, scale: int) -> bytes | None:
    if value is None:
        return None
    number = int(value.scaleb(scale))
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _hash_column(seeds: U64, column: Values) -> U64:
    data, lengths = column.data, np.maximum(column.lengths, 0)
    if len(data) < 8:
        data = np.concatenate([data, np.zeros(8, np.uint8)])
    # Every 4 or 8 bytes that follow each other, as numbers; a shifted view spares an addition for each row.
    words = np.lib.stride_tricks.as_strided(data[:8].view("<u8"), (len(data) - 7,), (1,), writeable=False)
    halves = np.lib.stride_tricks.as_strided(data[:4].view("<u4"), (len(data) - 3,), (1,), writeable=False)
    hashes = seeds + _P5
    for live in _chosen(lengths >= 32):
        hashes[live] = _stripes(seeds[live], words, column.starts[live], lengths[live] >> 5)
    hashes += lengths.astype(np.uint64)
    at = column.starts + (lengths & ~31)
    for number in range(3):
        for live in _chosen((lengths & 31) >> 3 > number):
            hashes[live] = _word8(hashes[live], words[8 * number :][at[live]])
    at = column.starts + (lengths & ~7)
    for live in _chosen(lengths & 4 != 0):
        hashes[live] = _word4(hashes[live], halves[at[live]].astype(np.uint64))
    at = column.starts + (lengths & ~3)
    for number in range(3):
        for live in _chosen(lengths & 3 > number):
            hashes[live] = _turn(hashes[live] ^ (data[number:][at[live]].astype(np.uint64) * _P5), 11) * _P1
    return _avalanche(hashes)


def _chosen(rows: Any) -> list[Any]:
    """An index of the rows that are True; none where there is no such row. All of them need no copy."""
    if rows.all():
        return [slice(None)] if rows.size else []
    return [np.flatnonzero(rows)] if rows.any() else []


def _stripes(seeds: U64, words: Any, starts: I64, counts: I64) -> U64:
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds + np.uint64(0), seeds - _P1]
    for number in range(int(counts.max())):
        for live in _chosen(counts > number):
            at = starts[live]
            for lane, sums in enumerate(lanes):
                sums[live] = _round(sums[live], words[32 * number + 8 * lane :][at])
    hashes: Any = sum(_turn(sums, by) for sums, by in zip(lanes, (1, 7, 12, 18), strict=True))
    for sums in lanes:
        hashes = (hashes ^ _round(np.uint64(0), sums)) * _P1 + _P4
    return np.asarray(hashes, np.uint64)


def _turn(values: Any, by: int) -> Any:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _round(sums: Any, words: Any) -> Any:
    return _turn(sums + words * _P2, 31) * _P1


def _word8(hashes: Any, words: Any) -> Any:
    return _turn(hashes ^ _round(np.uint64(0), words), 27) * _P1 + _P4


def _word4(hashes: Any, words: Any) -> Any:
    return _turn(hashes ^ (words * _P1), 23) * _P2 + _P3


def _avalanche(hashes: U64) -> U64:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


# Of rows in a task that Spark did not hash.


class RowHashes:
    """The hash of every row of batches whose columns are those of `fields`, in which each is nullable or not. `rule` is
    the rule of the checksum: Spark's own for flat rows, else the one for which nested columns are text."""

    def __init__(self, nullable: Sequence[bool], rule: int) -> None:
        self._nullable, self._nested = tuple(nullable), rule == ARROW

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        with np.errstate(over="ignore"):
            columns = [values_of(_as_text(column) if self._nested else column) for column in batch.columns]
            hashes = finish(hash_rows(columns, batch.num_rows), columns, self._nullable)
        return pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, pa.py_buffer(np.ascontiguousarray(hashes))])


def rule_of(schema: pa.Schema) -> int:
    """The rule for rows with these columns."""
    return ARROW if any(pa.types.is_nested(field.type) for field in schema) else FLAT


def _as_text(column: pa.Array) -> pa.Array:
    """A nested column as text, with the entries of maps in order; others as they are."""
    if not pa.types.is_nested(column.type):
        return column
    texts = [None if value is None else repr(_ordered(value, column.type)).encode() for value in column.to_pylist()]
    return pa.array(texts, pa.large_binary())


def _ordered(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return sorted(((_ordered(key, kind.key_type), _ordered(item, kind.item_type)) for key, item in value), key=repr)
    if pa.types.is_struct(kind):
        return [_ordered(value[field.name], field.type) for field in kind]
    if pa.types.is_nested(kind):
        return [_ordered(item, kind.value_type) for item in value]
    return value
