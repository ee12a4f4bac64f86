"""What is known of one checkpoint once it is over: when, how long, how much, from which positions, with which state.

    checkpoints/chk-12.json                        epoch 12, complete
    checkpoints/chk-12.failed-1767225600250.json   an attempt at it that failed, by the time it was opened

These are for people and pages. Recovery never reads one: a record that is missing or damaged changes nothing.

A job's global checkpoints have records of their own, in the job's folder, each naming one decided epoch of every query:

    global/0000000012.json
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.checkpoint import layout
from penstock.checkpoint.decision import Committable
from penstock.checkpoint.layout import CHECKPOINTS, GLOBAL, known_fields, seal, unseal
from penstock.errors import LedgerError
from penstock.storage.storage import Storage

log = logging.getLogger("penstock")

COMPLETE, FAILED = "complete", "failed"
MOST_PARTITIONS = 100
"""How many partitions of an alignment are kept by name; of more, those that were waited for longest."""

_KIND = "checkpoint"
_SUMMARY = (
    "query", "epoch", "generation", "mode", "outcome", "why", "rows", "total_ms", "read_ms", "precommit_ms",
    "commit_ms", "inflight_bytes", "state_bytes",
)  # fmt: skip
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SinkShare:
    """What one sink was given in an epoch. `writers` counts those with rows; `bytes` is None where it is not known."""

    sink: str
    rows: int
    writers: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator after the epoch, over all its partitions.

    `memory_bytes` is what it uses in memory: on the heap with the hashmap backend, where it includes the versions kept
    for going back; RocksDB's own memory with the other. `state_bytes` is the state itself: this version of it on the
    heap, or RocksDB's files. None where Spark does not say."""

    operator: str
    rows: int
    updated: int
    removed: int
    memory_bytes: int
    state_bytes: int | None
    backend: str
    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """When one source partition was read up to the barrier. Times count from the barrier.

    `started_ms` is when a task began to read it, `waited_ms` how long it then waited for the slowest. `source` is the
    source's uid, None where it is not known; `rows` None where the source does not count."""

    partition: str
    source: str | None
    rows: int | None
    started_ms: float
    reached_ms: float
    waited_ms: float = 0.0

    @property
    def took_ms(self) -> float:
        return self.reached_ms - self.started_ms


@dataclass(frozen=True, slots=True)
class Alignment:
    """When each source partition reached the cut of an epoch, slowest first.

    `slowest` is the partition that all others waited for; `skew` how many times the median it took to read. `more`
    partitions are not listed. `unknown` says why nothing, or not everything, is known; None if everything is."""

    partitions: tuple[PartitionCut, ...]
    slowest: str | None = None
    skew: float | None = None
    more: int = 0
    unknown: str | None = None

    @classmethod
    def of(cls, cuts: Iterable[PartitionCut], unknown: str | None = None) -> Alignment:
        ordered = sorted(cuts, key=lambda cut: (-cut.reached_ms, cut.partition))
        if not ordered:
            return cls((), unknown=unknown)
        last = ordered[0]
        # Of an even number the lower one: with two partitions, the mean would hide what one of them waits for.
        median = statistics.median_low(partition.took_ms for partition in ordered)
        return cls(
            tuple(
                dataclasses.replace(partition, waited_ms=round(last.reached_ms - partition.reached_ms, 3))
                for partition in ordered[:MOST_PARTITIONS]
            ),
            slowest=last.partition,
            skew=round(last.took_ms / max(median, 1.0), 2),
            more=max(0, len(ordered) - MOST_PARTITIONS),
            unknown=unknown,
        )


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint, or one attempt at it that failed (`outcome`, and `why`).

    Times are seconds since 1970: the barrier taken over, the decision durable, the end. `positions` are the input
    positions at the cut, as Spark logged them: uid and offset of each source, the uid None for a source that the job
    does not know, the offset None for one without data yet. `state` is empty for a query without state, None where
    Spark has not reported it; `alignment` None where it could not be measured."""

    query: str
    epoch: int
    generation: int
    mode: str
    outcome: str
    opened: float
    ended: float
    decided: float | None = None
    precommit_ms: float | None = None
    commit_ms: float | None = None
    sinks: tuple[SinkShare, ...] = ()
    inflight_bytes: int = 0
    positions: tuple[tuple[str | None, Any], ...] = ()
    state: tuple[OperatorState, ...] | None = None
    alignment: Alignment | None = None
    why: str | None = None
    sums: Mapping[str, Any] | None = None  # of a query with an aside sink, see `sums_of`

    @property
    def total_ms(self) -> float:
        """From the barrier to the end, whatever the end was."""
        return round((self.ended - self.opened) * 1000, 3)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.sinks)

    @property
    def read_ms(self) -> float | None:
        """From the barrier until the last source partition was read up to it; None where it was not measured."""
        cuts = self.alignment.partitions if self.alignment else ()
        return max((cut.reached_ms for cut in cuts), default=None)

    @property
    def state_bytes(self) -> int | None:
        """Over all operators; None where it is not known of one of them, or of none."""
        if not self.state or any(store.state_bytes is None for store in self.state):
            return None
        return sum(store.state_bytes or 0 for store in self.state)

    def summary(self) -> dict[str, Any]:
        aligned, state = self.alignment or Alignment(()), self.state
        return {
            **{name: getattr(self, name) for name in _SUMMARY},
            "state_rows": None if state is None else sum(store.rows for store in state),
            "slowest": aligned.slowest,
            "skew": aligned.skew,
            "waited_ms": max((partition.waited_ms for partition in aligned.partitions), default=None),
        }

    def extent(self) -> dict[str, Any]:
        """What a page shows beyond the summary. `read_ms`: until the last source partition was read."""
        sizes = [share.bytes for share in self.sinks]
        return {
            "opened": self.opened,
            "decided": self.decided,
            "ended": self.ended,
            "read_ms": self.read_ms,
            "bytes": sum(size or 0 for size in sizes) if sizes and None not in sizes else None,
            "sinks": [dataclasses.asdict(share) for share in self.sinks],
            "sums": self.sums,
            "operators": None if self.state is None else [dataclasses.asdict(operator) for operator in self.state],
        }

    @property
    def file(self) -> str:
        """Where it is kept, below the query's folder."""
        return layout.record_file(self.epoch, None if self.outcome == COMPLETE else round(self.opened * 1000))

    def to_bytes(self) -> bytes:
        body = dataclasses.asdict(self)
        return seal(_KIND, {name: value for name, value in body.items() if name != "sums" or value is not None})

    @classmethod
    def of(cls, data: bytes, where: str) -> CheckpointRecord:
        """The record in `data`, whichever version wrote it; a field that this version does not know is passed over."""
        body = unseal(_KIND, data, where)
        alignment = body.get("alignment")
        if alignment is not None:
            alignment = _make(Alignment, alignment, partitions=_makes(PartitionCut, alignment["partitions"]))
        return _make(
            cls,
            body,
            sinks=_makes(SinkShare, body["sinks"]),
            positions=tuple((uid, offset) for uid, offset in body["positions"]),
            state=None if body["state"] is None else _makes(OperatorState, body["state"]),
            alignment=alignment,
        )


