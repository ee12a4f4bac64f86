"""Lanes: how the rows of a real-time query become visible, how a driver opens one, and what a sink offers for that.

A *lane* is one source partition's way into the sink: a transactional id, a producer, a mark. A *mark* says up to where
the lane's rows are visible. A *slice* is one transaction: rows, and the mark behind them.

A record's key is `<topic>-<partition>`. Its value is text, fields separated by one space, the format's version first:

    1 <query id> <generation> open                                             an opening
    1 <query id> <generation> mark <offset> <part> <digest> <rows> <micros>    a mark

The protocol is pure, without I/O, clock, Spark or Kafka. `open_by_driver` yields an action, is sent its result, and
goes on. It opens a lane at a start, at a clean stop, and before micro-batches take over; a sink's `LaneClient` carries
it out. A lane's owner in a task writes it: the writer in the JVM, which follows `run_task` of
`tests/support/lane_model.py` step by step. An exception thrown in (fenced, no broker) leaves without another action.
Whatever the owner left open is aborted by the next `Init`, or by the broker when it expires.

Why each row is visible exactly once, in the order of its source partition:

* A transaction holds a slice's rows and the mark behind them, so both are visible or neither. Kafka's commit of it is
  the decision.
* `Init` fences every older owner before anything is read: the newest committed mark is final from then on.
* The owner's opening lies in the marks partition, in a transaction that is open, so a reader of committed records comes
  exactly to it. It depends on no coordinator's answer, and on no high watermark that may be stale.
* A task reads its source from somewhere at or before the mark, in order, and drops what is at or before the mark.
* Only the newest committed mark counts. A driver commits one before its tasks write, so a task goes on from a mark of
  its own query and generation alone. Another query's, or a higher generation: it has been superseded, and two runs
  never fence each other in turn. In a partition that was added since, the task waits for its driver's mark: the driver
  may ask the ledger whether a newer run exists, the task cannot.
* A commit without an answer, or one during which a connection was closed: the request may still be under way, and
  would end the *next* transaction. The owner opens the lane anew, which shows what became of the slice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LedgerCorrupt, LedgerFromTheFuture, MarksLost, PenstockError, Superseded

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.contracts.sink import SinkScope

_VERSION = "1"
_UNCHANGED = "no lane was opened; rows and marks are as they were."


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """A source partition. As text it is the key of the lane's records."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Opening:
    """An owner of `generation` has opened the lane. Says nothing of positions."""

    query: str
    generation: int

    def to_bytes(self) -> bytes:
        return f"{_VERSION} {self.query} {self.generation} open".encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """All rows of source offsets before `offset` are visible, and the first `part` rows of `offset` itself; `digest` is
    the CRC32C over key and value of those, 0 where there are none. `query` is the id of the query's history: another
    history's marks mean nothing. `rows`, which this owner has made visible, and `micros`, which its previous commit
    took, are for display."""

    query: str
    generation: int
    offset: int
    part: int = 0
    digest: int = 0
    rows: int = 0
    micros: int = 0

    @property
    def position(self) -> tuple[int, int]:
        return self.offset, self.part

    def to_bytes(self) -> bytes:
        numbers = f"{self.offset} {self.part} {self.digest} {self.rows} {self.micros}"
        return f"{_VERSION} {self.query} {self.generation} mark {numbers}".encode()


Record = Opening | Mark


def parse_record(value: bytes) -> Record:
    """The record that `value` holds. Raises `LedgerFromTheFuture` for a version this Penstock does not know, and
    `LedgerCorrupt` for what is no record at all."""
    found: Record | None = None
    version, *fields = value.decode(errors="replace").split(" ")
    if fields and version != _VERSION and version.isdecimal():
        raise LedgerFromTheFuture(
            f"A mark has format {version}; this version of Penstock knows {_VERSION}.",
            safe=_UNCHANGED,
            to_do="run the job with the version of Penstock that wrote it, or a newer one.",
        )
    try:
        match fields:
            case [query, generation, "open"]:
                found = Opening(query, int(generation))
            case [query, generation, "mark", offset, part, digest, rows, micros]:
                found = Mark(query, int(generation), int(offset), int(part), int(digest), int(rows), int(micros))
    except ValueError:
        pass
    if found is None or found.to_bytes() != value:
        raise LedgerCorrupt(
            f"The marks topic has a record that is not Penstock's: {value[:80]!r}.",
            safe=_UNCHANGED,
            to_do="find what else writes into that topic and stop it; then restore the job from its newest checkpoint.",
        )
    return found


@dataclass(frozen=True, slots=True)
class Owner:
    """One run's driver or task. `query` is the id of the query's history."""

    query: str
    generation: int


# Actions. Each says what is sent back.


