"""`penstock show`: one job and how it does. The job's server is asked; an answer of another shape breaks nothing.

And `penstock run` in a terminal: one row for each query at the bottom of the screen. The rows lie outside the
terminal's scroll region, so the driver, its JVM and the supervisor may all write at any time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from penstock import logs
from penstock.cli.jobs import AnyJob, Manager, client_at, client_of, find_elsewhere, find_entry, job_row
from penstock.cli.output import Json, Output, number_text, short_duration_text, size_text
from penstock.cli.program import Start
from penstock.deadline import polling
from penstock.errors import PenstockError
from penstock.ops.process.registry import Entry, Registry, now_ms

_EXCEPTIONS = 3
_FACTS = (
    "uid", "epoch", "generation", "phase", "rows_per_second", "p50_ms", "p99_ms", "lag", "inflight_bytes", "watermark",
    "error",
)  # fmt: skip
_COLUMNS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "epoch": ("epoch", str), "phase": ("phase", str), "rows/s": ("rows_per_second", number_text),
    "p50": ("p50_ms", short_duration_text), "p99": ("p99_ms", short_duration_text), "lag": ("lag", number_text),
    "in flight": ("inflight_bytes", size_text),
}  # fmt: skip
_ERROR_HEADINGS = {"error": "Error", "happened": "What happened", "safe": "What is safe", "to_do": "What to do"}


def show(job: AnyJob, manager: Manager = None, as_json: Json = False) -> None:
    """Describe one job: its state, program, checkpoints, log and queries, and why it failed."""
    output = Output.choose(as_json)
    entry = find_entry(job) if manager is None else find_elsewhere(job, manager)
    facts = read_facts(entry, manager)
    if as_json:
        output.record("Job", facts.to_dict())
    else:
        render(output, facts)


@dataclass(frozen=True)
class JobFacts:
    """One run. `queries` is None where the job was not asked or gave no answer; `note` then says why."""

    entry: Entry
    restarts: int = 0
    queries: list[dict[str, Any]] | None = None
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.entry.public() | {name: value for name, value in vars(self).items() if name != "entry"}


def read_facts(entry: Entry, manager: str | None = None) -> JobFacts:
    """The run as it is now: of this machine, or at `manager`. One that has ended is not asked."""
    if entry.state.ended or entry.address is None:
        note = None if entry.state.ended else f"It is {entry.state} and cannot be asked yet."
        return JobFacts(entry, entry.restarts, note=note)
    path = f"/penstock/v1/runs/{entry.id}"
    try:
        client = client_of(entry) if manager is None else client_at(manager)
        overview, failures = client.ask("GET", path), client.ask("GET", f"{path}/exceptions")
        queries = [_query_facts(query) for query in overview["queries"]]
        newest = sorted(failures["exceptions"], key=lambda failure: failure["time"], reverse=True)[:_EXCEPTIONS]
        return JobFacts(entry, max(entry.restarts, overview["run"]["restarts"]), queries, newest)
    except PenstockError as error:
        return JobFacts(entry, entry.restarts, note=logs.plain_text(error.happened))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return JobFacts(entry, entry.restarts, note=f"Its server does not answer as a job does: {error!r}")


def _query_facts(query: Mapping[str, Any]) -> dict[str, Any]:
    """Raises for facts of a type that cannot be shown."""
    since = query["phase_since"]
    more = {"phase_ms": None if since is None else max(0, now_ms() - since), "committed": query.get("committed")}
    facts = {name: query[name] for name in _FACTS} | more | {"sums": query.get("sums")}
    _query_row(facts)
    return facts


def render(output: Output, job: JobFacts) -> None:
    entry = job.entry
    about = job_row(entry) | {"id": entry.id, "restarts": job.restarts, "program": entry.script}
    about["checkpoints"] = f"{entry.storage.rstrip('/')}/{entry.name}" if entry.storage else None
    running = {"driver": entry.pid, "supervisor": entry.supervisor} if not entry.state.ended else {}
    output.record("Job", {**about, **running, "lease": entry.lease, "log": entry.log})
    if job.queries:
        output.table(f"Queries of {entry.name}", [_query_row(query) for query in job.queries])
    for query in job.queries or ():
        if sums := query["sums"]:
            output.line(f"{query['uid']}, newest epoch: {'; '.join(f'{name} {rows}' for name, rows in sums.items())}")
        if query["error"]:
            output.line(f"{query['uid']}: {query['error']}")
    error = entry.error or {}
    for key, heading in _ERROR_HEADINGS.items():
        if error.get(key):
            output.line(f"{heading}: {error[key]}")
    if job.exceptions and not error:
        output.table("Newest exceptions", [_exception_row(failure) for failure in job.exceptions])
    if entry.savepoint:
        output.line(f"Last savepoint: {entry.savepoint}")
    if job.note is not None:
        output.line(job.note)


def _query_row(query: Mapping[str, Any]) -> dict[str, str]:
    row = {column: "–" if query[name] is None else text(query[name]) for column, (name, text) in _COLUMNS.items()}
    if query["phase_ms"] is not None and query["phase"] not in (None, "idle"):
        row["phase"] += f" {short_duration_text(query['phase_ms'])}"
    return {"query": query["uid"] or "", **row}


def _exception_row(failure: Mapping[str, Any]) -> dict[str, str]:
    moment = ""
    with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
        moment = f"{datetime.fromtimestamp(failure['time'] / 1000).astimezone():%H:%M:%S}"
    query, error, happened = (str(failure.get(key) or "") for key in ("query", "error", "happened"))
    return {"time": moment, "query": query, "error": error, "what happened": happened}


class LiveRows:
    """The bottom rows of a terminal. Each change is one write, which other processes' lines do not split."""

    def __init__(self, write: Callable[[str], object], size: Callable[[], Sequence[int]]) -> None:
        self._write, self._size = write, size
        self._frame = (0, 0)  # rows of the terminal, and those kept apart

    def show(self, rows: Sequence[str]) -> None:
        columns, height = self._size()
        count, text = min(len(rows), height // 3), ""
        if (height, count) != self._frame:
            text = self._reset() + "\n" * count + f"\x1b[{count}A\x1b7\x1b[1;{height - count}r\x1b8"
            self._frame = (height, count)
        first = height - count + 1
        places = (f"\x1b[{first + place};1H\x1b[K{row[: columns - 1]}" for place, row in enumerate(rows[:count]))
        self._write(f"{text}\x1b7{''.join(places)}\x1b8")

    def close(self) -> None:
        self._write(self._reset())

    def _reset(self) -> str:
        (height, count), self._frame = self._frame, (0, 0)
        return f"\x1b7\x1b[r\x1b[{height - count + 1};1H\x1b[J\x1b8" if count else ""


@contextlib.contextmanager
def following(start: Start) -> Iterator[None]:
    """Show the run's queries meanwhile, unless the terminal or the log are not for people."""
    if os.environ.get("TERM", "dumb") == "dumb" or logs.is_json():
        yield
        return
    write = partial(print, end="", file=sys.stderr, flush=True)
    rows = LiveRows(write, lambda: os.get_terminal_size(sys.stderr.fileno()))

    def look() -> bool:
        entry = Registry().get(start.id)
        if entry is not None and not entry.state.ended and entry.pid is not None:
            rows.show(rows_of(read_facts(entry)))
        return True

    with contextlib.closing(rows), polling("penstock-live", 1.0, look):
        yield


def rows_of(job: JobFacts) -> list[str]:
    """For each query: epoch, rate, lag, age of the last commit. Without queries, one row about the job."""
    if not job.queries:
        return [logs.plain_text(f"{job.entry.name}  {job.entry.state}  {job.note or ''}").rstrip()]
    rows, width = [], max(len(query["uid"] or "") for query in job.queries)
    for query in job.queries:
        epoch, lag, committed = (query[name] for name in ("epoch", "lag", "committed"))
        age = "no" if committed is None else f"{short_duration_text(max(0, now_ms() - committed))} since the last"
        known = [query["phase"], number_text(query["rows_per_second"] or 0), "–" if lag is None else number_text(lag)]
        row = "  epoch {} {}  {} rows/s  lag {}  {} commit".format("–" if epoch is None else epoch, *known, age)
        rows.append(logs.plain_text((query["uid"] or "").ljust(width) + row))
    return rows
