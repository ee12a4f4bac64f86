"""Kafka's batches as the audit reads them: producers, markers, gaps and records of every length."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.audit.compare import NO_LONGER, Decided, Part, compare
from penstock.audit.kafka import KafkaReader, Partition
from penstock.engine.hashing import finish, hash_rows, values_of
from penstock.kafka.connections import Place, batches
from penstock.testing.anomalies import ABORTED, LOST

TRANSACTIONAL, CONTROL = 0x10, 0x20
Row = tuple[bytes | None, bytes | None]


def varint(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def batch(first: int, rows: list[Row], producer: int, *, time: int = 0, attributes: int = TRANSACTIONAL) -> bytes:
    records = b""
    for number, (key, value) in enumerate(rows):
        body = b"\0" + varint(time % 1000 * number) + varint(number) + field(key) + field(value) + varint(0)
        records += varint(len(body)) + body
    codec = attributes & 7
    if codec:
        name = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}[codec]
        if name == "snappy":
            records = pa.compress(records, "snappy", asbytes=True)
        else:
            packed = pa.BufferOutputStream()
            with pa.CompressedOutputStream(packed, name) as stream:
                stream.write(records)
            records = packed.getvalue().to_pybytes()
    rest = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, len(rows) - 1, time, time, producer, 0, 0, len(rows))
    return struct.pack(">qi", first, len(rest) + len(records)) + rest + records


def marker(first: int, producer: int, time: int, *, commit: bool = True) -> bytes:
    key = struct.pack(">hh", 0, int(commit))
    return batch(first, [(key, b"\0" * 6)], producer, time=time, attributes=TRANSACTIONAL | CONTROL)


class Sink:
    topic: str | None = "out"
    servers, options = "", dict[str, str]()


def decided(rows: list[Row], started: int, writer: int = 0, epoch: int = 5) -> Decided:
    columns = [values_of(pa.array([value for _, value in rows], pa.binary()))]
    columns.append(values_of(pa.array([key for key, _ in rows], pa.binary())))
    total = sum(int(each) for each in finish(hash_rows(columns, len(rows)), columns, (True, True)))
    payload = {"topics": ["out"], "producer_id": 9, "producer_epoch": 0, "started": started}
    return Decided("q", "out", epoch, 1, writer, len(rows), total % 2**64, payload)


def read(
    log: bytes, writers: list[Decided], *, start: int = 0, compacted: bool = False, later: tuple[Decided, ...] = ()
) -> list[tuple[str, int | None]]:
    reader, partition = KafkaReader(Sink()), Partition(Place("out", 0, 0, start), compacted, start)
    reader._partitions["out"] = [partition]
    for found in batches(SimpleNamespace(records=log)):
        reader._take(partition, found)
    reader._hash("out")
    return [(found.kind, found.epoch) for found in compare(writers, reader._attribute(writers, later, [partition]))]


ROWS: list[Row] = [(b"k" * n, b"v" * (n * 7)) for n in range(40)] + [(None, b""), (b"", None), (b"long", b"x" * 70_000)]
MORE: list[Row] = [(b"a", b"b"), (b"c", b"d")]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_records_of_every_length_and_compression(codec: int) -> None:
    log = batch(0, ROWS, 9, time=100, attributes=TRANSACTIONAL | codec) + marker(len(ROWS), 9, 200)
    assert read(log, [decided(ROWS, 90)]) == []
    assert read(log, [decided(ROWS[1:], 90), decided(MORE, 300, epoch=6)])[1] == (LOST, 6)


def test_one_producers_transactions_are_told_apart_by_their_markers() -> None:
    log = batch(0, ROWS, 9) + marker(43, 9, 200) + batch(44, MORE, 9) + marker(46, 9, 400)
    assert read(log, [decided(ROWS, 90), decided(MORE, 300, epoch=6)]) == []
    aborted = batch(0, MORE, 9) + marker(2, 9, 150, commit=False) + batch(3, ROWS, 9) + marker(46, 9, 200)
    assert read(aborted, [decided(ROWS, 160)]) == []
    assert read(batch(0, ROWS, 9), [decided(ROWS, 90)]) == [(LOST, 5)], "without its marker nothing is visible"


def test_a_batch_that_compaction_has_emptied_has_no_rows() -> None:
    empty = bytearray(batch(0, [(b"", b"")], 9)[:61])
    empty[8:12], empty[57:61] = struct.pack(">i", 49), struct.pack(">i", 0)
    log = bytes(empty) + batch(1, ROWS, 9) + marker(44, 9, 200)
    assert read(log, [decided(ROWS, 90)]) == []


def test_what_became_visible_while_it_was_read_is_no_surplus() -> None:
    log = batch(0, ROWS, 9) + marker(43, 9, 200) + batch(44, MORE, 9) + marker(46, 9, 400)
    assert read(log, [decided(ROWS, 90)], later=(decided(MORE, 300, epoch=6),)) == []
    assert read(log, [decided(ROWS, 90)]) == [(ABORTED, 5)]


def test_retention_and_compaction_are_no_loss() -> None:
    tail = batch(44, MORE, 9) + marker(46, 9, 400) + batch(47, MORE, 9) + marker(49, 9, 600)
    writers = [decided(ROWS, 90), decided(MORE, 300, epoch=6), decided(MORE, 500, epoch=7)]
    assert read(tail, writers, start=44) == [(NO_LONGER, 5)]
    assert (LOST, 7) in read(tail[: len(batch(44, MORE, 9) + marker(46, 9, 400))], writers, start=44)
    whole = batch(0, ROWS, 9) + marker(43, 9, 200)
    assert read(whole, [decided(ROWS, 90)], start=10) == [(NO_LONGER, 5)], "the broker still sends the whole batch"
    gap = batch(0, ROWS[:3], 9) + batch(43, MORE, 9) + marker(46, 9, 200)
    assert read(gap, [decided(ROWS, 90)], compacted=True) == [(NO_LONGER, 5)]
    assert read(gap, [decided(ROWS, 90)]) == [(LOST, 5)]


def test_a_broken_end_of_an_answer_is_left_for_the_next() -> None:
    whole = batch(0, MORE, 9)
    assert [each.first for each in batches(SimpleNamespace(records=whole + whole[:-1]))] == [0]
    assert [each.first for each in batches(SimpleNamespace(records=whole + whole[:30]))] == [0]


def test_the_topic_is_a_column_where_the_sink_takes_it_from_the_rows() -> None:
    reader: Any = KafkaReader(type("Free", (Sink,), {"topic": None})())
    part = Part("", reader._layouts)
    reader._waiting.append((part, batch(0, MORE, 9)[61:], 2))
    reader._hash("out")
    columns = [values_of(pa.array(each, pa.binary())) for each in ([b"b", b"d"], [b"a", b"c"], [b"out"] * 2)]
    expected = np.sum(finish(hash_rows(columns, 2), columns, (True, True, True)), dtype=np.uint64)
    assert part.sums[0] % 2**64 == int(expected)
