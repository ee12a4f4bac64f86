"""`penstock top`: the jobs of this machine and how each of them does, live in a terminal; `penstock show`: one of them.
Each job's own server is asked; an answer of another shape breaks nothing."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import jobs
from penstock.cli.jobs import AnyJob, Manager, client_of, find_entry, find_running, job_row
from penstock.cli.output import Json, Output, number_text, short_duration_text, size_text
from penstock.errors import PenstockError
from penstock.logs import plain_text
from penstock.ops.process.registry import Entry, Registry, now_ms

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


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


def top(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Only this one; also one that has ended.", autocompletion=jobs.complete_any),
    ] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print what there is to see, once, and leave.")] = False,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """Watch the jobs of this machine: their queries, epochs, phases, rates, lag and restarts. Ctrl-C leaves.

    Where standard output is not a terminal, and with --json, what there is to see is printed once.
    """
    watched = Watched(manager)
    chosen = watched.find(job) if job is not None else None
    if not once and not as_json and sys.stdout.isatty():
        from rich.console import Console

        with contextlib.suppress(KeyboardInterrupt):
            watch(watched, chosen, interval, Console())
        return
    jobs, output = watched.look(chosen), Output.choose(as_json)
    if as_json:
        output.record("Jobs", {"time": now_ms(), "jobs": [facts.to_dict() for facts in jobs]})
    else:
        render(output, "Jobs", jobs)


def show(job: AnyJob, manager: Manager = None, as_json: Json = False) -> None:
    """Describe one job: its state, program, checkpoints, log and queries, and why it failed."""
    watched, output = Watched(manager), Output.choose(as_json)
    [facts] = watched.look(watched.find(job))
    if as_json:
        output.record("Job", facts.to_dict())
        return
    entry = facts.entry
    about = job_row(entry) | {"id": entry.id, "restarts": facts.restarts, "program": entry.script}
    about["checkpoints"] = f"{entry.storage.rstrip('/')}/{entry.name}" if entry.storage else None
    running = {"driver": entry.pid, "supervisor": entry.supervisor} if not entry.state.ended else {}
    output.record("Job", {**about, **running, "lease": entry.lease, "log": entry.log})
    _render_details(output, facts)


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


class Watched:
    """The runs of this machine, or those at `manager`. One that was seen alive stays, so that its end is seen too."""

    def __init__(self, manager: str | None = None, registry: Registry | None = None) -> None:
        self._manager, self._registry = manager, registry or Registry()
        self._seen: dict[str, Entry] = {}

    def find(self, job: str) -> str:
        """The id of the run with this name or id, which is watched from now on. Raises `JobNotFound`."""
        if self._manager is not None:
            return find_running(job, self._manager).id
        entry = find_entry(job)
        self._seen[entry.id] = entry
        return entry.id

    def look(self, chosen: str | None = None) -> list[JobFacts]:
        """Every run, the newest first; or the chosen one."""
        entries = self._registry.entries() if self._manager is None else jobs.entries_elsewhere(self._manager)
        self._seen = {entry.id: entry for entry in entries if not entry.state.ended or entry.id in self._seen}
        return [self.read(entry) for entry in self._seen.values() if chosen in (None, entry.id)]

    def read(self, entry: Entry) -> JobFacts:
        """The run as it is now. One that has ended is not asked."""
        if entry.state.ended or entry.address is None:
            note = None if entry.state.ended else f"It is {entry.state} and cannot be asked yet."
            return JobFacts(entry, entry.restarts, note=note)
        path = f"/penstock/v1/runs/{entry.id}"
        try:
            client = jobs.client_at(self._manager) if self._manager is not None else client_of(entry)
            overview, failures = client.ask("GET", path), client.ask("GET", f"{path}/exceptions")
            queries = [_query_facts(query) for query in overview["queries"]]
            newest = sorted(failures["exceptions"], key=lambda failure: failure["time"], reverse=True)[:_EXCEPTIONS]
            return JobFacts(entry, max(entry.restarts, overview["run"]["restarts"]), queries, newest)
        except PenstockError as error:
            return JobFacts(entry, entry.restarts, note=plain_text(error.happened))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return JobFacts(entry, entry.restarts, note=f"Its server does not answer as a job does: {error!r}")


def _query_facts(query: Mapping[str, Any]) -> dict[str, Any]:
    """Raises for facts of a type that cannot be shown."""
    since = query["phase_since"]
    more = {"phase_ms": None if since is None else max(0, now_ms() - since), "committed": query.get("committed")}
    facts = {name: query[name] for name in _FACTS} | more
    _query_row(facts)
    return facts


def render(output: Output, title: str, jobs: list[JobFacts]) -> None:
    if not jobs:
        output.line("No job runs.")
        return
    output.table(title, [{**job_row(job.entry), "restarts": job.restarts} for job in jobs])
    for job in jobs:
        _render_details(output, job)


def _render_details(output: Output, job: JobFacts) -> None:
    if job.queries:
        output.table(f"Queries of {job.entry.name}", [_query_row(query) for query in job.queries])
    for query in job.queries or ():
        if query["error"]:
            output.line(f"{query['uid']}: {query['error']}")
    error = job.entry.error or {}
    for key, heading in _ERROR_HEADINGS.items():
        if error.get(key):
            output.line(f"{heading}: {error[key]}")
    if job.exceptions and not error:
        output.table("Newest exceptions", [_exception_row(failure) for failure in job.exceptions])
    if job.entry.savepoint:
        output.line(f"Last savepoint: {job.entry.savepoint}")
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


def draw(jobs: list[JobFacts], width: int) -> Text:
    """The whole screen."""
    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    screen = Output(Console(file=file, width=width, force_terminal=True, color_system="standard"))
    render(screen, f"penstock top  {datetime.now().astimezone():%H:%M:%S}", jobs)
    return Text.from_ansi(file.getvalue())


def watch(watched: Watched, chosen: str | None, interval: float, console: Console) -> None:
    """Look and draw, until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                screen = draw(watched.look(chosen), console.width)
            except PenstockError as error:  # the server elsewhere is gone
                screen = Text(plain_text(error.happened))
            live.update(screen, refresh=True)
            time.sleep(interval)
