"""What `penstock top` shows, gathered from the registry and from the jobs' own servers.

Every server answers Flink's paths; what only Penstock's own paths tell is left out where a server does not know them.
Nothing that a server answers is trusted to have the right shape, and no answer breaks the view.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.cli.text import number_text, plain_text, short_duration_text, size_text
from penstock.errors import ControlError, PenstockError
from penstock.ops.process.registry import Entry, now_ms

if TYPE_CHECKING:
    from penstock.ops.server.client import Client

NEWEST_EPOCHS = 100
"""Of which p50 and p99 are reckoned."""

_EXCEPTIONS = 3
_ASK_AGAIN_SECONDS = 30.0  # a server that does not know a path of ours will hardly learn it


@dataclass(frozen=True)
class QueryFacts:
    """One query now. What is not known is None."""

    uid: str
    epoch: int | None = None
    generation: int | None = None
    phase: str | None = None
    phase_ms: int | None = None
    rows_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    lag: int | None = None
    inflight_bytes: int | None = None
    watermark: int | None = None
    error: str | None = None

    def row(self) -> dict[str, str]:
        """For a table."""
        phase = self.phase or ""
        if self.phase_ms is not None and phase not in ("", "idle"):
            phase = f"{phase} {short_duration_text(self.phase_ms)}"
        return {
            "query": self.uid,
            "epoch": _shown(self.epoch, str),
            "phase": phase,
            "rows/s": _shown(self.rows_per_second, number_text),
            "p50": _shown(self.p50_ms, short_duration_text),
            "p99": _shown(self.p99_ms, short_duration_text),
            "lag": _shown(self.lag, number_text),
            "in flight": _shown(self.inflight_bytes, size_text),
        }


@dataclass(frozen=True)
class JobFacts:
    """One run. `queries` is None where it was not asked, or gave no answer: then `note` says why."""

    entry: Entry
    queries: tuple[QueryFacts, ...] | None = None
    exceptions: tuple[Mapping[str, Any], ...] = ()
    restarts: int = 0
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            **self.entry.public(),
            "restarts": self.restarts,
            "queries": None if self.queries is None else [asdict(query) for query in self.queries],
            "exceptions": [dict(exception) for exception in self.exceptions],
            "note": self.note,
        }


class JobReader:
    """Asks one run's server. Remembers what cannot have changed, so that a look is cheap for the job."""

    def __init__(self, client_of: Callable[[Entry], Client]) -> None:
        self._client_of = client_of
        self._durations: dict[str, tuple[Any, list[float]]] = {}  # by query: the epoch they were asked at, and they
        self._unknown: dict[str, float] = {}  # paths, and when to ask for them again

    def read(self, entry: Entry) -> JobFacts:
        """The run as it is now. A run that has ended is not asked."""
        if entry.state.ended or entry.address is None:
            note = None if entry.state.ended else f"It is {entry.state} and cannot be asked yet."
            return JobFacts(entry, restarts=entry.restarts, note=note)
        try:
            client = self._client_of(entry)
            detail = client.ask("GET", f"/jobs/{entry.id}")
        except PenstockError as error:
            return JobFacts(entry, restarts=entry.restarts, note=plain_text(error.happened))
        queries = {
            uid: _with_vertex_facts(QueryFacts(uid), vertex)
            for vertex in _objects(detail.get("vertices"))
            if (uid := _text(vertex, "id"))
        }
        restarts = max(entry.restarts, _whole(detail.get("restarts")) or 0)
        return self._extend(client, JobFacts(entry, restarts=restarts), queries)

    def _extend(self, client: Client, job: JobFacts, known: Mapping[str, QueryFacts]) -> JobFacts:
        """With what Penstock's own paths tell. They know best which queries there are: Flink's vertices may be more."""
        run = f"/penstock/v1/runs/{job.entry.id}"
        told = _objects(self._ours(client, run).get("queries"))
        named = [(uid, query) for query in told if (uid := _text(query, "uid"))]
        queries = {uid: _with_run_facts(known.get(uid, QueryFacts(uid)), query) for uid, query in named} or known
        inflight: dict[str, int] = {}
        for sink in _objects(self._ours(client, f"{run}/inflight").get("sinks")):
            uid = _text(sink, "query") or ""
            inflight[uid] = inflight.get(uid, 0) + (_whole(sink.get("bytes")) or 0)
        found = []
        for query in queries.values():
            durations = self._newest_durations(client, run, query)
            middle, slow = percentile(durations, 50), percentile(durations, 99)
            found.append(replace(query, inflight_bytes=inflight.get(query.uid), p50_ms=middle, p99_ms=slow))
        exceptions = _objects(self._ours(client, f"{run}/exceptions").get("exceptions"))
        newest = sorted(exceptions, key=lambda exception: _number(exception.get("time")) or 0.0, reverse=True)
        return replace(job, queries=tuple(found), exceptions=tuple(newest[:_EXCEPTIONS]))

    def _newest_durations(self, client: Client, run: str, query: QueryFacts) -> list[float]:
        asked_at, durations = self._durations.get(query.uid, (None, []))
        now = (query.generation, query.epoch)
        if asked_at != now:
            path = f"{run}/epochs?query={quote(query.uid, safe='')}&limit={NEWEST_EPOCHS}"
            epochs = _objects(self._ours(client, path, f"{run}/epochs").get("epochs"))
            complete = (epoch.get("total_ms") for epoch in epochs if epoch.get("outcome") == "complete")
            durations = [number for value in complete if (number := _number(value)) is not None]
            self._durations[query.uid] = (now, durations)
        return durations

    def _ours(self, client: Client, path: str, name: str | None = None) -> dict[str, Any]:
        """A path of Penstock's own; nothing where the server does not answer it."""
        name = name or path
        if time.monotonic() < self._unknown.get(name, 0.0):
            return {}
        try:
            return client.ask("GET", path)
        except ControlError:
            self._unknown[name] = time.monotonic() + _ASK_AGAIN_SECONDS
            return {}


