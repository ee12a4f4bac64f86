"""What a query asks of Spark: what it executes, which source is behind each position that Spark logs, whether Spark
still calls back, and how it ends. And what Spark knows of it: when the tasks that read an epoch's sources reached its
barrier, and its operators.

`Liveness` looks from outside the epochs: a query that waits for a call that never comes raises no error, and has no
epoch whose time could run out.

Cuts come from the status store behind Spark's web page, which is there with the page on or off. It does not know what a
task reads: cuts are numbered, and carry a source's uid only where the query has one source.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import Alignment, PartitionCut
from penstock.deadline import Deadline, beside
from penstock.errors import CheckpointExpired, PenstockError, SparkUnresponsive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")

STOP_SECONDS = 60.0  # for Spark to stop a query that runs no epoch; it cancels tasks, which end within seconds
_LOOKS = 20  # at the log, within the checkpoint timeout; each may cost a request to an object store
_NEW_PROCESS = "nothing; a supervisor starts the driver again. Without one (`python JOB.py`), start it again."
_SAFE = "what is decided is carried out at the next start; what is not replays."
_POLL_SECONDS = 0.1
_JOBS_OF_AN_EPOCH = 16  # looked at after a cancel; Spark remembers a thousand
_PARALLELISM = ("spark.sql.leafNodeDefaultParallelism", "spark.sql.adaptive.coalescePartitions.minPartitionNum")
_REPLAY_SECONDS = 60.0  # for another replay to be planned; one that failed before that is not waited for any longer

_one_replay_at_a_time = threading.Lock()
_MOST_JOBS = 50  # of one epoch
_MOST_TASKS = 10_000
_PATIENCE = 2.0  # seconds, for Spark's bookkeeping to catch up with what has ended
_POLL = 0.02
_NODE = re.compile(r"^[\s:+\-|*~]*(?:\(\d+\)\s*)?'?(?P<name>[A-Z]\w*)(?P<rest>.*)$")
_HIDDEN = ("SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
_LEAVES = re.compile(r"^(Streaming\w*Relation\w*|\w*Relation(V2)?|Range)$")
_STATEFUL = re.compile(r"^(Aggregate|Deduplicate\w*|\w*WithState\w*|Distinct|GlobalLimit)$")
_MOST_OPERATORS = 50
_known: weakref.WeakKeyDictionary[SparkSession, SparkStatus] = weakref.WeakKeyDictionary()


def items(seq: Any) -> list[Any]:
    """Of a sequence of Scala's."""
    return [seq.apply(index) for index in range(seq.size())]


def analysed(frame: DataFrame) -> Any:
    """The analysed plan, a JVM object."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    return plan


class RunningQuery:
    """What Spark holds in memory of the query whose epoch is under way, for one start of one query. Asked inside
    `foreachBatch`; `find` gives the execution, a JVM object, or None where it cannot be found."""

    def __init__(self, spark: SparkSession, find: Callable[[], Any]) -> None:
        self._spark, self._find = spark, find
        self._found: Any = None
        self._written: tuple[Any, Any, Any] | None = None  # with what positions are written, the same in all epochs

    def executed_plan(self) -> Any:
        execution = self._execution()
        return None if execution is None else execution.lastExecution().executedPlan()

    def starts_at(self) -> str | None:
        """The positions after which the epoch's rows begin, in the form of `offsets/N`."""
        return self._text("startOffsets")

    def ends_at(self) -> str | None:
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


def stream_options(execution: Any) -> list[dict[str, str]]:
    """For each position of a running query, the options that its source was read with; none if Spark has lost them."""

    def options(leaf: Any) -> dict[str, str]:
        with contextlib.suppress(Exception):
            return dict(leaf.relation().options().asCaseSensitiveMap())
        return {}

    return [options(leaf) for leaf in items(execution.logicalPlan().collectLeaves()) if leaf.isStreaming()]


