"""A job's ledgers, read from its folder: what the next start of the job would find. Nothing here writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.backlog import Entry, drained_up_to, is_logged, prepared_of, read_entry
from penstock.checkpoint.decision import Committable, Decision
from penstock.checkpoint.history import Histories
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, TwoPhaseSink
from penstock.engine import protocol
from penstock.engine.inflight import drainer
from penstock.engine.inflight.manager import InFlight
from penstock.engine.log_repair import look, query_of
from penstock.errors import ConfigurationError
from penstock.events import Events
from penstock.spark.versions import version_of
from penstock.storage.local import LocalStorage
from penstock.storage.storage import Storage, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN_NAME = re.compile(r"_[0-9a-f]{8}-[0-9a-f]{4}-")  # in state files of the format that lists ids

Place = Callable[[str], Storage]


@dataclass(frozen=True, slots=True)
class Decided:
    """One committable of a decision that counts and is not complete, as its sink knows it."""

    committable: Committable
    epoch: int
    generation: int | None  # whose decision it is; None where only the in-flight log still knows the epoch
    at: float | None = None
    in_log: bool = False  # its rows are in the in-flight log as well, which is delivered in order


class QueryLedger:
    """One query's ledger beside Spark's log of it. Every property is read anew when it is asked for."""

    def __init__(
        self, uid: str, ledger: Storage, log: Storage, inflight: Place | None, state_format: str, known: bool = True
    ) -> None:
        """`known`: see `SparkLog`."""
        self.uid = uid
        self.ledger = Ledger(ledger)
        self.log = SparkLog(log, state_format=state_format, known=known)
        self._below = inflight
        self._inflight = inflight("") if inflight is not None else None

    @property
    def generation(self) -> int:
        """The newest one."""
        return self.ledger.newest_generation()

    @property
    def facts(self) -> dict[str, Any]:
        """What the newest run has said of itself."""
        return self.ledger.generation(self.generation) or {}

    @property
    def sinks(self) -> list[str]:
        """The uids that the newest run has named."""
        return sorted(self.facts.get("sinks", ()))

    def found(self) -> protocol.Found:
        """As the next start will find it."""
        return look(self.ledger, self.log)

    def decided(self) -> list[Decided]:
        """What is decided and may still be open, oldest epoch first."""
        found: list[Decided] = []
        for uid in self.sinks:
            waiting = self.waiting(uid)
            found += [Decided(one, entry.epoch, None, in_log=True) for entry in waiting for one in entry.prepared]
            if waiting:
                found += self._rewritten(uid, waiting[0].epoch)
        decision = protocol.honoured(self.found())
        if decision is not None:
            at = _decided_at(self.ledger, decision)
            for one in decision.to_commit:
                plain = prepared_of(one) if is_logged(one) else one
                if plain is not None:
                    found.append(Decided(plain, decision.id.epoch, decision.id.generation, at, is_logged(one)))
        return found

    @property
    def logged(self) -> bool:
        """Whether decided rows wait in the in-flight log."""
        decision = protocol.honoured(self.found())
        return any(self.waiting(uid) for uid in self.sinks) or (
            decision is not None and any(is_logged(one) for one in decision.to_commit)
        )

    def waiting(self, sink: str) -> list[Entry]:
        """The epochs that wait in the in-flight log of a sink."""
        query = query_of(self.ledger, self.log)
        if self._inflight is None or query is None:
            return []
        folder = f"{query}/{sink}"
        drained = drained_up_to(self._inflight, folder)
        epochs = layout.numbers(self._inflight.list(f"{folder}/{layout.BACKLOG}"))
        entries = (read_entry(self._inflight, folder, epoch) for epoch in epochs if epoch > drained)
        return [entry for entry in entries if entry is not None]

    def inflight(self, job: str, sinks: Mapping[str, TwoPhaseSink]) -> InFlight | None:
        """The in-flight logs, to be opened by a run that has registered."""
        below, storage = self._below, self._inflight
        if below is None or storage is None:
            return None
        return InFlight(
            job=job,
            query=self.uid,
            sinks=sinks,
            location=storage.location,
            storage=storage,
            ledger=self.ledger,
            ledger_of=lambda where: Ledger(below(where.removeprefix(storage.location))),
            events=Events(),
            checkpoints=Checkpoints(),
        )

    def scopes(self, job: str, sink: str) -> Iterator[SinkScope]:
        """Under which names a sink may have left something: the query's, and those of its drainer."""
        yield SinkScope(job, sink, self.generation)
        if self.drain_ledger(sink) is not None:
            yield SinkScope(job, f"{sink}{drainer.MARK}", self.generation)

    def _rewritten(self, sink: str, epoch: int) -> list[Decided]:
        """What the drainer has decided of the epoch it was at."""
        ledger = self.drain_ledger(sink)
        if ledger is None:
            return []
        decision = protocol.honoured(drainer.look(ledger, query_of(self.ledger, self.log), epoch, waits=True))
        if decision is None:
            return []
        at, generation = _decided_at(ledger, decision), drainer.generation_of(decision.id)
        return [Decided(one, decision.id.epoch, generation, at, in_log=True) for one in decision.to_commit]

    def drain_ledger(self, sink: str) -> Ledger | None:
        """What the sink's drainer has claimed and decided; None where there is no in-flight log."""
        query = query_of(self.ledger, self.log)
        if self._below is None or query is None:
            return None
        return Ledger(self._below(f"/{query}/{sink}/{layout.DRAIN}"))


