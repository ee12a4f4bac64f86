"""What operations add to a run: its turn, its lease, its supervisor's line, signals, the registry and the HTTP server.
`Job.run` opens `attached` around the run, and a drop-in `attached_query` while its query runs."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.config.operations import LogFormat
from penstock.config.resolve import resolve
from penstock.contracts.guarantees import Chain, engine_link
from penstock.contracts.source import QueryPlan
from penstock.deadline import Deadline
from penstock.engine.preparation import write_as_it_is
from penstock.engine.settlement import JobLedgers
from penstock.engine.steering import EndRequest
from penstock.engine.watermark import watermark_nodes
from penstock.errors import SavepointError
from penstock.logs import show_info
from penstock.ops.process import lifeline
from penstock.ops.server.client import Client
from penstock.ops.server.runs import report_facts
from penstock.ops.server.serving import serving
from penstock.ops.transactions import ended, look
from penstock.ops.turn import TurnEnd, held, lease_of, settings_of_turn, take_turn
from penstock.processes import stop_on_signals
from penstock.secrets import mask_setting, masked
from penstock.sources.kafka import KafkaSource
from penstock.spark.query import SparkStatus, is_reading, marks_of, operators_of, stream_options

if TYPE_CHECKING:
    from penstock.checkpoint.spark_log import Barrier
    from penstock.config import Checkpoints
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.engine.coordinator import Coordinator
    from penstock.engine.query import QueryRunner
    from penstock.engine.run import JobRun
    from penstock.events import Events

log = logging.getLogger("penstock")

_LINE_EPOCHS, _LINE_SECONDS = 100, 60.0  # between two lines about epochs
_END_SECONDS = 2.0  # to ask sources where they end
_TURN_ENDS = {EndRequest.NONE: TurnEnd.DONE, EndRequest.STOP: TurnEnd.STOPPED, EndRequest.CANCEL: TurnEnd.CANCELLED}


@contextmanager
def attached(run: JobRun) -> Iterator[Callable[[], str | None]]:
    """Wait for the turn of this driver; then, while the run lasts, hold its lease, stop on signals, serve it. Yields
    what makes a link to its page."""
    steering = run.steering
    if run.settings.log.format is not LogFormat.JSON:
        show_info()
    if not os.isatty(2):  # `penstock run` shows epochs in a terminal
        run.events.listen(EpochLog())
    lease = lease_of(run.name, run.settings, run.checkpoints, run.spark)
    take_turn(run.spark, run.sinks.values(), run.sources, run.readiness.look, lease)
    run.settings = settings_of_turn(lease, run.settings)
    run.restarts.supervised = lifeline.connected()
    run.events.listen(report_running)
    lifeline.report(strategy=run.settings.restart.to_dict())
    steering.on_stop = partial(lifeline.report, stopping=True)
    if steering.request is not EndRequest.NONE:
        lifeline.report(stopping=True)
    with (
        held(lease, lambda: TurnEnd.HANDED_OVER if steering.signalled else _TURN_ENDS[steering.request]),
        stop_on_signals(steering.shut_down),
        serving(steering, run.settings, run.events, JobInsight(run)) as entry,
    ):
        yield lambda: Client(entry.address, entry.token, entry.certificate).page_link() if entry.address else None


class QueryOfSpark:
    """One run of a drop-in's query: what may command it (`control.Steerable`), and what `JobInsight` asks of a run and
    of its one runner. `execution` is Spark's, a JVM object. Of the sources, Kafka's are known by their options."""

    lanes: Mapping[str, Mapping[str, float]] = {}
    barrier: Barrier | None = None

    def __init__(
        self, job: str, coordinator: Coordinator, sink: TwoPhaseSink, limits: Checkpoints, execution: Any, spark: Any
    ) -> None:
        self.name, self.spark, self._execution, self._coordinator = job, spark, execution, coordinator
        self.checkpoints = replace(limits, storage=str(execution.resolvedCheckpointRoot()))
        self.location, self.run_id, uid = self.checkpoints.storage, str(execution.runId()), coordinator.query
        read = list(map(KafkaSource.behind, stream_options(execution)))
        names = [None if source is None else uid if len(read) == 1 else f"{uid}-{at}" for at, source in enumerate(read)]
        sources = {name: source for name, source in zip(names, read, strict=True) if name is not None and source}
        frame: Any = None  # Spark's query has begun, and its plan belongs to Spark
        self.sinks, self.watermark = {uid: sink}, coordinator.watermark
        self.plan = QueryPlan(uid, frame, self.sinks, sources, names, write_as_it_is(uid))
        self.plans, self.runners = {uid: self.plan}, [self]
        links = [source.link(name) for name, source in sources.items()]
        self.chains = {uid: Chain((*links, engine_link(limits), sink.link(uid)))}

    def publish(self, event: Mapping[str, Any]) -> None:
        """An `Events` listener: lag tools see the positions of complete epochs."""
        self.barrier = self._coordinator.barrier
        if event["event"] == "completed" and self.barrier is not None:
            self.plan.publish(self.name, self.barrier)

    def stop(self) -> None:
        threading.Thread(target=self._execution.stop, name=f"penstock-stop-{self.plan.uid}", daemon=True).start()

    cancel = stop

    def status(self) -> dict[str, Any]:
        at = {"epoch": max(self._coordinator.completed, 0), "generation": self._coordinator.generation}
        return {"queries": {self.plan.uid: {**at, "running": True, "done": False, "error": None}}}

    def savepoint(self, *_: Any, **__: Any) -> NoReturn:
        raise SavepointError(
            f"Query {self.plan.uid!r} uses penstock.exactly_once, which has no savepoints.",
            safe="the query goes on; nothing was changed.",
            to_do="end it by penstock cancel; for savepoints write it as a Job.",
        )

    checkpoint = stop_with_savepoint = savepoint

    def ended(self) -> None:
        """Raise what made it fail."""
        for source in self.plan.sources.values():
            source.stop()
        if (failed := self._execution.exception()).isDefined():
            raise RuntimeError(failed.get().getMessage())


@contextmanager
def attached_query(events: Events, *described: Any) -> Iterator[None]:
    """While a drop-in's query runs, serve it. `described` is what a `QueryOfSpark` is made of. Nothing that fails here
    reaches the query."""
    stack = contextlib.ExitStack()
    try:
        query = QueryOfSpark(*described)
        settings = replace(resolve(), checkpoints=query.checkpoints)
        stack.enter_context(serving(query, settings, events, JobInsight(query)))
        events.listen(query.publish)
        events.emit("started", query=query.plan.uid)
    except Exception as error:
        log.warning("the query runs, but without its page and metrics: %s", error)
    else:
        stack.callback(query.ended)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # what made the query fail is recorded, and Spark raises it
            stack.close()


def report_running(event: Mapping[str, Any]) -> None:
    """A listener that tells the supervisor when the job runs: only then is it time for a standby."""
    if event.get("event") == "recovered":
        lifeline.report(running=True)


class EpochLog:
    """A listener that logs how each query proceeds: its first epoch, then every hundredth, or the next after a minute
    where epochs take longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[int, int, float]] = {}  # by query: epochs and rows since its last line, and when

    def __call__(self, event: Mapping[str, Any]) -> None:
        query, name = str(event.get("query")), event.get("event")
        epochs, rows, last = self._since.get(query, (0, 0, -math.inf))
        if name == "precommitted":
            self._since[query] = epochs, rows + int(event.get("rows") or 0), last
        elif name == "completed":
            now = self._clock()
            self._since[query] = epochs + 1, rows, last
            if epochs + 1 >= _LINE_EPOCHS or now - last >= _LINE_SECONDS:
                self._since[query] = 0, 0, now
                text = "query %s: epoch %s is complete; since the last line %d epochs, %d rows, %.0f rows/s"
                log.info(text, query, event["epoch"], epochs + 1, rows, rows / max(now - last, 0.001))


