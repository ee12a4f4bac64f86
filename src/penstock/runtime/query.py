"""One query of a job: recovered, started, watched, restarted as its strategy says, stopped cleanly."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.deadline import Deadline
from penstock.epoch.coordinator import Body, Coordinator, Timing
from penstock.epoch.open import ledger_at, spark_log_at
from penstock.errors import ConfigurationError, JobStopped, PreCommitFailed
from penstock.runtime.restart import Restarts, RestartStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.config import Checkpoints
    from penstock.epoch.spark_log import Barrier, SparkLog
    from penstock.runtime.events import Events
    from penstock.sinks.base import TwoPhaseSink
    from penstock.sources.base import Source

log = logging.getLogger("penstock")

_POLL_SECONDS = 0.1  # how soon a failed or finished query is noticed
_DRAIN_SECONDS = (
    10.0  # how long Spark may take to log an epoch that is committed; without the log, recovery finishes it
)


@dataclass(frozen=True)
class QueryPlan:
    """What a query is, before it runs."""

    uid: str
    frame: DataFrame
    sinks: Mapping[str, TwoPhaseSink]
    sources: Mapping[str, Source]
    positions: Sequence[str | None]  # the source of each position in a barrier, see `Lineage`
    body: Body
    output_mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)


class QueryRunner:
    """Runs one plan to its end in a thread of its own."""

    def __init__(
        self,
        job: str,
        plan: QueryPlan,
        spark: SparkSession,
        checkpoints: Checkpoints,
        strategy: RestartStrategy,
        events: Events,
        ended: Callable[[], None],
    ) -> None:
        self._job, self.plan, self._spark = job, plan, spark
        self._checkpoints, self._events, self._ended = checkpoints, events, ended
        self._restarts = Restarts(strategy)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._query: StreamingQuery | None = None
        self._generation = 0  # of the last start in this process
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-query-{plan.uid}", daemon=True)

    @property
    def folder(self) -> str:
        return f"{self._checkpoints.storage.rstrip('/')}/{self._job}/{self.plan.uid}"

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the epoch under way finish, begin no other, end. Returns when the query has ended."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._once()
                    break
                except BaseException as error:
                    if self._stopping.is_set():
                        self.error = error  # an epoch that failed is no clean end, whoever asked for it
                        break
                    wait = self._restarts.delay(error)
                    if wait is None:
                        self.error = error
                        break
                    log.warning("query %s failed and restarts in %.1f s: %s", self.plan.uid, wait, error)
                    self._events.emit("restarting", query=self.plan.uid, seconds=wait, error=str(error))
                    self._stopping.wait(wait)
        finally:
            self._events.emit("stopped", query=self.plan.uid, error=str(self.error) if self.error else None)
            self._ended()

    def _once(self) -> None:
        """One start of the query: recover, run until it ends. Raises what made it fail."""
        self._restarts.started()
        plan = self.plan
        coordinator = Coordinator(
            job=self._job,
            query=plan.uid,
            sinks=plan.sinks,
            sources=list(plan.sources),
            ledger=ledger_at(f"{self.folder}/ledger", self._spark, retained=self._checkpoints.retained),
            log=self._spark_log(),
            events=self._events,
            body=plan.body,
            executed_plan=self._executed_plan,
            watermark_policy=str(self._spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")),
            timing=Timing(commit_seconds=self._checkpoints.commit_timeout_seconds),
            on_complete=self._completed,
            previous=self._generation,
        )
        try:
            resume = coordinator.recover()
            if self._already_finished(resume.epoch):
                return
            self._watch(coordinator)
        finally:
            self._generation = coordinator.generation
            coordinator.close()
            self._query = None

    def _watch(self, coordinator: Coordinator) -> None:
        if self._stopping.is_set():
            return
        query = self._query = self._start_spark(coordinator)
        while query.isActive and not self._wake.is_set():
            self._wake.wait(_POLL_SECONDS)
            coordinator.tend()
        self._drain(coordinator, query)
        failure = coordinator.failure
        if failure is None and not self._wake.is_set() and (exception := query.exception()) is not None:
            raise PreCommitFailed(
                f"Spark ended query {self.plan.uid!r}: {_short(exception)}",
                safe="no epoch was decided in the meantime; it goes on from its last complete epoch.",
                to_do="see the cause above.",
            ) from exception
        if failure is not None and not isinstance(failure, JobStopped):
            raise failure

    def _drain(self, coordinator: Coordinator, query: StreamingQuery) -> None:
        """Stop between two epochs: after Spark has logged the last one, before the next has begun."""
        coordinator.close_gate()
        patience = Deadline(_DRAIN_SECONDS)
        log = self._spark_log()
        while query.isActive and log.next_epoch()[0] <= coordinator.completed and not patience.passed():
            time.sleep(_POLL_SECONDS / 5)
        if query.isActive:
            query.stop()

    @property
    def plan_is_bounded(self) -> bool:
        known = self.plan.sources
        return bool(known) and all(uid is not None and known[uid].bounded for uid in self.plan.positions)

    def _start_spark(self, coordinator: Coordinator) -> StreamingQuery:
        from pyspark.errors import AnalysisException

        writer = (
            self.plan.frame.writeStream.queryName(f"{self._job}.{self.plan.uid}")
            .outputMode(self.plan.output_mode)
            .option("checkpointLocation", f"{self.folder}/spark")
            .options(**dict(self.plan.options))
            .foreachBatch(coordinator)
        )
        interval = self._checkpoints.interval_seconds
        if interval > 0:
            writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        try:
            return writer.start()
        except AnalysisException as error:
            raise ConfigurationError(
                f"Spark refuses query {self.plan.uid!r}: {_short(error)}",
                safe="nothing of it was started.",
                to_do="change the query; for aggregations without a watermark use output_mode='update'.",
            ) from error

    def _spark_log(self) -> SparkLog:
        return spark_log_at(f"{self.folder}/spark", self._spark)

    def _executed_plan(self) -> Any:
        """The plan Spark executed last, a JVM object; None where the query cannot be found."""
        query_id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        jvm: Any = self._spark._jvm
        found = self._spark._jsparkSession.streams().get(jvm.java.util.UUID.fromString(query_id))
        return found.streamingQuery().lastExecution().executedPlan() if found is not None else None

    def _completed(self, epoch: int, barrier: Barrier | None) -> None:
        if barrier is None:
            return
        for uid, offset in zip(self.plan.positions, barrier.offsets, strict=False):
            if uid is not None and offset is not None:
                self.plan.sources[uid].publish(self._job, uid, offset)
        if self.plan_is_bounded and self._all_finished(barrier):
            self._wake.set()

    def _already_finished(self, next_epoch: int) -> bool:
        """A bounded job that was killed after its last commit has nothing left to do."""
        if not self.plan_is_bounded or next_epoch == 0:
            return False
        log = self._spark_log()
        epoch, pending = log.next_epoch()
        barrier = None if pending else log.barrier(epoch - 1)
        return barrier is not None and self._all_finished(barrier)

    def _all_finished(self, barrier: Barrier) -> bool:
        uids, offsets = self.plan.positions, barrier.offsets
        return len(offsets) == len(uids) and all(
            uid is not None and offset is not None and self.plan.sources[uid].finished(offset)
            for uid, offset in zip(uids, offsets, strict=True)
        )


def _short(error: BaseException) -> str:
    return "\n".join(str(getattr(error, "desc", None) or error).strip().splitlines()[:8])
