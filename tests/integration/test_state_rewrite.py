"""Spark's state in other partitions and other backends: the query goes on as if nothing had happened.

Every operator runs through a chain of rewrites, with new input after each, beside a query that is left alone. What both
give must be the same, step by step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from penstock.checkpoint.spark_files import conf_of
from penstock.checkpoint.spark_log import STATE_FORMAT
from penstock.config.state import CHANGELOG, PROVIDER, PROVIDERS, Backend, backend_of
from penstock.errors import ConfigurationError, SavepointError
from penstock.savepoints.canonical import export, load
from penstock.spark_state import rewrite as rewriting
from penstock.spark_state import store_rows
from penstock.spark_state.metadata import plan_operators, read_operators
from penstock.spark_state.rewrite import CODEC, STRICT, rewrite
from penstock.spark_state.store_rows import JOIN_FORMAT
from penstock.storage.hadoop import HadoopStorage, HadoopTree
from penstock.storage.local import LocalTree
from tests.support.failpoint_actions import mostly_long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PARTITIONS = "spark.sql.shuffle.partitions"
SCHEMA = "k string, v long, ts timestamp"
STEPS = 3
Frames = Callable[["DataFrame", "DataFrame"], "DataFrame"]


def row(key: int, value: int, second: int) -> dict[str, Any]:
    return {"k": f"k{key}", "v": value, "ts": f"2026-01-01 00:{second // 60:02d}:{second % 60:02d}"}


def left_rows(step: int) -> list[dict[str, Any]]:
    """Keys come again in later steps, some rows come twice, time goes on by 20 seconds a step."""
    fresh = [row(key % 9, key + step, 20 * step + key % 15) for key in range(step, 24)]
    return fresh + [row(100 + step, 1, 20 * step)] + [row(50, 7, 20 * step + 1)] * 2


def right_rows(step: int) -> list[dict[str, Any]]:
    return [row((key * 2) % 11, key, 20 * step + key % 10) for key in range(10)]


def aggregate(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"), f.max("ts").alias("last"))


def windows(left: DataFrame, _: DataFrame) -> DataFrame:
    counted = left.withWatermark("ts", "5 seconds").groupBy(f.window("ts", "10 seconds"), "k").agg(f.sum("v"))
    return counted.selectExpr("string(window.start)", "k", "`sum(v)`")


def total(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def distinct(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.dropDuplicates(["k", "v"])


def distinct_windows(left: DataFrame, _: DataFrame) -> DataFrame:
    """Two operators with state in one query."""
    once = left.withWatermark("ts", "5 seconds").dropDuplicatesWithinWatermark(["k", "v"])
    return once.groupBy(f.window("ts", "10 seconds")).count().selectExpr("string(window.start)", "count")


def sessions(left: DataFrame, _: DataFrame) -> DataFrame:
    found = left.withWatermark("ts", "5 seconds").groupBy(f.session_window("ts", "3 seconds"), "k").count()
    return found.selectExpr("string(session_window.start)", "string(session_window.end)", "k", "count")


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    other = right.selectExpr("k as rk", "v as rv", "ts as rts")
    return left.join(other, f.expr("k = rk")).select("k", "v", "rv")


def outer_joined(left: DataFrame, right: DataFrame) -> DataFrame:
    one = left.withWatermark("ts", "5 seconds")
    other = right.selectExpr("k as rk", "v as rv", "ts as rts").withWatermark("rts", "5 seconds")
    near = f.expr("k = rk and rts between ts - interval 4 seconds and ts + interval 4 seconds")
    return one.join(other, near, "leftOuter").select("k", "v", "rv")


def by_pandas(left: DataFrame, _: DataFrame) -> DataFrame:
    def count(key: tuple[str], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        (before,) = state.get if state.exists else (0,)
        after = before + sum(len(frame) for frame in frames)
        state.update((after,))
        yield pd.DataFrame({"k": [key[0]], "n": [after]})

    grouped = left.groupBy("k")
    return grouped.applyInPandasWithState(count, "k string, n long", "n long", "update", "NoTimeout")


def transform(left: DataFrame, _: DataFrame) -> DataFrame:
    """A value, a list and a map: several column families in one store."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Remember(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")
            self.seen = handle.getListState("seen", "v long")
            self.times = handle.getMapState("times", "v long", "n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:  # noqa: N802
            import pandas as pd

            values = sorted(int(value) for frame in rows for value in frame["v"])
            (before,) = self.count.get() if self.count.exists() else (0,)
            self.count.update((before + len(values),))
            for value in values:
                self.seen.appendValue((value,))
                times = self.times.getValue((value,))
                self.times.updateValue((value,), ((times[0] if times else 0) + 1,))
            seen = ",".join(str(one[0]) for one in self.seen.get())
            most = max(one[0] for one in self.times.values())
            yield pd.DataFrame({"k": [key[0]], "n": [before + len(values)], "seen": [seen], "most": [most]})

        def close(self) -> None:
            pass

    schema = "k string, n long, seen string, most long"
    return left.groupBy("k").transformWithStateInPandas(Remember(), schema, "Update", "None")


@dataclass(frozen=True)
class Case:
    """An operator, and through which (backend, partitions) it goes; the first is where it starts. `parquet`: the step
    that goes by way of Parquet."""

    frame: Frames
    mode: str
    chain: tuple[tuple[str, int], ...] = (("hashmap", 2), ("rocksdb", 5), ("hashmap", 3))
    conf: Mapping[str, str] = field(default_factory=dict)
    parquet: int | None = None


FORMAT_2 = {STATE_FORMAT: "2"}
CASES = {
    "aggregation": Case(aggregate, "update", (("hashmap", 2), ("rocksdb", 2), ("rocksdb", 7))),
    "aggregation-format-2": Case(aggregate, "update", (("rocksdb", 2), ("rocksdb", 5), ("rocksdb", 3)), FORMAT_2, 2),
    "join-format-2": Case(outer_joined, "append", (("rocksdb", 3), ("rocksdb", 2)), {**FORMAT_2, CHANGELOG: "true"}),
    "transform-format-2": Case(transform, "update", (("rocksdb", 3), ("rocksdb", 2), ("rocksdb", 5)), FORMAT_2, 2),
    "windows": Case(windows, "append", (("rocksdb", 3), ("hashmap", 3), ("hashmap", 7))),
    "global": Case(total, "complete", (("rocksdb", 2), ("rocksdb", 5), ("hashmap", 3)), {CHANGELOG: "true"}),
    "dedup": Case(distinct, "append", conf={CODEC: "snappy"}),
    "dedup-windows": Case(distinct_windows, "append"),
    "sessions": Case(sessions, "append"),
    "join": Case(joined, "append", (("hashmap", 3), ("hashmap", 2))),
    "outer-join": Case(outer_joined, "append", parquet=2),
    "join-format-3": Case(joined, "append", (("rocksdb", 2), ("rocksdb", 3)), {JOIN_FORMAT: "3"}),
    "pandas-state": Case(by_pandas, "update"),
    "transform": Case(transform, "update", (("rocksdb", 3), ("rocksdb", 2), ("rocksdb", 5)), parquet=2),
}


class Story:
    """One query over files, run step by step, in whichever checkpoint it is told."""

    def __init__(self, session: SparkSession, root: Path, case: Case) -> None:
        self._session, self._root, self._case = session, root, case
        for step in range(STEPS):
            for side, rows in (("left", left_rows(step)), ("right", right_rows(step))):
                (root / side).mkdir(parents=True, exist_ok=True)
                text = "\n".join(json.dumps(one) for one in rows)
                (root / side / f"waiting-{step}").write_text(text)

    def frame(self) -> DataFrame:
        reader = self._session.readStream.schema(SCHEMA).option("pathGlobFilter", "*.json")
        return self._case.frame(reader.json(f"{self._root}/left"), reader.json(f"{self._root}/right"))

    def give(self, step: int) -> None:
        for side in ("left", "right"):
            (self._root / side / f"waiting-{step}").rename(self._root / side / f"{step}.json")

    def run(self, checkpoint: Path) -> list[tuple[Any, ...]]:
        """What comes out of the input there is."""
        out: list[tuple[Any, ...]] = []
        query = (
            self.frame()
            .writeStream.outputMode(self._case.mode)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, _: out.extend(tuple(one) for one in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(out, key=str)


@pytest.fixture
def spark(session: SparkSession) -> Iterator[SparkSession]:
    before = session.conf.getAll
    yield session
    for key in session.conf.getAll.keys() - before.keys():
        session.conf.unset(key)
    for key, value in before.items():
        if session.conf.get(key) != value:
            session.conf.set(key, value)


def use(spark: SparkSession, backend: str, partitions: int, conf: Mapping[str, str] | None = None) -> None:
    for key, value in {PROVIDER: PROVIDERS[Backend(backend)], PARTITIONS: str(partitions), **(conf or {})}.items():
        spark.conf.set(key, value)


def newest(checkpoint: Path) -> int:
    return max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())


def digest(root: Path) -> Mapping[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


USUAL = ("aggregation", "global", "dedup", "join", "join-format-3", "pandas-state")


@pytest.mark.parametrize("name", mostly_long(CASES, *USUAL))
def test_the_query_goes_on(spark: SparkSession, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    story, alone = Story(spark, tmp_path / "a", case), Story(spark, tmp_path / "b", case)
    checkpoint = tmp_path / "0"
    use(spark, *case.chain[0], case.conf)
    for step, (backend, partitions) in enumerate(case.chain):
        story.give(step)
        alone.give(step)
        if step:
            # Whoever restores has a copy somewhere else, and the original may be gone.
            checkpoint = checkpoint.rename(tmp_path / f"moved-{step}")
            before, batch, target = digest(checkpoint), newest(checkpoint), tmp_path / str(step)
            was = case.chain[step - 1]
            change: dict[str, Any] = {} if was[0] == backend else {"backend": backend}
            change |= {} if was[1] == partitions else {"partitions": partitions}
            if step == case.parquet:
                through_parquet(spark, checkpoint, batch, target, **change)
            else:
                take_logs(checkpoint, target)
                rewrite(spark, str(checkpoint), batch, str(target), **change)
            assert digest(checkpoint) == before
            conf = conf_of(LocalTree(target), batch)
            assert (backend_of(conf), conf[PARTITIONS]) == (backend, str(partitions))
            checkpoint = target
        assert story.run(checkpoint) == alone.run(tmp_path / "alone"), f"step {step}"
        assert newest(checkpoint) == newest(tmp_path / "alone")
    found = read_operators(spark, str(checkpoint), newest(checkpoint))
    assert {one["partitions"] for one in found} == {case.chain[-1][1]}
    planned = plan_operators(story.frame(), case.mode)
    assert list(map(schemas, planned)) == list(map(schemas, found))


def schemas(operator: dict[str, Any]) -> list[Any]:
    stores = [(one["name"], one["key_schema"], one["value_schema"]) for one in operator["stores"]]
    return [operator["id"], operator["name"], *stores]


def take_logs(checkpoint: Path, target: Path) -> None:
    """As a restore does before it brings the state."""
    source = LocalTree(checkpoint)
    LocalTree(target).take(source, {one: one for one in source.files() if not one.startswith("state/")})


def through_parquet(spark: SparkSession, checkpoint: Path, batch: int, target: Path, **change: Any) -> None:
    parquet = f"{target}-parquet"
    export(spark, str(checkpoint), batch, parquet)
    take_logs(checkpoint, target)
    load(spark, parquet, str(target), batch, **change)


def test_on_storage_that_only_the_jvm_reaches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on HDFS or an object store: what the executors make goes through the driver."""
    monkeypatch.setattr(rewriting, "tree_at", lambda path, spark: HadoopTree(HadoopStorage(spark, f"file://{path}")))
    case = CASES["windows"]
    story, alone = Story(spark, tmp_path / "a", case), Story(spark, tmp_path / "b", case)
    use(spark, "rocksdb", 2)
    for one, checkpoint in ((story, "was"), (alone, "alone")):
        one.give(0)
        one.run(tmp_path / checkpoint)
    take_logs(tmp_path / "was", tmp_path / "to")
    rewrite(
        spark, str(tmp_path / "was"), newest(tmp_path / "was"), str(tmp_path / "to"), backend="hashmap", partitions=3
    )
    story.give(1)
    alone.give(1)
    assert story.run(tmp_path / "to") == alone.run(tmp_path / "alone")


def test_spark_reads_what_is_written(spark: SparkSession) -> None:
    import pyarrow as pa

    from penstock.spark_state.store_rows import records, snapshot

    keys = pa.array([str(number).encode() * 9 for number in range(9000)])
    data = b"".join(snapshot([(keys[:100], keys[:100]), (keys[100:], keys[100:])]))
    jvm: Any = spark._jvm
    stream = jvm.org.apache.spark.io.CompressionCodec.createCodec(spark.sparkContext._jsc.sc().conf(), "zstd")
    read = bytes(stream.compressedInputStream(jvm.java.io.ByteArrayInputStream(data)).readAllBytes())
    assert read == bytes(records(keys, keys)) + b"\xff\xff\xff\xff"


def test_a_write_that_fails_leaves_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(spark, tmp_path / "a", CASES["aggregation"])
    use(spark, "hashmap", 2)
    story.give(0)
    story.run(tmp_path / "was")
    before = digest(tmp_path / "was")
    batch = newest(tmp_path / "was")

    take_logs(tmp_path / "was", tmp_path / "to")

    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(store_rows, "partial", lambda *_: broken)
        with pytest.raises(SavepointError, match="the disk is gone"):
            rewrite(spark, str(tmp_path / "was"), batch, str(tmp_path / "to"), partitions=3)
    with pytest.raises(ConfigurationError, match="holds state already"):
        rewrite(spark, str(tmp_path / "was"), batch, str(tmp_path / "to"), partitions=3)
    assert digest(tmp_path / "was") == before


def test_state_that_is_not_spread_by_its_keys_is_not_rescaled(spark: SparkSession, tmp_path: Path) -> None:
    def spread(left: DataFrame, _: DataFrame) -> DataFrame:
        return left.repartition(2, "k").groupBy("k", "v").count()

    story = Story(spark, tmp_path / "a", Case(spread, "update"))
    use(spark, "hashmap", 2, {STRICT: "false"})
    story.give(0)
    story.run(tmp_path / "was")
    batch = newest(tmp_path / "was")
    with pytest.raises(ConfigurationError, match="useStrictDistribution"):
        rewrite(spark, str(tmp_path / "was"), batch, str(tmp_path / "to"), partitions=5)
    with pytest.raises(ConfigurationError, match="useStrictDistribution"):
        export(spark, str(tmp_path / "was"), batch, str(tmp_path / "canonical"))
    take_logs(tmp_path / "was", tmp_path / "to")
    rewrite(spark, str(tmp_path / "was"), batch, str(tmp_path / "to"), backend="rocksdb", partitions=2)