def percentile(values: Iterable[float], share: int) -> float | None:
    """The smallest value that `share` of a hundred are not above; None of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None


def sentences(entry: Entry) -> list[tuple[str, str]]:
    """Why a run has failed, as three sentences with their headings; none where it has not."""
    error = entry.error or {}
    headings = (("What happened", "happened"), ("What is safe", "safe"), ("What to do", "to_do"))
    return [(heading, plain_text(str(error[key]))) for heading, key in headings if error.get(key)]


def _with_vertex_facts(query: QueryFacts, told: Mapping[str, Any]) -> QueryFacts:
    epoch, generation = _whole(told.get("epoch")), _whole(told.get("generation"))
    return replace(query, epoch=epoch, generation=generation, error=_text(told, "error"))


def _with_run_facts(query: QueryFacts, told: Mapping[str, Any]) -> QueryFacts:
    since, epoch, generation = (_whole(told.get(key)) for key in ("phase_since", "epoch", "generation"))
    return replace(
        query,
        epoch=query.epoch if epoch is None else epoch,
        generation=query.generation if generation is None else generation,
        phase=_text(told, "phase"),
        phase_ms=None if since is None else max(0, now_ms() - since),
        rows_per_second=_number(told.get("rows_per_second")),
        lag=_lag(told),
        watermark=_whole(told.get("watermark")),
    )


def _lag(told: Mapping[str, Any]) -> int | None:
    """Of all partitions of all sources that say so."""
    lags = [
        lag
        for source in _objects(told.get("sources"))
        for partition in _objects(source.get("partitions"))
        if (lag := _whole(partition.get("lag"))) is not None
    ]
    return sum(lags) if lags else None


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number != number or abs(number) == float("inf") else int(number)


def _text(facts: Mapping[str, Any], key: str) -> str | None:
    value = facts.get(key)
    return plain_text(value) if isinstance(value, str) and value else None


def _shown(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if value is None else text(value)