def source_folders(spark: SparkSession) -> list[int]:
    """For each position, the number of its folder in `sources`. One stream that a plan holds twice, as in a union with
    itself, has two positions and one folder."""
    jvm: Any = spark._jvm
    seen: dict[int, int] = {}
    identities = (
        int(jvm.java.lang.System.identityHashCode(each)) for each in items(current_execution(spark).sources())
    )
    return [seen.setdefault(identity, len(seen)) for identity in identities]


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
    for leaf in items(analysed(frame).collectLeaves()):
        if leaf.isStreaming() and leaf.getClass().getSimpleName() != "CTERelationRef":
            yield leaf


def marks_of(frame: DataFrame) -> dict[str, range]:
    """By the id of each `withWatermark` of the analysed plan the streams below it, as numbers in `streams_of`."""
    marks: dict[str, range] = {}

    def walk(node: Any, first: int) -> int:
        children, kind, end = items(node.children()), node.getClass().getSimpleName(), first
        for child in children:
            end = walk(child, end)
        if not children:
            return first + int(node.isStreaming() and kind != "CTERelationRef")
        if kind == "EventTimeWatermark":
            marks[node.nodeId().toString()] = range(first, end)
        return end

    walk(analysed(frame), 0)
    return marks


def columns_of(stream: Any) -> frozenset[int]:
    """The ids of a stream's columns, by which it is known wherever a plan uses it once."""
    return frozenset(column.exprId().id() for column in items(stream.output()))


def _identity(frame: DataFrame, stream: Any) -> int:
    """What stays the same where Spark gives a stream new columns, so that a plan can hold it twice."""
    origin = stream.table() if stream.getClass().getSimpleName().endswith("V2") else stream.dataSource()
    jvm: Any = frame.sparkSession._jvm
    return int(jvm.java.lang.System.identityHashCode(origin))


