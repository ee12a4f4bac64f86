"""Whole jobs into PostgreSQL: the table is made, every row comes once over a crash, and a changed table is named."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from penstock import Checkpoints, Job, PostgresSink, Source
from penstock.errors import SchemaMismatch
from tests.support.run_job import CrashAt, Numbers, failing, run_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.postgres import Postgres

ROWS = 300
COLUMNS = {
    "id": "id",
    "tiny": "cast(id % 100 AS tinyint)",
    "price": "cast(id AS decimal(12,2)) / 4",
    "name": "if(id % 3 = 0, null, concat('Zażółć ', id))",
    "raw": "encode(cast(id AS string), 'UTF-8')",
    "day": "date_add(date'2026-01-01', cast(id AS int))",
    "moment": "timestamp_micros(id * 1000001)",
    "local": "cast(timestamp_micros(id * 1000001) AS timestamp_ntz)",
    "list": "array('a', null)",
    "point": "struct(id AS x, cast(null AS string) AS y)",
    "counts": "map('n', id)",
    "deep": "array(struct(timestamp_micros(id * 1000001) AS at, cast(timestamp_micros(id * 1000001) AS timestamp_ntz) "
    "AS local, cast(concat('0.', lpad(id, 30, '0')) AS decimal(38,30)) AS exact))",
}


@pytest.mark.parametrize("mode", ["two_phase", "upsert"])
def test_a_job_into_postgres(
    session: SparkSession, postgres: Postgres, storage: str, crash_at: CrashAt, mode: Any
) -> None:
    table = f"orders_{uuid.uuid4().hex[:8]}"
    sink = PostgresSink(postgres.dsn, table=table, mode=mode, key=["id"] if mode == "upsert" else ())

    def job(source: Source) -> Job:
        one = Job("into-postgres", checkpoints=Checkpoints(interval=0, storage=storage), spark=session)
        one.write(one.read(source, uid="numbers"), sink, uid="orders")
        return one

    crash_at("epoch.decided", 2)
    events = run_all(job(Numbers(ROWS, COLUMNS)))
    assert [one["recovery"] for one in events if one["event"] == "committed"].count(True) == 1
    crash_at.no_more()

    with psycopg.connect(postgres.dsn) as connection:
        set_json_loads(partial(json.loads, parse_float=Decimal), connection)
        found = connection.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall()
        columns: list[Any] = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
            " ORDER BY ordinal_position",
            (table,),
        ).fetchall()
        left = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'into-postgres%'").fetchall()
    assert [row[0] for row in found] == list(range(ROWS))
    start = dt.datetime(1970, 1, 1)
    for row in found:
        number, later = row[0], start + dt.timedelta(microseconds=row[0] * 1000001)
        [deep] = row[-1]
        assert row[1:-1] == (
            number % 100,
            Decimal(number) / 4,
            None if number % 3 == 0 else f"Zażółć {number}",
            str(number).encode(),
            dt.date(2026, 1, 1) + dt.timedelta(days=number),
            later.replace(tzinfo=dt.UTC),
            later,
            ["a", None],
            {"x": number, "y": None},
            {"n": number},
        )
        assert dt.datetime.fromisoformat(deep["at"]) == later.replace(tzinfo=dt.UTC)
        assert dt.datetime.fromisoformat(deep["local"]) == later
        assert deep["exact"] == Decimal(f"0.{number:030}"), "jsonb keeps a number's digits"
    assert dict(columns)["price"] == "numeric"
    assert [kind for _, kind in columns[6:]] == [
        "timestamp with time zone", "timestamp without time zone", "ARRAY", "jsonb", "jsonb", "jsonb",
    ]  # fmt: skip
    assert left == []

    other = {**COLUMNS, "tiny": "cast(id AS double)"}
    error = failing(job(Numbers(ROWS, other)), SchemaMismatch)
    assert "column 'tiny' is double, the table's is smallint" in str(error)
