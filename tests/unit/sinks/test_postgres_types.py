"""Which value goes into which column, in which form; and the statements made from that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from penstock.errors import SchemaMismatch
from penstock.sinks.postgres.connection import Place
from penstock.sinks.postgres.dialect import move_statement
from penstock.sinks.postgres.tables import Table, fits, new_table
from penstock.sinks.postgres.types import PgColumn, Unstorable, column_type, goes_as_json, refusal, route
from penstock.sinks.postgres.writer import csv_of

PLACE = Place("public", "orders", "public")


def column(base: str, element: str = "", scale: int | None = None, **more: Any) -> PgColumn:
    return PgColumn("c", base, base=base, element=element, scale=scale, **more)


@pytest.mark.parametrize(
    ("given", "base", "sent"),
    [
        (pa.int8(), "int2", pa.int16()),
        (pa.int16(), "int8", pa.int64()),
        (pa.int32(), "float8", pa.float64()),
        (pa.float32(), "float8", pa.float64()),
        (pa.int64(), "numeric", pa.decimal128(20, 0)),
        (pa.decimal128(5, 2), "numeric", pa.decimal128(5, 2)),
        (pa.large_string(), "text", pa.string()),
        (pa.string(), "bpchar", pa.string()),
        (pa.timestamp("ns", "Europe/Warsaw"), "timestamptz", pa.timestamp("us", "UTC")),
        (pa.null(), "int4", pa.int32()),
        (pa.null(), "inet", pa.string()),
        (pa.string(), "jsonb", pa.binary()),
        (pa.string(), "uuid", pa.binary(16)),
    ],
)
def test_values_travel_in_the_type_of_their_column(given: pa.DataType, base: str, sent: pa.DataType) -> None:
    assert route(given, column(base)).as_binary(pa.nulls(2, given)).type == sent


FIRST = -2_440_588  # the first day that the server has, from 1970
MICROS = 86_400_000_000


@pytest.mark.parametrize(
    ("value", "kind", "to", "stored"),
    [
        (FIRST, pa.date32(), column("date"), True),
        (FIRST - 1, pa.date32(), column("date"), False),
        (-(2**31) + 10_957, pa.date32(), column("date"), False),  # would be -infinity
        (2_145_042_905, pa.date32(), column("date"), True),
        (2_145_042_906, pa.date32(), column("date"), False),
        (FIRST * MICROS, pa.timestamp("us"), column("timestamp"), True),
        (FIRST * MICROS - 1, pa.timestamp("us"), column("timestamp"), False),
        (FIRST * MICROS - 1, pa.timestamp("us", "UTC"), column("timestamptz"), False),
        (2**63 - 1, pa.timestamp("us"), column("timestamp"), True),
        (-(2**63), pa.timestamp("us"), column("timestamp"), False),
    ],
)
@pytest.mark.parametrize("form", ["as_binary", "as_text"])
def test_days_and_moments_that_the_server_does_not_have_are_named(
    value: int, kind: pa.DataType, to: PgColumn, stored: bool, form: str
) -> None:
    counted = pa.array([None, 0, value], pa.int32() if pa.types.is_date(kind) else pa.int64())
    listed = PgColumn("c", f"{to.base}[]", base=f"_{to.base}", element=to.base)
    for target, values in ((to, counted.cast(kind)), (listed, pa.ListArray.from_arrays([0, 3], counted.cast(kind)))):
        change = getattr(route(values.type, target), form)
        if stored:
            assert change(values).equals(values)
        else:
            with pytest.raises(Unstorable, match="out of range: column 'c'"):
                change(values)


@pytest.mark.parametrize("form", ["as_binary", "as_text"])
def test_blanks_behind_the_limit_of_a_varchar_are_not_cut(form: str) -> None:
    change = getattr(route(pa.string(), column("varchar", width=3)), form)
    fine = pa.array(["żółw"[:3], None, "a  "])
    assert change(fine).equals(fine)
    assert len(change(pa.array([None], pa.string()))) == 1
    for long in ("ab   ", "żółw"):
        with pytest.raises(Unstorable, match=f"too long: column 'c' .* {len(long)} characters"):
            change(pa.array(["", long]))
    some = route(pa.list_(pa.string()), column("_varchar", "varchar", width=3))
    with pytest.raises(Unstorable, match="too long"):
        getattr(some, form)(pa.array([["a", "ab  "]]))


@pytest.mark.parametrize(
    ("given", "to", "why"),
    [
        (pa.int64(), column("int4"), "too narrow"),
        (pa.int32(), column("float4"), "do not fit"),
        (pa.float64(), column("float4"), "do not fit"),
        (pa.float64(), column("numeric"), "cast it to a decimal"),
        (pa.decimal128(5, 3), column("numeric", scale=2), "cut off"),
        (pa.timestamp("us"), column("timestamptz"), "time zone"),
        (pa.timestamp("us", "UTC"), column("timestamp"), "time zone"),
        (pa.string(), column("int4"), "do not fit"),
        (pa.int32(), column("text"), "do not fit"),
        (pa.int32(), column("inet"), "do not fit"),
        (pa.string(), column("_text", "text"), "an array is wanted"),
        (pa.list_(pa.int64()), column("_int4", "int4"), "elements are int64"),
        (pa.struct([("a", pa.int32())]), column("jsonb"), "do not fit"),
    ],
)
def test_what_could_lose_something_is_refused(given: pa.DataType, to: PgColumn, why: str) -> None:
    assert why in str(refusal(given, to))


def test_only_what_has_no_binary_form_goes_as_text() -> None:
    assert route(pa.string(), column("inet")).text_only
    assert not route(pa.string(), column("mood", enum=True)).text_only
    assert not any(route(pa.string(), column(base)).text_only for base in ("text", "jsonb", "uuid", "json"))


def test_jsonb_and_uuids_in_their_binary_form() -> None:
    values = pa.array(['{"a": 1}', None])
    assert route(pa.string(), column("jsonb")).as_binary(values).to_pylist() == [b'\x01{"a": 1}', None]
    uuids = pa.array(["00010203-0405-0607-0809-0a0b0c0d0e0f", None, "000102030405060708090A0B0C0D0E0F"])
    assert route(pa.string(), column("uuid")).as_binary(uuids).to_pylist() == [bytes(range(16)), None, bytes(range(16))]
    with pytest.raises(Unstorable, match="'c' is a uuid, and 'x' is none"):
        route(pa.string(), column("uuid")).as_binary(pa.array([None, "x"]))


def test_csv_tells_null_from_nothing() -> None:
    rows = pa.table({"t": ["", None, 'a "b"\n'], "n": [1, None, 3], "b": [b"\x00", None, b""]})
    assert bytes(csv_of(rows)) == b'"",1,"\\x00"\n,,\n"a ""b""\n",3,"\\x"\n'


def test_all_differences_are_named_at_once() -> None:
    table = Table(
        1,
        "r",
        (
            PgColumn("id", "integer", base="int4"),
            PgColumn("Name", "text", base="text"),
            PgColumn("must", "text", nullable=False, base="text"),
            PgColumn("fills", "text", nullable=False, filled=True, base="text"),
            PgColumn("made", "text", generated=True, base="text"),
        ),
    )
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("made", pa.string())])
    with pytest.raises(SchemaMismatch) as caught:
        fits(schema, ["bigint", "string", "string"], table, PLACE)
    said = str(caught.value)
    assert "column 'id' is bigint, the table's is integer: it is too narrow" in said
    assert "no column 'name' (it has 'Name')" in said
    assert "'must' may not be null" in said
    assert "'made' is generated" in said
    assert "fills" not in said


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (spark.ByteType(), "smallint"),
        (spark.DecimalType(12, 2), "numeric(12,2)"),
        (spark.TimestampType(), "timestamptz"),
        (spark.TimestampNTZType(), "timestamp"),
        (spark.DayTimeIntervalType(), "interval"),
        (spark.ArrayType(spark.LongType()), "bigint[]"),
        (spark.ArrayType(spark.ArrayType(spark.LongType())), "jsonb"),
        (spark.MapType(spark.StringType(), spark.LongType()), "jsonb"),
        (spark.StructType().add("a", "integer"), "jsonb"),
        (spark.NullType(), "text"),
    ],
)
def test_columns_for_a_dataframe(kind: spark.DataType, made: str) -> None:
    assert column_type(kind) == made
    assert goes_as_json(kind) == (made == "jsonb")


def test_a_type_without_a_column() -> None:
    with pytest.raises(SchemaMismatch, match="interval year"):
        column_type(spark.YearMonthIntervalType())


def test_the_table_for_a_dataframe() -> None:
    schema = spark.StructType().add("id", "long").add('odd "name"', "string")
    assert new_table(PLACE, schema, ["id"]) == (
        'CREATE TABLE IF NOT EXISTS "public"."orders" ("id" bigint, "odd ""name""" text, PRIMARY KEY ("id"))'
    )


def test_moves() -> None:
    payload = {"target": ["public", "orders"], "columns": ["id", "v"], "key": []}
    assert move_statement(payload, '"s"') == 'INSERT INTO "public"."orders" ("id", "v") SELECT "id", "v" FROM "s"'
    assert move_statement({**payload, "key": ["id"]}, '"s"') == (
        'INSERT INTO "public"."orders" ("id", "v") SELECT DISTINCT ON ("id") "id", "v" FROM "s" '
        'ORDER BY "id", ctid DESC ON CONFLICT ("id") DO UPDATE SET "v" = EXCLUDED."v"'
    )
    assert move_statement({**payload, "key": ["id", "v"]}, '"s"').endswith('ON CONFLICT ("id", "v") DO NOTHING')
