"""Runs a query in Spark's real-time mode: what Spark needs for it, its start, how it goes, and why it ended.

Spark's own log of such a query says nothing that lanes do not know better: its folder lasts as long as the query.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import NotEnoughSlots, PenstockError, PreCommitFailed, RealTimeRefused, SourceRowsLost
from penstock.spark.executors import fault_in, runs_tasks_itself
from penstock.spark.lane_plan import LanePlan, refusal
from penstock.spark.query import SparkStatus, short_text, stop_query
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH = "10 minutes"
"""How long a batch lasts. Between two of them nothing is read for half a second; new partitions are found there."""

_EXECUTORS_SECONDS = 30.0  # for the executors of a cluster to register
_POLL_SECONDS = 0.25
_SPARE = 2  # slots beside those of partitions, for jobs such as a broadcast
_REFUSED = re.compile(r"STREAMING_REAL_TIME_MODE\.\w+\][^\n]*")
_ROWS_LOST = re.compile(r"OffsetOutOfRangeException[^\n]*|KAFKA_DATA_LOSS[^\n]*|Some data may have been lost[^\n]*")
_NEW_PARTITIONS = re.compile(r"must specify all TopicPartitions")


def require_real_time(spark: SparkSession) -> None:
    """Raise `RealTimeRefused` where this session cannot run real-time queries exactly once."""
    version = version_of(spark)
    if version.minor < (4, 2):
        raise RealTimeRefused(
            f"latency is set, and Spark {spark.version} has no real-time mode for Python programs; 4.2 and newer have.",
            to_do='install "pyspark>=4.2,<5"; or leave latency out: the micro-batch mode runs on this version.',
        )
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise RealTimeRefused(
            "latency is set, and so is spark.speculation: Spark would run a slow task a second time beside the first,"
            " and the two would take their lane from each other.",
            to_do="set spark.speculation=false; or leave latency out: the micro-batch mode takes it.",
        )


def require_slots(spark: SparkSession, partitions: int) -> None:
    """Raise `NotEnoughSlots` where Spark runs fewer tasks at a time than real-time queries have source partitions, in
    all. Waits for executors that are still registering. Dynamic allocation gets them when the tasks wait; whether it
    did, `RealTimeQuery.waiting` tells."""
    context = spark.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return
    local, needed = runs_tasks_itself(context.master), partitions + _SPARE
    end = time.monotonic() + (0.0 if local else _EXECUTORS_SECONDS)
    while (slots := task_slots(spark)) < partitions:
        if time.monotonic() > end:
            raise NotEnoughSlots(
                f"Spark runs {slots} tasks at a time at {context.master}, and the real-time queries read {partitions}"
                " source partitions with a task each: the others would wait, unread.",
                to_do=f"set spark.master=local[{needed}]; threads that wait for rows need no cores of their own."
                if local
                else f"give the job {needed} slots: spark.executor.instances times spark.executor.cores, and"
                " spark.cores.max.",
            )
        time.sleep(_POLL_SECONDS)


def task_slots(spark: SparkSession) -> int:
    """How many tasks Spark can run at a time now, on all executors. `defaultParallelism` would be what the user has set
    for other things, and at least 2."""
    return sum(int(executor["maxTasks"]) for executor in SparkStatus.of(spark).executors())


class RealTimeQuery:
    """One start of one query. `plan` reads from the positions that it was made with; `writer` is the JVM's
    `ForeachWriter` that takes its rows."""

    def __init__(self, job: str, uid: str, plan: LanePlan, writer: Any, batch: str = BATCH) -> None:
        from pyspark.errors import AnalysisException, IllegalArgumentException

        self._uid, self._plan, self._spark = uid, plan, plan.frame.sparkSession
        self._scratch = tempfile.TemporaryDirectory(prefix="penstock-real-time-", ignore_cleanup_errors=True)
        stream: Any = plan.frame.writeStream.queryName(f"{job}.{uid}").outputMode("update")
        stream = stream.option("checkpointLocation", f"file://{self._scratch.name}").trigger(realTime=batch)
        stream._jwrite.foreach(writer)
        try:
            self._query: StreamingQuery = stream.start()
        except (AnalysisException, IllegalArgumentException) as error:
            self._scratch.cleanup()
            raise _refused_by_spark(uid, short_text(error)) from error
        self.run_id = str(self._query.runId)

    @property
    def active(self) -> bool:
        return bool(self._query.isActive)

    def ended_batch(self) -> tuple[int, Mapping[str, Mapping[str, Mapping[str, int]]]] | None:
        """The number of the newest batch that has ended, and the next offset of each partition by source and topic;
        None before the first has. What it read is in the sink. Partitions that were added meanwhile are there, at
        their beginning."""
        progress = self._query.lastProgress
        if progress is None:
            return None
        ends = [source["endOffset"] or {} for source in json.loads(progress.json)["sources"]]
        return int(progress["batchId"]), dict(zip(self._plan.uids, ends, strict=True))

    def waiting(self) -> int:
        """How many source partitions are not read at the moment because no slot is free for their task."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self.run_id)]
        running = [number for job in jobs if job is not None and job.status == "RUNNING" for number in job.stageIds]
        stages = [stage for number in running if (stage := tracker.getStageInfo(number)) is not None]
        return sum(stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks for stage in stages)

    def failure(self) -> PenstockError | None:
        """Why Spark has ended the query; None while it runs, and after `stop`."""
        error = self._query.exception()
        if error is None:
            return None
        text = str(error)
        if (fault := fault_in(text)) is not None:
            return fault
        if refused := _REFUSED.search(text):
            return _refused_by_spark(self._uid, refused[0])
        if lost := _ROWS_LOST.search(text):
            return SourceRowsLost(
                f"Kafka no longer has the rows that query {self._uid!r} has to read next: {lost[0]}.",
                safe="no row was skipped; what is visible stays.",
                to_do="to go on without the deleted rows, restore a savepoint or start over with another query uid; for"
                " the future raise the topic's retention.",
            )
        if _NEW_PARTITIONS.search(text):
            happened = f"A topic of query {self._uid!r} got another partition while the query started."
            return PreCommitFailed(happened, to_do="nothing; the restart reads it, too.")
        failure = PreCommitFailed(
            f"Spark ended query {self._uid!r}: {short_text(error)}",
            safe="rows behind the lanes' marks are not visible; they are read again.",
            to_do="see the cause above.",
        )
        failure.__cause__ = error
        return failure

    def stop(self) -> None:
        """Have Spark end the query and its tasks. What they have not committed is read again."""
        try:
            stop_query(self._query, self._uid)
        finally:
            self._scratch.cleanup()


def _refused_by_spark(uid: str, text: str) -> RealTimeRefused:
    return refusal(uid, "a plan", f"Spark's real-time mode does not take: {text}")
