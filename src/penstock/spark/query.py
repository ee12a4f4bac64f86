"""What a query asks of Spark: what it executes, how it ends, which source is behind each position that Spark logs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.deadline import Deadline

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1
_JOBS_OF_AN_EPOCH = 16  # looked at after a cancel; Spark remembers a thousand
_PARALLELISM = ("spark.sql.leafNodeDefaultParallelism", "spark.sql.adaptive.coalescePartitions.minPartitionNum")
_REPLAY_SECONDS = 60.0  # for another replay to be planned; one that failed before that is not waited for any longer

_one_replay_at_a_time = threading.Lock()


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
        """The positions after which the epoch's rows begin, in the form of `offsets/N`."""
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


def current_execution(spark: SparkSession) -> Any:
    """The query under way, a JVM object; called inside `foreachBatch`. None where the session does not know it."""
    spark_query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    jvm: Any = spark._jvm
    query = spark._jsparkSession.streams().get(jvm.java.util.UUID.fromString(spark_query_id))
    return None if query is None else query.streamingQuery()


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
        for stream in streams_of(frame):
            self._uids[columns_of(stream)] = uid
            self._origins[_identity(frame, stream)] = uid
            self._kept.append(stream)

    def positions(self, frame: DataFrame) -> list[str | None]:
        """The uid behind each position of a barrier; None for a stream that was not read through the job. A source
        that a plan uses twice has two positions: for a join with itself Spark even makes a second stream of it."""
        uids, origins = self._uids, self._origins
        return [uids.get(columns_of(stream)) or origins.get(_identity(frame, stream)) for stream in streams_of(frame)]


def streams_of(frame: DataFrame) -> Iterator[Any]:
    """The streams at the leaves of the analysed plan, from left to right. SQL's `WITH` refers to them by leaves."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming() and leaf.getClass().getSimpleName() != "CTERelationRef":
            yield leaf


def columns_of(stream: Any) -> frozenset[int]:
    """The ids of a stream's columns, by which it is known wherever a plan uses it once."""
    output = stream.output()
    return frozenset(output.apply(column).exprId().id() for column in range(output.size()))


def _identity(frame: DataFrame, stream: Any) -> int:
    """What stays the same where Spark gives a stream new columns, so that a plan can hold it twice."""
    origin = stream.table() if stream.getClass().getSimpleName().endswith("V2") else stream.dataSource()
    jvm: Any = frame.sparkSession._jvm
    return int(jvm.java.lang.System.identityHashCode(origin))


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


def plan_with(spark: SparkSession, parallelism: int | None) -> Callable[[], None]:
    """Have Spark plan with `parallelism`, that of the decided epoch to be replayed, until the returned function is
    called for the first time. None: nothing is changed.

    Spark packs files into tasks, and adaptive execution coalesces the partitions of a shuffle, by the number of cores
    at that moment, which may differ after a restart. A file source reads the settings of the session that created it,
    which all queries share: so one replay is planned at a time."""
    if parallelism is None:
        return lambda: None
    mine = _one_replay_at_a_time.acquire(timeout=_REPLAY_SECONDS)
    before = {key: spark.conf.get(key, None) for key in _PARALLELISM}
    for key in _PARALLELISM:
        spark.conf.set(key, str(parallelism))
    over = threading.Event()

    def release() -> None:
        if over.is_set():
            return
        over.set()
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
        if mine:
            _one_replay_at_a_time.release()

    return release
