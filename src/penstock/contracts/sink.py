"""What a sink is, and the two-phase contract that users may implement for their own systems.

A sink object is a description: small, picklable, without connections. In a task it opens a `Writer`, in the driver
a `Committer`; the two share nothing but the committables that writers hand back, because either may die at any time.

    task    open_writer ── write… ── pre_commit ──▶ Committable          (or abort)
    driver  open_committer ── seal ── [decision in the ledger] ── commit  (or abort)
    restart open_committer ── commit what was decided ── abort_dangling what was not
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.guarantees import Guarantee, Link
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PreCommitFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SinkScope:
    """Which sink of which run: what a committer is opened with.

    `prefix` names everything this sink ever leaves in the other system, over all generations.
    """

    job: str
    uid: str
    generation: int

    @property
    def prefix(self) -> str:
        # A colon stands in no name, so no two of job and uid make the same prefix.
        return f"{self.job}:{self.uid}"


@dataclass(frozen=True, slots=True)
class WriterScope:
    """Which writer of which attempt: what a writer is opened with, in a task.

    (`generation`, `epoch`, `attempt`, `partition`, `task_attempt`) is unique over all runs: two attempts of one task
    never share a name. `hints` is what the sink's committer wanted its writers to know this epoch.
    """

    sink: SinkScope
    epoch: int
    attempt: int
    partition: int
    task_attempt: int
    hints: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The numbers a start-up check compares a system's limits with."""

    job: str
    interval_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a check wants a person to know; anything worse is raised as an error."""

    sink: str
    message: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that is open in the other system, for people to look at.

    `payload` is the part of its committable's payload that names it, so that the ledger can be asked about it. What
    the name does not tell is None. `started` is in seconds since 1970; `details` holds no secret."""

    name: str
    generation: int
    epoch: int | None = None
    partition: int | None = None
    started: float | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


__all__ = [
    "CheckContext",
    "Committable",
    "Committer",
    "Finding",
    "Leftover",
    "Outcome",
    "Sink",
    "SinkScope",
    "TwoPhaseSink",
    "Writer",
    "WriterScope",
]


class Writer(ABC):
    """One task's hand on the target. Used by one thread, from open to pre_commit or abort."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Hand over rows. May buffer; must not make anything visible."""

    @abstractmethod
    def pre_commit(self) -> Mapping[str, Any]:
        """Flush and leave everything prepared: afterwards a commit can only fail if the other system loses it."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what this writer did. Called after any failure; must not raise for what is already gone."""


class Committer(ABC):
    """The driver's hand on the target. Every method is idempotent and may be called from any process.

    `fences_older_runs` may be set where, once `abort_dangling` has returned, no writer of an older generation can
    prepare anything any more. Otherwise `abort_dangling` is called about once a minute, for as long as a run lasts."""

    fences_older_runs: ClassVar[bool] = False

    def hints(self) -> Mapping[str, Any]:
        """What this epoch's writers should know; travels to every task, so keep it small.

        An epoch waits for it: say what is known, and where the other system has to be asked, ask for seconds at most.
        A writer must be able to do without."""
        return {}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        """Before the decision: confirm that all are prepared and complete their payloads; raise if one is not."""
        return committables

    def release(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what `seal` holds open for the commit: another committer will do it, and must not wait for us."""

    @abstractmethod
    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        """Make all visible, in parallel where possible; by writer number, what is proven of each. Raises nothing
        that concerns a single committable: what could not be proven by the deadline is UNKNOWN."""

    @abstractmethod
    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        """Undo what was prepared and will never be decided."""

    @abstractmethod
    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        """Find by prefix whatever this and older generations left open, except `keep`, abort it so that its writer,
        should it still live, can do nothing more, and return how many there were. Never touches newer generations."""

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """Of an epoch that was committed before: by writer number, those whose rows the other system has proven to have
        lost since, as a database does when a replica that is behind takes its place. Each with what to do there so that
        the loss counts as known. What has only fallen back to prepared is committed once more, so this is asked before
        leftovers are aborted."""
        return {}

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover] | None:
        """What `abort_dangling` would find with nothing to keep, left as it is; None where the sink cannot say."""
        return None

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """By writer number, for a person who has to judge where nothing can be proven: what is seen in the target."""
        return {}

    def close(self) -> None:  # noqa: B027 - a committer without connections has nothing to do
        """Free connections."""


class Sink(ABC):
    """A description of where rows go."""

    @abstractmethod
    def link(self, uid: str) -> Link:
        """What this sink promises and why, for the weakest-link computation."""

    @abstractmethod
    def shape(self, frame: DataFrame) -> DataFrame:
        """The columns and types the writer takes, from what the user gave; `SchemaMismatch` where that cannot be."""

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Connect, compare what the other system allows with what the job needs, write nothing. Raises a
        `ConfigurationError` or `SystemUnavailable` for what cannot work."""
        return ()

    def describe(self) -> str:
        """One line for people; never a secret."""
        return type(self).__name__


class TwoPhaseSink(Sink):
    """A sink whose system can prepare now and commit later. Extend this for your own.

    `shapes_once` may be set where `shape` depends on the frame's columns alone and changes nothing outside of the sink,
    and where all that committers hint can be written as JSON. `shape` is then called, and the sink pickled, once in a
    start of a query instead of in every epoch, which makes short epochs shorter. It does not count for a class that
    overrides `shape`: that one has to say it again."""

    shapes_once: ClassVar[bool] = False

    def link(self, uid: str) -> Link:
        return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"two-phase commit, {self.describe()}")

    def shape(self, frame: DataFrame) -> DataFrame:
        return frame

    def redirected(self, suffix: str) -> TwoPhaseSink:
        """The same sink with its output put aside: a topic, table or folder named like its own with `suffix` behind.
        For a fork of a job, which must not write where the job does."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot redirect its output, so a job with it cannot be forked.",
            to_do="give the fork a sink that can, or override TwoPhaseSink.redirected(suffix).",
        )

    @abstractmethod
    def open_writer(self, scope: WriterScope) -> Writer:
        """In a task: begin. Called once the first row is there, so that empty partitions cost nothing."""

    @abstractmethod
    def open_committer(self, scope: SinkScope) -> Committer:
        """In the driver: what commits, aborts and finds leftovers."""

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        """In a task of a job that asks for at-least-once only: a writer whose `pre_commit` has made the rows visible
        when it returns. Unless a sink knows a shorter way, each task commits by itself."""
        return CommittingWriter(self, scope)


_COMMIT_SECONDS = 60.0


class CommittingWriter(Writer):
    """At-least-once through a two-phase sink: a task that commits what it has prepared, by itself and at once. Nobody
    decides: should the task or the driver die afterwards, the epoch replays and its rows come again."""

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
                to_do="nothing, if the target system was away for a moment; else see that it answers.",
            )
        return {}

    def abort(self) -> None:
        self._writer.abort()
