"""The files of the hashmap backend: records, compressed streams, checksums."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.spark_state.store_writing import Lz4, encoder, records, snapshot

ROWS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=30)


def array(rows: list[bytes]) -> pa.Array:
    return pa.array(rows, pa.binary())


def expected(rows: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(struct.pack(">i", len(part)) + part for row in rows for part in row)


def unpacked(data: bytes, codec: str) -> bytes:
    """What the stream holds, read by its published format."""
    out, at = b"", 0
    if codec == "zstd":
        return bytes(pa.input_stream(pa.py_buffer(data), compression="zstd").read()) if data else b""
    while True:
        assert data[at : at + 8] == b"LZ4Block"
        token, packed, size, checksum = struct.unpack_from("<BIII", data, at + 8)
        at += 21
        if not size:
            assert (packed, checksum, at) == (0, 0, len(data))
            return out
        block = data[at : at + packed]
        assert size <= 1 << (10 + (token & 0xF))
        if token & 0xF0 == 0x20:
            block = pa.decompress(block, decompressed_size=size, codec="lz4_raw", asbytes=True)
        assert xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF == checksum
        out, at = out + block, at + packed


@given(ROWS)
def test_records(rows: list[tuple[bytes, bytes]]) -> None:
    keys, values = array([key for key, _ in rows]), array([value for _, value in rows])
    assert bytes(records(keys, values)) == expected(rows)
    assert bytes(records(keys[1:], values[1:])) == expected(rows[1:])


@pytest.mark.parametrize("codec", ["lz4", "zstd", "org.apache.spark.io.LZ4CompressionCodec"])
@pytest.mark.parametrize("size", [0, 1, 700_000])
def test_a_snapshot_ends_with_its_mark(codec: str, size: int) -> None:
    """Over more than one block of every codec, and with nothing at all."""
    rows = [(struct.pack(">q", n), bytes(n % 97)) for n in range(size // 50)]
    halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    batches = [(array([key for key, _ in half]), array([value for _, value in half])) for half in halves]
    data = b"".join(snapshot(batches, codec))
    name = codec.rpartition(".")[2].removesuffix("CompressionCodec").lower()
    assert unpacked(data, name) == expected(rows) + b"\xff\xff\xff\xff"


def test_a_stream_larger_than_what_is_compressed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lz4, "_unit", 4 << 15)
    piece = random.Random(1).randbytes(150_001)
    stream = encoder("lz4")
    data = b"".join(part for _ in range(4) for part in stream.write(piece)) + b"".join(stream.end())
    assert unpacked(data, "lz4") == piece * 4


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="compressed with brotli"):
        encoder("brotli")
