"""A query in real time: its rows become visible lane by lane, in Spark's tasks; the driver opens lanes and records.

After the recovery that every query has, a start opens every lane (`lane_set`), then runs an epoch that notes lanes and
positions: from here on a start in any mode knows that rows may be visible which no epoch covers. Only then Spark's
query starts at the marks, in a scratch folder that no later start reads: Spark's own log of such a query says nothing
that lanes do not know better. A clean end stops Spark's query, fences the lanes, and runs a last epoch, which notes
that they are closed; a savepoint that ends the job does the same.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import Barrier
from penstock.config import Checkpoints, Mode
from penstock.config.resolve import Settings
from penstock.config.state import PARTITIONS, PROVIDER
from penstock.contracts.lanes import RealTimeSink
from penstock.contracts.sink import Finding
from penstock.contracts.source import QueryPlan
from penstock.deadline import Deadline
from penstock.engine.coordinator import Coordinator
from penstock.engine.lane_set import LaneSet
from penstock.engine.positions import Inputs
from penstock.engine.protocol import Resume
from penstock.engine.query import QueryRunner
from penstock.engine.steering import not_held
from penstock.errors import NotEnoughSlots, PenstockError, PreCommitFailed, RealTimeRefused, SourceRowsLost, Superseded
from penstock.failpoints import failpoint
from penstock.savepoints.savepoint import HeldQuery
from penstock.spark.executors import fault_in, runs_tasks_itself
from penstock.spark.lane_plan import LanePlan, lane_plan, refusal
from penstock.spark.query import SparkStatus, short_text, stop_query
from penstock.spark.session import ensure_files
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1  # how soon an end is noticed
_LOOK_SECONDS = 1.0
_GROW_SECONDS = 5.0  # between looks for new partitions; Spark finds one at the end of a batch of minutes
_STARVED = 6  # such looks in a row that find a partition without a task, before it is worth a warning
_RECORD_SECONDS = 10.0  # between epochs, unless an interval is set
_MIN_RETAINED = 2  # recovery looks at the epoch before the last

BATCH = "10 minutes"
"""How long a batch lasts. Between two of them nothing is read for half a second; new partitions are found there."""

_EXECUTORS_SECONDS = 30.0  # for the executors of a cluster to register
_SLOTS_SECONDS = 0.25
_SPARE = 2  # slots beside those of partitions, for jobs such as a broadcast
_REFUSED = re.compile(r"STREAMING_REAL_TIME_MODE\.\w+\][^\n]*")
_ROWS_LOST = re.compile(r"OffsetOutOfRangeException[^\n]*|KAFKA_DATA_LOSS[^\n]*|Some data may have been lost[^\n]*")
_NEW_PARTITIONS = re.compile(r"must specify all TopicPartitions")


class RealTimeRunner(QueryRunner):
    """Runs one plan in real time. `_turn` is held by whichever thread uses the lanes or runs an epoch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = threading.Lock()
        self._hurry, self._halt, self._halted = threading.Event(), threading.Event(), threading.Event()
        self._lanes: LaneSet | None = None
        self._recorded: Any = None  # positions and parts of the newest epoch
        self._due = self._grown = 0.0
        self._complained, self._starved = False, 0

    @property
    def lanes(self) -> Mapping[str, Mapping[str, float]]:
        return {} if self._lanes is None else self._lanes.paces()

    def hurry(self) -> None:
        self._hurry.set()

    @contextmanager
    def hold(self, patience: Deadline, *, final: bool = False) -> Iterator[HeldQuery]:
        if self.done:
            yield self.at_end()
            return
        coordinator = self._running(patience)
        if final:
            with self._halting(patience):
                yield self._held(coordinator)
            return
        if not self._turn.acquire(timeout=patience.remaining()):
            raise not_held(self.plan.uid, "its epoch under way has not ended within the checkpoint timeout")
        try:
            if self._lanes is None:
                raise not_held(self.plan.uid, "it failed meanwhile")
            self._lanes.look()
            self._record(coordinator, self._lanes)
            yield self._held(coordinator)
        finally:
            self._turn.release()

    def prepare_final(self) -> None:
        """No window holds anything back: the plan keeps no state."""

    emit_final = prepare_final

    def _held(self, coordinator: Coordinator) -> HeldQuery:
        return HeldQuery(self.plan, self.checkpoint, self._completed_epoch(), coordinator.generation)

    @contextmanager
    def _halting(self, patience: Deadline) -> Iterator[None]:
        """Meanwhile no lane is open. Afterwards the query starts again, unless it was shut."""
        self._halt.set()
        try:
            while not self._halted.wait(_POLL_SECONDS):
                if patience.passed() or not self.alive:
                    raise not_held(self.plan.uid, "its lanes were not closed in time, or it failed meanwhile")
            yield
        finally:
            self._halt.clear()

    def _reporting(self) -> StreamingQuery | None:
        return None  # Spark counts its batches of minutes

    def _recovered(self, coordinator: Coordinator, resume: Resume) -> None:
        if resume.replay is not None and not self._stopping.is_set():
            raise RealTimeRefused(
                f"Epoch {resume.epoch} of query {self.plan.uid!r} was decided by micro-batches and has to be run again,"
                " which a query in real time cannot do.",
                safe="nothing was started; the decision is kept.",
                to_do="start the job once without latency and let it complete an epoch.",
            )
        note = None if (barrier := self._spark_log().newest_complete()) is None else barrier.lanes
        if self._stopping.is_set() and note is not None and not note.closed:
            with closing(self._lane_set(coordinator)) as lanes:  # after a cancel that did not end it
                self._close(coordinator, lanes)

    def _run_once(self) -> None:
        while True:
            super()._run_once()
            if self._stopping.is_set() or not self._halted.is_set():
                return
            self._resume = None  # a savepoint was to end the job, and failed: start again

    def _watch(self, coordinator: Coordinator, inputs: Inputs) -> None:
        if self._stopping.is_set():
            return
        self._halted.clear()
        coordinator.refuse_superseded()
        inputs.start(self._spark_log().newest_complete())
        with closing(self._lane_set(coordinator)) as lanes:
            with self._turn:
                lanes.open()
                self._record(coordinator, lanes, always=True)
            failpoint("lanes.recorded")
            self._lanes = lanes
            try:
                self._stream(coordinator, lanes)
            finally:
                with self._turn:
                    self._lanes = None
            with self._turn:
                self._close(coordinator, lanes)
        if self._halt.is_set():
            self._halted.set()
            while (self._halt.is_set() or coordinator.gate.closed) and not self._stopping.is_set():
                self._wake.wait(_POLL_SECONDS)

    def _stream(self, coordinator: Coordinator, lanes: LaneSet) -> None:
        """Run Spark's query until an end is asked for. Raises why it ended by itself."""
        query: Any = self._start(lanes)
        self._query, self.run_id = query, query.run_id
        looked = time.monotonic()
        self._due, self._grown = looked + self._interval, looked + _GROW_SECONDS
        try:
            while query.active and not self._wake.is_set() and not self._halt.is_set():
                self._wake.wait(_POLL_SECONDS)
                if coordinator.failure is not None:
                    raise coordinator.failure
                if (self._hurry.is_set() or time.monotonic() - looked >= _LOOK_SECONDS) and self._turn.acquire(False):
                    looked = time.monotonic()
                    try:
                        self._tick(coordinator, lanes, query)
                    finally:
                        self._turn.release()
            if not query.active and not self._wake.is_set():
                raise self._why_ended(coordinator, query)
        finally:
            query.stop()

    def _start(self, lanes: LaneSet) -> RealTimeQuery:
        ((_, sink),) = self.plan.sinks.items()
        starting = {str(uid): offset for uid, offset in zip(self.plan.positions, lanes.offsets(), strict=True)}
        planned = lane_plan(sink.shape(self.plan.frame), self.plan, starting)
        assert isinstance(sink, RealTimeSink)
        ensure_files(self._spark, sink.lane_jars())
        writer = lanes.writer(self._spark, planned.frame.columns, multiplies=planned.multiplies)
        return RealTimeQuery(self._job, self.plan.uid, planned, writer)

    def _why_ended(self, coordinator: Coordinator, query: RealTimeQuery) -> PenstockError:
        failure = query.failure()
        if isinstance(failure, Superseded):
            coordinator.refuse_superseded()
        elif failure is not None:
            return failure
        # A run that has opened lanes is in the ledger; another that is gone need not be.
        why = "without an error, though nothing asked it to" if failure is None else f"because {failure.happened}"
        return PreCommitFailed(
            f"Spark ended query {self.plan.uid!r} {why}.",
            safe="rows behind the lanes' marks are not visible; they are read again.",
            to_do="nothing: the job restarts as its strategy says.",
        )

    def _tick(self, coordinator: Coordinator, lanes: LaneSet, query: RealTimeQuery) -> None:
        try:
            lanes.look()
            if (ended := query.ended_batch()) is not None:
                lanes.pass_to(ended[1])
            if time.monotonic() >= self._grown:
                self._grown = time.monotonic() + _GROW_SECONDS
                if new := lanes.grow():
                    log.info("query %s: opened lanes for %s", self.plan.uid, ", ".join(map(str, new)))
                self._starved = self._starved + 1 if (waiting := query.waiting()) else 0
                if self._starved == _STARVED:
                    text = "query %s: %d source partitions are not read, because Spark has no task slot for them"
                    log.warning(text, self.plan.uid, waiting)
        except PenstockError as error:
            if not error.retryable:
                raise
            if not self._complained:  # the lanes go on without the driver, and wait for the brokers themselves
                log.warning("query %s: how far it is cannot be read now: %s", self.plan.uid, error)
            self._complained = True
            return
        self._complained = False
        offsets = tuple(lanes.offsets())
        if self.barrier is None or self.barrier.offsets != offsets:
            self.barrier = Barrier("", {}, offsets)
            self.plan.publish(self._job, self.barrier)
        if self._hurry.is_set() or time.monotonic() >= self._due:
            self._hurry.clear()
            self._due = time.monotonic() + self._interval
            self._record(coordinator, lanes)
        coordinator.tend()

    @property
    def _interval(self) -> float:
        return self._checkpoints.interval_seconds or _RECORD_SECONDS

    def _lane_set(self, coordinator: Coordinator) -> LaneSet:
        look = coordinator.refuse_superseded
        return LaneSet.of(self._job, self.plan, self._spark_log(), coordinator.generation, look)

    def _close(self, coordinator: Coordinator, lanes: LaneSet) -> None:
        lanes.end()
        if not coordinator.gate.closed:
            self._record(coordinator, lanes, always=True, closed=True)

    def _record(self, coordinator: Coordinator, lanes: LaneSet, *, always: bool = False, closed: bool = False) -> None:
        note, offsets = lanes.note(closed=closed), lanes.offsets()
        if not always and (offsets, note.parts) == self._recorded:
            return
        spark_log, epoch = self._spark_log(), self._completed_epoch() + 1
        coordinator.record(epoch, spark_log.cut_at(epoch, offsets, self._conf(), note), lanes.take_shares())
        self._recorded = (offsets, note.parts)
        for kind in (layout.offsets, layout.commits):
            spark_log.remove(kind(epoch - max(_MIN_RETAINED, self._checkpoints.num_retained)))

    def _conf(self) -> dict[str, str]:
        """What a first barrier says of the session, as Spark's would: later starts compare it with theirs."""
        values = {key: self._spark.conf.get(key, None) for key in (PARTITIONS, PROVIDER)}
        return {key: value for key, value in values.items() if value is not None}


