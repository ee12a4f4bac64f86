"""Whole jobs into MariaDB: the table is made, every row comes once over a crash, and a changed table is named."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from penstock import Checkpoints, Job, MySqlSink, RestartStrategy, Source
from penstock.errors import SchemaMismatch
from penstock.failpoints import InjectedFault
from tests.support.run_job import CrashAt, Numbers, failing, run_all
from tests.support.servers.mariadb import MariaDb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 300
COLUMNS = {
    "id": "id",
    "tiny": "cast(id % 100 AS tinyint)",
    "price": "cast(id AS decimal(12,2)) / 4",
    "name": "if(id % 3 = 0, null, concat('Zażółć\t🚀\\n', id))",
    "raw": "encode(cast(id AS string), 'UTF-8')",
    "day": "date_add(date'2026-01-01', cast(id AS int))",
    "moment": "timestamp_micros(id * 1000001)",
    "local": "cast(timestamp_micros(id * 1000001) AS timestamp_ntz)",
    "flag": "id % 2 = 0",
    "list": "array('a', null)",
    "point": "struct(id AS x, cast(null AS string) AS y)",
    "counts": "map('n', id)",
    "deep": "array(struct(timestamp_micros(id * 1000001) AS at, cast(timestamp_micros(id * 1000001) AS timestamp_ntz) "
    "AS local, cast(concat('0.', lpad(id, 30, '0')) AS decimal(38,30)) AS exact, "
    "map('n', cast(id AS decimal(20,2))) AS sums))",
}


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with MariaDb.start() as started:
        yield started


@pytest.mark.parametrize("mode", ["two_phase", pytest.param("upsert", marks=pytest.mark.long)])
def test_a_job_into_mariadb(
    session: SparkSession, mariadb: MariaDb, storage: str, crash_at: CrashAt, mode: Any
) -> None:
    table = f"orders_{uuid.uuid4().hex[:8]}"
    key = ["id"] if mode == "upsert" else []
    sink = MySqlSink(**mariadb.login, database="test", table=table, mode=mode, key=key)

    def job(source: Source) -> Job:
        checkpoints = Checkpoints(interval=0, storage=storage)
        one = Job("into-mariadb", checkpoints=checkpoints, restart=RestartStrategy.none(), spark=session)
        one.write(one.read(source, uid="numbers"), sink, uid="orders")
        return one

    crash_at("epoch.decided", 2)
    failing(job(Numbers(ROWS, COLUMNS)), InjectedFault)
    crash_at.no_more()
    run_all(job(Numbers(ROWS, COLUMNS)))

    with pymysql.connect(**mariadb.login, database="test") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} ORDER BY id")
        found = cursor.fetchall()
        cursor.execute(f"SELECT column_name, column_type FROM information_schema.columns WHERE table_name = '{table}'")
        columns = dict(cursor.fetchall())
        cursor.execute("XA RECOVER")
        left = list(cursor.fetchall())
        cursor.execute("SHOW TABLES LIKE 'penstock\\_stage%'")
        left += cursor.fetchall()
    assert [row[0] for row in found] == list(range(ROWS))
    start = dt.datetime(1970, 1, 1)
    for row in found:
        number, later = row[0], start + dt.timedelta(microseconds=row[0] * 1000001)
        assert row[1:9] == (
            number % 100,
            Decimal(number) / 4,
            None if number % 3 == 0 else f"Zażółć\t🚀\n{number}",
            str(number).encode(),
            dt.date(2026, 1, 1) + dt.timedelta(days=number),
            later,
            later,
            int(number % 2 == 0),
        )
        *plain, [deep] = [json.loads(text) for text in row[9:]]
        assert plain == [["a", None], {"x": number, "y": None}, {"n": number}]
        assert dt.datetime.fromisoformat(deep["at"]) == later.replace(tzinfo=dt.UTC)
        assert dt.datetime.fromisoformat(deep["local"]) == later
        # As text: MySQL's own JSON would make doubles of numbers.
        assert (deep["exact"], deep["sums"]) == (f"0.{number:030}", {"n": f"{number}.00"})
    assert columns["moment"] == "datetime(6)"
    assert left == []

    other = {**COLUMNS, "tiny": "cast(id AS double)"}
    error = failing(job(Numbers(ROWS, other)), SchemaMismatch)
    assert "column 'tiny' is double, the table's is tinyint" in str(error)
