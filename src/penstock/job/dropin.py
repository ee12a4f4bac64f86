"""`exactly_once`: one line for a query that exists already."""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.checkpoint.layout import PRIVATE
from penstock.checkpoint.open import ledger_at, spark_log_at
from penstock.config import Checkpoints, Mode
from penstock.config.levels import from_file, from_options
from penstock.config.operations import LEASE
from penstock.contracts.sink import CheckContext, TwoPhaseSink
from penstock.engine.control import hooks
from penstock.engine.coordinator import Coordinator
from penstock.engine.observer import Observer
from penstock.engine.preparation import write_as_it_is
from penstock.errors import ConfigurationError
from penstock.events import Events
from penstock.naming import check_name
from penstock.spark.executors import check_executors, importable, refuse_connect, require_shared, writer_modules
from penstock.spark.query import RunningQuery, current_execution, plan_with
from penstock.spark.settings import require_same_format
from penstock.storage.local import storage_at
from penstock.storage.storage import same_place
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock")

_TEND_SECONDS = 5.0  # between two looks at what cancelled tasks have left; a look with nothing to do costs nothing


class ExactlyOnce:
    """A `foreachBatch` function. With the checkpoint's location it recovers on creation, before the query starts;
    without, at the first batch, where a replay proves a decided epoch."""

    def __init__(
        self,
        sink: TwoPhaseSink,
        uid: str,
        job: str | None,
        checkpoint: str | None,
        spark: SparkSession | None,
        limits: Checkpoints,
    ) -> None:
        refuse_connect(spark)
        from pyspark.sql import SparkSession as Session

        session = spark or Session.getActiveSession()
        if session is None:
            raise ConfigurationError(
                "There is no Spark session yet.",
                to_do="create the session before penstock.exactly_once, or pass spark=….",
            )
        self._spark, self._sink, self._uid = session, sink, check_name(uid, "uid")
        self._job = None if job is None else check_name(job, "job")
        if limits.logged or limits.mode is not Mode.EXACTLY_ONCE:
            raise ConfigurationError(
                f"penstock.exactly_once was given mode={limits.mode}, unaligned={limits.unaligned} and"
                f" max_concurrent={limits.max_concurrent}.",
                to_do="the drop-in is exactly-once and aligned; for other modes write the query as a Job.",
            )
        if checkpoint is not None:
            require_shared(checkpoint, session, is_shared=limits.storage_is_shared)
        check_executors(session, __version__, importable(writer_modules([sink])))
        self._limits = limits
        self._lock = threading.Lock()
        self._checkpoint = checkpoint
        self._run_id: str | None = None
        self._token = secrets.token_hex(8)  # names this process in the generations of all its starts
        if LEASE in {**from_file().values, **from_options().values}:
            raise ConfigurationError(
                f"{LEASE} is set, but a query that Spark runs cannot hold a lease: Penstock does not see its end.",
                to_do=f"write the query as a Job, or leave {LEASE} out.",
            )
        hooks.before_dropin(session, [sink])
        context = CheckContext(job or "penstock", limits.interval_seconds, limits.timeout_seconds)
        for finding in sink.check(context, uid):
            log.warning("%s: %s", finding.sink, finding.message)
        self._coordinator: Coordinator | None = None
        self._tending: threading.Thread | None = None
        self._planned_otherwise = plan_with(session, None)
        if checkpoint is not None:
            self._coordinator = self._open(checkpoint)
            try:
                replay = self._coordinator.recover().replay
                self._planned_otherwise = plan_with(session, replay.decision.parallelism if replay else None)
            except BaseException:
                self._coordinator.close()
                raise
        hooks.dropin_ready()

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self._planned_otherwise()
        with self._lock:
            execution = self._execution()
            location = str(execution.resolvedCheckpointRoot())
            self._check_location(location)
            run_id = str(execution.runId())
            if self._coordinator is None or self._run_id not in (None, run_id):
                # The query was restarted: a replay recovers what it left, because Spark already uses its log.
                previous = 0
                if self._coordinator is not None:
                    previous = self._coordinator.generation
                    self._coordinator.close()
                self._coordinator = self._open(location, previous)
                self._tending = None
            self._run_id, coordinator = run_id, self._coordinator
            if self._tending is None:
                self._tending = self._tend(coordinator, execution)
        coordinator(batch, epoch)

    def _tend(self, coordinator: Coordinator, execution: Any) -> threading.Thread:
        """Do what is due between epochs while this run of the query lasts, then free what it held. Operations are
        attached here, beside the epochs: none waits for them."""
        over, observer = threading.Event(), self._observer
        described = (self._events, self._name, coordinator, self._sink, self._limits, execution, self._spark)

        def runs() -> bool:
            try:
                return self._coordinator is coordinator and bool(execution.isActive())
            except Exception:  # the session is gone, and the query with it
                return False

        def tend() -> None:
            from penstock.ops.attach import attached_query  # only a query that runs loads operations

            with attached_query(*described):
                while not over.wait(_TEND_SECONDS) and runs():
                    coordinator.tend()
                observer.close()
            coordinator.close()
            atexit.unregister(end)

        def end() -> None:  # the program ends: so does its query, and the registry is to know
            over.set()
            thread.join(_TEND_SECONDS)

        thread = threading.Thread(target=tend, name=f"penstock-tend-{self._uid}", daemon=True)
        atexit.register(end)
        thread.start()
        return thread

    def _open(self, checkpoint: str, previous: int = 0) -> Coordinator:
        limits = self._limits
        where = f"{checkpoint.rstrip('/')}/{PRIVATE}"
        running = RunningQuery(self._spark, self._execution)
        ledger = ledger_at(where, self._spark, retained=limits.retained, trusted=limits.trusted_schemes)
        spark_log = spark_log_at(checkpoint, self._spark, known=version_of(self._spark).log_known)
        require_same_format(self._spark, spark_log, self._uid)
        self._name, self._events = self._job or f"penstock-{ledger.identity()}", Events()
        kept = (storage_at(where, self._spark), limits, self._events)
        self._observer = Observer(self._uid, (), self._spark, *kept, self._query)
        return Coordinator(
            job=self._name,
            query=self._uid,
            sinks={self._uid: self._sink},
            sources=(),
            ledger=ledger,
            log=spark_log,
            events=self._events,
            body=write_as_it_is(self._uid),
            executed_plan=running.executed_plan,
            running=running,
            checkpoints=self._limits,
            observer=self._observer,
            previous=previous,
            run=self._token,
        )

    def _query(self) -> StreamingQuery | None:
        return next((query for query in self._spark.streams.active if query.runId == self._run_id), None)

    def _execution(self) -> Any:
        in_query = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        execution = current_execution(self._spark) if in_query else None
        if execution is None:
            raise ConfigurationError(
                "The query was not started from the Spark session that penstock.exactly_once was created with.",
                safe="nothing was written.",
                to_do="pass that session: penstock.exactly_once(…, spark=session).",
            )
        return execution

    def _check_location(self, actual: str) -> None:
        expected = self._checkpoint
        if expected is not None and not same_place(expected, actual):
            if self._coordinator is not None and self._tending is None:  # no run of the query will ever close it
                self._coordinator.close()
                self._coordinator = None
            raise ConfigurationError(
                f"penstock.exactly_once was given checkpoint={expected!r}, but the query runs on {actual!r}.",
                safe="nothing was written.",
                to_do="give both the same location.",
            )


def exactly_once(
    sink: TwoPhaseSink,
    *,
    uid: str,
    job: str | None = None,
    checkpoint: str | None = None,
    spark: SparkSession | None = None,
    limits: Checkpoints | None = None,
) -> ExactlyOnce:
    """A drop-in for `writeStream.foreachBatch` that makes the query end-to-end exactly-once.

        df.writeStream.foreachBatch(penstock.exactly_once(sink, uid="alerts", checkpoint=path)) \\
          .option("checkpointLocation", path).start()

    `job` and `uid` name what the sink leaves in the other system; keep them over restarts. Without a `job` the ledger,
    in the folder `_penstock` of the query's checkpoint, generates one and keeps it. While the query
    runs it is in `penstock list`, has a page and `/metrics`, and shows its Kafka positions to lag tools.
    """
    return ExactlyOnce(sink, uid, job, checkpoint, spark, limits or Checkpoints())