@dataclass(frozen=True)
class JobLedgers:
    """All queries of one job, by its folder; or the one query of a drop-in, by its checkpoint."""

    job: str
    location: str
    queries: tuple[QueryLedger, ...]

    @classmethod
    def at(cls, location: str, spark: SparkSession | None = None) -> JobLedgers:
        """Raises `ConfigurationError` where there is no ledger."""
        place = _place(spark)
        storage, queries = place(location), []
        root = location.rstrip("/")
        if storage.list(f"{layout.PRIVATE}/{layout.GENERATIONS}"):
            one = QueryLedger("", place(f"{root}/{layout.PRIVATE}"), storage, None, _state_format(storage, spark))
            one.uid = next(iter(one.sinks), "")
            queries.append(one)
        else:
            history = Histories(storage).current()
            known = spark is None or version_of(spark).log_known
            for uid in storage.list(""):
                if storage.list(f"{uid}/{layout.LEDGER}/{layout.GENERATIONS}"):
                    folder, log = f"{root}/{uid}", place(f"{root}/{uid}/{history}")
                    below = partial(_below, place, f"{folder}/{layout.INFLIGHT}")
                    ledger = place(f"{folder}/{layout.LEDGER}")
                    queries.append(QueryLedger(uid, ledger, log, below, _state_format(log, spark), known))
        if not queries:
            raise ConfigurationError(
                f"There is no ledger in {location}.",
                safe="nothing was changed.",
                to_do="give a job's folder, STORAGE/JOB, or the checkpoint of a query that uses penstock.exactly_once.",
            )
        job = next((str(one.facts["job"]) for one in queries if "job" in one.facts), root.rpartition("/")[2])
        return cls(job, storage.location, tuple(queries))


def _decided_at(ledger: Ledger, decision: Decision) -> float | None:
    return next((one.decided for one in ledger.manifests(decision.id.epoch) if one.decision.id == decision.id), None)


def _below(place: Place, root: str, name: str) -> Storage:
    return place(root + name)


def _place(spark: SparkSession | None) -> Place:
    def at(location: str) -> Storage:
        if spark is not None:
            from penstock.storage.open import storage_at

            return storage_at(location, spark)
        path = local_path(location)
        if path is None:
            raise ConfigurationError(
                f"{location} can be reached through Spark only.",
                safe="nothing was changed.",
                to_do="give the job's file instead, --job JOB.py: its settings and its Spark session are then used.",
            )
        return LocalStorage(path)

    return at


def _state_format(log: Storage, spark: SparkSession | None) -> str:
    """Of the state store, where the barrier does not say. Without a session it is read off the files, and where there
    are too few to tell, it is none: then Spark's log is left for the job itself to complete."""
    if spark is not None:
        return str(spark.conf.get(STATE_FORMAT, "1"))
    own_names = any(_OWN_NAME.search(name) for name in log.list(f"{layout.operator(0)}/0"))
    return "1" if log.list(layout.COMMITS) and not own_names else ""
