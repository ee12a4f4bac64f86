"""`Job`: read sources, write sinks, run; and `JobHandle`, one that runs beside the program that started it."""

from __future__ import annotations

import html
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock import __version__, logs
from penstock.config import Checkpoints, Mode, StateBackend, seconds
from penstock.config.checkpoints import give_memory_a_folder
from penstock.config.operations import LogFormat
from penstock.config.resolve import resolve
from penstock.config.restart_strategy import RestartStrategy
from penstock.contracts.guarantees import Chain, engine_link, wanted
from penstock.contracts.sink import Aside, CheckContext, Finding, TwoPhaseSink
from penstock.contracts.source import Body, Outputs, QueryPlan, Source, source_links
from penstock.deadline import Deadline
from penstock.engine.preparation import Epoch, EpochFunction, computed_once, write_as_it_is
from penstock.engine.real_time import check_real_time
from penstock.engine.run import JobRun
from penstock.engine.steering import Steering
from penstock.errors import ConfigurationError, DuplicateUid
from penstock.events import Events, Listener
from penstock.naming import check_name
from penstock.processes import stop_on_signals
from penstock.progress import Progress, silent
from penstock.secrets import masked
from penstock.sources.streams import as_source
from penstock.spark.executors import check_executors, importable, writer_modules
from penstock.spark.query import Lineage
from penstock.spark.session import JobSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


log = logging.getLogger("penstock")

_CALLBACK_SECONDS = 10.0  # how long the end of a job waits for outstanding callbacks

Callback = Callable[["CheckpointInfo"], None]
_DRAW_SECONDS = 1.0