def check_real_time(plans: Iterable[QueryPlan], checkpoints: Checkpoints, settings: Settings) -> list[Finding]:
    """Raise `RealTimeRefused` where a query with `latency` cannot run in real time; return what has no effect."""
    findings, slots, wanted = [], 0, [plan for plan in plans if plan.latency]
    for plan in wanted:
        without = [sink.describe() for sink in plan.sinks.values() if not isinstance(sink, RealTimeSink)]
        for refused, what in (
            (not plan.as_it_is, "@job.epoch, whose outputs become visible together"),
            (checkpoints.mode is not Mode.EXACTLY_ONCE, f"mode={checkpoints.mode}"),
            (checkpoints.unaligned, "unaligned checkpoints"),
            (checkpoints.max_concurrent > 1, f"max_concurrent={checkpoints.max_concurrent}"),
            (bool(without), f"a sink without lanes: {', '.join(without)}"),
        ):
            if refused:
                raise RealTimeRefused(
                    f"Query {plan.uid!r} has a latency of {plan.latency * 1000:g} ms, and {what}.",
                    to_do="leave latency out (for one query of several: latency=0), or change the other.",
                )
        spark, ((_, sink),) = plan.frame.sparkSession, plan.sinks.items()
        require_real_time(spark)
        lane_plan(sink.shape(plan.frame), plan)
        slots += sum(len(numbers) for source in plan.sources.values() for numbers in source.begin_positions().values())
        if (parallelism := settings.derived_spark.get(PARTITIONS)) is not None and parallelism.side is not None:
            no_effect = f"{parallelism.side} has no effect: in real time each source partition is a task"
            findings.append(Finding(plan.uid, no_effect))
    if wanted:
        require_slots(wanted[0].frame.sparkSession, slots)
    return findings


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
        time.sleep(_SLOTS_SECONDS)


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
