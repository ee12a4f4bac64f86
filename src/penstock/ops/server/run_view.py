"""What one run looks like: its queries, the epoch each has in progress, the epochs that ended, and what else happened.

`RunView` is the one listener that folds a job's events into state. Metrics, history and the REST paths read it;
the view of a past run is folded from its history. The thread that runs an epoch calls it, so it is bounded and quick.
docs/reference/metrics.md says when each phase of an epoch ends; one that is missing adds its time to the next.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

log = logging.getLogger("penstock")

MOST_EPOCHS = 10_000  # epochs of a run that are kept, over all its queries
MOST_NOTES = 1_000  # restarts, recoveries, exceptions, savepoints: of each so many, the newest
RING = 1_000  # events that a stream which was cut off can catch up with
MOST_PER_PAGE = 1_000
RECORDED = "checkpoint"  # the event that brings an epoch's record
STORY = frozenset((
    "started", "recovered", "log_restored", "checkpoint_failed", "skipped", "callback_failed", "throttled", "flowing",
    "failed", "restarting", "global_checkpoint", "savepoint", "restored", "stopped", "aborted", "logged", "drained",
))  # fmt: skip
"""The other events that a view is folded from again once the run is past."""
PHASES = ("read", "prepare", "decide", "commit")

_RATE_EPOCHS = 10
_DURATION_EPOCHS = 100  # of which p50 and p99 are computed
_MOST_UNRECORDED = 16  # complete epochs whose record has not come; the recorder leaves records out when it is late
_PHASE_AFTER = {"opened": "prepare", "precommitted": "decide", "decided": "commit"} | dict.fromkeys(
    ("completed", "failed", "checkpoint_failed", "skipped", "logged", "started", "stopped", "recovered"), "idle"
)
_SETTLED = ("committed", "logged", "completed", "recovered")  # events after which no writer is open or in doubt
_SERIES = ("total_ms", "commit_ms", "rows", "state_bytes", "inflight_bytes")
_NOTES = {  # by event: the kind of its note, and the fields that it takes
    "restarting": ("restarts", ("query", "error", "verdict", "seconds")),
    "recovered": ("recoveries", ("query", "generation", "epoch", "action", "seconds")),
    "savepoint": ("savepoints", ("path", "kind", "bytes", "drained", "epochs")),
    "restored": ("restored", ("path", "epochs", "claim", "drained")),
}
_EXCEPTIONS = ("failed", "checkpoint_failed", "skipped", "callback_failed", "restarting")

Event = Mapping[str, Any]


@dataclass
class Attempt:
    """One attempt at an epoch. Times are seconds since 1970; `error` is None unless it failed."""

    query: str
    epoch: int
    generation: int | None
    opened: float
    ended: float = 0.0
    read: float | None = None
    prepared: float | None = None
    decided: float | None = None
    committed: float | None = None
    rows: int = 0
    skipped_rows: int = 0
    writers: int = 0
    mode: str | None = None
    error: str | None = None

    def phases(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each phase that is known, in order."""
        phases, begin = [], self.opened
        for name, end in zip(PHASES, (self.read, self.prepared, self.decided, self.committed), strict=True):
            if end is not None:
                end = max(begin, end)
                phases.append((name, begin, end))
                begin = end
        return phases


