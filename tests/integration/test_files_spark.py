"""What the file sink writes, Spark reads back the same; and the generator replays the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock import Checkpoints, Job
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.sinks.files import FileSink
from penstock.sinks.files.text import LOSSLESS
from penstock.sinks.redis import RedisSink
from penstock.sinks.sql.tables import with_json
from penstock.sources.datagen import DataGenSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCOPE = SinkScope("integration", "files", 1)

EVERYTHING = """
    id bigint, flag boolean, tiny tinyint, small smallint, whole int, single float, double double,
    money decimal(12,2), huge decimal(38,10), text string, raw binary, day date, moment timestamp, local timestamp_ntz,
    list array<string>, point struct<x: int, y: array<double>>, counts map<string, int>
"""


@pytest.fixture(scope="module")
def spark(session: SparkSession) -> SparkSession:
    """A session of its own in a time zone with summer time."""
    own = session.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Warsaw")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def everything(spark: SparkSession) -> DataFrame:
    zone, no_zone = dt.UTC, None
    full = (
        1, True, -7, 300, 70_000, 1.5, -2.25, Decimal("12.30"), Decimal("-1234567890123456789012345678.0123456789"),
        'Zażółć, "日本語"\n🚀', bytearray(b"\x00\xff"), dt.date(1969, 7, 20),
        dt.datetime(2026, 3, 29, 0, 59, 59, 123456, zone), dt.datetime(1900, 1, 1, 0, 0, 0, 1, no_zone),
        ["a", None, ""], (1, [0.5, None]), {"a": 1, "b": None},
    )  # fmt: skip
    null = (2, *([None] * 16))
    empty: Any
    empty = (3, False, 0, 0, 0, 0.0, 0.0, Decimal(0), Decimal(0), "", bytearray(), None, None, None, [], (None, []), {})
    return spark.createDataFrame([full, null, empty], EVERYTHING)


def write(sink: FileSink, frame: DataFrame) -> None:
    """One epoch with one writer for each partition, as a job does it."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import json

        import pyarrow as pa
        from pyspark import TaskContext

        number = TaskContext.get().partitionId()  # type: ignore[union-attr]
        writer = sink.open_writer(WriterScope(SCOPE, 0, 0, number, 0))
        rows = 0
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
        payload = json.dumps(dict(writer.pre_commit()))
        yield pa.RecordBatch.from_pydict({"writer": [number], "rows": [rows], "payload": [payload]})

    import json

    shaped = sink.shape(frame)
    answers = shaped.mapInArrow(task, "writer bigint, rows bigint, payload string").collect()
    committables = [Committable("files", row.writer, row.rows, 0, json.loads(row.payload)) for row in answers]
    committer = sink.open_committer(SCOPE)
    outcomes = committer.commit(0, committer.seal(committables, Deadline(30)), Deadline(30))
    assert set(outcomes.values()) == {Outcome.COMMITTED}


@pytest.mark.parametrize("compression", [None, "zstd", "gzip", "none"])
def test_parquet_comes_back_with_every_type(spark: SparkSession, tmp_path: Path, compression: str | None) -> None:
    frame = everything(spark)
    write(FileSink(str(tmp_path / "out"), compression=compression), frame)
    back = spark.read.parquet(str(tmp_path / "out"))
    assert back.schema.simpleString() == frame.schema.simpleString()
    assert back.orderBy("id").collect() == frame.orderBy("id").collect()


@pytest.mark.parametrize("compression", [None, "gzip", "bz2"])
def test_json_is_what_spark_itself_writes(spark: SparkSession, tmp_path: Path, compression: str | None) -> None:
    frame = everything(spark)
    write(FileSink(str(tmp_path / "ours"), format="json", compression=compression), frame)
    frame.write.options(**LOSSLESS["json"]).json(str(tmp_path / "sparks"))
    ours, sparks = (sorted(r.value for r in spark.read.text(str(tmp_path / n)).collect()) for n in ("ours", "sparks"))
    assert ours == sparks
    back = spark.read.schema(frame.schema).json(str(tmp_path / "ours"))
    assert back.orderBy("id").collect() == frame.orderBy("id").collect()


MAPS = {
    "date'1880-06-01'": "1880-06-01",
    "timestamp'1880-06-01 12:00:00.123456Z'": "1880-06-01T12:00:00.123456Z",
    "timestamp_ntz'2024-01-01 00:00:00'": "2024-01-01T00:00:00.000000",
    "cast(0.0000001 AS decimal(20, 10))": "0.0000001000",
    "1e10D": "1.0E10",
    "true": "true",
    "-7": "-7",
    "'x'": "x",
}


