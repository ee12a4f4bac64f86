"""Sinks, and the two-phase contract that users may implement for their own systems.

A sink object is a description: small, picklable, without connections. In a task it opens a `Writer`, in the driver
a `Committer`; the two share only the committables that writers return, because either may die at any time.

    task    open_writer ── write… ── pre_commit ──▶ Committable          (or abort)
    driver  open_committer ── seal ── [decision in the ledger] ── commit  (or abort)
    restart open_committer ── commit decided ones ── abort_dangling all others
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.guarantees import Guarantee, Link
from penstock.deadline import Deadline
from penstock.errors import AsideLimitExceeded, ConfigurationError, PreCommitFailed, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class SinkScope:
    """Identifies a sink of one run, for its committer. `prefix` begins the names of everything that this sink creates
    in the other system, in all generations."""

    job: str
    uid: str
    generation: int

    @property
    def prefix(self) -> str:
        # No name has a colon, so no two pairs of job and uid have the same prefix.
        return f"{self.job}:{self.uid}"


@dataclass(frozen=True, slots=True)
class WriterScope:
    """Identifies one attempt of a writer, in a task. (`generation`, `epoch`, `attempt`, `partition`, `task_attempt`) is
    unique over all runs: two attempts of one task never share a name. `hints` come from the sink's committer
    (`Committer.hints`)."""

    sink: SinkScope
    epoch: int
    attempt: int
    partition: int
    task_attempt: int
    hints: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckContext:
    job: str
    interval_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning from a check; anything worse is raised as an error."""

    sink: str
    message: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """An open writer in the other system, for display. `payload` is the part of its committable's payload that names
    it, for a lookup in the ledger. Numbers that the name does not hold are None. `started` is in seconds since 1970;
    `details` holds no secret."""

    name: str
    generation: int
    epoch: int | None = None
    partition: int | None = None
    started: float | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


class Writer(ABC):
    """One task's side of the target. Used by one thread, from open to pre_commit or abort."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. May buffer; must not make anything visible."""

    def unfit(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        """With `aside`, asked before `write`: by index, the rows that the target can never take, and why."""
        return {}

    def try_write(self, batches: Sequence[pa.RecordBatch]) -> str | None:
        """With `aside`: write these rows to the target. If it refuses one, take all back and return why; else None."""
        raise NotImplementedError

    @abstractmethod
    def pre_commit(self) -> Mapping[str, Any]:
        """Flush and prepare: afterwards a commit can only fail if the other system loses the prepared rows. Returns the
        payload of the committable, which must suffice to commit or abort from any process."""

    @abstractmethod
    def abort(self) -> None:
        """Undo this writer's work. Called after any failure; must not raise if it is already gone."""


class Committer(ABC):
    """The driver's side of the target. Every method is idempotent and may be called from any process. Set
    `fences_older_runs` if no writer of an older generation can prepare anything once `abort_dangling` has returned.
    Otherwise `abort_dangling` is called about once a minute during a run."""

    fences_older_runs: ClassVar[bool] = False

    def hints(self) -> Mapping[str, Any]:
        """Information for this epoch's writers; travels to every task, so keep it small. An epoch waits for it: return
        what is known, and spend seconds at most on asking the other system. A writer must work without it."""
        return {}

    def rules(self) -> Mapping[str, Any]:
        """With `aside`, added to the hints: what `Writer.unfit` must know of the target. Keep the answer."""
        return {}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        """Before the decision: confirm that all are prepared and complete their payloads; raise if one is not."""
        return committables

    def release(self) -> None:  # noqa: B027 - most hold nothing
        """Release what `seal` holds open for the commit: another committer will commit, and must not wait."""

    @abstractmethod
    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        """Make all visible, in parallel if possible; returns the proven outcome by writer number. Raises nothing that
        concerns a single committable: an outcome that is not proven by the deadline is UNKNOWN."""

    @abstractmethod
    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        """Undo prepared committables that will never be decided."""

    @abstractmethod
    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        """Find by prefix everything that this and older generations left open, except `keep`; abort it so that a
        surviving writer can do nothing more; return the number. Never touches newer generations."""

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """The committables of a committed epoch whose rows the other system has provably lost since, for example after
        a failover to a replica that was behind: by writer number, with the command that acknowledges the loss there.
        Those that have only fallen back to prepared are committed again, so this runs before leftovers are aborted."""
        return {}

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover] | None:
        """What `abort_dangling` would abort with nothing to keep; changes nothing. None if the sink cannot tell."""
        return None

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """By writer number, what the target shows, for an operator who must judge an unproven outcome."""
        return {}

    def close(self) -> None:  # noqa: B027 - a committer without connections has nothing to do
        """Free connections."""