class JobInsight:
    """`control.Insight` of one run, for the server's threads: no epoch waits for it, and it runs no Spark job."""

    def __init__(self, run: JobRun | QueryOfSpark) -> None:
        self._run = run
        self._marked: dict[str | None, list[list[str]]] = {}  # by a query's start: the sources under each watermark

    def plan(self) -> dict[str, Any]:
        run, chains = self._run, self._run.chains
        link = min((chain.weakest for chain in chains.values()), key=lambda link: link.guarantee, default=None)
        weakest, web, conf = None, None, list[tuple[str, str]]()
        if link is not None:
            weakest = {"kind": link.kind, "uid": link.name, "guarantee": str(link.guarantee), "why": link.because}
        with contextlib.suppress(Exception):  # it may be off
            web = run.spark.sparkContext.uiWebUrl
            conf = sorted(run.spark.sparkContext.getConf().getAll())
        queries = [_query(plan, chains[uid]) for uid, plan in run.plans.items()]
        spark = [{"key": key, "value": mask_setting(key, value)} for key, value in conf]
        folder = {"folder": masked(run.location)} if isinstance(run, QueryOfSpark) else {}
        return {"plan": {"queries": queries, "weakest": weakest}, "spark_ui": web, "spark": spark, **folder}

    def positions(self) -> dict[str, dict[str, Any]]:
        deadline = Deadline(_END_SECONDS)
        return {
            runner.plan.uid: _positions(runner, deadline) | {"watermarks": self._watermarks(runner)}
            for runner in self._run.runners
        }

    def _watermarks(self, runner: QueryRunner | QueryOfSpark) -> dict[str, int]:
        """By source the watermark that its own rows lead to; of several the lowest. The query's follows the policy."""
        tracker, lowest = runner.watermark, dict[str, int]()
        if tracker is None or not any(tracker.each):
            return {}
        with contextlib.suppress(Exception):  # Spark's own plan, whose format is not stable
            if runner.run_id not in self._marked:
                uids, marks = runner.plan.positions, marks_of(runner.plan.frame)
                below = [marks.get(node.nodeId().toString(), ()) for node in watermark_nodes(tracker.plan)]
                self._marked = {**self._marked, runner.run_id: [[uids[at] or "" for at in each] for each in below]}
            for at, sources in zip(tracker.each, self._marked[runner.run_id], strict=False):
                lowest |= {uid: min(at, lowest.get(uid, at)) for uid in sources}
        return {uid: at for uid, at in lowest.items() if at}

    def reading(self, query: str, epoch: int) -> bool:
        group = next((runner.run_id for runner in self._run.runners if runner.plan.uid == query), None)
        return group is not None and is_reading(SparkStatus.of(self._run.spark), group, epoch)

    def transactions(self) -> dict[str, Any]:
        ledgers = JobLedgers.at(self._run.location, self._run.spark)
        return report_facts(look(ledgers, self._run.sinks), ended(ledgers))

    def threads(self) -> list[dict[str, str]]:
        threads = SparkStatus.of(self._run.spark).threads()
        about = [(f"{thread['threadName']} ({thread['threadState']})", thread["stackTrace"]) for thread in threads]
        return [{"name": name, "stack": "".join(stack["elems"])} for name, stack in about]


