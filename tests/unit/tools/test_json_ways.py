"""JSON read and written by Arrow, as docs/how-to/throughput.md shows it: the same rows that `from_json` and `to_json`
give, with nulls written as such."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from json_ways import _even_rows
from kafka_load import messages


def written(*texts: str) -> list[dict[str, str | None]]:
    batch = pa.record_batch([pa.array([text.encode() for text in texts], pa.binary())], names=["value"])
    return [row for made in _even_rows(iter([batch])) for row in made.to_pylist()]


def test_rows_of_the_benchmark_come_out_as_they_went_in() -> None:
    rows = messages(0, 1_000)
    found = [row for made in _even_rows(iter([rows.select(["value"])])) for row in made.to_pylist()]
    assert [str(row["value"]).encode() for row in found] == rows.column("value").to_pylist()[::2]
    assert [str(row["key"]).encode() for row in found] == rows.column("key").to_pylist()[::2]


def test_quotes_backslashes_and_nulls() -> None:
    before = {"id": 2, "account": 'a"b\\', "amount": None, "pad": "é"}
    [row] = written(json.dumps(before, ensure_ascii=False), '{"id":3}')
    assert row["key"] == before["account"]
    assert json.loads(str(row["value"])) == before


def test_a_missing_field_is_null_and_no_tombstone() -> None:
    [row] = written('{"id":2,"account":"a","other":[1]}')
    assert json.loads(str(row["value"])) == {"id": 2, "account": "a", "amount": None, "pad": None}


def test_what_it_cannot_escape_it_refuses() -> None:
    with pytest.raises(ValueError, match="control characters"):
        written('{"id":2,"account":"a\\u0001"}')
