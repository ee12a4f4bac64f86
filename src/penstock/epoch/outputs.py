"""What a query writes in one epoch: a Spark job per output, whose tasks prepare and report."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.epoch.channel import How, Writing
from penstock.epoch.checksum import hashed, rule_for
from penstock.epoch.row_sizes import RowSizes
from penstock.epoch.task import (
    RESULT_SCHEMA,
    attempt_of,
    committable,
    fault_in,
    plainly_named,
    row_bytes_of,
    stage_of,
    writer_task,
)
from penstock.errors import ConfigurationError, DuplicateUid, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import DataFrame

    from penstock.checkpoint.decision import Committable

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
        sizes: RowSizes,
        rules: Mapping[str, int],
    ) -> None:
        self.epoch = epoch
        self.committables: list[Committable] = []
        self.strays = False
        self._attempt, self._generation, self._job = attempt, generation, job
        self._sinks = sinks
        self._frame, self._writing, self._hints, self._sizes = frame, writing, hints, sizes
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
        sink = self._sinks[uid]
        shaped = sink.shape(frame)
        rule = self._rules.get(uid, rule_for(shaped))
        rows, names = plainly_named(hashed(shaped, rule))
        writing, hints = self._ways(uid)
        task = writer_task(
            sink,
            SinkScope(self._job, uid, self._generation),
            epoch=self.epoch,
            attempt=self._attempt,
            hints=hints,
            writing=writing,
            rule=rule,
            names=names,
        )
        try:
            with self._sizes.bounded(rows.sparkSession.conf, uid):
                told = rows.mapInArrow(task, RESULT_SCHEMA).collect()
        except Exception as error:
            # A task's own error comes back as Spark's text; give the caller the error itself.
            fault = fault_in(str(error))
            if fault is not None:
                raise fault from error
            raise
        self.committables.extend(committable(uid, row[0]) for row in told)
        self._sizes.learn(uid, (row_bytes_of(row[0]) for row in told))
        self.strays = self.strays or left_strays([row[0] for row in told], frame.sparkSession.sparkContext)

    def _ways(self, uid: str) -> tuple[Writing, dict[str, Any]]:
        """Which way the rows go, and what their writers should know. An epoch that can go by the in-flight log does not
        wait for a sink that is away to say it."""
        writing = self._writing(uid)
        if writing.how in (How.LOG, How.COUNT):
            return writing, {}  # nobody writes into the sink
        try:
            return writing, dict(self._hints(uid))
        except PenstockError as error:
            if writing.how is not How.TEE or not error.retryable:
                raise
            log.warning("epoch %d goes by the in-flight log, sink %s takes nothing now: %s", self.epoch, uid, error)
            return Writing(How.LOG, writing.log), {}

    def execute_rest(self) -> None:
        """Run the plan if no output did: a stateful one not executed leaves a checkpoint that cannot restart."""
        if not self._written:
            self._frame.write.format("noop").mode("overwrite").save()


def left_strays(lines: Sequence[str], spark: SparkContext) -> bool:
    """Whether attempts other than those that reported may have left something open. Each partition has reported once:
    Spark takes the first attempt of it that succeeds, of whichever run of the stage, and no other."""
    if any(attempt_of(line) > 0 for line in lines):
        return True
    # With speculation the winner may be a first attempt and a loser still have prepared something.
    if spark.getConf().get("spark.speculation", "false") == "true":
        return True
    # A stage runs again when outputs of a shuffle are lost with their executor; a local master has but one.
    master = spark.master or ""
    if master == "local" or master.startswith("local["):
        return False
    return ran_again(spark.statusTracker(), {stage_of(line) for line in lines}, Deadline(_PATIENCE))


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
