"""Spark's side of a query: started, looked at, given up."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.deadline import Deadline
    from penstock.epoch.coordinator import Coordinator
    from penstock.epoch.plan import QueryPlan

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1
_JOBS_OF_AN_EPOCH = 16  # looked at after a cancel; Spark remembers a thousand


def start(job: str, plan: QueryPlan, checkpoint: str, interval: float, coordinator: Coordinator) -> StreamingQuery:
    """Have Spark run `plan` with `coordinator` as its `foreachBatch`, an epoch every `interval` seconds."""
    from pyspark.errors import AnalysisException

    writer = (
        plan.frame.writeStream.queryName(f"{job}.{plan.uid}")
        .outputMode(plan.output_mode)
        .option("checkpointLocation", checkpoint)
        .options(**dict(plan.options))
        .foreachBatch(coordinator)
    )
    if plan.ends_with_what_is_there:
        writer = writer.trigger(availableNow=True)
    elif interval > 0:
        writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
    try:
        return writer.start()
    except AnalysisException as error:
        raise ConfigurationError(
            f"Spark refuses query {plan.uid!r}: {short(error)}",
            safe="nothing of it was started.",
            to_do="change the query; for aggregations without a watermark use output_mode='update'.",
        ) from error


def executed_plan(spark: SparkSession) -> Any:
    """The plan that the query of this thread executed last, a JVM object; None where it cannot be found."""
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    jvm: Any = spark._jvm
    found = spark._jsparkSession.streams().get(jvm.java.util.UUID.fromString(query_id))
    return found.streamingQuery().lastExecution().executedPlan() if found is not None else None


def give_up(query: StreamingQuery, uid: str) -> None:
    """Have Spark cancel the query's tasks. In a thread: it returns only when the epoch's function has."""

    def stop() -> None:
        try:
            query.stop()
        except Exception as error:
            log.warning("query %s: Spark did not stop it: %s", uid, short(error))

    threading.Thread(target=stop, name=f"penstock-cancel-{uid}", daemon=True).start()


def wait_for_tasks(spark: SparkSession, run_id: str | None, patience: Deadline) -> None:
    """Spark calls a job cancelled at once; its tasks end a little later and may open something until then."""
    tracker = spark.sparkContext.statusTracker()
    while run_id is not None and not patience.passed():
        newest = sorted(tracker.getJobIdsForGroup(run_id))[-_JOBS_OF_AN_EPOCH:]
        jobs = [tracker.getJobInfo(number) for number in newest]
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        if not any(stage is not None and stage.numActiveTasks for stage in stages):
            return
        time.sleep(_POLL_SECONDS)


def short(error: BaseException) -> str:
    """What an error of Spark's says, without its stack."""
    return "\n".join(str(getattr(error, "desc", None) or error).strip().splitlines()[:8])