class Sink(ABC):
    """A description of where rows go."""

    @abstractmethod
    def link(self, uid: str) -> Link:
        """This sink's guarantee and its reason, for the weakest-link computation."""

    @abstractmethod
    def shape(self, frame: DataFrame) -> DataFrame:
        """The columns and types that the writer takes, from the user's frame; `SchemaMismatch` if it does not fit."""

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Connect and compare the other system's limits with the job's needs; write nothing. Raises a
        `ConfigurationError` or `SystemUnavailable` if the sink cannot work."""
        return ()

    def describe(self) -> str:
        """One line for messages; never a secret."""
        return type(self).__name__


class TwoPhaseSink(Sink):
    """A sink whose system can prepare now and commit later. Extend this for your own. Set `shapes_once` if `shape`
    depends only on the frame's columns and has no effect outside the sink, and if the committers' hints can be written
    as JSON. Then `shape` is called, and the sink pickled, once per start of a query instead of in every epoch, which
    shortens short epochs. A class that overrides `shape` must set it again."""

    shapes_once: ClassVar[bool] = False

    def link(self, uid: str) -> Link:
        return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"two-phase commit, {self.describe()}")

    def shape(self, frame: DataFrame) -> DataFrame:
        return frame

    def fit(self, schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """As `shape`, for the batches of a frame that is out of reach, with `format("penstock")`: called in the driver,
        the function it returns in tasks. Unless overridden, `SchemaMismatch` where `shape` changes a column."""
        columns = Columns(schema, self.describe())
        self.shape(cast("DataFrame", columns))
        return _as_it_is

    def resolve(self, kept: Storage | None, after: BaseException | None) -> None:
        """As `Source.resolve`; also in each epoch, after `shape`, with no folder."""

    def take_records(self) -> None:
        """Raise unless a writer takes batches of one column `value` of JSON texts, as for an aside sink."""
        from pyspark.sql.types import StringType, StructType

        self.fit(StructType().add("value", StringType(), nullable=False))

    def redirected(self, suffix: str) -> TwoPhaseSink:
        """The same sink with another output: a topic, table or folder with `suffix` behind its name. For a fork of a
        job, which must not write to the job's output."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot redirect its output, so a job with it cannot be forked.",
            to_do="use a sink that can for the fork, or override TwoPhaseSink.redirected(suffix).",
        )

    @abstractmethod
    def open_writer(self, scope: WriterScope) -> Writer:
        """In a task: begin. Called with the first row, so that empty partitions cost nothing."""

    @abstractmethod
    def open_committer(self, scope: SinkScope) -> Committer:
        """In the driver: commits, aborts and finds leftovers."""

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        """In a task of a job in mode at_least_once: a writer whose `pre_commit` makes the rows visible. Unless a sink
        has a shorter way, each task commits by itself."""
        return CommittingWriter(self, scope)


TRACE = ("__penstock_at", "__penstock_from")  # where a row comes from, see `penstock.spark.lane_plan.traced`
#: In the payload of an aside sink's committable: by reason, the hash of each row and its place among equal ones.
REFUSED = "refused"