class Callbacks:
    """The user's functions, called when a checkpoint completes or is aborted: in one thread, in the order of the
    checkpoints, so slow or failing ones neither delay nor break the job. Errors are the event `callback_failed`."""

    def __init__(self) -> None:
        self.complete: list[Callback] = []
        self.aborted: list[Callback] = []
        self._waiting: queue.Queue[tuple[Callback, CheckpointInfo] | None] = queue.Queue()
        self._rows: dict[str, int] = {}  # of each query's epoch under way
        self._events: Events | None = None

    @contextmanager
    def following(self, events: Events) -> Iterator[None]:
        """Listen to these events meanwhile; at the end, wait for outstanding callbacks."""
        if not self.complete and not self.aborted:
            yield
            return
        self._events = events
        thread = threading.Thread(target=self._run, name="penstock-callbacks", daemon=True)
        thread.start()
        events.listen(self._hear)
        try:
            yield
        finally:
            self._waiting.put(None)
            thread.join(_CALLBACK_SECONDS)

    def _hear(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "precommitted":
            self._rows[event["query"]] = int(event.get("rows") or 0)
        if kind not in ("completed", "checkpoint_failed", "failed") or event.get("epoch") is None:
            return
        if kind == "failed" and str(event["error"]).startswith(("JobStopped", "CheckpointExpired", "SystemUnavail")):
            return  # a stop is no failure, and a checkpoint's own failure was an event before
        info = CheckpointInfo(
            query=event["query"],
            epoch=event["epoch"],
            generation=event["generation"],
            seconds=float(event.get("seconds", 0.0)),
            error=None if kind == "completed" else str(event["error"]),
            rows=self._rows.pop(event["query"], 0),
        )
        for callback in self.complete if kind == "completed" else self.aborted:
            self._waiting.put((callback, info))

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            callback, info = waiting
            try:
                callback(info)
            except Exception as error:
                log.exception("a checkpoint callback of query %s failed for epoch %d", info.query, info.epoch)
                assert self._events is not None
                text = f"{type(error).__name__}: {error}"
                self._events.emit("callback_failed", query=info.query, epoch=info.epoch, error=text)


class Job:
    """One streaming job: a name, its checkpoints, its sources and sinks. `name` and the uids name everything the job
    leaves in other systems; changing one is starting another job."""

    any_started = False  # in this process

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
        self.started = False
        self._session = JobSession(self.name, self.settings, self.checkpoints, spark)
        self._allow_non_restored = allow_non_restored_state or self.settings.recovery.allow_non_restored
        self._sources: dict[str, Source] = {}
        self._plans: dict[str, QueryPlan] = {}
        self._sinks: dict[str, TwoPhaseSink] = {}
        self._lineage = Lineage()
        self._callbacks = Callbacks()
        self._steering = Steering(self.name, self.checkpoints)
        self._link: Callable[[], str | None] = lambda: None  # to its page, while it runs

    @property
    def spark(self) -> SparkSession:
        """The session, made when first needed, with what the job's settings ask of it."""
        return self._session.get()

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
        if suffix := self.settings.recovery.fork_suffix:
            source = source.redirected(suffix)
        frame = source.load(self._session.get(source.spark_conf(), source.jars()), uid)
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
        latency: float | str | None = None,
        aside: TwoPhaseSink | None = None,
        aside_limit: str | int = "1%",
    ) -> None:
        """Write `frame` into `sink`, exactly once. Each write is a query of its own, with a checkpoint of its own.

        `aside` takes the rows that `sink` refuses, as JSON with the reason, under the same decision; its uid is
        `UID.aside`. More than `aside_limit` of an epoch, a share, a number or both (`"1%, 500"`), stop the job.

        `latency`, such as `"20ms"`, runs it in real time: rows become visible about this often, each source partition
        by itself. None: as the job's `Checkpoints(latency=…)` says; 0: in epochs."""
        sink.shape(frame)  # a frame that the sink cannot take is refused here, not in the first epoch
        sinks = {uid: sink}
        beside = None
        if aside is not None:
            read = [self._sources.get(name or "") for name in self._lineage.positions(frame)]
            topics: list[str] = [*getattr(read[0], "topics", ())] if len(read) == 1 else []
            beside = Aside(uid, str(aside_limit), topics[0] if len(topics) == 1 else None)
            aside.take_records()
            sinks[beside.uid] = aside
        body = write_as_it_is(uid, beside)
        self._add(frame, sinks, uid, body, output_mode, options, as_it_is=True, latency=latency, aside=beside)

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
        all outputs are of the same rows even where the plan is not deterministic, or the epoch fails and replays."""

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

    def _repr_html_(self) -> str:
        chains = self.chains().items()
        queries = [
            (uid, f"{' → '.join(link.name for link in chain.links)}: {chain.guarantee}") for uid, chain in chains
        ]
        return table(f"job {self.name}", [*queries, ("checkpoints", f"{self.checkpoints.storage}/{self.name}")])

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
        findings = check_real_time(self._plans.values(), self.checkpoints, self.settings)
        self._session.require_shared()
        check_executors(self.spark, __version__, importable(writer_modules(self._sinks.values())))
        context = CheckContext(self.name, self.checkpoints.interval_seconds, self.checkpoints.timeout_seconds)
        findings += [finding for uid, source in self._sources.items() for finding in source.check(context, uid)]
        slices = replace(context, interval_seconds=0.0, timeout_seconds=0.0)  # what a transaction of a lane lasts
        real_time = {uid for plan in self._plans.values() if plan.latency for uid in plan.sinks}
        for uid, sink in self._sinks.items():
            findings += sink.check(slices if uid in real_time else context, uid)
        return findings

    def run(self, on_event: Listener | None = None) -> None:
        """Run until every bounded query is done, `stop` or `cancel` is called, SIGTERM or SIGINT comes, or the job
        fails for good: raises what made it fail. When this returns, no epoch is half done. A standby waits first."""
        self.started = Job.any_started = True
        if not self._plans:
            raise ConfigurationError(f"Job {self.name!r} writes nothing.", to_do="call job.write before job.run.")
        for chain in self.chains().values():
            self.require(chain)
        self._session.require_shared()
        common = (self.name, self.spark, self.settings, self.checkpoints)
        described = (self._sources, self._sinks, self._plans, self.chains())
        run = JobRun(*common, *described, self.check, self._steering, self._allow_non_restored)
        if on_event is not None:
            run.events.listen(on_event)
        from penstock.ops.attach import attached  # the one import that points upward

        with attached(run) as self._link, self._callbacks.following(run.events):
            run.run()

    def start(self, on_event: Listener | None = None) -> JobHandle:
        """`run`, in a thread of its own, as a notebook needs it. Returns at once: see `JobHandle`."""
        if self.started:
            raise ConfigurationError(
                f"Job {self.name!r} was started before.",
                safe="nothing was started, and what runs goes on.",
                to_do="describe it again (in a notebook: run the cells from Job(…) on), and start that one.",
            )
        self.started = True
        return JobHandle(self, on_event, lambda: self._link())

    def stop(self) -> None:
        """Ask for a clean end: each query finishes the epoch under way. Safe from any thread and from a signal. The
        checkpoints stay."""
        self._steering.stop()

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        """Take a savepoint at an epoch boundary, without stopping the job; its path, below `directory` or
        `Checkpoints(savepoint_dir=…)`, or `_savepoints` in the storage. `kind`: `native` or `canonical`. Blocks until
        it is complete, `progress` hears how far it is; safe from any thread but the one that runs the job."""
        return self._steering.savepoint(directory, kind=kind, progress=progress)

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
        return self._steering.stop_with_savepoint(directory, drain=drain, kind=kind, cancel=cancel, progress=progress)

    def checkpoint(self) -> int:
        """Wait for the next complete checkpoint; its number, or that of the newest where there is nothing to read."""
        return self._steering.checkpoint()

    def status(self) -> dict[str, Any]:
        """The epoch, generation and state of each query; empty before `run` has started them."""
        return self._steering.status()

    def cancel(self) -> None:
        """Ask for an end at once: an epoch that is not decided yet is aborted at the sinks, one that is decided is
        carried out. Then `Checkpoints(retention=…)` says what becomes of the checkpoints. Safe from any thread."""
        self._steering.cancel()

    def _add(
        self,
        frame: DataFrame,
        sinks: Mapping[str, TwoPhaseSink],
        uid: str,
        body: Body,
        output_mode: str,
        options: Mapping[str, str] | None,
        as_it_is: bool = False,
        latency: float | str | None = None,
        aside: Aside | None = None,
    ) -> None:
        often = self.checkpoints.latency_seconds if latency is None else seconds(latency, "latency")
        if aside is not None and (self.checkpoints.mode != Mode.EXACTLY_ONCE or self.checkpoints.logged or often):
            raise ConfigurationError(
                f"Sink {uid!r} has an aside sink, which needs exactly-once epochs without the in-flight log.",
                to_do="leave out latency, mode, unaligned, aligned_timeout and max_concurrent; or leave out aside.",
            )
        for name in {uid, *sinks}:
            check_name(name, "uid")
        for name in sinks:
            if name in self._sinks:
                raise _duplicate_uid("sinks", name)
        if uid in self._plans:
            raise _duplicate_uid("queries", uid)
        if suffix := self.settings.recovery.fork_suffix:
            sinks = {name: sink.redirected(suffix) for name, sink in sinks.items()}
        self._sinks.update(sinks)
        positions = self._lineage.positions(frame)
        sources = {name: self._sources[name] for name in positions if name is not None}
        self._plans[uid] = QueryPlan(
            uid, frame, dict(sinks), sources, positions, body, output_mode, dict(options or {}), as_it_is, often, aside
        )

    def _chain(self, plan: QueryPlan) -> Chain:
        sources, sinks = source_links(plan, self._plans.values()), (sink.link(uid) for uid, sink in plan.sinks.items())
        return Chain((*sources, engine_link(self.checkpoints, plan.latency), *sinks))


def _duplicate_uid(what: str, uid: str) -> DuplicateUid:
    return DuplicateUid(
        f"Two {what} of the job have the uid {uid!r}.",
        to_do="give each a uid of its own; it names what belongs to it in the checkpoint and in other systems.",
    )


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One epoch, for callbacks and `JobHandle.progress`. `error` is None for a complete checkpoint."""

    query: str
    epoch: int
    generation: int
    seconds: float
    error: str | None = None
    rows: int = 0

    def __str__(self) -> str:
        how = f"{self.rows:,} rows, complete after {self.seconds:.2f} s" if self.error is None else self.error
        return f"epoch {self.epoch}: {how}"

    def _repr_html_(self) -> str:
        return table(f"query {self.query}", [("newest", self)])