@dataclass(frozen=True, slots=True)
class Init:
    """`InitProducerId` for the lane's transactional id: fence older owners, abort what they left open. → None."""


@dataclass(frozen=True, slots=True)
class SendOpening:
    """Begin a transaction and send the opening. → `int`, its offset in the marks partition."""

    opening: Opening


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Read committed records up to `end`, the own opening's offset. → `Mark`, the newest, of any query; or None."""

    end: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The driver decides where the lane begins. → `Mark`, or a `PenstockError` where it must not."""

    found: Mark | None


@dataclass(frozen=True, slots=True)
class SendMark:
    """Send the mark, in a new transaction where none is open. → None."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction. → True; or False where there was no answer, or a connection was closed since it began."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the transaction. → None."""


Action = Init | SendOpening | ReadMark | Begin | SendMark | Commit | Abort


def open_by_driver(owner: Owner) -> Generator[Action, Any, Mark]:
    """Fence the lane and commit the mark that `Begin` decides on. Returns it."""
    sent: Mark | None = None
    while True:
        found = yield from open_lane(owner)
        if sent is not None and found == sent:  # the commit without an answer was carried out
            yield Abort()
            return sent
        if found is not None and found.query == owner.query and found.generation > owner.generation:
            yield Abort()
            raise superseded(owner, found)
        begin: Mark | PenstockError = yield Begin(found)
        if isinstance(begin, PenstockError):
            yield Abort()
            raise begin
        sent = begin
        yield SendMark(sent)
        if (yield Commit()):
            return sent


def open_lane(owner: Owner) -> Generator[Action, Any, Mark | None]:
    """Fence the lane and read its newest mark; the opening's transaction stays open."""
    yield Init()
    end: int = yield SendOpening(Opening(owner.query, owner.generation))
    found: Mark | None = yield ReadMark(end)
    return found


def superseded(owner: Owner, found: Mark) -> Superseded:
    """A newer run has the lane."""
    return Superseded(
        f"Generation {owner.generation} of query {owner.query} has lost a lane to generation {found.generation} of"
        f" query {found.query}.",
        safe="this run has committed nothing since.",
        to_do="nothing, if a newer run of the job is meant to be there; otherwise stop it and start this one again.",
    )


def marks_lost(found: Mark | None, least: Mark | None) -> MarksLost:
    """The marks topic has an older mark than is known, or none."""
    known = f"offset {least.offset} (part {least.part}) is known to be visible" if least else "the topic was replaced"
    there = f"the newest mark is offset {found.offset} (part {found.part})" if found else "there is no mark"
    return MarksLost(
        f"The marks topic has lost marks: {known}, but {there}.",
        safe="nothing was written.",
        to_do="restore the job from its newest checkpoint; rows that became visible after it come again.",
    )


class LaneClient(ABC):
    """The driver's side of a sink with lanes. From any thread, one call at a time."""

    @abstractmethod
    def prepare(self, partitions: Mapping[str, int]) -> Mapping[str, str]:
        """Create the marks topic of every source topic, or grow it to this number of partitions. Returns the ids of the
        marks topics by source topic: a topic that was deleted and created again has another one."""

    @abstractmethod
    def open(self, lane: Lane, begin: Callable[[Mark | None], Mark]) -> Mark:
        """Carry out `open_by_driver`: fence all older owners of the lane, read the newest mark of any
        query, and commit the one that `begin` makes of it, which is returned. `begin` is called once the lane is
        fenced, again if a commit had no answer; where it raises, the transaction is aborted. Raises `Superseded` where
        a newer generation has opened the lane."""

    @abstractmethod
    def open_all(self, lanes: Collection[Lane], begin: Callable[[Lane, Mark | None], Mark]) -> Mapping[Lane, Mark]:
        """`open` for all of them, side by side."""

    @abstractmethod
    def marks(self) -> Mapping[Lane, Mark]:
        """The newest committed mark of every lane, reading on from where the last call ended."""

    @abstractmethod
    def writer(self, spark: SparkSession, columns: Sequence[str], *, multiplies: bool, latency_ms: int) -> Any:
        """The JVM's `ForeachWriter` for the tasks. `columns` are the frame's: those of the sink's shape, then topic,
        partition and offset. `multiplies`: one source row may give several rows, so that marks need parts. Tasks know
        the marks that `open` has committed so far, and never begin before them."""

    @abstractmethod
    def close(self) -> None:
        """Free connections."""


class RealTimeSink(ABC):
    """What a sink adds to its two-phase contract to take real-time queries."""

    @abstractmethod
    def open_lanes(self, scope: SinkScope, query: str) -> LaneClient:
        """The lanes of one run. `query` is the id of the query's history, which every record bears."""

    @abstractmethod
    def lane_jars(self) -> Sequence[Path]:
        """What executors need beside the connector."""