@dataclass(frozen=True)
class Aside:
    """Where rows go that sink `of` refuses, at most `limit` of an epoch. `topic`: of all rows, if there is but one."""

    of: str
    limit: str
    topic: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(\d+(\.\d+)?%|\d+)(, *(\d+(\.\d+)?%|\d+))?", self.limit):
            raise ConfigurationError(
                f"aside_limit={self.limit!r} is no limit of rows.",
                to_do="write a share of an epoch's rows such as '1%', a number of rows such as 500, or '1%, 500'.",
            )

    @property
    def uid(self) -> str:
        return f"{self.of}.aside"

    def check(self, epoch: int, refused: int, rows: int | None = None) -> None:
        """`AsideLimitExceeded` for too many, of so many if that is known. A share never means less than one row."""
        parts = self.limit.replace(" ", "").split(",")
        most = [min((int(part) for part in parts if part.isdigit()), default=10_000)]
        most += [
            max(1, int(rows * float(part[:-1]) / 100)) for part in parts if part.endswith("%") and rows is not None
        ]
        if refused > min(most):
            of = "" if rows is None else f" of {rows:,}"
            raise AsideLimitExceeded(
                f"Epoch {epoch} would set aside {refused:,}{of} rows that sink {self.of!r} refuses, and aside_limit"
                f" allows {self.limit}.",
                safe="nothing of this epoch is visible, in neither sink; it replays from the same positions.",
                to_do="run with a higher aside_limit to see what the sink refuses; correct the program or the target.",
            )


class Columns:
    """What `shape` may ask of a frame that is out of reach. A column that Spark would have to change is refused."""

    isStreaming = False  # noqa: N815 - Spark's name

    def __init__(self, schema: StructType, sink: str) -> None:
        self.schema, self.columns, self._sink = schema, schema.names, sink

    def __getattr__(self, name: str) -> Any:
        kinds = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields)
        raise SchemaMismatch(
            f"{self._sink} writes some of these columns as other types ({kinds}), and with format('penstock') the rows"
            " are out of Spark's reach by then.",
            to_do="make those columns what they become: nested ones, and whole rows for csv and json, text by to_json;"
            " intervals text. Or use penstock.exactly_once or a Job.",
        )


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def first_reasons(rules: Iterable[tuple[Any, str]]) -> dict[int, str]:
    """What `Writer.unfit` returns, from arrays of numpy's that are true where a row breaks a rule, with the reasons."""
    return {int(index): reason for broken, reason in reversed([*rules]) for index in broken.nonzero()[0]}


_COMMIT_SECONDS = 60.0


class CommittingWriter(Writer):
    """At-least-once through a two-phase sink: a task commits its own prepared rows at once, without a decision. If the
    task or the driver dies afterwards, the epoch replays and its rows come again."""

    def __init__(self, sink: TwoPhaseSink, scope: WriterScope) -> None:
        self._sink, self._scope, self._rows = sink, scope, 0
        self._writer = sink.open_writer(scope)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._writer.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        payload = self._writer.pre_commit()
        scope, deadline = self._scope, Deadline(_COMMIT_SECONDS)
        committer = self._sink.open_committer(scope.sink)
        try:
            prepared = Committable(scope.sink.uid, scope.partition, self._rows, 0, payload)
            outcomes = committer.commit(scope.epoch, committer.seal([prepared], deadline), deadline)
        finally:
            committer.close()
        outcome = outcomes.get(scope.partition, Outcome.UNKNOWN)
        if not outcome.visible:
            raise PreCommitFailed(
                f"Writer {scope.partition} of sink {scope.sink.uid!r} could not commit in its task: {outcome.value}.",
                safe="the epoch is not complete and replays; rows that became visible come again.",
                to_do="nothing, if the target system was briefly unavailable; otherwise see that it answers.",
            )
        return {}

    def abort(self) -> None:
        self._writer.abort()