@dataclass
class QueryView:
    """One query as it is now. Times are milliseconds since 1970."""

    uid: str
    generation: int = 0
    epoch: int | None = None
    phase: str = "idle"
    phase_since: int | None = None
    attempt: Attempt | None = None  # the epoch in progress
    completed: Attempt | None = None  # the newest that this process completed
    rows_total: int = 0
    sums: Mapping[str, Any] | None = None  # of the newest epoch, see `checkpoint.record.sums_of`
    complete: int = 0
    failed: int = 0
    transactions_open: int = 0
    transactions_in_doubt: int = 0
    inflight: dict[str, tuple[int, int]] = field(default_factory=dict)  # by sink: epochs and bytes
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_EPOCHS))
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_DURATION_EPOCHS))

    @property
    def rows_per_second(self) -> float:
        """Over the newest epochs."""
        if len(self.recent) < 2:
            return 0.0
        span = self.recent[-1][0] - self.recent[0][0]
        usual = span / (len(self.recent) - 1)
        since = time.time() * 1000 - self.recent[0][0]  # the rate goes down while no epoch completes
        seconds = max(span, since - 2 * usual) / 1000
        return round(sum(rows for _, rows in islice(self.recent, 1, None)) / seconds, 3) if seconds > 0 else 0.0

    @property
    def busy(self) -> float | None:
        """The share of time, over the newest epochs, that they took."""
        if len(self.recent) < 2 or self.recent[-1][0] <= self.recent[0][0]:
            return None
        took = sum(islice(reversed(self.durations), len(self.recent) - 1))
        return min(1.0, took / (self.recent[-1][0] - self.recent[0][0]))

    def duration_ms(self, share: float) -> float | None:
        return percentile(sorted(self.durations), share) if self.durations else None

    @property
    def inflight_bytes(self) -> int | None:
        return sum(size for _, size in self.inflight.values()) if self.inflight else None

    def follow(self, name: str, event: Event) -> Attempt | None:
        """The attempt that this event ends, if it ends one."""
        if isinstance(event.get("generation"), int) and name != "drained":  # which may be of an earlier generation
            self.generation = max(self.generation, int(event["generation"]))
        if name in _PHASE_AFTER:
            self.phase, self.phase_since = _PHASE_AFTER[name], ms(event.get("time"))
        if name == "opened" or (name == "completed" and self.epoch is None):
            self.epoch = event.get("epoch")
        if name in ("logged", "drained"):
            self._count_inflight(name, event)
        ended = self._follow_attempt(name, event)
        if name in _SETTLED:
            self.transactions_open = self.transactions_in_doubt = 0
        return ended

    def _follow_attempt(self, name: str, event: Event) -> Attempt | None:
        epoch = event.get("epoch")
        if not isinstance(epoch, int):
            return None
        if name == "opened":
            self.attempt = Attempt(self.uid, epoch, event.get("generation"), float(event["time"]))
            self.transactions_open = 0
        attempt = self.attempt
        if attempt is None or attempt.epoch != epoch:
            return None
        match name:
            case "precommitted":
                attempt.prepared, attempt.rows = float(event["time"]), int(event.get("rows") or 0)
                attempt.writers = self.transactions_open = int(event.get("writers") or 0)
            case "decided":
                attempt.decided, self.transactions_in_doubt = float(event["time"]), attempt.writers
            case "committed" | "logged" if not event.get("recovery"):
                attempt.committed = float(event["time"])
            case "skipped":
                attempt.skipped_rows += int(event.get("rows") or 0)
            case "completed":
                attempt.ended, self.attempt, self.completed = float(event["time"]), None, attempt
                return attempt
            case "checkpoint_failed" | "failed":
                attempt.ended, attempt.error, self.attempt = float(event["time"]), str(event.get("error")), None
                return attempt
        return None

    def _count_inflight(self, name: str, event: Event) -> None:
        sink = str(event.get("sink"))
        epochs, size = int(event.get("backlog") or 0), int(event.get("backlog_bytes") or 0)
        if name == "drained":
            size = max(0, self.inflight.get(sink, (0, 0))[1] - int(event.get("bytes") or 0)) if epochs else 0
        self.inflight[sink] = (epochs, size)

    def add(self, epoch: dict[str, Any]) -> None:
        if epoch["outcome"] != "complete":
            self.failed += 1
            return
        self.complete += 1
        self.rows_total += epoch["rows"]
        self.sums = epoch.get("sums") or self.sums
        self.recent.append((epoch["ended"], epoch["rows"]))
        self.durations.append(epoch["total_ms"])
        self.epoch = max(self.epoch if self.epoch is not None else -1, epoch["epoch"])


