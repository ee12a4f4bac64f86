"""Starts a query in Spark: with its writer in the streaming plan where that is possible, and with its sources verified.

A writer is planned once (`output_jobs.Planned`) for what `job.write` makes: one sink, no user function in between. And

* the sink must declare that its shape depends on the columns alone (`TwoPhaseSink.shapes_once`);
* a decided epoch that has to be replayed first must have been summed by the rule that its rows call for now;
* a stateful query must lose no column on the way into its sink. Spark drops columns that are not read, down to the
  state: with the writer in the plan, the state would no longer fit the same checkpoint.

All other queries get the writer behind the rows in each epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import SparkLog
from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.contracts.source import EpochRead, Outputs, QueryPlan
from penstock.engine.checksum import rule_for, rules_of, with_hashes
from penstock.engine.coordinator import Coordinator
from penstock.engine.output_jobs import Jobs, Planned, planned_task, with_aside
from penstock.engine.protocol import Replay
from penstock.engine.task import RESULT_SCHEMA, with_plain_names
from penstock.errors import ConfigurationError
from penstock.spark.lane_plan import traced
from penstock.spark.query import operators_of, plan_with, short_text, source_folders
from penstock.spark.session import apply_checksum_files
from penstock.storage.local import storage_at
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")


def start(
    job: str, plan: QueryPlan, checkpoint: str, interval: float, coordinator: Coordinator, replay: Replay | None
) -> StreamingQuery:
    """Have Spark run `plan` with `coordinator` as its `foreachBatch`, an epoch every `interval` seconds. `replay` is
    what recovery hands over to the first epoch."""
    from pyspark.errors import AnalysisException

    planned_otherwise = plan_with(plan.frame.sparkSession, replay.decision.parallelism if replay else None)

    def started(frame: DataFrame, jobs: Jobs | None = None) -> StreamingQuery:
        def run(batch: DataFrame, epoch: int) -> None:
            planned_otherwise()
            coordinator(batch, epoch, jobs)

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
        try:
            return started(*planned)
        except AnalysisException:
            pass  # Spark takes the plan without the writer, or says why not
    try:
        return started(plan.frame if plan.aside is None else traced(plan.frame, plan.aside.topic))
    except AnalysisException as error:
        planned_otherwise()
        raise ConfigurationError(
            f"Spark refuses query {plan.uid!r}: {short_text(error)}",
            safe="nothing of it was started.",
            to_do="change the query; for aggregations without a watermark use output_mode='update'.",
        ) from error


def with_verification(plan: QueryPlan, checkpoint: str, spark: SparkSession, log: Callable[[], SparkLog]) -> QueryPlan:
    """`plan`, with sources asked before its body runs; as it is where none of them can tell."""
    watched = [(index, uid) for index, uid in enumerate(plan.positions) if uid and plan.sources[uid].verifies]
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
            f" source {paced[0]!r} its position in such a run; Spark 4.2 and newer can.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do="read the two in queries of their own, or upgrade PySpark.",
        )


def planned_once(job: str, plan: QueryPlan, generation: int, replay: Replay | None) -> tuple[DataFrame, Planned] | None:
    """The frame to start the query with, of one line for each writer, and who collects it; None where the query is not
    of that kind. `replay` is what recovery hands over to the first epoch."""
    from pyspark.errors import AnalysisException

    if not plan.as_it_is or len(plan.sinks) != 1 + (plan.aside is not None):
        return None
    uid = next(iter(plan.sinks))
    if not shapes_once(plan.sinks[uid]):
        return None
    sink = with_aside(plan.sinks, uid, plan.aside)
    try:
        shaped = sink.shape(plan.frame)
        rule = rule_for(shaped)
        if replay is not None and rules_of(replay.decision.committables).get(uid, rule) != rule:
            return None
        if _loses_columns(plan.frame, shaped) and any(operator["stateful"] for operator in operators_of(plan.frame)):
            return None
        rows, names = with_plain_names(with_hashes(shaped, rule))
        task = planned_task(sink, SinkScope(job, uid, generation), rule=rule, names=names)
        return rows.mapInArrow(task, RESULT_SCHEMA), Planned(rule)
    except AnalysisException:
        return None  # the first epoch says what is wrong, as it does for every query


def shapes_once(sink: TwoPhaseSink) -> bool:
    """Whether the class says so that has the sink's `shape`, or one that inherits it."""
    for kind in type(sink).__mro__:
        if "shapes_once" in vars(kind):
            return bool(vars(kind)["shapes_once"])
        if "shape" in vars(kind):
            return False
    return False


def _loses_columns(frame: DataFrame, shaped: DataFrame) -> bool:
    kept = {name.lower() for name in shaped.columns}
    return any(name.lower() not in kept for name in frame.columns)
