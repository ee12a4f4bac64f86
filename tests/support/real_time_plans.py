"""Plans for real-time mode, each with what it is refused for. They read two streams of Kafka's columns, `a` and `b`,
whose values are JSON such as `{"id": 7, "xs": ["x", "y"]}`, and a static frame `dim` of `id long, name string`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE = "id long, xs array<string>"


@dataclass(frozen=True)
class Tables:
    spark: SparkSession
    a: DataFrame
    b: DataFrame
    dim: DataFrame

    def __post_init__(self) -> None:
        for name in ("a", "b", "dim"):
            getattr(self, name).createOrReplaceTempView(name)

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text)

    @property
    def rows(self) -> DataFrame:
        """`key, id, xs` of the stream `a`."""
        from pyspark.sql import functions as f

        return self.a.select("key", f.from_json(f.col("value").cast("string"), VALUE).alias("j")).select("key", "j.*")


@dataclass(frozen=True)
class Plan:
    """`refused` is a part of the message, None where the plan is accepted. `each` gives for a source row's id and xs
    how many rows it becomes."""

    make: Callable[[Tables], DataFrame]
    refused: str | None = None
    each: Callable[[int, list[str]], int] = lambda number, xs: 1
    multiplies: bool = False
    mode: str = "update"


def shout(text: Any) -> Any:
    return text


def as_is(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _group_state(key: Any, rows: Any, state: Any) -> Iterator[Any]:
    yield from rows


def plans() -> dict[str, Plan]:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    value = f.col("value").cast("string")
    per_x: dict[str, Any] = {"each": lambda number, xs: len(xs), "multiplies": True}
    named: dict[str, Any] = {"each": lambda number, xs: 1 if number % 4 < 2 else 0}  # the ids in dim
    accepted = {
        "select": Plan(lambda t: t.a.select("key", "value")),
        "filter": Plan(lambda t: t.a.select("key", "value").where("length(value) > 1")),
        "filter on top": Plan(lambda t: t.rows.where("id % 2 = 0"), each=lambda number, xs: 1 - number % 2),
        "json, rename, nested, drop": Plan(lambda t: t.rows.withColumn("z", f.col("id") + 1).drop("xs")),
        "explode": Plan(lambda t: t.rows.select("key", "id", f.explode("xs").alias("x")), **per_x),
        "posexplode_outer": Plan(
            lambda t: t.rows.select("id", f.posexplode_outer("xs")),
            each=lambda number, xs: max(1, len(xs)),
            multiplies=True,
        ),
        "explode twice": Plan(
            lambda t: t.rows.select("id", f.explode("xs").alias("x")).select("id", f.explode(f.array("x", "x"))),
            each=lambda number, xs: 2 * len(xs),
            multiplies=True,
        ),
        "SQL": Plan(lambda t: t.sql("select key, value from a where key is not null")),
        "SQL with": Plan(lambda t: t.sql("with w as (select key, value from a) select * from w where key is not null")),
        "SQL pipe": Plan(lambda t: t.sql("from a |> where key is not null |> select key, value")),
        "SQL lateral view": Plan(
            lambda t: t.sql(
                f"select k, x from (select cast(key as string) k, {_JSON}.xs v from a) lateral view explode(v) as x"
            ),
            **per_x,
        ),
        "view of a view": Plan(lambda t: _view(t.a.select("key", "value"), "v1", "select key from v1")),
        "unpivot": Plan(
            lambda t: t.rows.select("id", f.length("key").alias("p"), f.size("xs").alias("q")).unpivot(
                "id", ["p", "q"], "n", "v"
            ),
            each=lambda number, xs: 2,
            multiplies=True,
        ),
        "sliding window": Plan(
            lambda t: t.a.select("key", f.window("timestamp", "1 minute", "30 seconds").alias("w")),
            each=lambda number, xs: 2,
            multiplies=True,
        ),
        "watermark": Plan(lambda t: t.a.withWatermark("timestamp", "1 minute").select("key", "value")),
        "observe": Plan(lambda t: t.a.select("key").observe("o", f.count(f.lit(1)).alias("n"))),
        "columns of our names": Plan(
            lambda t: t.a.select(
                "key", f.lit(1).alias("partition"), f.lit(2).alias("offset"), f.lit("x").alias("__penstock_topic")
            )
        ),
        "alias": Plan(lambda t: t.a.alias("x").select(f.col("x.key"), f.col("x.value"))),
        "rand": Plan(lambda t: t.a.select("key", f.rand().alias("r"), f.expr("uuid()").alias("u"))),
        "current_timestamp": Plan(lambda t: t.a.select("key", f.current_timestamp().alias("now"))),
        "broadcast join": Plan(
            lambda t: t.rows.join(f.broadcast(t.dim), f.expr("id % 4 = dim_id")), **named, multiplies=True
        ),
        "broadcast join by name": Plan(
            lambda t: (
                t.rows.withColumn("dim_id", f.expr("id % 4"))
                .join(f.broadcast(t.dim), "dim_id", "left")
                .select("key", "id", "name")
            ),
            multiplies=True,
        ),
        "stream on the right": Plan(
            lambda t: f.broadcast(t.dim).join(t.rows, f.expr("id % 4 = dim_id"), "right"), multiplies=True
        ),
        "small static frame": Plan(
            lambda t: t.rows.join(t.spark.range(2).toDF("n"), f.expr("id % 4 = n")), **named, multiplies=True
        ),
        "semi join": Plan(lambda t: t.rows.join(f.broadcast(t.dim), f.expr("id % 4 = dim_id"), "left_semi"), **named),
        "SQL in": Plan(
            lambda t: t.sql(f"select * from ({_ROWS}) where id % 4 in (select /*+ broadcast(dim) */ dim_id from dim)"),
            **named,
        ),
        "SQL scalar subquery": Plan(lambda t: t.sql("select key, (select max(dim_id) from dim) m from a")),
        "SQL join": Plan(
            lambda t: t.sql(
                f"select /*+ broadcast(dim) */ r.key, dim.name from ({_ROWS}) r join dim on r.id % 4 = dim.dim_id"
            ),
            **named,
            multiplies=True,
        ),
        "union of two": Plan(lambda t: t.a.select("key", "value").union(t.b.select("key", "value"))),
        "unionByName": Plan(
            lambda t: t.a.select("key", value.alias("v")).unionByName(
                t.b.where("key is not null").select(f.lit("w").alias("w"), "key"), allowMissingColumns=True
            )
        ),
    }
    python, arrow = f.udf(shout, "string"), f.udf(shout, "string", useArrow=True)
    pandas = pandas_udf(shout, "string", PandasUDFType.SCALAR)
    loud = f.udf(lambda text: text, "string")

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None: ...
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield from rows

        def close(self) -> None: ...

    refused = {
        "groupBy": Plan(lambda t: t.a.groupBy("key").count(), r"groupBy \(an aggregation\), which keeps state"),
        "count of all": Plan(lambda t: t.a.groupBy().count(), "Spark 4.3 runs it in real-time mode, but"),
        "windowed count": Plan(
            lambda t: t.a.withWatermark("timestamp", "1 minute").groupBy(f.window("timestamp", "1 minute")).count(),
            "groupBy",
        ),
        "SQL group by": Plan(lambda t: t.sql("select key, count(*) from a group by key"), "groupBy"),
        "distinct": Plan(lambda t: t.a.select("key").distinct(), "distinct|dropDuplicates"),
        "SQL distinct": Plan(lambda t: t.sql("select distinct key from a"), "distinct"),
        "dropDuplicates": Plan(lambda t: t.a.dropDuplicates(["key"]).select("key"), "dropDuplicates, which"),
        "dropDuplicatesWithinWatermark": Plan(
            lambda t: t.a.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["key"]),
            "dropDuplicatesWithinWatermark",
        ),
        "stream-stream join": Plan(
            lambda t: t.a.select("key").join(t.b.select(f.col("key").alias("k")), f.expr("key = k")),
            "a join of two streams",
        ),
        "limit": Plan(lambda t: t.a.select("key").limit(5), "limit"),
        "offset": Plan(lambda t: t.a.select("key").offset(5), "offset"),
        "window function": Plan(
            lambda t: t.sql("select key, row_number() over (partition by key order by timestamp) from a"), "OVER"
        ),
        "intersect": Plan(lambda t: t.a.select("key").intersect(t.b.select("key")), "intersect"),
        "repartition": Plan(lambda t: t.a.select("key").repartition(2), "repartition, which moves rows"),
        "repartition by key": Plan(lambda t: t.a.select("key").repartition(2, "key"), "repartition"),
        "rebalance": Plan(lambda t: t.a.select("key").hint("rebalance"), "rebalance"),
        "coalesce": Plan(lambda t: t.a.select("key").coalesce(1), "coalesce, which moves rows"),
        "sort": Plan(lambda t: t.a.select("key").orderBy("key"), "a sort"),
        "sortWithinPartitions": Plan(lambda t: t.a.select("key").sortWithinPartitions("key"), "a sort"),
        "sample": Plan(lambda t: t.a.select("key").sample(0.5), "sample"),
        "Python UDF": Plan(lambda t: t.a.select(python(value)), "the Python function shout"),
        "Python UDF in a filter": Plan(lambda t: t.a.where(python(value) == "x"), "the Python function shout"),
        "Python UDF inside": Plan(lambda t: t.a.select(f.upper(loud(value)).alias("v")).select("v"), "<lambda>"),
        "Arrow UDF": Plan(lambda t: t.a.select(arrow(value)), "the Python function shout"),
        "pandas UDF": Plan(lambda t: t.a.select(pandas(value)), "the Python function shout"),
        "mapInArrow": Plan(lambda t: t.a.select("key").mapInArrow(as_is, "key binary"), r"mapInArrow \(as_is\)"),
        "mapInPandas": Plan(lambda t: t.a.select("key").mapInPandas(as_is, "key binary"), r"mapInPandas \(as_is\)"),
        "applyInPandasWithState": Plan(
            lambda t: t.a.groupBy("key").applyInPandasWithState(
                _group_state, "key binary", "n long", "append", "NoTimeout"
            ),
            "applyInPandasWithState",
        ),
        "transformWithState": Plan(
            lambda t: t.a.groupBy("key").transformWithStateInPandas(Processor(), "key binary", "append", "None"),
            "transformWithState",
        ),
        "SQL lateral join": Plan(
            lambda t: t.sql("select key, x from a, lateral explode(array(1, 2)) as e(x)"), "LateralJoin"
        ),
        "union with itself": Plan(lambda t: t.a.select("key").union(t.a.select("value")), "source 'a' twice"),
        "SQL with, twice": Plan(
            lambda t: t.sql("with w as (select key from a) select key from w union all select key from w"),
            "source 'a' twice",
        ),
        "union with a static frame": Plan(
            lambda t: t.a.select("key").union(t.dim.selectExpr("cast(name as binary)")), "does not stream"
        ),
        "full join": Plan(lambda t: t.rows.join(t.dim, f.expr("id = dim_id"), "full"), "FullOuter join"),
        "static left join": Plan(
            lambda t: t.dim.join(t.rows, f.expr("id = dim_id"), "left"), "LeftOuter join with the stream on the right"
        ),
        "cross join": Plan(lambda t: t.rows.crossJoin(f.broadcast(t.dim)), "BroadcastNestedLoopJoin"),
        "inequality join": Plan(lambda t: t.rows.join(f.broadcast(t.dim), f.expr("id > dim_id")), "NestedLoop"),
        "join with a large frame": Plan(
            lambda t: t.rows.join(t.spark.range(1 << 40).toDF("n"), f.expr("id = n")), "SortMergeJoin"
        ),
        "SQL in, large": Plan(
            lambda t: t.sql(f"select * from ({_ROWS}) where id in (select id from range(10000000000))"), "SortMergeJoin"
        ),
        "rand and explode": Plan(
            lambda t: t.rows.select("key", f.rand().alias("r"), f.explode("xs")), r"rand\(\).*other rows in a restart"
        ),
        "now and explode": Plan(
            lambda t: t.rows.select("key", f.current_timestamp().alias("r"), f.explode("xs")), r"current_timestamp\(\)"
        ),
        "rand in a joined frame": Plan(
            lambda t: t.rows.join(f.broadcast(t.dim.withColumn("r", f.rand())), f.expr("id = dim_id")),
            "a joined frame that is not deterministic",
        ),
        "complete": Plan(lambda t: t.a.select("key"), "output_mode='complete'", mode="complete"),
    }
    return {**accepted, **refused}


_JSON = f"from_json(cast(value as string), '{VALUE}')"
_ROWS = f"select key, j.id, j.xs from (select key, {_JSON} j from a)"


def _view(frame: DataFrame, name: str, query: str) -> DataFrame:
    frame.createOrReplaceTempView(name)
    return frame.sparkSession.sql(query)
