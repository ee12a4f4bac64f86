"""What a query writes in one epoch: a Spark job per output, whose tasks prepare and report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.epoch.channel import Writing
from penstock.epoch.checksum import hashed, rule_for
from penstock.epoch.row_sizes import RowSizes
from penstock.epoch.task import (
    RESULT_SCHEMA,
    attempt_of,
    committable,
    fault_in,
    plainly_named,
    row_bytes_of,
    writer_task,
)
from penstock.errors import ConfigurationError, DuplicateUid
from penstock.sinks.base import SinkScope, TwoPhaseSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from penstock.epoch.protocol import Committable


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
        task = writer_task(
            sink,
            SinkScope(self._job, uid, self._generation),
            epoch=self.epoch,
            attempt=self._attempt,
            hints=dict(self._hints(uid)),
            writing=self._writing(uid),
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
        self.strays = self.strays or any(attempt_of(row[0]) > 0 for row in told) or _speculates(frame)

    def execute_rest(self) -> None:
        """Run the plan if no output did: a stateful one not executed leaves a checkpoint that cannot restart."""
        if not self._written:
            self._frame.write.format("noop").mode("overwrite").save()


def _speculates(frame: DataFrame) -> bool:
    """With speculation the winner may be a first attempt and a loser still have prepared something."""
    return frame.sparkSession.sparkContext.getConf().get("spark.speculation", "false") == "true"
