"""`Job`: read sources, write sinks, run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import __version__, logs
from penstock.config import Checkpoints, Retention, StateBackend
from penstock.config.checkpoints import give_memory_a_folder
from penstock.config.operations import LogFormat
from penstock.config.restart_strategy import RestartStrategy
from penstock.config.settings import resolve
from penstock.contracts.guarantees import Chain, engine_link, wanted
from penstock.contracts.plan import QueryPlan, reading, source_links
from penstock.contracts.sink import CheckContext, Finding, TwoPhaseSink
from penstock.engine.global_checkpoint import GlobalCheckpoints
from penstock.engine.group import EndRequest, QueryGroup
from penstock.engine.preparation import Epoch, EpochFunction, computed_once, write_as_it_is
from penstock.engine.query import QueryRunner
from penstock.engine.readiness import Readiness
from penstock.engine.restarts import Restarts
from penstock.engine.restore_point import RestorePoint
from penstock.engine.retention import JobFolder, retain_batches
from penstock.engine.steering import Steering
from penstock.errors import ConfigurationError, DuplicateUid, SavepointError
from penstock.events import Events, Listener
from penstock.job.callbacks import Callback, Callbacks
from penstock.naming import check_name
from penstock.ops import prefetch
from penstock.ops.insight import JobInsight
from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import stop_on_signals
from penstock.ops.server.serving import serving
from penstock.ops.standby import report_running, take_turn, writer_modules
from penstock.ops.turn import TurnEnd, held, lease_of, settings_of_turn
from penstock.progress import Progress, silent
from penstock.sources.frame import as_source
from penstock.spark import session as spark_session
from penstock.spark.executors import check_executors, importable
from penstock.spark.masters import refuse_connect, require_shared
from penstock.spark.query import Lineage
from penstock.spark.session import ensure_jars
from penstock.spark.settings import apply_over_running, apply_settings
from penstock.storage.open import storage_at, tree_of
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from penstock.config.settings import Settings
    from penstock.contracts.plan import Body, Outputs
    from penstock.contracts.source import Source

log = logging.getLogger("penstock")


class Job:
    """One streaming job: a name, its checkpoints, its sources and sinks.

    `name` and the uids name everything the job leaves in other systems; changing one is starting another job.
    """

    _cancel_asked = False

    def __init__(
        self,
        name: str,
        *,
        checkpoints: Checkpoints | None = None,
        state_backend: StateBackend | None = None,
        restart: RestartStrategy | None = None,
        conf: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        allow_non_restored_state: bool = False,
    ) -> None:
        self.settings = resolve(checkpoints, state_backend, restart, conf)
        self.name = check_name(self.settings.recovery.fork_name or name, "job")
        logs.set_up(self.name, as_json=self.settings.log.format is LogFormat.JSON)
        self.checkpoints = give_memory_a_folder(self.settings.checkpoints)
        self._restart = self.settings.restart
        self._spark = spark
        if spark is not None:
            refuse_connect(spark)
            apply_over_running(spark, self.settings)
        self._allow_non_restored = allow_non_restored_state or self.settings.recovery.allow_non_restored
        self._sources: dict[str, Source] = {}
        self._plans: dict[str, QueryPlan] = {}
        self._sinks: dict[str, TwoPhaseSink] = {}
        self._lineage = Lineage()
        self._runners: list[QueryRunner] = []
        self._wake = threading.Event()
        self._stop_asked = False
        self._signalled = False
        self._steering: Steering | None = None
        self._callbacks = Callbacks()
        self.started = False

    @property
    def spark(self) -> SparkSession:
        """The session, made when first needed, with what the job's settings ask of it."""
        return self._session({}, ())

    def read(
        self, source: Source | DataFrame | DataStreamReader, *, uid: str, replayable: bool | None = None
    ) -> DataFrame:
        """An ordinary streaming DataFrame. `uid` names the source in the ledger; a changed one is refused.

        Any stream of Spark's can be read, too: a DataFrame, or a reader that is not loaded yet. Only you know whether
        it gives the same rows again for the same positions: `replayable` must then say so."""
        check_name(uid, "source uid")
        if uid in self._sources:
            raise _duplicate_uid("sources", uid)
        source = as_source(source, uid, replayable, self._lineage)
        spark = self._session(source.spark_conf(), source.jars())
        ensure_jars(spark, source.jars())
        frame = source.load(spark, uid)
        self._sources[uid] = source
        self._lineage.remember(uid, frame)
        return frame

    def write(
        self,
        frame: DataFrame,
        sink: TwoPhaseSink,
        *,
        uid: str,
        output_mode: str = "append",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Write `frame` into `sink`, exactly once. Each write is a query of its own, with a checkpoint of its own."""
        sink.shape(frame)  # a frame that the sink cannot take is refused here, not in the first epoch
        self._add(frame, {uid: sink}, uid, write_as_it_is(uid), output_mode, options, as_it_is=True)

    def epoch(
        self,
        frame: DataFrame,
        *,
        uid: str | None = None,
        sinks: Mapping[str, TwoPhaseSink],
        output_mode: str = "append",
        options: Mapping[str, str] | None = None,
        persist: bool = True,
    ) -> Callable[[EpochFunction], EpochFunction]:
        """Decorate `f(batch, epoch)`: everything it writes with `epoch.write(frame, sink)` is under one decision.

        `sinks` names each output. The batch is computed once and kept while the function runs (`persist`), so that
        all outputs are of the same rows even where the plan is not deterministic, or the epoch fails and replays.
        """

        def decorate(function: EpochFunction) -> EpochFunction:
            name = uid or str(getattr(function, "__name__", "epoch"))
            uids = {id(sink): key for key, sink in sinks.items()}

            def body(batch: DataFrame, outputs: Outputs) -> None:
                with computed_once(batch, persist) as rows:
                    function(rows, Epoch(outputs, uids))

            self._add(frame, sinks, name, body, output_mode, options)
            return function

        return decorate

    def on_checkpoint_complete(self, function: Callback) -> Callback:
        """Decorate `f(info)`: called after every complete checkpoint, see `CheckpointInfo`. What it raises is reported
        and breaks nothing."""
        self._callbacks.complete.append(function)
        return function

    def on_checkpoint_aborted(self, function: Callback) -> Callback:
        """Decorate `f(info)`: called after every checkpoint that was given up; `info.error` says why."""
        self._callbacks.aborted.append(function)
        return function

    def explain(self) -> str:
        """The chain of each query, the guarantee of each link, and the weakest."""
        parts = [f"query {uid}\n{chain.explain()}" for uid, chain in self.chains().items()]
        return "\n\n".join(filter(None, [*parts, self.settings.availability.cost]))

    def chains(self) -> dict[str, Chain]:
        """For each query, its links from sources to sinks."""
        return {uid: self._chain(plan) for uid, plan in self._plans.items()}

    def require(self, chain: Chain) -> None:
        """Raise `GuaranteeError` where a chain gives less than the job's mode asks."""
        chain.require(wanted(str(self.checkpoints.mode)))

    def check(self) -> list[Finding]:
        """Ask the cluster, every source and every sink whether it works, writing nothing. Raises what cannot, returns
        what is unwise."""
        require_shared(self.checkpoints.storage, self.spark, is_shared=self.checkpoints.storage_is_shared)
        check_executors(self.spark, __version__, importable(writer_modules(self._sinks.values())))
        context = CheckContext(self.name, self.checkpoints.interval_seconds, self.checkpoints.timeout_seconds)
        findings: list[Finding] = []
        for uid, source in self._sources.items():
            findings.extend(source.check(context, uid))
        for uid, sink in self._sinks.items():
            findings.extend(sink.check(context, uid))
        return findings

    def run(self, on_event: Listener | None = None) -> None:
        """Run until every bounded query is done, `stop` or `cancel` is called, SIGTERM or SIGINT comes, or the job
        fails for good.

        Raises what made it fail. When this returns, no epoch is half done. In a standby it waits for its turn first."""
        self.started = True
        if not self._plans:
            raise ConfigurationError(
                f"Job {self.name!r} writes nothing.",
                safe="nothing was started.",
                to_do="call job.write before job.run.",
            )
        for chain in self.chains().values():
            self.require(chain)
        require_shared(self.checkpoints.storage, self.spark, is_shared=self.checkpoints.storage_is_shared)
        events = Events()
        if on_event is not None:
            events.listen(on_event)
        readiness = Readiness(self.name, self.check)
        lease = lease_of(self.name, self.settings, self.checkpoints, self.spark)
        take_turn(self.spark, self._sinks.values(), self._sources, readiness.look, lease)
        restarts = Restarts(self._restart, supervised=lifeline.connected())
        lifeline.report_strategy(self._restart)
        events.listen(report_running)
        with (
            held(lease, self._end_of_turn),
            self._callbacks.following(events),
            stop_on_signals(self._shut_down),
            serving(self, self.settings, events, JobInsight(self)),
            retain_batches(self.spark, self.checkpoints.num_retained),
        ):
            if readiness.wait(events, restarts, lambda: self._stop_asked, self._wake):
                self._run_queries(events, restarts, settings_of_turn(lease, self.settings))

    def _run_queries(self, events: Events, restarts: Restarts, settings: Settings) -> None:
        """From what the checkpoint holds, or what is restored, until the last query has ended."""
        storage = storage_at(f"{self.checkpoints.storage.rstrip('/')}/{self.name}", self.spark)
        folder = JobFolder(storage, tree_of(storage))
        folder.finish_deletion(self._plans)
        restore_point = RestorePoint(self.name, self._plans, settings, storage, self.spark, self._allow_non_restored)
        history = restore_point.history(events)
        restore_point.check_uids()
        common = (self.spark, self.checkpoints, events)
        looks = (folder.refuse_marked, restore_point.refuse_replaced)
        self._runners = [
            QueryRunner(self.name, plan, *common, self._wake.set, looks, history) for plan in self._plans.values()
        ]
        watcher = GlobalCheckpoints(self._runners, storage, self.checkpoints, events, history=history)
        steering = self._steering = Steering(self.name, self._runners, *common, self.stop, watcher)
        group = QueryGroup(
            self._runners,
            restarts=restarts,
            events=events,
            wake=self._wake,
            asked=self._asked,
            before_round=lambda: self._before_round(folder, restore_point),
            watcher=watcher,
        )
        with reading(self.name, self._sources, self._plans.values()):
            try:
                group.run()
            except BaseException as error:
                steering.end(error)
                raise
            steering.end(None)
        if self._cancel_asked and self.checkpoints.retention is Retention.DELETE:
            generations = {runner.plan.uid: runner.generation for runner in self._runners}
            folder.delete_cancelled(generations, group.abandoned)

    def stop(self) -> None:
        """Ask for a clean end: each query finishes the epoch under way. Safe from any thread and from a signal. The
        checkpoints stay."""
        self._stop_asked = True
        lifeline.report_stopping()
        self._wake.set()

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        """Take a savepoint of the running job at an epoch boundary, without stopping it; the path of its folder below
        `directory`, or below `Checkpoints(savepoint_dir=…)`. `kind`: `native` or `canonical`, see
        `savepoints.savepoint`. Blocks until it is complete; safe from any thread but the one that runs the job.
        `progress` is told how far it is."""
        return self._require_steering().savepoint(directory, kind, progress)

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        kind: str = "native",
        cancel: bool = False,
        progress: Progress = silent,
    ) -> str:
        """End cleanly with a savepoint as the last thing; its path. `drain`: first emit the final results of all
        windows, for a job that is not to go on: rows that come after a restore from this savepoint are late.
        `cancel`: the job counts as cancelled then, for what becomes of its checkpoints."""
        return self._require_steering().stop_with_savepoint(
            directory, kind, drain=drain, end=self.cancel if cancel else None, progress=progress
        )

    def checkpoint(self) -> int:
        """Wait for the next complete checkpoint, and give its number; the newest one where there is nothing to read."""
        return self._require_steering().checkpoint()

    def status(self) -> dict[str, Any]:
        """Where each query stands; empty before `run` has started them."""
        return self._steering.status() if self._steering is not None else {"queries": {}}

    def _require_steering(self) -> Steering:
        if self._steering is None:
            raise SavepointError(
                f"Job {self.name!r} does not run yet.", safe="nothing was changed.", to_do="ask again when it runs."
            )
        return self._steering

    def cancel(self) -> None:
        """Ask for an end at once: an epoch that is not decided yet is aborted at the sinks, one that is decided is
        carried out. Then `Checkpoints(retention=…)` says what becomes of the checkpoints. Safe from any thread."""
        self._cancel_asked = True
        self.stop()

    def _shut_down(self) -> None:
        """A signal has come: the machine, or whoever looks after this process, needs it to end, and not the job."""
        self._signalled = self._signalled or not self._stop_asked
        self.stop()

    def _end_of_turn(self) -> TurnEnd:
        asked = TurnEnd.CANCELLED if self._cancel_asked else TurnEnd.STOPPED if self._stop_asked else TurnEnd.DONE
        return TurnEnd.HANDED_OVER if self._signalled else asked

    def _asked(self) -> EndRequest:
        return EndRequest.CANCEL if self._cancel_asked else EndRequest.STOP if self._stop_asked else EndRequest.NONE

    def _before_round(self, folder: JobFolder, restore_point: RestorePoint) -> None:
        if folder.finish_deletion(self._plans):
            restore_point.check_uids()

    def _session(self, conf: Mapping[str, str], jars: Iterable[str]) -> SparkSession:
        if self._spark is None:
            before = spark_session.running_session()
            if before is None:
                prefetch.begin()
            self._spark = spark_session.session(
                self.name,
                conf={**conf, **self.settings.spark},
                jars=jars,
                local_storage=local_path(self.checkpoints.storage) is not None,
                file=self.settings.spark_file,
                class_archive=self.settings.availability.class_archive,
            )
            if before is not None:
                apply_over_running(before, self.settings)
        # Each time: another job may have asked otherwise meanwhile.
        apply_settings(self._spark, self.settings.derived_spark)
        return self._spark

    def _add(
        self,
        frame: DataFrame,
        sinks: Mapping[str, TwoPhaseSink],
        uid: str,
        body: Body,
        output_mode: str,
        options: Mapping[str, str] | None,
        as_it_is: bool = False,
    ) -> None:
        for name in {uid, *sinks}:
            check_name(name, "uid")
        for name in sinks:
            if name in self._sinks:
                raise _duplicate_uid("sinks", name)
        if uid in self._plans:
            raise _duplicate_uid("queries", uid)
        suffix = self.settings.recovery.fork_suffix
        if suffix:
            sinks = {name: sink.redirected(suffix) for name, sink in sinks.items()}
        self._sinks.update(sinks)
        positions = self._lineage.positions(frame)
        sources = {name: self._sources[name] for name in positions if name is not None}
        self._plans[uid] = QueryPlan(
            uid, frame, dict(sinks), sources, positions, body, output_mode, dict(options or {}), as_it_is
        )

    def _chain(self, plan: QueryPlan) -> Chain:
        sources = source_links(plan, self._plans.values())
        engine = engine_link(self.checkpoints)
        return Chain((*sources, engine, *(sink.link(uid) for uid, sink in plan.sinks.items())))


def _duplicate_uid(what: str, uid: str) -> DuplicateUid:
    return DuplicateUid(
        f"Two {what} of the job have the uid {uid!r}.",
        safe="nothing was started.",
        to_do="give each a uid of its own; it names what belongs to it in the checkpoint and in other systems.",
    )
