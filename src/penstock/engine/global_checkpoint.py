"""The global checkpoint: one complete epoch of every query, such that together they are a consistent cut.

Downstream is read first, by its newest complete epoch, then upstream, by its newest *decided* one: a row is committed
only after its epoch is decided, so downstream is never ahead. A query in the middle is taken by its decided epoch as
well: the positions of that one were cut before. docs/concepts/several-queries.md has the proof. Epochs do not wait.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from penstock.checkpoint.layout import FIRST, GLOBAL, numbered, seal
from penstock.checkpoint.record import global_numbers, read_global
from penstock.config import Checkpoints, Mode
from penstock.contracts.source import QueryPlan, QueryProgress
from penstock.errors import LedgerError
from penstock.events import Events
from penstock.sinks.kafka.sink import KafkaSink
from penstock.sources.kafka import KafkaSource
from penstock.storage.storage import AlreadyExists, Storage

if TYPE_CHECKING:
    from penstock.engine.query import QueryRunner

_HERE = {"localhost": "127.0.0.1"}
_ISOLATION = "kafka.isolation.level"  # of Kafka itself: read_uncommitted

log = logging.getLogger("penstock")

_MIN_SECONDS = 1.0  # between two records, however short the interval: each is a file, synced
_MIN_RECORDS = 2

Cut = dict[str, "tuple[int, int]"]
"""Epoch and generation of each query."""


def take_cut(order: Sequence[str], fed: frozenset[str], progress: Callable[[str], QueryProgress | None]) -> Cut | None:
    """The cut, not yet complete. `order` is downstream first, `fed` the queries that feed another, `progress` is asked
    once for each, in that order. None where a query has no complete epoch yet."""
    cut: Cut = {}
    for uid in order:
        now = progress(uid)
        if now is None or now.completed < 0:
            return None
        cut[uid] = (now.decided if uid in fed else now.completed, now.generation)
    return cut


class GlobalCheckpoints:
    """Takes and writes them in the job's own thread: call `began`, then `look` now and then, then `ended`."""

    def __init__(
        self,
        runners: Sequence[QueryRunner],
        storage: Storage,
        checkpoints: Checkpoints,
        events: Events,
        *,
        history: str = FIRST,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runners = {runner.plan.uid: runner for runner in runners}
        self._storage, self._events, self._now, self._clock = storage, events, now, clock
        self._history = history
        self._pause = max(_MIN_SECONDS, checkpoints.interval_seconds)
        self._record_count = max(_MIN_RECORDS, checkpoints.num_retained)
        linked = find_links(runner.plan for runner in runners)
        self._fed = frozenset(link.upstream for link in linked)
        self.order: tuple[str, ...] | None = None
        try:
            self.order = downstream_first(list(self._runners), linked)
            self._refused = self._refusal(linked, checkpoints)
        except CycleError as error:
            feeding = ", ".join(sorted(set(error.args[1])))
            self._refused = f"the queries {feeding} feed each other in a circle, so none of them is downstream"
        self._next: int | None = None
        self._last: Cut = {}
        self._pending: Cut | None = None
        self._written = clock()
        self._complained = False
        if self._refused:
            log.warning("no global checkpoints: %s. Each query keeps its own guarantee", self._refused)

    @property
    def wanted(self) -> bool:
        """A job of one query has none: its commit log holds the same."""
        return len(self._runners) > 1 and not self._refused

    @property
    def newest(self) -> int:
        """The number of the newest one written; 0 before the first."""
        return max(global_numbers(self._storage), default=0) if self._next is None else self._next - 1

    def began(self) -> None:
        """The queries start or restart: a cut of an older start no longer counts."""
        self._pending = None

    def look(self) -> None:
        """Take a cut if one is due, write it if it is complete. Raises nothing."""
        if self.wanted:
            if self._pending is None and self._clock() - self._written >= self._pause:
                self._pending = self._take()
            self._write_when_complete()

    def ended(self) -> None:
        """All queries are at rest; after a clean end every decided epoch is complete."""
        if self.wanted:
            self._pending = self._take()
            self._write_when_complete()
            self._pending = None

    def _take(self) -> Cut | None:
        assert self.order is not None
        return take_cut(self.order, self._fed, lambda uid: self._runners[uid].progress)

    def _write_when_complete(self) -> None:
        pending = self._pending
        if pending is None:
            return
        for uid, (epoch, generation) in pending.items():
            now = self._runners[uid].progress
            if now is None or now.generation != generation:
                self._pending = None
                return
            if now.completed < epoch:
                return
        self._pending = None
        if _epochs(pending) != _epochs(self._last):
            self._write(pending)

    def _write(self, cut: Cut) -> None:
        try:
            if self._next is None:
                there = global_numbers(self._storage)
                for old in there[: -self._record_count]:
                    self._storage.delete(numbered(GLOBAL, old))
                self._next = there[-1] + 1 if there else 1
            number = self._next
            queries = {uid: {"epoch": epoch, "generation": run} for uid, (epoch, run) in cut.items()}
            body = {"number": number, "queries": queries, "time": self._now(), "history": self._history}
            self._storage.create(numbered(GLOBAL, number), seal("global", body))
            self._next, self._last, self._written = number + 1, cut, self._clock()
            self._storage.delete(numbered(GLOBAL, number - self._record_count))
        except AlreadyExists:
            self._next = None  # the next one comes after those that are there now
            if self._is_newer(number, cut):
                self._refused = "a newer run of the job writes them"
            log.warning("global checkpoint %d is there already%s", number, f": {self._refused}" * bool(self._refused))
        except Exception as error:  # the queries do not need this record
            self._written = self._clock()
            if not self._complained:
                self._complained = True
                log.warning("a global checkpoint could not be written; reported once: %s", error)
        else:
            self._events.emit("global_checkpoint", query=None, number=number, epochs=_epochs(cut))

    def _is_newer(self, number: int, cut: Cut) -> bool:
        """Otherwise a superseded run wrote it that does not know it yet, or this one, and the answer was lost."""
        try:
            body = read_global(self._storage, number)
        except LedgerError:
            return True  # to be safe
        queries = body["queries"] if body is not None else {}
        return any(uid not in cut or query["generation"] > cut[uid][1] for uid, query in queries.items())

    def _refusal(self, linked: Sequence[QueryLink], checkpoints: Checkpoints) -> str:
        uncommitted = sorted({link.downstream for link in linked if not link.committed_only})
        if uncommitted:
            return f"{', '.join(uncommitted)} also reads rows that are not committed"
        upstream = {link.upstream for link in linked}
        if early := sorted(uid for uid in upstream if self._runners[uid].plan.latency):
            return f"rows of {', '.join(early)}, in real time, are visible before their epoch"
        if linked and checkpoints.mode is not Mode.EXACTLY_ONCE:
            return f"with mode={checkpoints.mode} rows are visible before their epoch is decided"
        return ""


def _epochs(cut: Cut) -> Mapping[str, int]:
    return {uid: epoch for uid, (epoch, _) in sorted(cut.items())}


@dataclass(frozen=True, slots=True, order=True)
class QueryLink:
    """`downstream` reads what `upstream` writes. `topic` is empty where only the column of each row says which."""

    upstream: str
    downstream: str
    topic: str
    committed_only: bool = True  # whether downstream reads committed rows alone


def find_links(plans: Iterable[QueryPlan]) -> tuple[QueryLink, ...]:
    """All links between different queries through Kafka topics, derived from their sources and sinks without
    connecting. A query that reads its own output is always consistent with itself.

    A link is assumed where there may be one: a sink that takes its topic from a column may write any topic, and a
    pattern that Python cannot read may match any. Two links are missed: a topic that the user reads with Spark's own
    reader, and one cluster under two addresses."""
    plans = list(plans)
    links = {
        QueryLink(up.uid, down.uid, sink.topic or "", source.reader_options(uid).get(_ISOLATION) == "read_committed")
        for up in plans
        for sink in up.sinks.values()
        if isinstance(sink, KafkaSink)
        for down in plans
        if down.uid != up.uid
        for uid, source in down.sources.items()
        if isinstance(source, KafkaSource) and _addresses(sink.servers) & _addresses(source.servers)
        if _reads(source, uid, sink)
    }
    return tuple(sorted(links))


def downstream_first(queries: Sequence[str], linked: Sequence[QueryLink]) -> tuple[str, ...]:
    """The queries, each before all that feed it. `CycleError` where some feed each other in a circle."""
    feeds = {uid: {link.downstream for link in linked if link.upstream == uid} for uid in queries}
    return tuple(TopologicalSorter(feeds).static_order())


def _addresses(servers: str) -> set[str]:
    addresses = set()
    for server in servers.lower().split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        addresses.add(f"{_HERE.get(host, host)}:{port}")
    return addresses


def _reads(source: KafkaSource, uid: str, sink: KafkaSink) -> bool:
    options: Mapping[str, str] = source.reader_options(uid)
    if sink.topic is None or "assign" in options:
        return True
    if "subscribePattern" not in options:
        return sink.topic in {name.strip() for name in options.get("subscribe", "").split(",")}
    try:
        return re.fullmatch(options["subscribePattern"], sink.topic) is not None
    except re.error:
        return True  # a pattern that only Java understands