class JobHandle:
    """A job that `Job.start` has started, in a thread of this process. It ends with the process; the next start
    recovers, as after any crash. `progress` is the newest epoch of each query, `error` what made the job fail."""

    def __init__(self, job: Job, on_event: Listener | None, link: Callable[[], str | None]) -> None:
        self._job, self._link, self._ended = job, link, threading.Event()
        self.progress: dict[str, CheckpointInfo] = {}
        self.error: BaseException | None = None
        for follow in (job.on_checkpoint_complete, job.on_checkpoint_aborted):
            follow(lambda info: self.progress.update({info.query: info}))
        threading.Thread(target=self._run, args=[on_event], name=f"penstock-job-{job.name}", daemon=True).start()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    @property
    def page(self) -> str | None:
        """A link to the job's page, which works once, for ten minutes; None where the job serves none."""
        return self._link() if self.running else None

    def stop(self) -> None:
        """End cleanly: each query finishes the epoch under way. Then as `wait`."""
        self._job.stop()
        self.wait()

    def wait(self, seconds: float | None = None) -> bool:
        """Return when the job has ended, at most after `seconds`; whether it has. Raises what made it fail. SIGINT, so
        also a notebook's "interrupt", stops the job cleanly. In a notebook the cell shows the progress meanwhile."""
        patience, place = Deadline(threading.TIMEOUT_MAX if seconds is None else seconds), None
        if hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel"):
            from IPython.display import display

            place = display(self, display_id=True)  # type: ignore[no-untyped-call]
        with stop_on_signals(self._job.stop):
            while self.running and not patience.passed():
                self._ended.wait(min(_DRAW_SECONDS, patience.remaining()))
                if place is not None:
                    place.update(self)
        if self.error is not None:
            raise self.error
        return not self.running

    def _run(self, on_event: Listener | None) -> None:
        try:
            self._job.run(on_event)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()

    def _repr_html_(self) -> str:
        state = "running" if self.running else "ended" if self.error is None else f"failed: {self.error}"
        return table(f"job {self._job.name}", [("state", state), *sorted(self.progress.items())])


def table(title: str, rows: Iterable[tuple[object, object]]) -> str:
    """A small table for a notebook, which keeps it when it is saved. Everything in it is text, with secrets masked."""
    cells = ("".join(f'<td style="text-align:left">{_shown(cell)}</td>' for cell in row) for row in rows)
    return f"<table><caption>{html.escape(title)}</caption>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _shown(cell: object) -> str:
    return html.escape(masked(str(cell)))
