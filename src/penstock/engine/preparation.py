"""From an attempt's rows to what a decision may name: the plan runs, each task prepares, each sink confirms."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import REFUSED, Aside, Committer, SinkScope, TwoPhaseSink
from penstock.contracts.source import Body, Outputs
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.attempt import Attempt, Watchdog
from penstock.engine.committers import Committers
from penstock.engine.driver import LedgerRun
from penstock.engine.inflight import InFlight
from penstock.engine.observer import Observer
from penstock.engine.output_jobs import Answer, with_aside
from penstock.engine.positions import Inputs
from penstock.engine.task import Assignment, Route, Writing, attempt_of, committable
from penstock.engine.watermark import WatermarkTracker, forget_ids
from penstock.errors import ConfigurationError, DuplicateUid, PenstockError
from penstock.failpoints import failpoint
from penstock.spark.executors import fault_in, runs_tasks_itself

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import DataFrame

log = logging.getLogger("penstock")

EpochFunction = Callable[["DataFrame", "Epoch"], None]
"""What a user writes under `@job.epoch`."""

_PATIENCE = 1.0  # a needless sweep costs one request, so waiting longer for Spark's bookkeeping is not worth it
_POLL = 0.005


class Assignments:
    """What the writers of each output do in one attempt: the route of their rows, and the hints of their sink. With
    `only`, the writers of those sinks alone write."""

    def __init__(
        self,
        job: str,
        attempt: Attempt,
        only: frozenset[str] | None,
        committers: Committers | Mapping[str, Committer],
        inflight: InFlight | None,
    ) -> None:
        self._job, self._attempt, self._only = job, attempt, only
        self._committers, self._inflight = committers, inflight

    def of(self, uid: str, aside: Aside | None = None) -> Assignment:
        """Asked when the output is about to run: an epoch that has taken long leaves less time for the sink."""
        attempt, (writing, hints) = self._attempt, self._route(uid)
        scope = SinkScope(self._job, uid, attempt.generation)
        assignment = Assignment(scope, attempt.epoch, attempt.number, writing, hints)
        if aside is None:
            return assignment
        if attempt.replay is None:
            hints |= self._committers[uid].rules()
            return replace(assignment, aside=self.of(aside.uid))
        refused: dict[str, list[Sequence[int]]] = {}
        for item in attempt.replay.decision.committables:
            for why, rows in item.payload.get(REFUSED, {}).items() if item.sink == aside.uid else ():
                refused.setdefault(why, []).extend(rows)
        return replace(assignment, aside=self.of(aside.uid), refused=refused)

    def _route(self, uid: str) -> tuple[Writing, dict[str, Any]]:
        """The route and the hints. An epoch that can go by the in-flight log does not wait for a sink that is away."""
        writing = self._writing(uid)
        if writing.route in (Route.LOG, Route.COUNT):
            return writing, {}  # the sink gets no rows
        try:
            hints = self._committers[uid].hints()
            return writing, dict(self._inflight.with_hints(uid, hints) if self._inflight is not None else hints)
        except PenstockError as error:
            if writing.route is not Route.TEE or not error.retryable:
                raise
            epoch = self._attempt.epoch
            log.warning("epoch %d goes by the in-flight log, sink %s takes nothing now: %s", epoch, uid, error)
            return Writing(Route.LOG, writing.log), {}

    def _writing(self, uid: str) -> Writing:
        if self._only is not None:
            return Writing(Route.SINK if uid in self._only else Route.COUNT)
        if self._attempt.direct:
            return Writing(Route.DIRECT)
        if self._inflight is not None:
            return self._inflight.writing(uid, self._attempt.seconds)
        return Writing()


class EpochOutputs:
    """Handed to a query's body once per epoch. `write` prepares; nothing becomes visible before the decision."""

    def __init__(self, attempt: Attempt, sinks: Mapping[str, TwoPhaseSink], assignments: Assignments) -> None:
        self.epoch, self.assignments = attempt.epoch, assignments
        self.committables: list[Committable] = []
        self.strays = False
        self._attempt, self._sinks = attempt, sinks
        self._written: set[str] = set()

    def write(self, frame: DataFrame, uid: str, aside: Aside | None = None) -> None:
        """Write `frame` into sink `uid`, and what it refuses `aside`, once per epoch. Returns when all is prepared."""
        if uid not in self._sinks:
            raise ConfigurationError(
                f"The epoch writes to {uid!r}, which is not one of its sinks {sorted(self._sinks)}.",
                safe="the epoch is not decided; nothing of it is visible.",
                to_do="name every sink of the epoch where it is declared.",
            )
        if uid in self._written:
            raise DuplicateUid(
                f"Sink {uid!r} is written twice in epoch {self.epoch}.",
                safe="the epoch is not decided; nothing of it is visible.",
                to_do="union the two DataFrames, or give each output a sink and a uid of its own.",
            )
        self._written.add(uid)
        try:
            rule = self._attempt.rules.get(uid)
            sink = with_aside(self._sinks, uid, aside)
            answers = self._attempt.jobs.run(frame, sink, lambda: self.assignments.of(uid, aside), rule)
        except Exception as error:
            # A task's own error comes back as Spark's text; give the caller the error itself.
            if (fault := fault_in(str(error))) is not None:
                raise fault from error
            raise
        self.committables.extend(committable(uid, answer) for answer in answers)
        if aside is not None:
            refused = [{**answer, **answer["aside"]} for answer in answers if answer.get("aside", {}).get("rows")]
            if self._attempt.replay is None:
                rows = sum(answer["rows"] for answer in (*answers, *refused))
                aside.check(self.epoch, sum(answer["rows"] for answer in refused), rows)
            self.committables.extend(committable(aside.uid, answer) for answer in refused)
        self.strays = self.strays or left_strays(answers, frame.sparkSession.sparkContext)

    def execute_rest(self) -> None:
        """Run the plan if no output did: a stateful one not executed leaves a checkpoint that cannot restart."""
        if not self._written:
            self._attempt.frame.write.format("noop").mode("overwrite").save()


