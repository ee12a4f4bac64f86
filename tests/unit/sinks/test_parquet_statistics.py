"""Parquet footers promise nothing of columns that may hold NaN: Spark would skip rows by them."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sinks.files.encode import ParquetEncoder

NESTED = pa.struct({"a": pa.float64(), "b": pa.list_(pa.float32()), "c": pa.map_(pa.string(), pa.float64())})


def test_only_columns_that_cannot_hold_nan_have_statistics() -> None:
    schema = pa.schema({"id": pa.int64(), "x": pa.float64(), "n": NESTED, "s": pa.string()})
    assert ParquetEncoder(None, "none").with_statistics(schema) == ["id", "n.c.key_value.key", "s"]


def test_a_file_with_nan_has_no_largest_number() -> None:
    stream = pa.BufferOutputStream()
    encoder = ParquetEncoder(stream, "snappy")
    encoder.write(pa.RecordBatch.from_pydict({"id": [1, 2], "x": [1.0, float("nan")]}))
    encoder.close()
    group = pq.ParquetFile(io.BytesIO(stream.getvalue().to_pybytes())).metadata.row_group(0)
    statistics = {group.column(number).path_in_schema: group.column(number).statistics for number in range(2)}
    assert statistics["id"].max == 2
    assert statistics["x"] is None