class Liveness:
    """Watches one start of one query. `next_epoch` gives the epoch that comes next, and whether Spark has written its
    barrier: then Spark runs its plan, and has called us, or is about to."""

    def __init__(
        self,
        uid: str,
        server: Callable[[], Any],
        next_epoch: Callable[[], tuple[int, bool]],
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uid, self._server, self._next_epoch = uid, server, next_epoch
        self._seconds, self._now = seconds, now
        self._looked = now()
        self._due: tuple[int, float] | None = None  # an epoch that has not begun, and since when that is known

    def fault(self, *, busy: bool) -> PenstockError | None:
        """The error, if there is one. `busy`: an epoch is under way, and its own watchdog watches it."""
        if (server := self._server()) is not None and not (server.thread and server.thread.is_alive()):
            with contextlib.suppress(Exception):  # refuse waiting calls, so that Spark's threads do not wait for them
                server.server_socket.close()
            return SparkUnresponsive(
                f"Spark cannot call query {self._uid!r} any more: py4j's callback server in the driver has ended, as it"
                " does where the process has no file descriptor or thread left.",
                safe=_SAFE,
                to_do=f"{_NEW_PROCESS} If it comes again, raise the limits of the process (`ulimit -n`, `ulimit -u`).",
            )
        now = self._now()
        if busy:
            self._due = None
        elif now - self._looked >= self._seconds / _LOOKS:
            self._looked = now
            return self._overdue(now)
        return None

    def _overdue(self, now: float) -> CheckpointExpired | None:
        try:
            epoch, begun = self._next_epoch()
        except Exception:  # the next epoch reports what is wrong with the storage
            return None
        if not begun:
            self._due = None
        elif self._due is None or self._due[0] != epoch:
            self._due = (epoch, now)
        elif now - self._due[1] >= self._seconds:
            return CheckpointExpired(
                f"Spark has cut epoch {epoch} of query {self._uid!r} and not handed it over in {self._seconds:g} s.",
                safe="nothing of it was written; it replays from the same positions.",
                to_do="see what Spark does before it hands rows over (stages of adaptive execution, a source that does"
                " not answer); raise the checkpoint timeout, or limit the rows per epoch at the source.",
            )
        return None


def callback_server(spark: SparkSession) -> Any:
    """py4j's server for Spark's calls, None before the first query has started."""
    gateway = spark.sparkContext._gateway
    return None if gateway is None else gateway.get_callback_server()


def _stop_beside(query: StreamingQuery, uid: str) -> Future[None]:
    """Have Spark stop the query, and so its tasks. In a thread: it returns only when the epoch's function has."""
    return beside(f"penstock-stop-{uid}", query.stop)


def give_up(query: StreamingQuery, uid: str) -> None:
    """Have Spark cancel the query's tasks. Returns at once."""

    def warn(ended: Future[None]) -> None:
        if (error := ended.exception()) is not None:
            log.warning("query %s: Spark did not stop it: %s", uid, short_text(error))

    _stop_beside(query, uid).add_done_callback(warn)


def stop_query(query: StreamingQuery, uid: str) -> None:
    """Stop a query that runs no epoch. `SparkUnresponsive` where Spark does not: it would wait for ever for one of its
    threads that waits for an answer."""
    try:
        _stop_beside(query, uid).result(STOP_SECONDS)
    except TimeoutError:
        raise SparkUnresponsive(
            f"Spark has not stopped query {uid!r} within {STOP_SECONDS:g} s.", safe=_SAFE, to_do=_NEW_PROCESS
        ) from None


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


class SparkStatus:
    """The status store of one session, in the terms of Spark's REST API. An entry may be gone (Spark keeps the newest
    thousand) or not there yet: the store runs a little behind. Any call may raise what py4j raises."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._jvm: Any = gateway.jvm
        jackson = gateway.jvm.com.fasterxml.jackson
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()
        self._tracker = spark.sparkContext.statusTracker()
        self._no_statuses = gateway.jvm.java.util.ArrayList()
        self._no_quantiles = gateway.new_array(gateway.jvm.double, 0)
        self._mapper = jackson.databind.ObjectMapper()
        self._mapper.registerModule(jackson.module.scala.DefaultScalaModule())

    @classmethod
    def of(cls, spark: SparkSession) -> SparkStatus:
        """The one of this session, made once: finding classes is what costs."""
        if spark not in _known:
            _known[spark] = cls(spark)
        return _known[spark]

    def job_ids(self, group: str) -> list[int]:
        """The jobs of a group, newest first. Spark names a query's group after its run."""
        return sorted(self._tracker.getJobIdsForGroup(group), reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        return dict(self._json(self._store.job(number)))

    def attempts(self, stage: int) -> list[dict[str, Any]]:
        body = self._json(self._store.stageData(stage, False, self._no_statuses, False, self._no_quantiles))
        return sorted(body, key=lambda attempt: int(attempt["attemptId"]))

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        return list(self._json(self._store.taskList(stage, attempt, _MOST_TASKS)))

    def executors(self) -> list[dict[str, Any]]:
        """The active ones. The driver is among them; it runs tasks with a local master only."""
        return list(self._json(self._store.executorList(True)))

    def threads(self) -> list[dict[str, Any]]:
        """Of the driver's JVM."""
        return list(self._json(self._jvm.org.apache.spark.util.Utils.getThreadDump()))

    def _json(self, thing: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(thing))


def measure(spark: SparkSession, group: str, opened: float, *, epoch: int, uids: Sequence[str | None]) -> Alignment:
    """The alignment of a prepared epoch, counted from `opened` (seconds since 1970). `group` is the job group it ran
    under (the query's run id), `uids` name its sources. Costs a few calls to the JVM, and may raise what py4j raises;
    call it beside the epochs, from any thread."""
    status = SparkStatus.of(spark)
    stages = [_first_successes(status, attempts) for attempts in _reading_stages(status, group, epoch)]
    # Spark may run stages before it calls us: then the barrier was before the first of them.
    start = min([opened * 1000, *(float(task["launchTime"]) for tasks in stages for task in tasks.values())])
    source = uids[0] if len(uids) == 1 else None
    cuts = []
    for number, tasks in enumerate(stages):
        label = " ".join(filter(None, [source, f"stage {number + 1}" if len(stages) > 1 else ""]))
        for index, task in tasks.items():
            began = float(task["launchTime"]) - start
            rows = ((task.get("taskMetrics") or {}).get("inputMetrics") or {}).get("recordsRead")
            times = round(began, 3), round(began + float(task["duration"]), 3)
            cuts.append(PartitionCut(f"{label} #{index}".strip(), source, rows, *times))
    return Alignment.of(cuts, None if cuts else "Spark reports no task that read rows")


def is_reading(status: SparkStatus, group: str, epoch: int) -> bool:
    """Whether an epoch that is under way still reads its sources: no job of it has begun, or one runs a stage that
    feeds another, or its only one. May raise what py4j raises."""
    jobs = [job for job in _jobs(status, group, epoch) if _batch(job) == epoch]
    for job in jobs:
        stages = sorted(map(int, job["stageIds"])) if job["status"] == "RUNNING" else []
        feeding = stages[:-1] or stages  # a job's last stage has the highest number
        if any(attempt["status"] in ("ACTIVE", "PENDING") for stage in feeding for attempt in status.attempts(stage)):
            return True
    return not jobs


def _reading_stages(status: SparkStatus, group: str, epoch: int) -> list[list[dict[str, Any]]]:
    """Once the epoch's jobs are over. A stage that computes an RDD of an earlier one reads its rows again."""
    patience = Deadline(_PATIENCE)
    while not (jobs := list(_jobs(status, group, epoch))) or any(job["status"] == "RUNNING" for job in jobs):
        if patience.passed():
            break
        time.sleep(_POLL)
    stages: list[list[dict[str, Any]]] = []
    computed: set[int] = set()
    for number in sorted({int(stage) for job in jobs for stage in job["stageIds"]}):
        attempts = status.attempts(number)
        if any(attempt["status"] == "COMPLETE" and attempt["inputRecords"] for attempt in attempts):
            rdds = set(map(int, attempts[0]["rddIds"]))
            if not rdds & computed:
                stages.append(attempts)
            computed |= rdds
    return stages


def _jobs(status: SparkStatus, group: str, epoch: int) -> Iterator[dict[str, Any]]:
    """The jobs of one epoch. Spark describes them by its number; one that the user described otherwise counts, too."""
    for number in status.job_ids(group)[:_MOST_JOBS]:
        job = status.job(number)
        batch = _batch(job)
        if batch is None or batch == epoch:
            yield job
        elif batch < epoch:
            return


def _batch(job: Mapping[str, Any]) -> int | None:
    batch = str(job.get("description") or "").rpartition("batch = ")[2]
    return int(batch) if batch.isdigit() else None


def _first_successes(status: SparkStatus, attempts: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """For each partition of a stage the task that succeeded first; a later attempt reads only what was lost."""
    tasks: dict[int, dict[str, Any]] = {}
    for attempt in attempts:
        for task in status.tasks(int(attempt["stageId"]), int(attempt["attemptId"])):
            if task["status"] == "SUCCESS" and task.get("duration") is not None:
                number = int(task["partitionId"])
                first = tasks.get(number, task)
                tasks[number] = min(first, task, key=lambda done: float(done["launchTime"]) + float(done["duration"]))
    return tasks


def operators_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The operators of a query, from the sources on, by Spark's analysed plan: each one's name, and whether it keeps
    state. A join keeps state where both of its sides are streams. Runs no Spark job."""
    tree = analysed(frame)
    streams = sum(leaf.isStreaming() for leaf in items(tree.collectLeaves()))
    operators = []
    for line in str(tree.toString()).splitlines():
        match = _NODE.match(line)
        if match is None or match["name"] in _HIDDEN or _LEAVES.match(match["name"]):
            continue
        name = match["name"]
        stateful = bool(_STATEFUL.match(name)) or (name == "Join" and streams > 1)
        kind = [word.rstrip(",") for word in match["rest"].split()[:1]] if name == "Join" else []
        operators.append({"name": " ".join([name, *kind]), "stateful": stateful})
    return operators[::-1][:_MOST_OPERATORS]