def write_as_it_is(uid: str, aside: Aside | None = None) -> Body:
    """The body of a query that writes its rows into sink `uid`, and does nothing else."""
    return lambda frame, outputs: outputs.write(frame, uid, aside)


class Epoch:
    """What a function under `@job.epoch` writes through. One decision makes all its outputs visible, or none is."""

    def __init__(self, outputs: Outputs, uids: Mapping[int, str]) -> None:
        self._outputs, self._uids = outputs, uids

    @property
    def id(self) -> int:
        return self._outputs.epoch

    def write(self, frame: DataFrame, sink: str | TwoPhaseSink) -> None:
        """Prepare `frame` in `sink`: one of the sinks the epoch was declared with, or its uid."""
        uid = sink if isinstance(sink, str) else self._uids.get(id(sink))
        if uid is None:
            raise ConfigurationError(
                f"Epoch {self.id} writes to a sink that it was not declared with: {sink!r}.",
                safe="the epoch is not decided; nothing of it is visible.",
                to_do="name it in @job.epoch(frame, sinks={'uid': sink, …}).",
            )
        self._outputs.write(frame, uid)


@contextmanager
def computed_once(batch: DataFrame, persist: bool) -> Iterator[DataFrame]:
    """`batch`, computed once and kept within this context. The executors keep it without the plan it came from: if one
    of them is lost, the epoch fails instead of computing that part a second time, because a non-deterministic plan
    would give the second output other rows than the first."""
    if not persist:
        yield batch
        return
    # In full, before the function sees it: a stateful plan that is read only in part breaks its checkpoint.
    kept = batch.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        plan: Any = kept._jdf
        plan.queryExecution().logical().rdd().unpersist(False)


def left_strays(answers: Sequence[Answer], spark: SparkContext) -> bool:
    """Whether attempts other than those that reported may have left something open. Each partition has reported once:
    Spark takes the first attempt of it that succeeds, of whichever run of the stage, and no other."""
    if any(attempt_of(answer) > 0 for answer in answers):
        return True
    speculates, one_executor = _races(spark)
    if speculates or one_executor:
        return speculates
    return ran_again(spark.statusTracker(), {int(answer["stage"]) for answer in answers}, Deadline(_PATIENCE))


@lru_cache(maxsize=1)
def _races(spark: SparkContext) -> tuple[bool, bool]:
    """Whether it speculates: then the winner may be a first attempt and a loser still have prepared something. And
    whether it has but one executor, as a local master has: a stage runs again when outputs of a shuffle are lost with
    theirs. Neither changes while a session lives, and to ask takes longer than a small epoch's tasks."""
    return spark.getConf().get("spark.speculation", "false") == "true", runs_tasks_itself(spark.master)


def ran_again(tracker: StatusTracker, stages: Collection[int], deadline: Deadline) -> bool:
    """Whether Spark has run one of these stages, all of which have ended, more than once; True also where it does not
    say by the deadline: its own bookkeeping runs a moment behind."""
    pending = set(stages)
    while pending:
        for stage in list(pending):
            info = tracker.getStageInfo(stage)
            if info is not None and info.currentAttemptId > 0:
                return True
            if info is not None and info.numCompletedTasks >= info.numTasks:
                pending.discard(stage)  # its first run did it all
        if pending:
            if deadline.passed():
                return True
            time.sleep(_POLL)
    return False


