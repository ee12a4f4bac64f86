"""The whole picture of a hashmap state partition, `N.snapshot`, as Spark reads it.

    [size of key][key][size of value][value] … [-1], sizes as four bytes, the largest first; all of it compressed

Keys and values are Spark's own bytes, moved and never looked into. Written column by column through Arrow, so that no
row ever becomes an object of Python's.

Spark's compressed streams, written as Spark writes them: lz4 (its default), zstd, snappy, lzf.

Each encoder is given pieces of a stream, as large as they come, and gives bytes to write; `end` gives the rest. Blocks
are compressed by Arrow. The format of lz4 asks for a checksum of every block that no library here computes: `xxhash32`
does, for many blocks at once, by numpy.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_END = struct.pack(">i", -1)

_BLOCK = 1 << 15  # as large as Spark's own
_AT_ONCE = 256  # blocks that share one pass of the checksum


class Encoder(ABC):
    """One stream."""

    _unit = _BLOCK * _AT_ONCE

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._waiting += data
        whole = len(self._waiting) // self._unit * self._unit
        if whole:
            yield from self._blocks(bytes(self._waiting[:whole]))
            del self._waiting[:whole]

    def end(self) -> Iterator[bytes]:
        yield from self._blocks(bytes(self._waiting))
        self._waiting.clear()

    @abstractmethod
    def _blocks(self, data: bytes) -> Iterator[bytes]:
        """Whole blocks; only before the end of the stream may the last be short."""


class Lz4(Encoder):
    """lz4-java's block stream: before every block a header with lengths and checksum, at the end an empty one."""

    _magic = b"LZ4Block"
    _raw, _compressed = 0x10, 0x20
    _level = _BLOCK.bit_length() - 11  # a block is 2 ** (10 + level) bytes long
    _seed = 0x9747B28C
    _mask = 0x0FFFFFFF  # the stream's checksum is cut to 28 bits

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        codec = pa.Codec("lz4_raw")
        view = memoryview(data)
        for block, checksum in zip(_cut(view), checksums(view, _BLOCK, self._seed), strict=True):
            packed = codec.compress(block, asbytes=True)
            smaller = len(packed) < len(block)
            kind = (self._compressed if smaller else self._raw) | self._level
            body = packed if smaller else bytes(block)
            yield self._magic + struct.pack("<BIII", kind, len(body), len(block), checksum & self._mask)
            yield body

    def end(self) -> Iterator[bytes]:
        yield from super().end()
        yield self._magic + struct.pack("<BIII", self._raw | self._level, 0, 0, 0)


class Zstd(Encoder):
    """One frame after the other."""

    _unit = 1 << 20

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        if data:
            yield pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)


class Snappy(Encoder):
    """snappy-java's stream: a header, then blocks with their length before them."""

    _unit = _BLOCK

    def __init__(self) -> None:
        super().__init__()
        self._header = b"\x82SNAPPY\0" + struct.pack(">II", 1, 1)

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        codec = pa.Codec("snappy")
        for block in _cut(memoryview(data)):
            packed = codec.compress(block, asbytes=True)
            yield self._header + struct.pack(">I", len(packed))
            yield packed
            self._header = b""


class Lzf(Encoder):
    """Ning's LZF chunks, not compressed: Spark's next snapshot is."""

    _chunk = 0xFFFF

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), self._chunk):
            block = data[start : start + self._chunk]
            yield b"ZV\0" + struct.pack(">H", len(block)) + block


_CODECS: dict[str, type[Encoder]] = {"lz4": Lz4, "zstd": Zstd, "snappy": Snappy, "lzf": Lzf}


def encoder(codec: str) -> Encoder:
    """For a codec by the name that Spark's settings have for it, or its class."""
    name = codec.rpartition(".")[2].lower().removesuffix("compressioncodec")
    if name not in _CODECS:
        raise ConfigurationError(
            f"The state is compressed with {codec}, which Penstock cannot write.",
            safe="nothing was changed.",
            to_do=f"only {', '.join(sorted(_CODECS))} can be written; keep the state backend, or start from a"
            " savepoint of a job with one of these.",
        )
    return _CODECS[name]()