def as_json(frame: DataFrame) -> list[str]:
    """The one column of `frame` as every sink with JSON writes it."""
    redis = RedisSink("redis://nowhere", mode="string").shape(frame.selectExpr("1 AS key", "m"))
    lines = FileSink("/nowhere", format="json").shape(frame).first()
    return [
        *(row.m for how in (False, True) for row in with_json(frame, lambda _: True, decimals_as_text=how).collect()),
        *(row.m for row in redis.collect()),
        lines.value.removeprefix('{"m":').removesuffix("}") if lines else "",
    ]


def test_keys_of_maps_are_the_same_text_in_every_sink_and_read_back(spark: SparkSession) -> None:
    """Spark would write days since 1970, microseconds, and for bytes the address of a Java object."""
    pairs = [f"named_struct('a', array(map({key}, map({key}, null)))) AS m{n}" for n, key in enumerate(MAPS)]
    frame = spark.sql(f"SELECT {', '.join(pairs)}")
    for number, (key, text) in enumerate(MAPS.items()):
        [told] = {*as_json(frame.selectExpr(f"m{number} AS m"))}
        assert told == f'{{"a":[{{"{text}":{{"{text}":null}}}}]}}', key
    texts = [text for text in MAPS.values() if text.endswith("Z")]
    assert spark.createDataFrame([(text,) for text in texts], "t string").selectExpr(
        "cast(t AS timestamp) = timestamp'1880-06-01 12:00:00.123456Z' AS same"
    ).collect() == [(True,)]


@pytest.mark.parametrize("key", ["X'00ff'", "struct(1 AS a)", "array(1)"])
def test_keys_of_maps_that_have_no_text_are_refused_before_a_start(spark: SparkSession, key: str) -> None:
    frame = spark.sql(f"SELECT array(struct(map({key}, 1) AS inside)) AS m")
    for shape in (
        FileSink("/nowhere", format="json").shape,
        RedisSink("redis://nowhere", key="m2").shape,
        lambda frame: with_json(frame, lambda _: True),
    ):
        with pytest.raises(SchemaMismatch, match=r"column m has a map with keys of (binary|struct|array)"):
            shape(frame.selectExpr("m", "1 AS m2"))


def test_old_times_keep_their_seconds_in_every_zone(spark: SparkSession) -> None:
    """Berlin was 53 minutes and 28 seconds ahead of Greenwich, Liberia 44 minutes and 30 seconds behind."""
    own = spark.newSession()
    for zone, moment in (("Europe/Berlin", "1880-06-01T12:00:00Z"), ("Africa/Monrovia", "1971-06-01T12:00:00Z")):
        own.conf.set("spark.sql.session.timeZone", zone)
        frame = own.sql(f"SELECT timestamp'{moment}' AS ts")
        rendered: list[tuple[Any, dict[str, str]]] = [("json", {}), ("csv", {}), ("json", {"timeZone": zone})]
        for form, extra in rendered:
            [line] = FileSink("/nowhere", format=form, options=extra).shape(frame).collect()
            read = f"from_{form}('{line[0]}', 'ts timestamp').ts"
            assert own.sql(f"SELECT {read} = timestamp'{moment}' AS same").first() == (True,), (zone, line)
        [[nested]] = with_json(frame.selectExpr("struct(ts) AS s"), lambda _: True).collect()
        assert nested == f'{{"ts":"{moment[:-1]}.000000Z"}}'


def test_a_format_of_the_users_own_is_shown_in_the_sessions_zone(spark: SparkSession) -> None:
    frame = spark.sql("SELECT timestamp'2026-01-01 12:00:00Z' AS ts")
    [[line]] = FileSink("/nowhere", format="csv", options={"TimestampFormat": "HH:mm"}).shape(frame).collect()
    assert line == "13:00"


