"""An epoch that begins in one process of the driver and ends in another, as Spark runs a Python data source's writer.

Spark calls the parts of `format("penstock")` in Python workers on the driver's machine. Neither has a session, neither
is sure to live until the next epoch, and either may be killed, or given up by Spark and still run:

    open    before the tasks of each epoch: register and recover, or go on; say what the tasks are to do
    task    prepares, by `task.write_rows`, and sends what `open` said back with its report
    commit  after the tasks: `run_epoch` of the protocol, with their reports as what was prepared
    abort   after a failure anywhere: register, look, and abort what is open unless it is decided

All of it is the same coordinator and the same protocol. What is special, such as the tickets by which a generation goes
on, is in docs/design-notes.md, "a relay of processes".
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import PRIVATE
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import ledger_at, mismatch, spark_log_at
from penstock.checkpoint.spark_log import SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import CheckContext, SinkScope, TwoPhaseSink, WriterScope
from penstock.engine import protocol
from penstock.engine.checksum import HASH_COLUMN, NESTED, rules_of
from penstock.engine.coordinator import Coordinator
from penstock.engine.driver import explain_stop
from penstock.engine.hashing import RowHashes, rule_of
from penstock.engine.output_jobs import SPARK_BATCH
from penstock.engine.preparation import Reported, write_as_it_is
from penstock.engine.protocol import Replay, Resume
from penstock.engine.task import Route, Writing, report, write_rows
from penstock.errors import DuplicateUid, ReplayDiffers, SchemaMismatch, StrayTask, Superseded
from penstock.events import Events
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

log = logging.getLogger("penstock")

_ATTEMPT = 1  # Spark tries an epoch again only in a new start; the ids of its tasks tell the attempts apart


@dataclass(frozen=True, slots=True)
class Opened:
    """What `open` found, for the tasks and, by their reports, for the commit. `barrier` is the digest of `offsets/N` at
    that time. `goes_on`: with a ticket, nothing was registered. `decided` is the decision that the epoch replays,
    `lost` its writers that are to be rewritten."""

    generation: int
    epoch: int
    barrier: str
    action: str
    goes_on: bool
    decided: tuple[int, int] | None
    lost: tuple[tuple[str, int], ...]
    rule: int
    hints: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hints": {}}  # of no use to the commit

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Opened:
        decided, lost = body["decided"], tuple((sink, number) for sink, number in body["lost"])
        return cls(**{**body, "decided": decided and tuple(decided), "lost": lost})


@dataclass(frozen=True, slots=True)
class Relay:
    """One query, for any process of its driver. `driver` is what all processes of one driver share, and no other has;
    `folder` is where the ledgers of the job's queries are, if not in the query's checkpoint."""

    sink: TwoPhaseSink
    uid: str
    job: str | None
    checkpoint: str
    folder: str | None
    driver: str
    limits: Checkpoints

    @property
    def ledger(self) -> str:
        return f"{(self.folder or self.checkpoint).rstrip('/')}/{self.uid if self.folder else PRIVATE}"

    # The processes of the driver

    def open(self, columns: pa.Schema) -> Opened:
        """Before any task of the epoch that Spark has begun; `columns` are those that the sink's writers get."""
        ledger, spark_log = self._at()
        self._refuse_another_query(ledger, spark_log)
        ticket, newest, (epoch, begun) = ledger.ticket(), ledger.newest_generation(), spark_log.next_epoch()
        barrier = spark_log.barrier(epoch) if begun else None
        if barrier is None:
            raise mismatch(self.uid, f"{spark_log.location} has no epoch that is under way")
        own = newest if newest and ledger.is_of(newest, self.driver) else 0
        if ticket is not None and ticket["driver"] == self.driver:
            ledger.tear()
            if not own:
                raise explain_stop(protocol.Fenced(ticket["generation"], newest), self.uid, spark_log.location)
            decided = ledger.decisions_since(epoch, spark_log.query_id())
            if ticket["generation"] == own and ticket["epoch"] == epoch - 1 and not decided:
                failpoint("epoch.opened")
                return Opened(own, epoch, barrier.digest, "none", True, None, (), rule_of(columns), ticket["hints"])
        context = CheckContext(self._job(ledger), self.limits.interval_seconds, self.limits.timeout_seconds)
        for finding in self.sink.check(context, self.uid):
            log.warning("%s: %s", finding.sink, finding.message)
        with contextlib.closing(self._coordinator(ledger, spark_log, previous=own)) as coordinator:
            resume = coordinator.recover(query_running=True)
            rule = self._rule(columns, resume.replay)
            hints = coordinator.hints(self.uid)
        failpoint("epoch.opened")
        replay, lost = resume.replay, tuple(sorted(resume.replay.lost)) if resume.replay else ()
        decision = None if replay is None else (replay.decision.id.epoch, replay.decision.id.generation)
        found = barrier.digest, resume.action, False, decision, lost, rule, hints
        return Opened(resume.generation, resume.epoch, *found)

    def commit(self, reports: Sequence[str], batch: int) -> None:
        """Returns when the epoch is visible; then Spark writes its commit."""
        answers = [json.loads(text) for text in reports]
        opened = Opened.of(answers[0]["opened"])
        key = (self.ledger, self.driver)
        run = _runs.pop(key, None)
        if run is not None and not (opened.goes_on and run.generation == opened.generation):
            run.close()
            run = None
        leaves_ticket = run is not None or not opened.goes_on
        ledger, spark_log = self._at()
        if run is None:
            run = self._coordinator(ledger, spark_log)
        try:
            if run.generation == 0:
                run.adopt(self._resume(opened, ledger, spark_log))
            # Spark's memory cannot be asked for here; but the file must be the one that the tasks began with.
            barrier = spark_log.barrier(batch)
            if barrier is None or barrier.digest != opened.barrier:
                run.refuse_superseded()  # then the other driver is the newer one
                raise run.overwritten(batch)
            run(answers, batch)  # type: ignore[arg-type]
            if leaves_ticket:
                facts = {"driver": self.driver, "generation": run.generation, "epoch": batch}
                ledger.hand_over({**facts, "hints": run.hints(self.uid)})
        except BaseException:
            run.close()
            raise
        _runs[key] = run

    def abort(self) -> None:
        """After a failure, wherever it was; what is decided stays. Never raises: the failure is what matters."""
        with contextlib.suppress(Superseded):
            try:
                ledger, spark_log = self._at()
                if (newest := ledger.newest_generation()) and ledger.is_of(newest, self.driver):
                    with contextlib.closing(self._coordinator(ledger, spark_log, previous=newest)) as coordinator:
                        coordinator.abort_undecided()
            except Superseded:
                raise
            except Exception as error:
                log.warning("query %s: what is open is left to the next start: %s", self.uid, error)

    # A task

    def write(
        self,
        opened: Opened,
        fit: Callable[[pa.RecordBatch], pa.RecordBatch],
        nullable: Mapping[str, bool],
        batches: Iterator[pa.RecordBatch],
        context: TaskContext,
        job: str,
    ) -> str:
        """Prepare the rows of one task, or count them; the report for `commit`."""
        batch_id = context.getLocalProperty(SPARK_BATCH)
        if batch_id != str(opened.epoch):
            raise StrayTask(
                f"A task of sink {self.uid!r}, run {opened.generation}, runs for batch {batch_id}, but epoch"
                f" {opened.epoch} comes next.",
                safe="it wrote nothing; the epoch is not decided.",
                to_do="nothing, if another driver has just taken the query over; otherwise start it again.",
            )
        counts = opened.decided is not None and not opened.lost
        scope = SinkScope(job, self.uid, opened.generation)
        task = context.partitionId(), context.taskAttemptId()
        writer = WriterScope(scope, opened.epoch, _ATTEMPT, *task, opened.hints)
        writing = Writing(Route.COUNT if counts else Route.SINK)

        def hashed() -> Iterator[pa.RecordBatch]:
            for rows in (fit(batch) for batch in batches if batch.num_rows):
                hashes = RowHashes([nullable.get(name.lower(), True) for name in rows.schema.names], opened.rule)
                yield rows.append_column(HASH_COLUMN, hashes.of(rows))

        result = write_rows(self.sink, writer, hashed(), writing, opened.rule)
        return report(context, {**result, "opened": opened.to_json()})

    def job_name(self) -> str:
        """The job's name, generated and kept in the ledger where the user gave none."""
        return self._job(self._at()[0])

    # Parts

    def _at(self) -> tuple[Ledger, SparkLog]:
        ledger = ledger_at(self.ledger, None, retained=self.limits.retained, trusted=self.limits.trusted_schemes)
        return ledger, spark_log_at(self.checkpoint, None)

    def _job(self, ledger: Ledger) -> str:
        return self.job or f"penstock-{ledger.identity()}"

    def _coordinator(self, ledger: Ledger, spark_log: SparkLog, *, previous: int = 0) -> Coordinator:
        return Coordinator(
            job=self._job(ledger),
            query=self.uid,
            sinks={self.uid: self.sink},
            sources=(),
            ledger=ledger,
            log=spark_log,
            events=Events(),
            body=write_as_it_is(self.uid),
            executed_plan=lambda: None,
            checkpoints=self.limits,
            previous=previous,
            run=self.driver,
            preparation=Reported,
        )

    def _rule(self, columns: pa.Schema, replay: Replay | None) -> int:
        rule = rule_of(columns)
        decided = rules_of(replay.decision.committables).get(self.uid, rule) if replay is not None else rule
        if decided == NESTED:
            raise ReplayDiffers(
                f"Epoch {replay.decision.id.epoch if replay else ''} of query {self.uid!r} is decided, by a Job or"
                " penstock.exactly_once, and its nested rows were summed as only those can sum them.",
                safe="what is decided stays; nothing was written.",
                to_do="start the query the way that decided the epoch, until it is complete.",
            )
        return decided

    def _resume(self, opened: Opened, ledger: Ledger, spark_log: SparkLog) -> Resume:
        replay = None
        if opened.decided is not None:
            decisions = ledger.decisions(opened.epoch, spark_log.query_id())
            decision = next(one for one in decisions if (one.id.epoch, one.id.generation) == opened.decided)
            replay = Replay(decision, frozenset(opened.lost))
        return Resume(opened.generation, opened.epoch, opened.action, replay)

    def _refuse_another_query(self, ledger: Ledger, spark_log: SparkLog) -> None:
        other = ledger.last_claimant() if self.folder is not None else None
        if other not in (None, spark_log.query_id()):
            raise DuplicateUid(
                f"The ledger {self.ledger} is that of another query of Spark ({other}) than the one at"
                f" {self.checkpoint} ({spark_log.query_id()}): two queries have the uid {self.uid!r}, or the query's"
                " checkpoint was deleted.",
                safe="nothing was written.",
                to_do="give each query a uid of its own. If the checkpoint was deleted on purpose, use another uid.",
            )


_runs: dict[tuple[str, str], Coordinator] = {}
"""Those of this process that have ended an epoch of a query, to end its next one."""


def fitted(fit: Callable[[pa.RecordBatch], pa.RecordBatch], schema: StructType) -> pa.Schema:
    """The columns that writers get; `SchemaMismatch` where one is of a type that cannot be summed."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    kinds = to_arrow_schema(schema, timezone="UTC")
    row = fit(pa.RecordBatch.from_arrays([pa.nulls(1, kind.type) for kind in kinds], names=kinds.names))
    try:
        RowHashes([True] * row.num_columns, rule_of(row.schema)).of(row)
    except TypeError as error:
        raise SchemaMismatch(f"A column cannot go by format('penstock'): {error}.", to_do="cast it.") from None
    return row.schema