def _cut(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _BLOCK):
        yield data[start : start + _BLOCK]


# xxHash, 32 bits

_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_32 = 0xFFFFFFFF


def checksums(data: memoryview, block: int, seed: int) -> Iterator[int]:
    """The xxHash of every block of `block` bytes (a multiple of 16), the last of which may be short."""
    whole = len(data) // block
    if whole:
        lanes = np.frombuffer(data[: whole * block], dtype="<u4").reshape(whole, block // 16, 4)
        yield from _finished(_rounds(lanes, seed), block)
    if len(data) > whole * block:
        yield xxhash32(bytes(data[whole * block :]), seed)


def xxhash32(data: bytes, seed: int) -> int:
    """The xxHash of anything."""
    whole = len(data) // 16 * 16
    if whole:
        lanes = [(seed + _P1 + _P2) & _32, (seed + _P2) & _32, seed & _32, (seed - _P1) & _32]
        for words in struct.iter_unpack("<4I", data[:whole]):
            for index, word in enumerate(words):
                lanes[index] = (_turn((lanes[index] + word * _P2) & _32, 13) * _P1) & _32
        value = sum(_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _32
    else:
        value = (seed + _P5) & _32
    value = (value + len(data)) & _32
    at = whole
    for (word,) in struct.iter_unpack("<I", data[at : at + (len(data) - at) // 4 * 4]):
        value = (_turn((value + word * _P3) & _32, 17) * _P4) & _32
        at += 4
    for byte in data[at:]:
        value = (_turn((value + byte * _P5) & _32, 11) * _P1) & _32
    value = ((value ^ (value >> 15)) * _P2) & _32
    value = ((value ^ (value >> 13)) * _P3) & _32
    return value ^ (value >> 16)


def _turn(value: int, by: int) -> int:
    return ((value << by) | (value >> (32 - by))) & _32


def _rounds(lanes: NDArray[np.uint32], seed: int) -> NDArray[np.uint32]:
    """All blocks side by side: their steps depend on each other, the blocks do not."""
    start = [(seed + _P1 + _P2) & _32, (seed + _P2) & _32, seed & _32, (seed - _P1) & _32]
    sums = np.tile(np.array(start, dtype=np.uint32), (lanes.shape[0], 1))
    turned = np.empty_like(sums)
    ordered = np.ascontiguousarray(lanes.transpose(1, 0, 2)) * np.uint32(_P2)
    left, right, prime = np.uint32(13), np.uint32(19), np.uint32(_P1)
    for words in ordered:
        np.add(sums, words, out=sums)
        np.right_shift(sums, right, out=turned)
        np.left_shift(sums, left, out=sums)
        np.bitwise_or(sums, turned, out=sums)
        np.multiply(sums, prime, out=sums)
    return sums


def _finished(sums: NDArray[np.uint32], size: int) -> Iterator[int]:
    for lanes in sums.tolist():
        value = (sum(_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) + size) & _32
        value = ((value ^ (value >> 15)) * _P2) & _32
        value = ((value ^ (value >> 13)) * _P3) & _32
        yield value ^ (value >> 16)


def snapshot(batches: Iterable[tuple[Any, Any]], codec: str) -> Iterator[bytes]:
    """The file's bytes, piece by piece, from Arrow arrays of keys and values."""
    stream = encoder(codec)
    for keys, values in batches:
        yield from stream.write(records(keys, values))
    yield from stream.write(_END)
    yield from stream.end()


def records(keys: Any, values: Any) -> memoryview:
    """Keys and values, each with its size before it, one row after the other."""
    if not len(keys):
        return memoryview(b"")
    joined = pc.binary_join_element_wise(_sizes(keys), keys, _sizes(values), values, pa.scalar(b"", pa.binary()))
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)
    first, last = int(bounds[joined.offset]), int(bounds[joined.offset + len(joined)])
    return memoryview(data)[first:last]


def _sizes(rows: Any) -> Any:
    sizes = np.asarray(pc.binary_length(rows)).astype(">i4")
    bounds = np.arange(0, 4 * len(sizes) + 4, 4, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(sizes)])
