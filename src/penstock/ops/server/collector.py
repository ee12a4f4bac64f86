"""What is known of one run, from its events: of a living one as they come, of a past one from its history.

Bounded, and quick: a listener is called in the thread that runs an epoch.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

MOST_EPOCHS = 10_000
"""Epochs of a run that are kept, over all its queries."""
MOST_NOTES = 1_000
"""Restarts, recoveries, exceptions, savepoints: of each so many, the newest."""
RING = 1_000
"""Events that somebody who was cut off can catch up with."""
MOST_PER_PAGE = 1_000
_RATE_OVER = 10  # epochs

_PHASES = {"opened": "prepare", "precommitted": "decide", "decided": "commit"}
_IDLE = ("completed", "failed", "checkpoint_failed", "skipped", "logged", "started", "stopped", "recovered")
_SERIES = ("total_ms", "commit_ms", "rows", "state_bytes", "inflight_bytes")


@dataclass
class QueryNow:
    """Where one query stands. Times are milliseconds since 1970."""

    uid: str
    generation: int = 0
    epoch: int | None = None
    phase: str = "idle"
    phase_since: int | None = None
    rows_total: int = 0
    complete: int = 0
    failed: int = 0
    newest: dict[str, Any] | None = None  # its newest complete epoch
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_OVER))

    @property
    def rows_per_second(self) -> float:
        """Over the newest epochs."""
        if len(self.recent) < 2:
            return 0.0
        span = self.recent[-1][0] - self.recent[0][0]
        usual = span / (len(self.recent) - 1)
        since = time.time() * 1000 - self.recent[0][0]  # where nothing has come for long, the rate goes down
        seconds = max(span, since - 2 * usual) / 1000
        return round(sum(rows for _, rows in islice(self.recent, 1, None)) / seconds, 3) if seconds > 0 else 0.0


class Collector:
    """An `Events` listener. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: deque[dict[str, Any]] = deque(maxlen=MOST_EPOCHS)
        self._ring: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=RING)
        self._number = 0
        self._queries: dict[str, QueryNow] = {}
        self._notes: dict[str, deque[dict[str, Any]]] = {}
        self._inflight: dict[tuple[str, str], tuple[int, int]] = {}
        self.watchers = 0  # streams of events that somebody reads now
        self.closed = False

    # Fed

    def on_event(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._number += 1
            self._ring.append((self._number, event))
            self._take(event)

    def load(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Events of before, oldest first; nobody is told of them again. How many could not be understood: they come
        from files."""
        bad = 0
        with self._lock:
            for event in events:
                try:
                    self._take(event)
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                    bad += 1
        return bad

    def close(self, seconds: float) -> None:
        """No event comes any more: let streams of events end, for at most so long."""
        self.closed = True
        end = time.monotonic() + seconds
        while self.watchers and time.monotonic() < end:
            time.sleep(0.01)

    # Asked

    def epochs(self, query: str | None = None, before: int | None = None, limit: int = 100) -> tuple[list[Any], bool]:
        """The newest first; and whether there are more. `before`: only epochs of a smaller number."""
        limit = max(1, min(limit, MOST_PER_PAGE))
        with self._lock:
            chosen = (
                epoch
                for epoch in reversed(self._epochs)
                if (query is None or epoch["query"] == query) and (before is None or epoch["epoch"] < before)
            )
            page = list(islice(chosen, limit + 1))
        return [_public(epoch) for epoch in page[:limit]], len(page) > limit

    def all_epochs(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first, with the state of each operator."""
        with self._lock:
            return list(self._epochs)

    def series(self, query: str | None, points: int) -> dict[str, list[Any]]:
        """At most so many points over all that is kept. Of each stretch, the slowest epoch stands for all."""
        points = max(2, min(points, MOST_EPOCHS))
        kept = [epoch for epoch in self.all_epochs() if query is None or epoch["query"] == query]
        size = -(-len(kept) // points) if kept else 1
        stretches = (kept[begin : begin + size] for begin in range(0, len(kept), size))
        shown = [max(stretch, key=lambda epoch: epoch["total_ms"] or 0) for stretch in stretches]
        return {"time": [epoch["ended"] for epoch in shown]} | {
            name: [epoch["phases"]["commit_ms"] if name == "commit_ms" else epoch[name] for epoch in shown]
            for name in _SERIES
        }

    def queries(self) -> dict[str, QueryNow]:
        with self._lock:
            return dict(self._queries)

    def operators(self) -> list[dict[str, Any]]:
        """The state of each operator after the newest epoch of its query that said so."""
        newest: dict[str, list[dict[str, Any]]] = {}
        for epoch in reversed(self.all_epochs()):
            if epoch["operators"] is not None and epoch["query"] not in newest:
                newest[epoch["query"]] = [
                    {"query": epoch["query"], "index": index, **operator}
                    for index, operator in enumerate(epoch["operators"])
                ]
        return [operator for uid in sorted(newest) for operator in newest[uid]]

    def inflight(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"query": query, "sink": sink, "epochs": epochs, "bytes": size}
                for (query, sink), (epochs, size) in sorted(self._inflight.items())
            ]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """`restarts`, `recoveries`, `exceptions`, `savepoints`, `restored` or `globals`, the newest first."""
        with self._lock:
            return list(reversed(self._notes.get(kind, ())))

    def events_after(self, number: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Events beyond `number`, as far as the ring goes back."""
        with self._lock:
            if number >= self._number:
                return []
            fresh = list(islice(reversed(self._ring), min(len(self._ring), self._number - number)))
        return fresh[::-1]

    @property
    def newest_event(self) -> int:
        return self._number

    # Within the lock

    def _take(self, event: Mapping[str, Any]) -> None:
        name, at = str(event.get("event")), ms(event.get("time"))
        uid = event.get("query")
        if isinstance(uid, str):
            self._follow(self._queries.setdefault(uid, QueryNow(uid)), name, at, event)
        match name:
            case "checkpoint":
                self._add_epoch(epoch_of(event))
            case "restarting":
                self._note("restarts", {"time": at, **_some(event, "query", "error", "verdict", "seconds")})
                self._note("exceptions", _exception(at, event))
            case "recovered":
                self._note(
                    "recoveries", {"time": at, **_some(event, "query", "generation", "epoch", "action", "seconds")}
                )
            case "failed" | "checkpoint_failed" | "skipped" | "callback_failed":
                self._note("exceptions", _exception(at, event))
            case "stopped" if event.get("error"):
                self._note("exceptions", _exception(at, event))
            case "savepoint":
                self._note("savepoints", {"time": at, **_some(event, "path", "kind", "bytes", "drained", "epochs")})
            case "restored":
                self._note("restored", {"time": at, **_some(event, "path", "epochs", "claim", "drained")})
            case "global_checkpoint":
                self._note("globals", {"time": at, **_some(event, "number", "epochs")})
            case "logged" | "drained":
                self._drain(name, event)

    def _follow(self, now: QueryNow, name: str, at: int, event: Mapping[str, Any]) -> None:
        if isinstance(event.get("generation"), int) and name != "drained":
            now.generation = max(now.generation, int(event["generation"]))
        if name in _PHASES:
            now.phase, now.phase_since = _PHASES[name], at
        elif name in _IDLE:
            now.phase, now.phase_since = "idle", at
        if name == "opened" or (name == "completed" and now.epoch is None):
            now.epoch = event.get("epoch")

    def _add_epoch(self, epoch: dict[str, Any]) -> None:
        self._epochs.append(epoch)
        now = self._queries.setdefault(epoch["query"], QueryNow(epoch["query"]))
        if epoch["outcome"] == "complete":
            now.complete += 1
            now.rows_total += epoch["rows"]
            now.recent.append((epoch["ended"], epoch["rows"]))
            now.newest = epoch
            now.epoch = max(now.epoch if now.epoch is not None else -1, epoch["epoch"])
        else:
            now.failed += 1

    def _drain(self, name: str, event: Mapping[str, Any]) -> None:
        place = (str(event.get("query")), str(event.get("sink")))
        epochs, size = int(event.get("backlog") or 0), int(event.get("backlog_bytes") or 0)
        if name == "drained":
            size = max(0, self._inflight.get(place, (0, 0))[1] - int(event.get("bytes") or 0)) if epochs else 0
        self._inflight[place] = (epochs, size)

    def _note(self, kind: str, body: dict[str, Any]) -> None:
        self._notes.setdefault(kind, deque(maxlen=MOST_NOTES)).append(body)


def epoch_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the history of checkpoints, from a `checkpoint` event, or one that a record gives. Raises for what is
    neither."""
    query, epoch = event["query"], event["epoch"]
    if not isinstance(query, str) or not isinstance(epoch, int):
        raise TypeError("no epoch of a query")
    total = _number(event.get("total_ms")) or 0.0
    ended = ms(event.get("ended") or event.get("time"))
    opened = ms(event["opened"]) if event.get("opened") else ended - round(total)
    prepared, decided, read = (_number(event.get(name)) for name in ("precommit_ms", "decided", "read_ms"))
    sinks, operators = event.get("sinks") or [], event.get("operators")
    if not all(isinstance(one, dict) for one in (*sinks, *(operators or ()))):
        raise TypeError("sinks or operators are not objects")
    if read is not None and prepared is not None:
        read = min(read, prepared)
    return {
        "query": query,
        "epoch": epoch,
        "generation": event.get("generation"),
        "outcome": event.get("outcome") or "complete",
        "mode": event.get("mode"),
        "opened": opened,
        "ended": ended,
        "phases": {
            "read_ms": read,
            "prepare_ms": None if prepared is None else round(prepared - (read or 0.0), 3),
            "decide_ms": None
            if decided is None or prepared is None
            else round(max(0.0, decided * 1000 - opened - prepared), 3),
            "commit_ms": _number(event.get("commit_ms")),
        },
        "total_ms": total,
        "rows": int(event.get("rows") or 0),
        "bytes": _number(event.get("bytes")),
        "sinks": sinks,
        "state_rows": _number(event.get("state_rows")),
        "state_bytes": _number(event.get("state_bytes")),
        "inflight_bytes": _number(event.get("inflight_bytes")) or 0,
        "slowest": event.get("slowest"),
        "skew": _number(event.get("skew")),
        "why": event.get("why"),
        "operators": operators,
    }


def _number(value: Any) -> Any:
    """A number that JSON knows, or None. Raises for anything else."""
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    raise ValueError("not a number")


def ms(seconds: Any) -> int:
    """Milliseconds since 1970."""
    return round(float(seconds or 0.0) * 1000)


def _public(epoch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in epoch.items() if name != "operators"}


def _some(event: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: event.get(name) for name in names}


def _exception(at: int, event: Mapping[str, Any]) -> dict[str, Any]:
    """In three sentences where the text has them; our errors say them in lines of their own."""
    found: dict[str, list[str]] = {"happened": [], "safe": [], "to_do": []}
    into = "happened"
    for line in str(event.get("error") or "").splitlines():
        for label, name in (("Safe: ", "safe"), ("To do: ", "to_do")):
            if line.startswith(label):
                into, line = name, line.removeprefix(label)
        found[into].append(line)
    return {
        "time": at,
        "query": event.get("query"),
        "epoch": event.get("epoch"),
        "error": str(event.get("event")),
        **{name: "\n".join(lines) for name, lines in found.items()},
    }
