"""Which plans a real-time query may have, by the analysed plan alone: no broker, nothing started."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import broadcast, expr

from penstock.contracts.source import QueryPlan
from penstock.errors import RealTimeRefused
from penstock.sources.datagen import DataGenSource
from penstock.sources.kafka import KafkaSource
from penstock.spark.lane_plan import POSITIONS, lane_plan
from penstock.spark.query import Lineage, streams_of
from tests.support.real_time_plans import Tables, plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.contracts.source import Source

SERVERS = "127.0.0.1:1"  # where nobody answers


class World:
    """Two sources and a static frame, as a job has them."""

    def __init__(self, spark: SparkSession) -> None:
        self.lineage, self.spark = Lineage(), spark
        self.sources: dict[str, Source] = {}
        a, b = (self.read(name, KafkaSource(name, servers=SERVERS)) for name in "ab")
        self.tables = Tables(spark, a, b, spark.createDataFrame([(0, "x"), (1, "y")], "dim_id long, name string"))

    def read(self, uid: str, source: Source) -> DataFrame:
        self.sources[uid] = source
        frame = source.load(self.spark, uid)
        self.lineage.remember(uid, frame)
        return frame

    def plan(self, frame: DataFrame, mode: str = "update") -> QueryPlan:
        positions = self.lineage.positions(frame)
        sources = {uid: self.sources[uid] for uid in positions if uid is not None}
        return QueryPlan("out", frame, {}, sources, positions, lambda *_: None, output_mode=mode)


@pytest.fixture(scope="module")
def world(session: SparkSession) -> World:
    return World(session)


def test_every_plan_is_carried_or_refused_by_name(world: World) -> None:
    wrong: dict[str, str] = {}
    for name, plan in plans().items():
        frame = plan.make(world.tables)
        try:
            carried = lane_plan(frame, world.plan(frame, plan.mode))
        except RealTimeRefused as error:
            helpful = error.safe == "nothing was started." and "micro-batch mode takes it" in error.to_do
            if not helpful or plan.refused is None or not re.search(plan.refused, error.happened):
                wrong[name] = f"refused: {error}"
            continue
        if plan.refused is not None:
            wrong[name] = "accepted"
        elif carried.frame.columns != [*frame.columns, *POSITIONS]:
            wrong[name] = f"columns {carried.frame.columns}"
        elif carried.multiplies != plan.multiplies:
            wrong[name] = f"multiplies {carried.multiplies}"
        elif [kind for _, kind in carried.frame.dtypes[-3:]] != ["string", "int", "bigint"]:
            wrong[name] = f"positions {carried.frame.dtypes[-3:]}"
    assert wrong == {}


def refused(world: World, frame: DataFrame) -> str:
    with pytest.raises(RealTimeRefused) as error:
        lane_plan(frame, world.plan(frame))
    return error.value.happened


def test_a_stream_is_read_with_options_and_positions_for_real_time(world: World) -> None:
    frame = world.tables.a.select("value").union(world.tables.b.select("value"))
    starting = {"a": {"a": {0: 7, 1: 9}}, "b": {"b": {0: 3}}}
    carried = lane_plan(frame, world.plan(frame), starting)
    assert carried.uids == ("a", "b")
    read = [dict(stream.extraOptions()) for stream in streams_of(carried.frame)]
    assert [json.loads(options["startingoffsets"]) for options in read] == [{"a": {"0": 7, "1": 9}}, {"b": {"0": 3}}]
    assert read[0]["subscribe"] == "a"
    assert read[0]["kafka.fetch.min.bytes"] == "65536"
    assert read[0]["kafka.fetch.max.wait.ms"] == "8"
    assert read[0]["kafka.max.poll.records"] == "20000"
    assert read[0]["failondataloss"] == "true"
    assert dict(next(streams_of(frame)).extraOptions())["startingoffsets"] == "earliest"  # the user's is as it was


def test_headers_are_columns_like_others(session: SparkSession) -> None:
    world = World(session)
    frame = world.read("h", KafkaSource("h", servers=SERVERS, options={"includeHeaders": True}))
    joined = frame.join(broadcast(world.tables.dim), expr("partition = dim_id")).select("headers", "value")
    assert lane_plan(joined, world.plan(joined)).frame.columns == ["headers", "value", *POSITIONS]


def test_sources_without_lanes_are_refused(session: SparkSession) -> None:
    world = World(session)
    generated = world.read("numbers", DataGenSource(10))
    assert "only KafkaSource can" in refused(world, generated)
    limited = world.read("slow", KafkaSource("slow", servers=SERVERS, max_offsets_per_epoch=10))
    assert "has max_offsets_per_epoch" in refused(world, limited.select("value"))
    split = world.read("split", KafkaSource("split", servers=SERVERS, options={"minPartitions": 8}))
    assert "has minPartitions" in refused(world, split.select("value"))
    foreign = session.readStream.format("rate").load().selectExpr("cast(value as string) value")
    assert "did not make" in refused(world, foreign)


def test_two_sources_over_one_topic_are_refused(session: SparkSession) -> None:
    world = World(session)
    again = world.read("again", KafkaSource("x,a", servers=SERVERS))
    assert "the sources 'a' and 'again' over one topic, a" in refused(world, world.tables.a.union(again))
    like = world.read("like", KafkaSource(pattern="a.*", servers=SERVERS))
    frame = world.tables.a.union(like)
    lane_plan(frame, world.plan(frame))  # what the pattern matches is not known yet
    with pytest.raises(RealTimeRefused, match="over one topic, a,"):
        lane_plan(frame, world.plan(frame), {"a": {"a": {0: 0}}, "like": {"ab": {0: 0}, "a": {0: 0}}})


def test_a_source_in_sqls_with_has_one_position(session: SparkSession) -> None:
    world = World(session)
    frame = world.tables.sql("with w as (select key, value from a) select * from w where key is not null")
    assert world.lineage.positions(frame) == ["a"]