class RunView:
    """An `Events` listener. Safe from any thread. Listeners that read it are added to `Events` after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: deque[dict[str, Any]] = deque(maxlen=MOST_EPOCHS)
        self._ring: deque[tuple[int, Event]] = deque(maxlen=RING)
        self.newest_event = 0  # its number
        self._queries: dict[str, QueryView] = {}
        self._notes: dict[str, deque[dict[str, Any]]] = {}
        self._unrecorded: OrderedDict[tuple[str, int], Attempt] = OrderedDict()
        self._attempt_listeners: list[Callable[[Attempt], None]] = []
        self.streams = 0  # of events, that are read now
        self.closed = False

    def on_event(self, event: Event) -> None:
        with self._lock:
            self.newest_event += 1
            self._ring.append((self.newest_event, event))
            self._fold(event)

    def load(self, events: Iterable[Event]) -> int:
        """Fold events from files, oldest first, without telling any listener. Returns how many are not understood."""
        bad = 0
        with self._lock:
            for event in events:
                try:
                    self._fold(event)
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                    bad += 1
        return bad

    def on_attempt(self, listener: Callable[[Attempt], None]) -> None:
        """Call it with every attempt: a failed one at once, a complete one when its record, which knows how long
        reading took, has come or can no longer be expected."""
        self._attempt_listeners.append(listener)

    def close(self, seconds: float) -> None:
        """No event comes any more: release attempts without a record, and give streams so long to end."""
        with self._lock:
            while self._unrecorded:
                self._release(self._unrecorded.popitem(last=False)[1])
        self.closed = True
        end = time.monotonic() + seconds
        while self.streams and time.monotonic() < end:
            time.sleep(0.01)

    def epochs(self, query: str | None = None, before: int | None = None, limit: int = 100) -> tuple[list[Any], bool]:
        """The newest first; and whether there are more. `before`: only epochs of a smaller number."""
        limit = max(1, min(limit, MOST_PER_PAGE))
        with self._lock:
            of_query = (epoch for epoch in reversed(self._epochs) if query is None or epoch["query"] == query)
            page = list(islice((epoch for epoch in of_query if before is None or epoch["epoch"] < before), limit + 1))
        public = [{name: value for name, value in epoch.items() if name != "operators"} for epoch in page[:limit]]
        return public, len(page) > limit

    def all_epochs(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first, with the state of each operator."""
        with self._lock:
            return list(self._epochs)

    def series(self, query: str | None, points: int) -> dict[str, list[Any]]:
        """At most so many points over all epochs that are kept. Each is the slowest epoch of its stretch."""
        points = max(2, min(points, MOST_EPOCHS))
        kept = [epoch for epoch in self.all_epochs() if query is None or epoch["query"] == query]
        size = -(-len(kept) // points) if kept else 1
        stretches = (kept[begin : begin + size] for begin in range(0, len(kept), size))
        slowest = [max(stretch, key=lambda epoch: epoch["total_ms"] or 0) for stretch in stretches]
        return {"time": [epoch["ended"] for epoch in slowest]} | {
            name: [epoch["phases"]["commit_ms"] if name == "commit_ms" else epoch[name] for epoch in slowest]
            for name in _SERIES
        }

    def queries(self) -> dict[str, QueryView]:
        with self._lock:
            return dict(self._queries)

    def query(self, uid: object) -> QueryView | None:
        return self._queries.get(uid) if isinstance(uid, str) else None

    def operators(self) -> list[dict[str, Any]]:
        """The state of each operator after the newest epoch of its query whose record has it."""
        newest = {epoch["query"]: epoch["operators"] for epoch in self.all_epochs() if epoch["operators"] is not None}
        return [
            {"query": uid, "index": index, **operator}
            for uid, operators in sorted(newest.items())
            for index, operator in enumerate(operators)
        ]

    def inflight(self) -> list[dict[str, Any]]:
        return [
            {"query": uid, "sink": sink, "epochs": epochs, "bytes": size}
            for uid, query in sorted(self.queries().items())
            for sink, (epochs, size) in sorted(query.inflight.copy().items())
        ]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """`restarts`, `recoveries`, `exceptions`, `savepoints` or `restored`, the newest first."""
        with self._lock:
            return list(reversed(self._notes.get(kind, ())))

    def events_after(self, number: int) -> list[tuple[int, Event]]:
        """Events beyond `number`, as far as the ring goes back."""
        with self._lock:
            if number >= self.newest_event:
                return []
            fresh = list(islice(reversed(self._ring), self.newest_event - number))
        return fresh[::-1]

    # Within the lock

    def _fold(self, event: Event) -> None:
        name, at, uid = str(event.get("event")), ms(event.get("time")), event.get("query")
        if isinstance(uid, str):
            self._end(self._queries.setdefault(uid, QueryView(uid)).follow(name, event))
        elif name in ("logged", "drained"):
            raise TypeError("an epoch in flight has no query")
        if name == RECORDED:
            self._add_record(event)
        if name in _NOTES:
            kind, names = _NOTES[name]
            self._note(kind, {"time": at} | {key: event.get(key) for key in names})
        if name in _EXCEPTIONS or (name == "stopped" and event.get("error")):
            self._note("exceptions", {"time": at, **_exception_facts(event)})

    def _end(self, attempt: Attempt | None) -> None:
        if attempt is not None and attempt.error is not None:
            self._release(attempt)
        elif attempt is not None:
            self._unrecorded[attempt.query, attempt.epoch] = attempt
            if len(self._unrecorded) > _MOST_UNRECORDED:
                self._release(self._unrecorded.popitem(last=False)[1])

    def _add_record(self, event: Event) -> None:
        complete = event.get("outcome") == "complete"
        attempt = self._unrecorded.pop((event["query"], event["epoch"]), None) if complete else None
        if attempt is not None:
            attempt.mode, read_ms = event.get("mode"), event.get("read_ms")
            if read_ms is not None and attempt.prepared is not None:
                attempt.read = min(attempt.opened + read_ms / 1000, attempt.prepared)
            self._release(attempt)
        epoch = epoch_of(event)
        self._epochs.append(epoch)
        self._queries.setdefault(epoch["query"], QueryView(epoch["query"])).add(epoch)

    def _release(self, attempt: Attempt) -> None:
        for listener in self._attempt_listeners:
            try:
                listener(attempt)
            except Exception as error:
                log.warning("epoch %d of %s was not measured: %r", attempt.epoch, attempt.query, error)

    def _note(self, kind: str, note: dict[str, Any]) -> None:
        self._notes.setdefault(kind, deque(maxlen=MOST_NOTES)).append(note)


def _exception_facts(event: Event) -> dict[str, Any]:
    """In three sentences where the text has them: Penstock's errors put each on lines of its own."""
    sentences: dict[str, list[str]] = {"happened": [], "safe": [], "to_do": []}
    part = "happened"
    for line in str(event.get("error") or "").splitlines():
        for label, name in (("Safe: ", "safe"), ("To do: ", "to_do")):
            if line.startswith(label):
                part, line = name, line.removeprefix(label)
        sentences[part].append(line)
    about = {"query": event.get("query"), "epoch": event.get("epoch"), "error": str(event.get("event"))}
    return about | {name: "\n".join(lines) for name, lines in sentences.items()}


def epoch_of(event: Event) -> dict[str, Any]:
    """A line of the list of epochs, from a `checkpoint` event or the fields of a record. Raises for what is neither."""
    if not isinstance(event["query"], str) or not isinstance(event["epoch"], int):
        raise TypeError("no epoch of a query")
    total, prepared, decided, read, commit, inflight = (
        _number(event.get(name))
        for name in ("total_ms", "precommit_ms", "decided", "read_ms", "commit_ms", "inflight_bytes")
    )
    ended = ms(event.get("ended") or event.get("time"))
    opened = ms(event["opened"]) if event.get("opened") else ended - round(total or 0.0)
    sinks, operators = event.get("sinks") or [], event.get("operators")
    if not all(isinstance(part, dict) for part in (*sinks, *(operators or ()))):
        raise TypeError("sinks or operators are not objects")
    if read is not None and prepared is not None:
        read = min(read, prepared)
    decide = None if decided is None or prepared is None else max(0.0, decided * 1000 - opened - prepared)
    phases = {
        "read_ms": read,
        "prepare_ms": None if prepared is None else round(prepared - (read or 0.0), 3),
        "decide_ms": None if decide is None else round(decide, 3),
        "commit_ms": commit,
    }
    return (
        {name: event.get(name) for name in ("query", "epoch", "generation", "mode", "slowest", "why", "operators")}
        | {name: _number(event.get(name)) for name in ("bytes", "state_rows", "state_bytes", "skew")}
        | {"opened": opened, "ended": ended, "phases": phases, "total_ms": total or 0.0, "sinks": sinks}
        | {"outcome": event.get("outcome") or "complete", "rows": int(event.get("rows") or 0)}
        | {"inflight_bytes": inflight or 0, "sums": event.get("sums")}
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, between two neighbours in proportion to their distance."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 3)


def ms(seconds: Any) -> int:
    return round(float(seconds or 0.0) * 1000)


def _number(value: Any) -> Any:
    """A number that JSON knows, or None. Raises for anything else."""
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    raise ValueError("not a number")
