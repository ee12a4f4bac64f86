"""Before an epoch is written: sources that can tell see whether Spark reads all that the epoch's positions name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.contracts.source import EpochRead
from penstock.storage.open import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.checkpoint.spark_log import SparkLog
    from penstock.epoch.outputs import EpochOutputs
    from penstock.epoch.plan import QueryPlan


def verified(plan: QueryPlan, checkpoint: str, spark: SparkSession, log: Callable[[], SparkLog]) -> QueryPlan:
    """`plan`, with sources asked before its body runs; as it is where none of them can tell."""
    watched = [
        (index, uid) for index, uid in enumerate(plan.positions) if uid is not None and plan.sources[uid].verifies
    ]
    if not watched:
        return plan

    def body(batch: DataFrame, outputs: EpochOutputs) -> None:
        now, before = log().barrier(outputs.epoch), log().barrier(outputs.epoch - 1)
        folders = source_folders(spark)
        for index, uid in watched:
            end = None if now is None else now.offsets[index]
            start = None if before is None else before.offsets[index]
            if end is not None and end != start:
                notes = storage_at(f"{checkpoint}/{layout.source(folders[index])}", spark)
                plan.sources[uid].verify(uid, EpochRead(spark, outputs.epoch, start, end, notes))
        plan.body(batch, outputs)

    return replace(plan, body=body)


def execution(spark: SparkSession) -> Any:
    """The query under way, a JVM object; called inside `foreachBatch`."""
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    jvm: Any = spark._jvm
    return spark._jsparkSession.streams().get(jvm.java.util.UUID.fromString(query)).streamingQuery()


def source_folders(spark: SparkSession) -> list[int]:
    """For each position, the number of its folder in `sources`. One stream that a plan holds twice, as in a union with
    itself, has two positions and one folder."""
    jvm: Any = spark._jvm
    streams = execution(spark).sources()
    seen: dict[int, int] = {}
    numbers = []
    for index in range(streams.size()):
        identity = int(jvm.java.lang.System.identityHashCode(streams.apply(index)))
        numbers.append(seen.setdefault(identity, len(seen)))
    return numbers