class Preparation:
    """Of one start of one query, used by the thread that runs its epochs. Makes nothing visible, unless the attempt is
    `direct`."""

    def __init__(
        self,
        run: LedgerRun,
        body: Body,
        executed_plan: Callable[[], Any],
        watermark: WatermarkTracker,
        inflight: InFlight | None,
        observer: Observer | None,
        inputs: Inputs | None,
    ) -> None:
        self._run, self._body, self._executed_plan, self._watermark = run, body, executed_plan, watermark
        self._inflight, self._observer, self._inputs = inflight, observer, inputs
        self._group: str | None = None
        self._tried = -1  # the epoch of the last attempt

    def run(self, attempt: Attempt, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        """With `only`, the writers of those sinks alone write; all others just count and sum."""
        failpoint("epoch.opened")
        parallelism = self._parallelism(attempt.frame)
        assignments = Assignments(self._run.job, attempt, only, self._run.committers, self._inflight)
        outputs = EpochOutputs(attempt, self._run.sinks, assignments)
        watchdog = Watchdog(attempt, self._run.limits.timeout_seconds, self._job_group(attempt.frame))
        try:
            with watchdog:
                if self._inputs is not None:
                    self._inputs.begin(attempt.barrier)
                if self._tried == attempt.epoch and (plan := self._executed_plan()) is not None:
                    forget_ids(plan)
                self._tried = attempt.epoch
                self._body(attempt.frame, outputs)
                outputs.execute_rest()
                failpoint("epoch.precommitted")
                direct = attempt.direct and only is None
                committables = tuple(outputs.committables) if direct else self._sealed(outputs.committables, only)
                tracker = self._watermark
                plan = None if tracker.unchanging else self._executed_plan()
                watermark = tracker.advance(plan, attempt.frame.sparkSession)
                if self._observer is not None:
                    self._observer.prepared(attempt)
            if self._inputs is not None:
                self._inputs.confirm(attempt.epoch, attempt.barrier)
        except Exception as error:
            return protocol.Failed(watchdog.expired or error)
        return protocol.Prepared(committables, watermark, outputs.strays, parallelism, tracker.state_ids)

    def confirm(self, attempt: Attempt) -> protocol.Prepared | protocol.Failed:
        """For an epoch without tasks: see that its inputs are still those that its positions belong to."""
        failpoint("epoch.opened")
        try:
            if self._inputs is not None:
                self._inputs.begin(attempt.barrier)
                self._inputs.confirm(attempt.epoch, attempt.barrier)
        except Exception as error:
            return protocol.Failed(error)
        return protocol.Prepared((), int(attempt.barrier.metadata["batchWatermarkMs"]))

    def _job_group(self, frame: DataFrame) -> str | None:
        """Spark names the jobs of a query's batches after its run, and `foreachBatch` runs under that name: it is the
        same in every epoch of a start."""
        if self._group is None:
            self._group = frame.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")
        return self._group

    def _parallelism(self, frame: DataFrame) -> int:
        """By which Spark has just planned the epoch: on a cluster it grows with every executor that comes. A batch has
        a session of its own; sources go by the settings of the one that they were made in."""
        session: Any = getattr(type(frame.sparkSession), "_instantiatedSession", None) or frame.sparkSession
        return int(session._jsparkSession.leafNodeDefaultParallelism())

    def _sealed(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        written = [item for item in committables if item.rows and (only is None or item.sink in only)]
        committers, limits = self._run.committers, self._run.limits
        deadline = Deadline(limits.commit_timeout_seconds)
        sealed = [*committers.seal([item for item in written if not item.logged], deadline)]
        if self._inflight is not None:
            # Of several epochs under way the drainer commits each.
            seal = committers.seal if limits.max_concurrent == 1 else committers.seal_for_others
            sealed += self._inflight.sealed([item for item in written if item.logged], seal)
        by_id = {committable.id: committable for committable in sealed}
        return tuple(by_id.get(committable.id, committable) for committable in committables)


_SWEEP_EVERY = 5.0


class Reported(Preparation):
    """Of epochs whose tasks Spark runs by itself: their answers come in place of a frame. What lost races between
    tasks have left cannot be seen from here, so a sweep looks for it in the first epoch and every few seconds."""

    _swept = 0.0

    def run(self, attempt: Attempt, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        (uid,) = self._run.sinks
        answers: Sequence[Answer] = cast("Any", attempt.frame)
        try:
            committables = [committable(uid, answer) for answer in answers]
            failpoint("epoch.precommitted")
            sealed = self._sealed(committables, only)
        except Exception as error:
            return protocol.Failed(error)
        now = time.monotonic()
        strays = not self._swept or now > self._swept + _SWEEP_EVERY or any(attempt_of(answer) for answer in answers)
        if strays:
            self._swept = now
        # What batch N leads to only Spark's plan knows, which is in another process.
        return protocol.Prepared(sealed, watermark=None, strays=strays)
