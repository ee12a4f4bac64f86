"""The C structs built from Arrow arrays, read back through ctypes as librdkafka would."""

from __future__ import annotations

import ctypes as c
import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DataError, SchemaMismatch
from penstock.kafka.librdkafka import Message
from penstock.sinks.kafka.producer import ARGUMENT, MESSAGE, arguments, messages, plain, spans

VALUES = [b"one", None, b"", b"four"]


def read(address: int, length: int) -> bytes | None:
    return None if address == 0 else c.string_at(int(address), int(length))


def seen(array: pa.Array) -> list[bytes | None]:
    return [read(a, n) for a, n in zip(*spans(array), strict=True)]


def test_the_numpy_struct_is_the_c_struct() -> None:
    assert MESSAGE.itemsize == c.sizeof(Message)
    fields = MESSAGE.fields
    assert fields is not None
    for name in ("err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "private"):
        assert fields[name][1] == getattr(Message, name).offset
    assert ARGUMENT.itemsize == 72


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_null_and_empty_differ(kind: pa.DataType) -> None:
    assert seen(pa.array(VALUES, kind)) == VALUES


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_are_their_utf8_bytes(kind: pa.DataType) -> None:
    assert seen(pa.array(["é", None, ""], kind)) == ["é".encode(), None, b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize(("start", "length"), [(0, 4), (1, 3), (2, 1), (3, 1), (4, 0)])
def test_slices(kind: pa.DataType, start: int, length: int) -> None:
    assert seen(pa.array(VALUES, kind).slice(start, length)) == VALUES[start : start + length]


def test_only_nulls_only_empties_and_nothing() -> None:
    assert seen(pa.nulls(3, pa.binary())) == [None] * 3
    assert seen(pa.array([b"", b""])) == [b"", b""]
    assert seen(pa.array([], pa.binary())) == []


def test_partition_null_means_choose() -> None:
    built = messages(pa.array([b"a", b"b"]), None, pa.array([3, None], pa.int32()))
    assert built["partition"].tolist() == [3, -1]
    assert built["key"].tolist() == [0, 0]


def test_arguments_carry_timestamp_and_headers() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array(
        [
            [{"key": "dropped", "value": b"x"}],
            [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
            None,
            [],
            [{"key": "a", "value": b""}],
        ],
        kind,
    ).slice(1)
    values, keys = pa.array([b"v1", b"v2", b"v3", b"v4"]), pa.array([b"k", None, b"", b"k"])
    rows = messages(values, keys, None)  # points into the two
    stamps = pa.array([moment, None, moment, moment], pa.timestamp("us", "UTC"))
    built = arguments(rows, np.full(4, 77, "u8"), stamps, headers)

    assert built.counts == [8, 6, 6, 7]
    told = [[(int(a["vtype"]), a) for a in _row(built, n)] for n in range(4)]
    assert [tag for tag, _ in told[0]] == [2, 3, 4, 5, 7, 8, 9, 9]
    assert int(told[0][0][1]["a"]) == 77
    assert np.int32(np.uint32(told[0][1][1]["a"])) == -1
    assert read(told[0][2][1]["a"], told[0][2][1]["b"]) == b"v1"
    assert int(told[0][5][1]["a"]) == int(moment.timestamp() * 1000)
    assert int(told[1][5][1]["a"]) == 0
    named = [(c.string_at(int(a["a"])), read(a["b"], a["c"])) for tag, a in told[0] if tag == 9]
    assert named == [(b"a", b"1"), (b"b", None)]
    assert [(c.string_at(int(a["a"])), read(a["b"], a["c"])) for tag, a in told[3] if tag == 9] == [(b"a", b"")]


@pytest.mark.parametrize("micros", [0, 1, -1, 999, -999])
def test_the_first_moment_of_1970_is_refused_because_the_client_takes_it_for_none(micros: int) -> None:
    rows = messages(pa.array([b"a", b"b", b"c"]), None, None)
    stamps = pa.array([None, micros, 1000], pa.timestamp("us", "UTC"))
    with pytest.raises(DataError, match="1 rows have a timestamp within a millisecond of 1970"):
        arguments(rows, np.zeros(3, "u8"), stamps, None)


def test_times_before_1970_are_carried_as_they_are() -> None:
    rows, micros = messages(pa.array([b"a"] * 4), None, None), [-1000, 1000, -86_400_000_000, None]
    built = arguments(rows, np.zeros(4, "u8"), pa.array(micros, pa.timestamp("us", "UTC")), None)
    assert [int(_row(built, n)[5]["a"].view("i8")) for n in range(4)] == [-1, 1, -86_400_000, 0]


PAIRS = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS: list[Any] = [
    [{"key": "a", "value": b"one"}, {"key": "b", "value": None}],
    None,
    [],
    [{"key": "a", "value": b""}],
]
WANTED = [[(b"a", b"one"), (b"b", None)], [], [], [(b"a", b"")]]


def hidden() -> pa.Array:
    """The second row is null, and yet has values behind it."""
    flat = [*HEADERS[0], {"key": "never", "value": b"never"}, *HEADERS[3]]
    mask = pa.array([False, True, False, False])
    return pa.ListArray.from_arrays(pa.array([0, 2, 3, 3, 4], pa.int32()), pa.array(flat, PAIRS), mask=mask)


def dictionaries() -> pa.Array:
    flat = pa.array([*HEADERS[0], *HEADERS[3]], PAIRS)
    parts = [part.dictionary_encode() for part in flat.flatten()]
    offsets = pa.array([0, 2, None, 2, 3], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(parts, ["key", "value"]))


LAYOUTS = {
    "list": lambda: pa.array(HEADERS, pa.list_(PAIRS)),
    "large list": lambda: pa.array(HEADERS, pa.large_list(PAIRS)),
    "slice": lambda: pa.array([[{"key": "no", "value": b"no"}], *HEADERS, None], pa.list_(PAIRS)).slice(1, 4),
    "hidden": hidden,
    "dictionaries": dictionaries,
    "large values": lambda: pa.array(
        HEADERS, pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    ),
    "views": lambda: pa.array(HEADERS, pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))),
    "list view": lambda: pa.array(HEADERS, pa.list_view(PAIRS)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_headers_stay_readable_whatever_their_layout(layout: str) -> None:
    rows = messages(pa.array([b"v"] * 4), None, None)
    headers = LAYOUTS[layout]()
    built = arguments(rows, np.zeros(4, "u8"), None, headers)
    told = [[a for a in _row(built, n) if int(a["vtype"]) == 9] for n in range(4)]
    assert [[(c.string_at(int(a["a"])), read(a["b"], a["c"])) for a in row] for row in told] == WANTED
    # Nothing but what was given, or what is kept with the result, may be pointed at.
    alive = [(b.address, b.address + b.size) for array in (headers, *built.kept) for b in _buffers(array)]
    for a in (a for row in told for a in row if a["c"]):
        assert any(start <= a["b"] and a["b"] + a["c"] <= end for start, end in alive)


def _buffers(array: object) -> list[pa.Buffer]:
    return [b for b in array.buffers() if b is not None] if isinstance(array, pa.Array) else []


@pytest.mark.parametrize(
    "array",
    [
        pa.array(VALUES).dictionary_encode(),
        pa.array(VALUES, pa.binary_view()),
        pa.array(["one", None, "", "four"], pa.string_view()),
        pa.chunked_array([VALUES[:1], VALUES[1:]]),
        pa.array([b"no", *VALUES], pa.binary_view()).slice(1),
    ],
    ids=["dictionary", "view", "string view", "chunks", "sliced view"],
)
def test_other_layouts_are_made_plain(array: pa.Array) -> None:
    made = plain(array)
    assert seen(made) == VALUES


def test_what_is_plain_is_not_copied() -> None:
    array = pa.array(VALUES)
    assert plain(array) is array


def test_a_header_that_is_null_has_no_key() -> None:
    rows = messages(pa.array([b"v"]), None, None)
    with pytest.raises(SchemaMismatch, match="1 headers have no key"):
        arguments(rows, np.zeros(1, "u8"), None, pa.array([[None]], pa.list_(PAIRS)))


@pytest.mark.parametrize("key", [None, "a\0b"])
def test_headers_that_cannot_be_written(key: str | None) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = messages(pa.array([b"v"]), None, None)
    with pytest.raises(SchemaMismatch):
        arguments(rows, np.zeros(1, "u8"), None, pa.array([[{"key": key, "value": b""}]], kind))


def _row(built: object, number: int) -> np.ndarray:
    start = (built.starts[number] - built.memory.ctypes.data) // ARGUMENT.itemsize  # type: ignore[attr-defined]
    return built.memory[start : start + built.counts[number]]  # type: ignore[attr-defined]
