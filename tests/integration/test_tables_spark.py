"""What the table sinks write, Spark reads back the same; and a job with both tables survives a crash at every step."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, DeltaSink, Epoch, IcebergSink, Job, RestartStrategy, TwoPhaseSink
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import SchemaMismatch
from penstock.failpoints import InjectedFault
from penstock.supply.jars import jar_set
from tests.support.run_job import CrashAt, Numbers, failing, run_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

SCOPE = SinkScope("integration", "tables", 1)
ROWS, PER_EPOCH = 300, 100

EVERYTHING = """
    id bigint, flag boolean, tiny tinyint, small smallint, whole int, single float, double double,
    money decimal(12,2), huge decimal(38,10), text string, raw binary, day date, moment timestamp, local timestamp_ntz,
    list array<string>, point struct<x: int, y: array<double>>, counts map<string, int>
"""


@pytest.fixture(scope="module")
def spark(session: SparkSession) -> SparkSession:
    """A session of its own in a time zone with summer time, with Spark's own Delta connector."""
    from penstock.spark.session import _add

    _add(session, jar_set("spark-delta"))
    own = session.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Warsaw")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    own.conf.set("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    own.conf.set("spark.databricks.delta.snapshotPartitions", "1")  # 50 tasks for a log of three lines otherwise
    return own


def everything(spark: SparkSession) -> DataFrame:
    full = (
        1, True, -7, 300, 70_000, 1.5, -2.25, Decimal("12.30"), Decimal("-1234567890123456789012345678.0123456789"),
        'Zażółć, "日本語"\n🚀' + 40 * "ż", bytearray(b"\x00\xff"), dt.date(1969, 7, 20),
        dt.datetime(2026, 3, 29, 0, 59, 59, 123456, dt.UTC), dt.datetime(1900, 1, 1, 0, 0, 0, 1),
        ["a", None, ""], (1, [0.5, None]), {"a": 1, "b": None},
    )  # fmt: skip
    null = (2, *([None] * 16))
    nan = float("nan")
    empty: Any
    empty = (3, False, 0, 0, 0, nan, nan, Decimal(0), Decimal(0), "", bytearray(), None, None, None, [], (None, []), {})
    return spark.createDataFrame([full, null, empty], EVERYTHING)


def write(sink: TwoPhaseSink, frame: DataFrame, epoch: int = 0) -> None:
    """One epoch with one writer for each partition, as a job does it."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        number = TaskContext.get().partitionId()  # type: ignore[union-attr]
        writer = sink.open_writer(WriterScope(SCOPE, epoch, 0, number, 0))
        rows = 0
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
        payload = json.dumps(dict(writer.pre_commit()))
        yield pa.RecordBatch.from_pydict({"writer": [number], "rows": [rows], "payload": [payload]})

    answers = sink.shape(frame).mapInArrow(task, "writer bigint, rows bigint, payload string").collect()
    committables = [Committable("tables", row.writer, row.rows, 0, json.loads(row.payload)) for row in answers]
    committer = sink.open_committer(SCOPE)
    outcomes = committer.commit(epoch, committer.seal(committables, Deadline(30)), Deadline(30))
    assert set(outcomes.values()) == {Outcome.COMMITTED}


def test_spark_reads_every_type_from_the_delta_table_and_skips_no_row(spark: SparkSession, tmp_path: Path) -> None:
    frame = everything(spark).coalesce(1)
    write(DeltaSink(str(tmp_path / "table")), frame)
    back = spark.read.format("delta").load(str(tmp_path / "table"))
    assert back.schema.simpleString() == frame.schema.simpleString()
    assert repr(back.orderBy("id").collect()) == repr(frame.orderBy("id").collect())
    # By the file's statistics alone a reader would skip the row, if one of them were wrong.
    filters = (
        "text > 'Zażółć'",
        "double > 1e300",
        "moment >= '2026-03-29 01:59:59.123456'",
        "local <= timestamp_ntz'1900-01-01 00:00:00.000001'",
    )
    each = [back.where(one).selectExpr(f"{number} AS filter") for number, one in enumerate(filters)]
    assert sorted(row.filter for row in reduce(type(back).union, each).collect()) == list(range(len(filters)))


def test_a_table_that_spark_has_made_takes_both_writers(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "sparks")
    rows = spark.range(10).selectExpr(
        "id", "cast(id % 3 AS string) AS shop", "date'2026-01-01' + cast(id AS int) AS day"
    )
    rows.write.format("delta").partitionBy("shop", "day").save(path)
    write(DeltaSink(path), rows.selectExpr("day", "cast(id + 10 AS int) AS id", "nullif(shop, '0') AS shop"))
    rows.selectExpr("id + 20 AS id", "shop", "day").write.format("delta").mode("append").save(path)
    back = spark.read.format("delta").load(path)
    assert sorted(row.id for row in back.collect()) == list(range(30))
    assert sorted(row.id for row in back.where("shop = '1'").collect()) == [1, 4, 7, 11, 14, 17, 21, 24, 27]
    assert sorted(row.id for row in back.where("shop IS NULL AND day = '2026-01-04'").collect()) == [13]


def test_columns_that_no_table_has_are_refused_when_the_job_is_described(spark: SparkSession, tmp_path: Path) -> None:
    delta = DeltaSink(str(tmp_path / "t"), partition_by="at")  # type: ignore[arg-type]  # one name is taken, too
    iceberg = IcebergSink("a.b")
    for sink, sql, said in (
        (iceberg, "interval '1' day AS a", "column a is interval day"),
        (iceberg, "1 AS a, 2 AS A", "column a is there twice"),
        (iceberg, "1 AS `a.b`", "'a.b' has '.'"),
        (delta, "1 AS `a b`, current_timestamp() AS at", "'a b' has ' '"),
        (delta, "1 AS a, current_timestamp() AS at", "column 'at' is timestamp"),
        (delta, "1 AS a", "there is no column 'at'"),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            sink.shape(spark.sql(f"SELECT {sql}"))
        assert said in str(caught.value)


def test_both_tables_have_every_row_once_through_crashes(
    session: SparkSession, storage: str, tmp_path: Path, crash_at: CrashAt
) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    delta, iceberg = DeltaSink(str(tmp_path / "delta")), IcebergSink("shop.orders", properties=catalog)

    def job() -> Job:
        made = Job("tables", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
        rows = made.read(Numbers(ROWS, {"id": "id", "even": "id % 2 = 0"}, per_epoch=PER_EPOCH), uid="in")

        @made.epoch(rows, uid="split", sinks={"delta": delta, "iceberg": iceberg})
        def split(batch: DataFrame, epoch: Epoch) -> None:
            epoch.write(batch, delta)
            epoch.write(batch.where("even"), iceberg)

        return made

    for point, passing in (("epoch.sealed", 1), ("epoch.decided", 1), ("commit.first", 1), ("commit.first", 2)):
        crash_at(point, passing)
        failing(job(), InjectedFault)
        crash_at.no_more()
    run_all(job())
    table = load_catalog("default", **catalog).load_table("shop.orders")
    assert Counter(DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().column("id").to_pylist()) == Counter(
        range(ROWS)
    )
    assert Counter(table.scan().to_arrow().column("id").to_pylist()) == Counter(range(0, ROWS, 2))
    added = [
        one.summary["added-records"]
        for one in table.snapshots()
        if one.summary and "added-records" in one.summary.additional_properties
    ]
    assert len(added) == ROWS // PER_EPOCH, "one snapshot with rows for each epoch"
    assert not [path for path in tmp_path.rglob("_penstock/**/open/*") if path.is_file()]
