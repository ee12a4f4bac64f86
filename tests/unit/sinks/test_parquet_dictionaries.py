"""Parquet columns get a dictionary where values repeat, and none where it would only be thrown away."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sinks.files.encode import SAMPLE, ParquetEncoder, repeating

ROWS = 3 * SAMPLE


def batch() -> pa.RecordBatch:
    numbers = range(ROWS)
    return pa.RecordBatch.from_pydict(
        {
            "id": list(numbers),
            "country": [f"country {number % 200}" for number in numbers],
            "name": [f"customer {number}" for number in numbers],
            "twice": [number // 2 for number in numbers],
            "mostly null": [number if number % 100 == 0 else None for number in numbers],
            "inside": [{"a": number, "list": [number]} for number in numbers],
            "a.b": [number % 3 for number in numbers],
        }
    )


def test_columns_that_repeat() -> None:
    assert repeating(batch()) == ["country", "twice", "inside.a", "inside.list.list.element", "a.b"]
    assert repeating(batch().slice(0, 0)) == ["id", "country", "name", "twice", "mostly null", *repeating(batch())[2:]]


def test_what_a_file_has() -> None:
    stream = pa.BufferOutputStream()
    encoder = ParquetEncoder(stream, "snappy")
    encoder.write(batch())
    encoder.close()
    file = pq.ParquetFile(io.BytesIO(stream.getvalue().to_pybytes()))
    group = file.metadata.row_group(0)
    with_one = {
        group.column(number).path_in_schema
        for number in range(group.num_columns)
        if group.column(number).has_dictionary_page
    }
    assert {"country", "twice", "a.b"} <= with_one
    assert with_one.isdisjoint({"id", "name", "mostly null"})
    assert file.read().to_pylist() == batch().to_pylist()
