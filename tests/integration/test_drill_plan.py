"""What a drill reads in a plan before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from penstock.spark.lane_plan import changing_functions, losing_options, python_functions, works_on_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rows(session: SparkSession) -> DataFrame:
    return session.readStream.format("rate").load().selectExpr("value AS id", "timestamp AS ts")


def test_clocks_and_chance_are_named_wherever_they_are(rows: DataFrame) -> None:
    assert changing_functions(rows.withColumn("at", f.current_timestamp())) == ["current_timestamp()"]
    assert changing_functions(rows.where("ts > now() - interval 1 hour")) == ["now()"]
    assert changing_functions(rows.selectExpr("concat(uuid(), '-', id) AS name")) == ["uuid()"]
    assert changing_functions(rows.where(f.rand() < 0.5).select("id")) == ["rand()"]
    assert changing_functions(rows.groupBy(f.monotonically_increasing_id()).count()) != []


def test_what_only_looks_like_them_is_not(rows: DataFrame) -> None:
    lists = rows.withWatermark("ts", "1 minute").groupBy(f.window("ts", "1 minute")).agg(f.collect_list("id"))
    assert changing_functions(lists) == []
    assert changing_functions(rows.selectExpr("'rand() and uuid()' AS text", "hash(id) AS `current_timestamp()`")) == []


def test_functions_of_the_program_are_named(rows: DataFrame) -> None:
    def square(number: int) -> int:
        return number * number

    udf = f.udf(square, "bigint")
    assert python_functions(rows.select(udf("id"))) == ["square"]
    assert changing_functions(rows.select(udf("id"))) == []
    assert changing_functions(rows.select(udf.asNondeterministic()("id"))) != []
    assert not works_on_batches(rows.select(udf("id")))
    assert works_on_batches(rows.mapInPandas(lambda batches: batches, "id bigint, ts timestamp"))


def test_options_that_lose_rows_are_those_of_streams(session: SparkSession, rows: DataFrame) -> None:
    assert losing_options(rows) == []
    losing = session.readStream.format("rate").option("failOnDataLoss", "FALSE").load()
    assert losing_options(losing) == [("failOnDataLoss", "false")]