@pytest.mark.parametrize("options", [{}, {"Header": "true", "SEP": ";", "nullvalue": "NULL"}, {"quoteAll": "true"}])
def test_csv_is_what_spark_itself_writes(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    frame = everything(spark).drop("raw", "list", "point", "counts").withColumnRenamed("text", "te;x.t").coalesce(1)
    write(FileSink(str(tmp_path / "ours"), format="csv", options=options), frame)
    frame.write.options(**LOSSLESS["csv"], **options).csv(str(tmp_path / "sparks"))
    ours, sparks = (next((tmp_path / name).glob("part-*")).read_text() for name in ("ours", "sparks"))
    assert ours == sparks
    back = spark.read.schema(frame.schema).options(multiLine="true", **options).csv(str(tmp_path / "ours"))
    assert [row.moment for row in back.collect()] == [row.moment for row in frame.collect()]


@pytest.mark.parametrize("options", [{}, {"nullValue": "NULL"}, {"nullValue": "", "emptyValue": ""}])
def test_csv_of_one_column_loses_no_row(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    """Spark's own writer drops the rows that are null or empty here."""
    words = [None, "", "  ", " a ", "b"]
    write(
        FileSink(str(tmp_path), format="csv", options=options), spark.createDataFrame([(w,) for w in words], "w string")
    )
    back = [row.w for row in spark.read.schema("w string").options(**options).csv(str(tmp_path)).collect()]
    assert len(back) == len(words)
    assert {" a ", "b", "  "} <= set(back)


def test_columns_that_cannot_be_written_are_named(spark: SparkSession, tmp_path: Path) -> None:
    frame = everything(spark)
    with pytest.raises(SchemaMismatch, match="column list is array<string>"):
        FileSink(str(tmp_path), format="csv").shape(frame)
    with pytest.raises(SchemaMismatch, match="column span is interval"):
        FileSink(str(tmp_path)).shape(frame.selectExpr("interval '1' day AS span"))
    with pytest.raises(SchemaMismatch, match="column id is there twice"):
        FileSink(str(tmp_path)).shape(frame.selectExpr("id", "id AS ID"))


def drain(frame: DataFrame, checkpoint: Path, into: list[tuple[int, int, list[Any]]], **trigger: Any) -> None:
    def keep(batch: DataFrame, epoch: int) -> None:
        into.append((epoch, batch.rdd.getNumPartitions(), batch.orderBy("id").collect()))

    stream = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = stream.trigger(**trigger).start()
    query.awaitTermination(60)
    query.stop()


def test_the_generator_gives_every_row_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    source = DataGenSource(1_000, max_rows_per_epoch=300, partitions=3, seed=7)
    seen: list[tuple[int, int, list[Any]]] = []
    drain(source.load(spark, "numbers"), tmp_path / "c", seen, availableNow=True)
    drain(source.load(spark, "numbers"), tmp_path / "c", seen, availableNow=True)
    assert [len(rows) for _, _, rows in seen] == [300, 300, 300, 100]
    assert {parts for _, parts, _ in seen} == {3}
    rows = [row for _, _, batch in seen for row in batch]
    assert [row.id for row in rows] == list(range(1_000))
    again: list[tuple[int, int, list[Any]]] = []
    other = DataGenSource(1_000, max_rows_per_epoch=1_000, partitions=1, seed=7)
    drain(other.load(spark, "numbers"), tmp_path / "d", again, availableNow=True)
    assert rows == again[0][2]
    last = (tmp_path / "c" / "offsets" / "3").read_text().splitlines()[-1]
    assert source.finished(last)


def test_an_endless_generator_ends_an_available_now_run(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, int, list[Any]]] = []
    source = DataGenSource(rate=5.0, max_rows_per_epoch=50, columns={"id": "id", "twice": "id * 2"})
    drain(source.load(spark, "numbers"), tmp_path / "c", seen, availableNow=True)
    assert [len(rows) for _, _, rows in seen] == [50]
    assert seen[0][2][3].asDict() == {"id": 3, "twice": 6}


def test_a_column_that_would_replay_otherwise_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="pure function"):
        DataGenSource(10, columns={"x": "rand()"}).load(spark, "numbers")


def test_names_that_spark_takes_for_something_else(session: SparkSession, tmp_path: Path) -> None:
    job = Job("odd-names", checkpoints=Checkpoints(storage=str(tmp_path / "checkpoints")), spark=session)
    numbers = job.read(DataGenSource(rows=10, columns={"id": "id"}), uid="numbers")
    odd = numbers.selectExpr("id AS `a.b`", "struct(id AS `c.d`) AS `e.f`", "cast(id AS string) AS `g``h`")
    job.write(odd, FileSink(str(tmp_path / "out")), uid="out")
    job.run()
    rows = pq.ParquetDataset(tmp_path / "out").read().to_pylist()
    assert sorted(row["a.b"] for row in rows) == list(range(10))
    assert all(row == {"a.b": row["a.b"], "e.f": {"c.d": row["a.b"]}, "g`h": str(row["a.b"])} for row in rows)
