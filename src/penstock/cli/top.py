"""`penstock top`: the jobs of this machine and how each of them does, live in a terminal. A thread asks each job's own
server, so that a late answer delays no key; an answer of another shape breaks nothing."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.jobs import Manager, client_at, entries_elsewhere, find_entry, find_running, job_row
from penstock.cli.output import Json, Output, TableOutput, number_text, short_duration_text, size_text, step_text
from penstock.errors import PenstockError
from penstock.logs import plain_text
from penstock.ops.process.registry import Entry, Registry, now_ms

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from penstock.ops.server.client import Client

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
_KEY_SECONDS = 0.2  # the screen is drawn at least so often
_KEY = re.compile(r"\x1b[\[O](?P<arrow>[A-D])|(?P<other>.)", re.DOTALL)
_ARROWS = {"A": "up", "B": "down", "C": "down", "D": "up"}


def top(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Begin with this one; also one that has ended.")
    ] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print what there is to see, once, and leave.")] = False,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """Watch the jobs of this machine: their queries, epochs, phases, rates, lag and restarts.

    Keys: arrows or a number choose a job, s takes a savepoint after asking, q leaves. Where standard output is not a
    terminal, and with --json, what there is to see is printed once.
    """
    watched = Watched(manager)
    chosen = watched.find(job) if job is not None else None
    if not once and not as_json and sys.stdout.isatty():
        from rich.console import Console

        with contextlib.suppress(KeyboardInterrupt), Keyboard.of(sys.stdin) as keys:
            show(watched, View(chosen=chosen), interval, keys, Console())
        return
    jobs = [facts for facts in watched.look(chosen) if chosen in (None, facts.entry.id)]
    output = Output.choose(as_json)
    if as_json:
        output.record("Jobs", {"time": now_ms(), "jobs": [facts.to_dict() for facts in jobs]})
        return
    _render_jobs(output, "Jobs", jobs)
    for facts in jobs:
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

    def look(self, chosen: str | None) -> list[JobFacts]:
        """Every run, the newest first. Only the chosen one is asked; all of them, where it is None."""
        entries = self._registry.entries() if self._manager is None else entries_elsewhere(self._manager)
        self._seen = {entry.id: entry for entry in entries if not entry.state.ended or entry.id in self._seen}
        return [
            self.read(entry) if chosen in (None, entry.id) else JobFacts(entry, entry.restarts)
            for entry in self._seen.values()
        ]

    def read(self, entry: Entry) -> JobFacts:
        """The run as it is now. One that has ended is not asked."""
        if entry.state.ended or entry.address is None:
            note = None if entry.state.ended else f"It is {entry.state} and cannot be asked yet."
            return JobFacts(entry, entry.restarts, note=note)
        path = f"/penstock/v1/runs/{entry.id}"
        try:
            client = self.client(entry)
            overview, failures = client.ask("GET", path), client.ask("GET", f"{path}/exceptions")
            queries = [_query_facts(query) for query in overview["queries"]]
            newest = sorted(failures["exceptions"], key=lambda failure: failure["time"], reverse=True)[:_EXCEPTIONS]
            return JobFacts(entry, max(entry.restarts, overview["run"]["restarts"]), queries, newest)
        except PenstockError as error:
            return JobFacts(entry, entry.restarts, note=plain_text(error.happened))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return JobFacts(entry, entry.restarts, note=f"Its server does not answer as a job does: {error!r}")

    def client(self, entry: Entry) -> Client:
        """For a run that has an address."""
        from penstock.ops.server.client import Client

        if self._manager is not None:
            return client_at(self._manager)
        return Client(str(entry.address), entry.token, entry.certificate)


def _query_facts(query: Mapping[str, Any]) -> dict[str, Any]:
    """Raises for facts of a type that cannot be shown."""
    since = query["phase_since"]
    facts = {name: query[name] for name in _FACTS} | {"phase_ms": None if since is None else max(0, now_ms() - since)}
    _query_row(facts)
    return facts


def _render_jobs(output: Output, title: str, jobs: list[JobFacts], chosen: JobFacts | None = None) -> None:
    if not jobs:
        output.line("No job runs.")
        return
    numbers = [{"": f"{number}{' ▶' if job is chosen else ''}"} for number, job in enumerate(jobs, 1)]
    rows = [{**job_row(job.entry), "restarts": job.restarts} for job in jobs]
    output.table(title, [number | row for number, row in zip(numbers, rows, strict=True)] if chosen else rows)


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


# The screen


@dataclass
class View:
    """What the screen shows. Keys change it, looks fill it, `draw` draws it."""

    jobs: list[JobFacts] = field(default_factory=list)
    chosen: str | None = None
    question: str | None = None  # the id of the run whose savepoint awaits confirmation
    message: str = ""

    @property
    def job(self) -> JobFacts | None:
        return next((job for job in self.jobs if job.entry.id == self.chosen), None)

    def fill(self, jobs: list[JobFacts]) -> None:
        """After a look. The chosen run stays chosen, wherever it is in the list."""
        self.jobs = jobs
        if self.job is None:
            self.chosen = jobs[0].entry.id if jobs else None

    def press(self, key: str) -> str | None:
        """What to do: `leave`, `look`, `savepoint` of the chosen run, or nothing."""
        if self.question is not None:
            agreed, self.question = key in "yY" and self.question == self.chosen, None
            self.message = "" if agreed else "No savepoint was asked for."
            return "savepoint" if agreed else None
        if key in ("q", "Q"):
            return "leave"
        if key in ("s", "S") and self.job is not None:
            entry = self.job.entry
            if entry.state.ended or entry.address is None:
                self.message = f"{entry.name} is {entry.state} and gives no savepoint."
            else:
                self.question = entry.id
            return None
        ids = [job.entry.id for job in self.jobs]
        place = ids.index(self.chosen) if self.chosen in ids else 0
        place += {"up": -1, "k": -1, "down": 1, "j": 1}.get(key, 0)
        if key.isdecimal() and key.isascii():
            place = int(key) - 1
        if 0 <= place < len(ids) and ids[place] != self.chosen:
            self.chosen, self.message = ids[place], ""
            return "look"
        return None


class _Screen(TableOutput):
    def __init__(self, console: Console) -> None:
        self._on = console

    def _console(self, *, stderr: bool = False) -> Console:
        return self._on


def draw(view: View, width: int) -> Text:
    """The whole screen."""
    from rich.console import Console
    from rich.text import Text

    file, job, message = io.StringIO(), view.job, view.message
    screen = _Screen(Console(file=file, width=width, force_terminal=True, color_system="standard"))
    _render_jobs(screen, f"penstock top  {datetime.now().astimezone():%H:%M:%S}", view.jobs, job)
    if job is not None:
        screen.line("")
        _render_details(screen, job)
        message = f"Take a savepoint of {job.entry.name}? y / n" if view.question is not None else message
    screen.line(f"\n{message}\n\n↑ ↓ or a number: choose   s: savepoint   q: leave")
    return Text.from_ansi(file.getvalue())


@dataclass(frozen=True)
class Keyboard:
    """Keys of a terminal, one by one and without an echo. Without a terminal there are none: only Ctrl-C leaves."""

    handle: int | None

    @classmethod
    @contextlib.contextmanager
    def of(cls, stream: Any) -> Iterator[Keyboard]:
        if not stream.isatty():
            yield cls(None)
            return
        handle = stream.fileno()
        before = termios.tcgetattr(handle)
        tty.setcbreak(handle)
        try:
            yield cls(handle)
        finally:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(handle, termios.TCSADRAIN, before)

    def read(self, seconds: float) -> list[str]:
        """The keys that were pressed within so many seconds: characters, `up` or `down`."""
        ready, _, _ = select.select([] if self.handle is None else [self.handle], [], [], seconds)
        if not ready:
            return []
        text = "q"
        with contextlib.suppress(OSError):  # the terminal is gone
            text = os.read(ready[0], 64).decode("utf-8", "replace") or "q"
        return [_ARROWS.get(match["arrow"]) or match["other"] for match in _KEY.finditer(text)]


def show(watched: Watched, view: View, interval: float, keys: Keyboard, console: Console) -> None:
    """Draw, read keys and do what they ask for, until one of them leaves."""
    from rich.live import Live

    wake, over = threading.Event(), threading.Event()
    threading.Thread(target=_look, args=(watched, view, interval, wake, over), daemon=True).start()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw(view, console.width), refresh=True)
                for key in keys.read(_KEY_SECONDS):
                    action = view.press(key)
                    if action == "leave":
                        return
                    if action == "savepoint" and view.job is not None:
                        arguments = (watched, view, view.job.entry)
                        threading.Thread(target=_take_savepoint, args=arguments, daemon=True).start()
                    if action == "look":
                        wake.set()
    finally:
        over.set()
        wake.set()


def _look(watched: Watched, view: View, interval: float, wake: threading.Event, over: threading.Event) -> None:
    while not over.is_set():
        wake.clear()
        chosen = view.chosen
        try:
            view.fill(watched.look(chosen or ""))
        except PenstockError as error:  # the server elsewhere is gone
            view.message = error.happened
        if chosen is not None or view.chosen is None:  # one that was chosen just now is asked at once
            wake.wait(interval)


def _take_savepoint(watched: Watched, view: View, entry: Entry) -> None:
    """Runs in a thread; the view's message shows its progress and its result."""
    label, path = f"Savepoint of {entry.name}", f"/jobs/{entry.id}/savepoints"

    def report(step: Any) -> None:
        view.message = f"{label}: {step_text(step)}"

    view.message = f"{label} …"
    try:
        answer = watched.client(entry).perform(path, {"formatType": "NATIVE"}, path, progress=report)
        view.message = f"{label}: {answer.get('location')}"
    except PenstockError as error:
        view.message = " ".join(part for part in (error.happened, error.safe, error.to_do) if part)
