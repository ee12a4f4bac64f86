"""Spark's side of a query: the sources it reads, its start, its end, and what it is about to read.

`Lineage` knows which source is behind each position that Spark logs. `with_verification` has sources that can tell see,
before an epoch is written, whether Spark reads all that the epoch's positions name.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.contracts.source import EpochRead
from penstock.engine.jobs import EachEpoch
from penstock.engine.planning import planned_once
from penstock.errors import ConfigurationError
from penstock.spark.local_files import apply_checksum_files
from penstock.spark.query import plan_with, short_text, source_folders
from penstock.spark.versions import version_of
from penstock.storage.open import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.checkpoint.spark_log import SparkLog
    from penstock.contracts.plan import Outputs, QueryPlan
    from penstock.engine.coordinator import Coordinator
    from penstock.engine.protocol import Replay


log = logging.getLogger("penstock")


def start(
    job: str, plan: QueryPlan, checkpoint: str, interval: float, coordinator: Coordinator, replay: Replay | None
) -> StreamingQuery:
    """Have Spark run `plan` with `coordinator` as its `foreachBatch`, an epoch every `interval` seconds. `replay` is
    what recovery hands over to the first epoch."""
    from pyspark.errors import AnalysisException

    planned_otherwise = plan_with(plan.frame.sparkSession, replay.decision.parallelism if replay else None)

    def run(batch: DataFrame, epoch: int) -> None:
        planned_otherwise()
        coordinator(batch, epoch)

    def started(frame: DataFrame) -> StreamingQuery:
        writer = (
            frame.writeStream.queryName(f"{job}.{plan.uid}")
            .outputMode(plan.output_mode)
            .option("checkpointLocation", checkpoint)
            .options(**dict(plan.options))
            .foreachBatch(run)
        )
        if plan.ends_with_what_is_there:
            writer = writer.trigger(availableNow=True)
        elif interval > 0:
            writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        return writer.start()

    _require_known_ends(plan)
    apply_checksum_files(plan.frame.sparkSession)
    planned = planned_once(job, plan, coordinator.generation, replay)
    if planned is not None:
        frame, coordinator.preparation.jobs = planned
        try:
            return started(frame)
        except AnalysisException:
            coordinator.preparation.jobs = EachEpoch()  # Spark takes the plan without the writer, or says why not
    try:
        return started(plan.frame)
    except AnalysisException as error:
        planned_otherwise()
        raise ConfigurationError(
            f"Spark refuses query {plan.uid!r}: {short_text(error)}",
            safe="nothing of it was started.",
            to_do="change the query; for aggregations without a watermark use output_mode='update'.",
        ) from error


def with_verification(plan: QueryPlan, checkpoint: str, spark: SparkSession, log: Callable[[], SparkLog]) -> QueryPlan:
    """`plan`, with sources asked before its body runs; as it is where none of them can tell."""
    watched = [
        (index, uid) for index, uid in enumerate(plan.positions) if uid is not None and plan.sources[uid].verifies
    ]
    if not watched:
        return plan

    def body(batch: DataFrame, outputs: Outputs) -> None:
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


def _require_known_ends(plan: QueryPlan) -> None:
    paced = [uid for uid, source in plan.sources.items() if source.paced_by_position]
    version = version_of(plan.frame.sparkSession)
    if plan.ends_with_what_is_there and paced and not version.read_limits:
        raise ConfigurationError(
            f"Query {plan.uid!r} ends with the files that are there now, and Spark {version.name} cannot tell the"
            f" source {paced[0]!r} where it stands in such a run; Spark 4.2 and newer can.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do="read the two in queries of their own, or upgrade PySpark.",
        )
