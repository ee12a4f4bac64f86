"""Sources: descriptions that become ordinary streaming DataFrames. And a query of them: what it is before it runs, what
its body writes through, and how far it has come."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.contracts.guarantees import Guarantee, Link
from penstock.errors import RealTimeRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.checkpoint.spark_log import Barrier
    from penstock.contracts.sink import Aside, CheckContext, Finding, TwoPhaseSink
    from penstock.deadline import Deadline
    from penstock.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class EpochRead:
    """The read of one source in an epoch: from `start` (None: the beginning) to `end`. `notes` is the folder of Spark's
    source's own log."""

    spark: SparkSession
    epoch: int
    start: Any
    end: Any
    notes: Storage


class Source(ABC):
    """Small and without connections; positions live in Spark's checkpoint."""

    #: Its reader needs the query's position, which Spark before 4.2 does not pass in a run over available input.
    paced_by_position: ClassVar[bool] = False
    verifies: ClassVar[bool] = False  # whether to call `verify` before each epoch that reads something

    @abstractmethod
    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        """The streaming DataFrame."""

    def link(self, uid: str) -> Link:
        """Replayable sources guarantee exactly-once: the same positions give the same rows."""
        return Link("source", uid, Guarantee.EXACTLY_ONCE, f"replayable, {self.describe()}")

    def link_beside(self, uid: str, others: Sequence[Source]) -> Link:
        """The same in a job that also reads `others`: one for each other place where a query reads a source, possibly
        this one again."""
        return self.link(uid)

    def redirected(self, suffix: str) -> Source:
        """The same source for a fork of the job: what it writes, such as its progress, has `suffix` behind its name."""
        return self

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Connect and see that reading can work; write nothing."""
        return ()

    def warm_up(self, spark: SparkSession, uid: str) -> None:  # noqa: B027 - most have nothing to load
        """In a standby driver: load and connect what reading needs; write nothing. Its errors are ignored: the start
        will raise them."""

    def finished(self, offset: Any) -> bool:
        """Whether `offset` (Spark's JSON for this source after an epoch) is the end of a bounded input."""
        return False

    @property
    def bounded(self) -> bool:
        return False

    @property
    def ends_with_what_is_there(self) -> bool:
        """Bounded by the input that exists when the query starts, so that only Spark knows its end."""
        return False

    def verify(self, uid: str, read: EpochRead) -> None:  # noqa: B027 - most leave it to Spark
        """Raise if Spark does not read everything between an epoch's positions; nothing has been written yet."""

    @property
    def identified(self) -> bool:
        """Whether `identities` distinguishes a part that was deleted and created again under its name; then `parts`
        and `refuse_replaced` are called, too."""
        return False

    def parts(self, offset: Any) -> Mapping[str, Any]:
        """The parts with their positions in `offset` (Spark's JSON for this source after an epoch)."""
        return {}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        """The unique id of each of these parts, without parts that have none or do not exist. `subscribed`: also of all
        others that a query would read if it started now."""
        return {}

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:  # noqa: B027
        """Raise, unless the user has accepted that positions continue in parts with another id (the second) than the
        one they were written for (the first)."""

    def resolve(self, kept: Storage | None, after: BaseException | None) -> None:  # noqa: B027 - most ask no one
        """After recovery: learn from other systems what rows need, such as ids of schemas, and keep in the query's
        folder what a start without those systems needs. `after`: why the last start ended."""

    def start(self, job: str, uid: str, readers: Sequence[str]) -> None:  # noqa: B027 - most need nothing beside Spark
        """The job begins: start what must run beside its queries. `readers` names every place where a query reads this
        source."""

    def completed(self, uid: str, reader: str, offset: Any) -> None:  # noqa: B027 - most need no notice
        """The rows that `reader` has read up to `offset` are committed; no restart reads them again."""

    def stop(self) -> None:  # noqa: B027 - most have started nothing
        """The job has ended, with or without an error. Called once for each source, also if `start` failed."""

    def publish(self, job: str, uid: str, offset: Any) -> None:  # noqa: B027 - most have no lag tools
        """Publish the positions of a committed epoch, for lag tools. Best effort: never the truth, never fatal."""

    def read_positions(self, offset: Any) -> Mapping[str, Any]:
        """The position of each partition, from `offset` (Spark's JSON for this source after an epoch)."""
        return _flatten(json.loads(offset) if isinstance(offset, str) else offset)

    def end_positions(self, offset: Any, deadline: Deadline) -> Mapping[str, int]:
        """The current end of each partition of `offset`, as far as known by the deadline. For display: no epoch calls
        it."""
        return {}

    def real_time_options(self, uid: str) -> Mapping[str, str]:
        """The options of Spark's Kafka reader for a real-time query, which then gets its positions from us. Raises
        `RealTimeRefused` where such a query cannot read this source."""
        raise RealTimeRefused(
            f"Source {uid!r} ({self.describe()}) cannot feed a real-time query: only KafkaSource can.",
            to_do="leave latency out, and the query runs in micro-batches; or read the rows from Kafka.",
        )

    def begin_positions(self, known: Collection[str] = ()) -> Mapping[str, Mapping[int, int]]:
        """For a real-time query: where each partition of each topic that exists now begins for a job without a
        checkpoint. `known` topics have positions; a broker that has just restarted gets time to find them."""
        raise NotImplementedError

    def jars(self) -> Sequence[str]:
        """Names of the locked jar sets that this source needs, see `penstock.supply.jars`."""
        return ()

    def spark_conf(self) -> Mapping[str, str]:
        """Session settings for this source; they never override the user's."""
        return {}

    def describe(self) -> str:
        """One line for messages; never a secret."""
        return type(self).__name__


def _flatten(offset: Any, name: str = "") -> dict[str, Any]:
    """Spark's offsets are numbers, or objects of them by topic and partition."""
    if not isinstance(offset, dict):
        return {} if offset is None else {name or "0": offset}
    return {
        inner: value
        for key, below in offset.items()
        for inner, value in _flatten(below, f"{name}-{key}" if name else str(key)).items()
    }


def reader_name(query: str, position: int) -> str:
    """A query may read one source in several places, each at its own position."""
    return f"{query}[{position}]"


class Outputs(Protocol):
    """What the body of a query writes through, in one epoch."""

    epoch: int

    def write(self, frame: DataFrame, uid: str, aside: Aside | None = None) -> None: ...


Body = Callable[["DataFrame", Outputs], None]  # with an epoch: call `outputs.write` for each sink


@dataclass(frozen=True)
class QueryPlan:
    uid: str
    frame: DataFrame
    sinks: Mapping[str, TwoPhaseSink]
    sources: Mapping[str, Source]
    positions: Sequence[str | None]  # the source of each position in a barrier, see `Lineage`
    body: Body
    output_mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)
    as_it_is: bool = False  # its body writes the frame into the one sink, and does nothing else
    latency: float = 0.0  # seconds between the commits of a lane; 0: micro-batches
    aside: Aside | None = None  # of its one sink; the sink behind it is in `sinks`, too

    @property
    def bounded(self) -> bool:
        known = self.sources
        return bool(known) and all(uid is not None and known[uid].bounded for uid in self.positions)

    @property
    def ends_with_what_is_there(self) -> bool:
        return self.bounded and any(source.ends_with_what_is_there for source in self.sources.values())

    def publish(self, job: str, barrier: Barrier) -> None:
        """Show the positions of a complete epoch to other systems, such as lag tools."""
        for uid, offset in zip(self.positions, barrier.offsets, strict=False):
            if uid is not None and offset is not None:
                self.sources[uid].publish(job, uid, offset)

    def finished_at(self, barrier: Barrier) -> bool:
        uids, offsets = self.positions, barrier.offsets
        return len(offsets) == len(uids) and all(
            uid is not None and offset is not None and self.sources[uid].finished(offset)
            for uid, offset in zip(uids, offsets, strict=True)
        )


@dataclass(frozen=True, slots=True)
class QueryProgress:
    generation: int
    completed: int  # the newest complete epoch
    decided: int  # the newest epoch whose rows may be visible


def source_links(plan: QueryPlan, plans: Iterable[QueryPlan]) -> list[Link]:
    places = [(uid, other.sources[uid]) for other in plans for uid in other.positions if uid is not None]
    links = []
    for place in plan.sources.items():
        beside = list(places)
        beside.remove(place)
        links.append(place[1].link_beside(place[0], [source for _, source in beside]))
    return links


@contextmanager
def reading(job: str, sources: Mapping[str, Source], plans: Iterable[QueryPlan]) -> Iterator[None]:
    """While this lasts, sources have running what they need beside the queries."""
    plans = list(plans)
    with ExitStack() as running:
        for uid, source in sources.items():
            places = [(plan.uid, index) for plan in plans for index, name in enumerate(plan.positions) if name == uid]
            running.callback(source.stop)
            source.start(job, uid, [reader_name(*place) for place in places])
        yield