def shares_of(committables: Iterable[Committable]) -> tuple[SinkShare, ...]:
    """What each sink was given. `bytes` where every writer's payload says so, under that name."""
    by_sink: dict[str, list[Committable]] = {}
    for committable in committables:
        by_sink.setdefault(committable.sink, []).extend([committable] if committable.rows else [])
    shares = []
    for sink, writers in sorted(by_sink.items()):
        sizes: list[Any] = [writer.payload.get("bytes") for writer in writers]
        known = bool(sizes) and all(isinstance(size, int) for size in sizes)
        rows = sum(writer.rows for writer in writers)
        shares.append(SinkShare(sink, rows, len(writers), sum(sizes) if known else None))
    return tuple(shares)


def sums_of(sinks: Iterable[SinkShare], read: Any, aside: str, why: str, filters: bool) -> dict[str, Any]:
    """`in`, `out`, `aside` and `filtered`, which add up, or `not_countable`. `filters`: the plan leaves rows out."""
    rows = {share.sink: share.rows for share in sinks}
    sums: dict[str, Any] = {"aside": rows.pop(aside, 0), "out": rows}
    filtered = sum((read or {}).values()) - sum(rows.values()) - sums["aside"]
    if not why and (read is None or filtered < 0 or (filtered and not filters)):
        why = f"Spark has counted {sum((read or {}).values()):,} rows read"
    return {**sums, "not_countable": why} if why else {"in": dict(read or {}), **sums, "filtered": filtered}


def records(storage: Storage) -> list[CheckpointRecord]:
    """The records in a query's folder, oldest first. One that is damaged, or of a newer version, is left out and
    warned of."""
    records = []
    for name in layout.record_names(storage.list(CHECKPOINTS)):
        where = f"{CHECKPOINTS}/{name}"
        try:
            if (data := storage.read(where)) is not None:  # tidied away meanwhile
                records.append(CheckpointRecord.of(data, f"{storage.location}/{where}"))
        except LedgerError as error:
            log.warning("a checkpoint's record is left out: %s", error)
    return records


def tidy(storage: Storage, keep: int) -> None:
    """Keep the newest `keep` complete records, and as many of failed attempts."""
    names = layout.record_names(storage.list(CHECKPOINTS))
    failed = [name for name in names if layout.is_failed(name)]
    complete = [name for name in names if not layout.is_failed(name)]
    for name in [*complete[:-keep], *failed[:-keep]]:
        storage.delete(f"{CHECKPOINTS}/{name}")


def global_numbers(storage: Storage) -> list[int]:
    """The numbers of the global checkpoints that are there, oldest first. `storage` is the job's folder."""
    return layout.numbers(storage.list(GLOBAL))


def read_global(storage: Storage, number: int) -> dict[str, Any] | None:
    """The record of a global checkpoint of a job, verified; None where there is none of that number."""
    return layout.read_sealed(storage, "global", layout.numbered(GLOBAL, number))


def _make(kind: type[_T], body: Mapping[str, Any], **made: Any) -> _T:
    return kind(**known_fields(kind, {**body, **made}))


def _makes(kind: type[_T], bodies: Iterable[Mapping[str, Any]]) -> tuple[_T, ...]:
    return tuple(_make(kind, body) for body in bodies)
