"""Arrow columns as the C structs that librdkafka reads: numpy arithmetic on addresses, no loop over rows.

The arrays built here point into the Arrow buffers: a caller keeps the columns that it gave to `messages` alive until
librdkafka has copied them; `Arguments` keeps whatever else was made on the way. Layouts whose values are not simply one
after the other (chunks, dictionaries, views) are made so by `plain`: its new columns are then the ones to keep.

A null and an empty value are different things in Kafka (a null value deletes its key in a compacted topic): null has
address 0, empty has an address and length 0.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa

U8 = npt.NDArray[np.uint64]

#: `rd_kafka_message_t` on a 64-bit machine.
MESSAGE = np.dtype(
    [
        ("err", "i4"),
        ("_pad0", "i4"),
        ("rkt", "u8"),
        ("partition", "i4"),
        ("_pad1", "i4"),
        ("payload", "u8"),
        ("len", "u8"),
        ("key", "u8"),
        ("key_len", "u8"),
        ("offset", "i8"),
        ("private", "u8"),
    ]
)
#: `rd_kafka_vu_t`: a tag and a union of 64 bytes, of which the first three words are ever used.
ARGUMENT = np.dtype([("vtype", "i4"), ("_pad", "i4"), ("a", "u8"), ("b", "u8"), ("c", "u8"), ("_rest", "V40")])
_RKT, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADER = 2, 3, 4, 5, 7, 8, 9
_COPY = 0x2
_FIXED = 6  # arguments of a row without headers

# Something that may be pointed at where Arrow has no buffer because every value is empty.
_NOTHING = c.create_string_buffer(8)
_NOWHERE = np.uint64(c.addressof(_NOTHING))


def valid(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values are not null; None when all are."""
    if array.null_count == 0:
        return None
    result: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return result


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The same values in a layout that `spans` reads: itself where it has one, else a copy."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_dictionary(kind) or isinstance(array, pa.RunEndEncodedArray):
        return plain(array.dictionary_decode() if pa.types.is_dictionary(kind) else array.cast(kind.value_type))
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.large_string()) if pa.types.is_string_view(kind) else array


def spans(array: pa.Array) -> tuple[U8, U8]:
    """Addresses and lengths of a `plain` binary or string array's values, also sliced, large or with nulls."""
    import pyarrow as pa

    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    width: Any = np.int64 if wide else np.int32
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array), "u8"), np.zeros(len(array), "u8")
    ends = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    lengths = np.diff(ends).astype("u8")
    base = np.uint64(data.address) if data is not None and data.address else _NOWHERE
    addresses = base + ends[:-1].astype("u8") if base != _NOWHERE else np.full(len(array), _NOWHERE)
    known = valid(array)
    if known is not None:
        addresses = np.where(known, addresses, np.uint64(0))
        lengths = np.where(known, lengths, np.uint64(0))
    return addresses, lengths


def partitions(array: pa.Array) -> npt.NDArray[np.int32]:
    """Partition numbers, null as -1: let the partitioner choose."""
    import pyarrow.compute as pc

    numbers: npt.NDArray[np.int32] = pc.fill_null(array, -1).to_numpy(zero_copy_only=False).astype("i4")
    return numbers


def messages(value: pa.Array, key: pa.Array | None, partition: pa.Array | None) -> npt.NDArray[np.void]:
    """One message struct per row."""
    built = np.zeros(len(value), MESSAGE)
    built["payload"], built["len"] = spans(value)
    if key is not None:
        built["key"], built["key_len"] = spans(key)
    built["partition"] = -1 if partition is None else partitions(partition)
    return built


@dataclass(frozen=True, slots=True)
class Arguments:
    """Rows as `rd_kafka_vu_t` arrays, for what a message struct has no room for: headers and timestamps.

    `kept` only keeps the memory of the headers' names and values alive.
    """

    memory: npt.NDArray[np.void]
    starts: list[int]
    counts: list[int]
    kept: tuple[Any, ...]


def arguments(
    rows: npt.NDArray[np.void], topics: U8, timestamp: pa.Array | None, headers: pa.Array | None
) -> Arguments:
    """One argument array per row; `topics` holds each row's topic handle."""
    count = len(rows)
    extra = np.zeros(count, "i8")
    if headers is not None:
        import pyarrow.compute as pc

        extra = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype("i8")
    sizes = extra + _FIXED
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])) if count else np.zeros(0, "i8")
    built = np.zeros(int(sizes.sum()), ARGUMENT)
    for place, (tag, a, b) in enumerate(
        (
            (_RKT, topics, 0),
            (_PARTITION, rows["partition"].astype("u4").astype("u8"), 0),
            (_VALUE, rows["payload"], rows["len"]),
            (_KEY, rows["key"], rows["key_len"]),
            (_FLAGS, _COPY, 0),
            (_TIMESTAMP, _milliseconds(timestamp, count), 0),
        )
    ):
        built["vtype"][first + place] = tag
        built["a"][first + place] = a
        built["b"][first + place] = b
    kept: tuple[Any, ...] = ()
    if headers is not None and extra.any():
        at = np.ones(len(built), bool)
        for place in range(_FIXED):
            at[first + place] = False
        # Both flattenings copy where they have to (hidden values behind a null, a view), and cut slices to size.
        keys, values = (plain(part) for part in headers.flatten().flatten())
        names, addresses = _names(keys)
        kept = (names, values)
        built["vtype"][at] = _HEADER
        built["a"][at] = addresses
        built["b"][at], built["c"][at] = spans(values)
    base, step = built.ctypes.data, ARGUMENT.itemsize
    return Arguments(built, (base + first * step).tolist(), sizes.tolist(), kept)


def _milliseconds(timestamp: pa.Array | None, count: int) -> U8:
    # 0 tells librdkafka to take the present, and there is no other way to say it: it cannot send this one moment.
    if timestamp is None:
        return np.zeros(count, "u8")
    import pyarrow as pa
    import pyarrow.compute as pc

    cast = pc.cast(timestamp, pa.timestamp("ms", timestamp.type.tz), safe=False)
    numbers: U8 = pc.fill_null(cast.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype("i8").view("u8")
    wrong = int(np.count_nonzero(numbers == 0)) - timestamp.null_count
    if wrong:
        raise DataError(
            f"{wrong:,} rows have a timestamp within a millisecond of 1970-01-01T00:00:00Z, which Kafka's client takes"
            " for none: they would get the present time, another one in every replay.",
            safe="nothing of this epoch is visible.",
            to_do="write null where a row has no time of its own, or leave the column 'timestamp' out.",
        )
    return numbers


def _names(keys: pa.Array) -> tuple[tuple[Any, ...], U8]:
    """Header names as C strings (Arrow's have no terminating zero), one copy per distinct name."""
    if keys.null_count:
        raise SchemaMismatch(
            f"{keys.null_count} headers have no key.",
            safe="nothing of this epoch is visible.",
            to_do="give every header a key; only its value may be null.",
        )
    encoded = keys.dictionary_encode()
    texts = [str(name).encode() for name in encoded.dictionary.to_pylist()]
    if any(b"\0" in text for text in texts):
        raise SchemaMismatch(
            "A header key contains a zero byte, which the Kafka client cannot write.",
            safe="nothing of this epoch is visible.",
            to_do="remove zero bytes from header keys.",
        )
    buffers = tuple(c.create_string_buffer(text) for text in texts)
    table = np.array([c.addressof(buffer) for buffer in buffers], "u8")
    return buffers, table[encoded.indices.to_numpy(zero_copy_only=False)]
