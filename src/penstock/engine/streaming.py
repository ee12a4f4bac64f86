"""Spark's side of a query: the sources it reads, its start, its end, and what it is about to read.

`Lineage` knows which source is behind each position that Spark logs. `with_verification` has sources that can tell see,
before an epoch is written, whether Spark reads all that the epoch's positions name.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.contracts.source import EpochRead
from penstock.engine.jobs import EachEpoch
from penstock.engine.layout import as_decided
from penstock.engine.planning import planned_once
from penstock.errors import ConfigurationError
from penstock.spark.local_files import apply_checksum_files
from penstock.spark.versions import version_of
from penstock.storage.open import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.checkpoint.spark_log import SparkLog
    from penstock.deadline import Deadline
    from penstock.engine.coordinator import Coordinator
    from penstock.engine.outputs import EpochOutputs
    from penstock.engine.plan import QueryPlan
    from penstock.engine.protocol import Replay


log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1
_JOBS_OF_AN_EPOCH = 16  # looked at after a cancel; Spark remembers a thousand


def start(
    job: str, plan: QueryPlan, checkpoint: str, interval: float, coordinator: Coordinator, replay: Replay | None
) -> StreamingQuery:
    """Have Spark run `plan` with `coordinator` as its `foreachBatch`, an epoch every `interval` seconds. `replay` is
    what recovery hands over to the first epoch."""
    from pyspark.errors import AnalysisException

    planned_otherwise = as_decided(plan.frame.sparkSession, replay)

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


class RunningQuery:
    """What Spark holds in memory of the query whose epoch is under way, for one start of one query. Asked inside
    `foreachBatch`; `find` gives the execution, a JVM object, or None where it cannot be found."""

    def __init__(self, spark: SparkSession, find: Callable[[], Any]) -> None:
        self._spark, self._find = spark, find
        self._found: Any = None
        self._written: tuple[Any, Any, Any] | None = None  # with what positions are written, the same in all epochs

    def executed_plan(self) -> Any:
        """The plan that it executed last, a JVM object, or None."""
        execution = self._execution()
        return None if execution is None else execution.lastExecution().executedPlan()

    def starts_at(self) -> str | None:
        """The positions after which the epoch's rows begin, as they would stand in `offsets/N`."""
        return self._text("startOffsets")

    def ends_at(self) -> str | None:
        """The positions with which they end."""
        return self._text("endOffsets")

    def _execution(self) -> Any:
        if self._found is None:
            self._found = self._find()
        return self._found

    def _text(self, which: str) -> str | None:
        """Written by Spark itself, so that it can be compared with the file. Few calls: each is a round trip."""
        execution = self._execution()
        if execution is None:
            return None
        if self._written is None:
            jvm: Any = self._spark._jvm
            self._written = execution.offsetLog(), execution.sources(), jvm.java.io.ByteArrayOutputStream()
        log, sources, stream = self._written
        context = execution.getLatestExecutionContext()
        positions = getattr(context, which)().toOffsetSeq(sources, context.offsetSeqMetadata())
        stream.reset()
        log.serialize(positions, stream)
        return str(stream.toString())


def give_up(query: StreamingQuery, uid: str) -> None:
    """Have Spark cancel the query's tasks. In a thread: it returns only when the epoch's function has."""

    def stop() -> None:
        try:
            query.stop()
        except Exception as error:
            log.warning("query %s: Spark did not stop it: %s", uid, short_text(error))

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


def short_text(error: BaseException) -> str:
    """What an error of Spark's says, without its stack."""
    return "\n".join(str(getattr(error, "desc", None) or error).strip().splitlines()[:8])


def with_verification(plan: QueryPlan, checkpoint: str, spark: SparkSession, log: Callable[[], SparkLog]) -> QueryPlan:
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


def current_execution(spark: SparkSession) -> Any:
    """The query under way, a JVM object; called inside `foreachBatch`. None where the session does not know it."""
    spark_query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    jvm: Any = spark._jvm
    found = spark._jsparkSession.streams().get(jvm.java.util.UUID.fromString(spark_query_id))
    return None if found is None else found.streamingQuery()


def source_folders(spark: SparkSession) -> list[int]:
    """For each position, the number of its folder in `sources`. One stream that a plan holds twice, as in a union with
    itself, has two positions and one folder."""
    jvm: Any = spark._jvm
    streams = current_execution(spark).sources()
    seen: dict[int, int] = {}
    numbers = []
    for index in range(streams.size()):
        identity = int(jvm.java.lang.System.identityHashCode(streams.apply(index)))
        numbers.append(seen.setdefault(identity, len(seen)))
    return numbers


class Lineage:
    """Remembers the streams of every source that was read, and finds them again in what users make of them."""

    def __init__(self) -> None:
        self._uids: dict[frozenset[int], str] = {}
        self._origins: dict[int, str] = {}
        self._kept: list[Any] = []  # JVM objects that must live as long as their identity is remembered

    def remember(self, uid: str, frame: DataFrame) -> None:
        for stream in _streams(frame):
            self._uids[_columns(stream)] = uid
            self._origins[_identity(frame, stream)] = uid
            self._kept.append(stream)

    def positions(self, frame: DataFrame) -> list[str | None]:
        """The uid behind each position of a barrier; None for a stream that was not read through the job. A source
        that a plan uses twice has two positions: for a join with itself Spark even makes a second stream of it."""
        return [
            self._uids.get(_columns(stream)) or self._origins.get(_identity(frame, stream))
            for stream in _streams(frame)
        ]


def _streams(frame: DataFrame) -> Iterator[Any]:
    """The streaming leaves of the analysed plan, from left to right."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming():
            yield leaf


def _columns(stream: Any) -> frozenset[int]:
    output = stream.output()
    return frozenset(output.apply(column).exprId().id() for column in range(output.size()))


def _identity(frame: DataFrame, stream: Any) -> int:
    """What stays the same where Spark gives a stream new columns, so that a plan can hold it twice."""
    origin = stream.table() if stream.getClass().getSimpleName().endswith("V2") else stream.dataSource()
    jvm: Any = frame.sparkSession._jvm
    return int(jvm.java.lang.System.identityHashCode(origin))
