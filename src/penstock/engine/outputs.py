"""What a query writes in one epoch: a Spark job per output, whose tasks prepare and report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine.channel import Route, Writing
from penstock.engine.task import Assignment, attempt_of, committable, stage_of
from penstock.errors import ConfigurationError, DuplicateUid, PenstockError
from penstock.spark.executor_list import fault_in

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import DataFrame

    from penstock.checkpoint.decision import Committable
    from penstock.contracts.plan import Body, Outputs
    from penstock.engine.jobs import Answer, Jobs

EpochFunction = Callable[["DataFrame", "Epoch"], None]
"""What a user writes under `@job.epoch`."""

log = logging.getLogger("penstock")
_PATIENCE = 1.0  # a needless sweep costs one request, so waiting longer for Spark's bookkeeping is not worth it
_POLL = 0.005


class EpochOutputs:
    """Handed to a query's body once per epoch. `write` prepares; nothing becomes visible before the decision."""

    def __init__(
        self,
        epoch: int,
        attempt: int,
        generation: int,
        job: str,
        sinks: Mapping[str, TwoPhaseSink],
        frame: DataFrame,
        writing: Callable[[str], Writing],
        hints: Callable[[str], Mapping[str, Any]],
        jobs: Jobs,
        rules: Mapping[str, int],
    ) -> None:
        self.epoch = epoch
        self.committables: list[Committable] = []
        self.strays = False
        self._attempt, self._generation, self._job = attempt, generation, job
        self._sinks = sinks
        self._frame, self._writing, self._hints, self._jobs = frame, writing, hints, jobs
        self._rules = rules  # of a replay: its rows are summed as those were that it must equal
        self._written: set[str] = set()

    def write(self, frame: DataFrame, uid: str) -> None:
        """Write `frame` into the sink named `uid`, once per epoch. Returns when every task has prepared."""
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
            answers = self._jobs.run(frame, self._sinks[uid], lambda: self._assignment(uid), self._rules.get(uid))
        except Exception as error:
            # A task's own error comes back as Spark's text; give the caller the error itself.
            fault = fault_in(str(error))
            if fault is not None:
                raise fault from error
            raise
        self.committables.extend(committable(uid, answer) for answer in answers)
        self.strays = self.strays or left_strays(answers, frame.sparkSession.sparkContext)

    def _assignment(self, uid: str) -> Assignment:
        writing, hints = self._ways(uid)
        return Assignment(SinkScope(self._job, uid, self._generation), self.epoch, self._attempt, writing, hints)

    def _ways(self, uid: str) -> tuple[Writing, dict[str, Any]]:
        """Which way the rows go, and what their writers should know. An epoch that can go by the in-flight log does not
        wait for a sink that is away to say it."""
        writing = self._writing(uid)
        if writing.route in (Route.LOG, Route.COUNT):
            return writing, {}  # nobody writes into the sink
        try:
            return writing, dict(self._hints(uid))
        except PenstockError as error:
            if writing.route is not Route.TEE or not error.retryable:
                raise
            log.warning("epoch %d goes by the in-flight log, sink %s takes nothing now: %s", self.epoch, uid, error)
            return Writing(Route.LOG, writing.log), {}

    def execute_rest(self) -> None:
        """Run the plan if no output did: a stateful one not executed leaves a checkpoint that cannot restart."""
        if not self._written:
            self._frame.write.format("noop").mode("overwrite").save()


def write_as_it_is(uid: str) -> Body:
    """The body of a query that writes its rows into sink `uid`, and does nothing else."""
    return lambda frame, outputs: outputs.write(frame, uid)


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
    """`batch`, computed once and kept while this lasts. Its executors keep it, without the plan it came from: where one
    of them is lost, whoever reads on fails, and with it the epoch, instead of computing that part a second time: a plan
    that is not deterministic would give the second output other rows than the first."""
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
    return ran_again(spark.statusTracker(), {stage_of(answer) for answer in answers}, Deadline(_PATIENCE))


@lru_cache(maxsize=1)
def _races(spark: SparkContext) -> tuple[bool, bool]:
    """Whether it speculates: then the winner may be a first attempt and a loser still have prepared something. And
    whether it has but one executor, as a local master has: a stage runs again when outputs of a shuffle are lost with
    theirs. Neither changes while a session lives, and to ask takes longer than a small epoch's tasks."""
    master = spark.master or ""
    speculates = spark.getConf().get("spark.speculation", "false") == "true"
    return speculates, master == "local" or master.startswith("local[")


def ran_again(tracker: StatusTracker, stages: Collection[int], deadline: Deadline) -> bool:
    """Whether Spark has run one of these stages, all of which have ended, more than once; True also where it does not
    say by the deadline: its own bookkeeping runs a moment behind."""
    left = set(stages)
    while left:
        for stage in list(left):
            info = tracker.getStageInfo(stage)
            if info is not None and info.currentAttemptId > 0:
                return True
            if info is not None and info.numCompletedTasks >= info.numTasks:
                left.discard(stage)  # its first run did it all
        if left:
            if deadline.passed():
                return True
            time.sleep(_POLL)
    return False
