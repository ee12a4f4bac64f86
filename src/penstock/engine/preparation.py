"""From an attempt's rows to what a decision may name: the plan is run, each task prepares, each sink confirms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.attempt import Attempt, EpochObserver, Watchdog
from penstock.engine.channel import Route, Writing
from penstock.engine.jobs import EachEpoch
from penstock.engine.outputs import EpochOutputs
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.config import Checkpoints
    from penstock.contracts.plan import Body
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.engine.committers import Committers
    from penstock.engine.inflight.manager import InFlight
    from penstock.engine.inputs import Inputs
    from penstock.engine.jobs import Jobs
    from penstock.engine.watermark import WatermarkTracker


class Preparation:
    """Of one start of one query, used by the thread that runs its epochs. Makes nothing visible, unless the attempt is
    `direct`. `jobs` runs the tasks; it may be replaced before the first epoch."""

    def __init__(
        self,
        *,
        job: str,
        sinks: Mapping[str, TwoPhaseSink],
        committers: Committers,
        body: Body,
        executed_plan: Callable[[], Any],
        watermark: WatermarkTracker,
        limits: Checkpoints,
        inflight: InFlight | None,
        observer: EpochObserver | None,
        inputs: Inputs | None,
    ) -> None:
        self._job, self._sinks = job, dict(sinks)
        self._committers, self._body, self._executed_plan = committers, body, executed_plan
        self._watermark, self._limits = watermark, limits
        self._inflight, self._observer, self._inputs = inflight, observer, inputs
        self.jobs: Jobs = EachEpoch()
        self._group: str | None = None

    def run(self, attempt: Attempt, only: frozenset[str] | None) -> protocol.Prepared | protocol.Failed:
        """With `only`, the writers of those sinks alone write; all others just count and sum."""
        failpoint("epoch.opened")
        parallelism = self._parallelism(attempt.frame)
        outputs = EpochOutputs(
            attempt.epoch,
            attempt.number,
            attempt.generation,
            self._job,
            self._sinks,
            attempt.frame,
            lambda uid: self._writing(uid, attempt, only),
            self._hints,
            self.jobs,
            attempt.rules,
        )
        watchdog = Watchdog(attempt, self._limits.timeout_seconds, self._job_group(attempt.frame))
        try:
            with watchdog:
                if self._inputs is not None:
                    self._inputs.begin(attempt.barrier)
                self._body(attempt.frame, outputs)
                outputs.execute_rest()
                failpoint("epoch.precommitted")
                direct = attempt.direct and only is None
                committables = tuple(outputs.committables) if direct else self._sealed(outputs.committables, only)
                plan = cache(self._executed_plan)
                watermark = self._watermark.advance(None if self._watermark.unchanging else plan())
                if self._observer is not None:
                    self._observer.prepared(attempt.epoch, attempt.barrier, attempt.notes.opened, plan)
            if self._inputs is not None:
                self._inputs.confirm(attempt.epoch, attempt.barrier)
        except Exception as error:
            return protocol.Failed(watchdog.expired or error)
        return protocol.Prepared(committables, watermark, outputs.strays, parallelism)

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

    def _writing(self, uid: str, attempt: Attempt, only: frozenset[str] | None) -> Writing:
        if only is not None:
            return Writing(Route.SINK if uid in only else Route.COUNT)
        if attempt.direct:
            return Writing(Route.DIRECT)
        if self._inflight is not None:
            return self._inflight.writing(uid, attempt.seconds)
        return Writing()

    def _hints(self, uid: str) -> Mapping[str, Any]:
        own = self._committers[uid].hints()
        return self._inflight.with_hints(uid, own) if self._inflight is not None else own

    def _sealed(self, committables: Sequence[Committable], only: frozenset[str] | None) -> tuple[Committable, ...]:
        """Each sink confirms what its writers prepared."""
        found = [
            committable
            for committable in committables
            if committable.rows and (only is None or committable.sink in only)
        ]
        deadline = Deadline(self._limits.commit_timeout_seconds)
        sealed = list(self._committers.seal([committable for committable in found if not committable.logged], deadline))
        if self._inflight is not None:
            # Of several epochs under way the drainer commits each.
            seal = self._committers.seal if self._limits.max_concurrent == 1 else self._committers.seal_for_others
            sealed.extend(self._inflight.sealed([committable for committable in found if committable.logged], seal))
        by_id = {committable.id: committable for committable in sealed}
        return tuple(by_id.get(committable.id, committable) for committable in committables)
