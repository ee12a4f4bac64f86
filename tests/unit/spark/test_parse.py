"""JSON read by Arrow, a batch at a time: every row has its own document, or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark import parse
from penstock.spark.parse import arrow_types, rows_of

SIMPLE = pa.struct([("a", pa.int64()), ("b", pa.string())])


def rows(*texts: str | bytes | None, kind: pa.StructType = SIMPLE) -> list[Any]:
    column = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    result = rows_of(column, kind, kind).to_pylist()
    assert len(result) == len(texts)
    return list(result)


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_fields_are_typed_and_absent_ones_null() -> None:
    assert rows('{"a":1,"b":"x"}', '{"other":[{}],"b":"ü"}', "{}") == [
        {"a": 1, "b": "x"},
        {"a": None, "b": "ü"},
        {"a": None, "b": None},
    ]


def test_a_null_row_stays_null() -> None:
    assert rows('{"a":1}', None, '{"a":2}') == [{"a": 1, "b": None}, None, {"a": 2, "b": None}]
    assert rows(None, None) == [None, None]
    assert rows() == []


def test_blanks_and_line_breaks_are_allowed_where_json_allows_them() -> None:
    pretty = json.dumps({"a": 1, "b": "x"}, indent=2)
    assert rows(pretty, f" \r\n{pretty}\n", pretty) == [{"a": 1, "b": "x"}] * 3


def test_strings_and_bytes_of_any_size_are_read_alike() -> None:
    texts = ['{"a":1}', None, '{"b":"' + "x" * 3_000_000 + '"}']
    expected = rows(*texts)
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        assert rows_of(pa.array(texts).cast(kind), SIMPLE, SIMPLE).to_pylist() == expected


def test_a_part_of_an_array_is_read_as_that_part() -> None:
    column = pa.array([f'{{"a":{number}}}' if number % 7 else None for number in range(100)])
    expected = [{"a": number, "b": None} if number % 7 else None for number in range(30, 50)]
    assert rows_of(column.slice(30, 20), SIMPLE, SIMPLE).to_pylist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "null", "3", "[]", '[{"a":1}]', "{", "}", '{"a":1', '{"a":1}}', '{"a":1}{"a":2}', '{"a":1} null {}',
        '{"a":1} x', '{"a":"1"}', '{"a":1.0}', '{"a":9223372036854775808}', '{"a":true}', '{"b":1}', '{"b":{}}',
        '{"a":1,"a":1}', '{"a":1,}', "{'a':1}", '{"b":"\\ud800"}', '{"b":"x\ny"}', '{"b":"x\x00"}', '{"b":"}',
        b'{"b":"\xff"}', b"\xef\xbb\xbf{}", '{"a":1}\x00', '{"a":1}\x0c', '{"x":1e999}',
    ],
)  # fmt: skip
def test_what_spark_may_read_otherwise_is_left_to_it(text: str | bytes) -> None:
    assert rows(text) == [None]
    assert rows("{}", text) == [None, None]
    assert rows(text, "{}", None) == [None, None, None]


def test_one_bad_text_sends_its_piece_to_spark_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "_PIECE", 10)
    texts = [f'{{"a":{number}}}' for number in range(95)]
    texts[42] = "bad"
    expected = [None if 40 <= number < 50 else {"a": number, "b": None} for number in range(95)]
    assert rows(*texts) == expected


def test_neighbours_cannot_complete_each_other() -> None:
    """As many documents as rows, in the wrong rows."""
    for texts in (
        ['{"a":1}{"a":2}', ""],
        ['{"a":1}\n{"a":2}', " "],
        ['{"a":1} {"a":2}', '{"a":', "3}"],
        ['{"a":1}{"a":2}', '{"b":"}', '{"}'],
        ['{"a":1}{"a":2}', '{"x":{}', "{}}"],
        ['{"a":1}{"a":2}', '{"x":{}', ',"y":{}}'],
        ['{"a":1}{"a":2}', '{"x":[{}', "{}]}"],
        ["{}{}", "{} ", "}"],
    ):
        assert rows(*texts) == [None] * len(texts)


FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    '"',
    ":",
    ",",
    "\n",
    " ",
    "\\",
    "1",
    "-",
    '"a"',
    '"b"',
    "null",
    "{}",
    '{"a":1}',
    '{"b":""}',
]
ODD = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
WHOLE = st.fixed_dictionaries({}, optional={"a": st.integers(-(2**63), 2**63 - 1), "b": st.text(), "c": st.none()})


@given(st.lists(st.one_of(st.none(), ODD, WHOLE.map(json.dumps)), max_size=8))
@example(['{"a":1}{"a":2}', "{}", "{"])
def test_a_row_that_is_read_is_its_own_document(texts: Sequence[str | None]) -> None:
    for text, row in zip(texts, rows(*texts), strict=True):
        if row is not None:
            assert text is not None
            document = json.loads(text)
            assert row == {"a": document.get("a"), "b": document.get("b")}


@given(st.lists(WHOLE, max_size=8))
def test_plain_documents_are_all_read(documents: list[dict[str, Any]]) -> None:
    expected = [{"a": document.get("a"), "b": document.get("b")} for document in documents]
    assert rows(*map(json.dumps, documents)) == expected


def test_only_types_with_the_same_rules_in_both_are_read_by_arrow() -> None:
    twice = StructType([StructField("a", LongType()), StructField("a", LongType())])
    for kind in (MapType(StringType(), LongType()), BinaryType(), StringType("UNICODE"), StructType(), twice):
        for schema in (struct(a=kind), struct(a=ArrayType(kind)), struct(a=struct(b=kind))):
            with pytest.raises(KeyError):
                arrow_types(schema, utc=True)
    nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.bool_())])))])
    items = ArrayType(struct(c=StringType(), d=BooleanType()))
    assert arrow_types(struct(a=IntegerType(), b=items), utc=True) == (nested, nested)


def test_a_time_without_a_zone_is_read_where_the_session_is_in_utc() -> None:
    for text, zones in (('{"t":"2026-01-02 03:04:05"}', [True]), ('{"t":"2026-01-02T03:04:05Z"}', [True, False])):
        for utc in (True, False):
            types = arrow_types(struct(t=TimestampType()), utc=utc)
            [row] = rows_of(pa.array([text]), *types).to_pylist()
            assert (row is not None) == (utc in zones)


def test_a_number_is_no_date() -> None:
    types = arrow_types(struct(d=DateType()), utc=True)
    assert rows_of(pa.array(['{"d":5}']), *types).to_pylist() == [None]
    assert str(rows_of(pa.array(['{"d":"2026-01-02"}']), *types).to_pylist()[0]["d"]) == "2026-01-02"


def test_no_worker_imports_pandas_for_it() -> None:
    script = """
import sys, pyarrow as pa
from penstock.spark.parse import rows_of
kind = pa.struct([("a", pa.int64())])
text = pa.py_buffer(b'{"a":1}'), pa.py_buffer((0).to_bytes(4, "little") + (7).to_bytes(4, "little"))
column = pa.Array.from_buffers(pa.string(), 1, [None, text[1], text[0]])
assert rows_of(column, kind, kind).field("a")[0].as_py() == 1
print("pandas" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