def _query(plan: QueryPlan, chain: Chain) -> dict[str, Any]:
    guarantees = {(link.kind, link.name): str(link.guarantee) for link in chain.links}
    operators: list[dict[str, Any]] = []
    with contextlib.suppress(Exception):  # Spark's own plan, whose format is not stable
        operators = operators_of(plan.frame)

    def ends(kind: str, by_uid: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"uid": uid, "describe": masked(end.describe()), "guarantee": guarantees.get((kind, uid))}
            for uid, end in by_uid.items()
        ]

    sources, sinks = ends("source", plan.sources), ends("sink", plan.sinks)
    about = {"uid": plan.uid, "guarantee": str(chain.guarantee)}
    return {**about, "sources": sources, "operators": operators, "sinks": sinks}


def _positions(runner: QueryRunner | QueryOfSpark, deadline: Deadline) -> dict[str, Any]:
    barrier = runner.barrier
    if barrier is None:
        return {}
    sources: dict[str, list[dict[str, Any]]] = {}
    for uid, offset in zip(runner.plan.positions, barrier.offsets, strict=False):
        if uid is not None and offset is not None:
            source = runner.plan.sources[uid]
            ends: Mapping[str, int] = {}
            try:
                ends = source.end_positions(offset, deadline)
            except Exception as error:  # a system that does not answer shows no lag
                log.debug("where source %s ends is not known: %r", uid, error)
            sources[uid] = [
                {
                    "partition": name,
                    "offset": at if isinstance(at, int | float | str) else json.dumps(at),
                    "end": (end := ends.get(name)),
                    "lag": max(0, end - at) if end is not None and isinstance(at, int) else None,
                    **runner.lanes.get(name, {}),
                }
                for name, at in source.read_positions(offset).items()
            ]
    return {"watermark": int(barrier.metadata.get("batchWatermarkMs") or 0) or None, "sources": sources}
