"""Lanes: how the rows of a real-time query become visible, and what a sink offers for that.

A *lane* is one source partition's way into the sink: a transactional id, a producer, a mark. A *mark* says up to where
the lane's rows are visible. A *slice* is one transaction: rows, and the mark behind them. `lane_protocol.py`
has the protocol; this module has the records of the marks topic and the interfaces.

A record's key is `<topic>-<partition>`. Its value is text, fields separated by one space, the format's version first:

    1 <query id> <generation> open                                             an opening
    1 <query id> <generation> mark <offset> <part> <digest> <rows> <micros>    a mark
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LedgerCorrupt, LedgerFromTheFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
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


class LaneClient(ABC):
    """The driver's side of a sink with lanes. From any thread, one call at a time."""

    @abstractmethod
    def prepare(self, partitions: Mapping[str, int]) -> Mapping[str, str]:
        """Create the marks topic of every source topic, or grow it to this number of partitions. Returns the ids of the
        marks topics by source topic: a topic that was deleted and created again has another one."""

    @abstractmethod
    def open(self, lane: Lane, begin: Callable[[Mark | None], Mark]) -> Mark:
        """Carry out `lane_protocol.open_by_driver`: fence all older owners of the lane, read the newest mark of any
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
