"""The live view of `penstock top`: looks in a thread of its own, so that a job that answers late holds no key up."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.cli.jobs import job_row
from penstock.cli.progress_display import step_text
from penstock.cli.text import plain_text
from penstock.cli.top import Watched, look
from penstock.cli.top_facts import JobFacts, JobReader, sentences
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.ops.process.registry import Entry

_KEY_SECONDS = 0.2  # so often the screen is drawn at least
_KEY = re.compile(r"\x1b[\[O](?P<arrow>[A-D])|(?P<other>.)", re.DOTALL)
_ARROWS = {"A": "up", "B": "down", "C": "down", "D": "up"}
_KEYS = "↑ ↓ or a number: choose   s: savepoint   q: leave"
_COLOURS = {"RUNNING": "green", "FINISHED": "green", "FAILED": "bold red", "FAILING": "red", "RESTARTING": "yellow"}


class Keys(Protocol):
    """Where keys come from."""

    def read(self, seconds: float) -> list[str]:
        """What was pressed: a character, `up` or `down`; after so many seconds nothing."""


@dataclass
class View:
    """What the screen shows. Keys change it, looks fill it; `draw` is the only one who knows how it looks."""

    jobs: list[JobFacts] = field(default_factory=list)
    chosen: str | None = None
    question: str | None = None  # the id of the run that a savepoint is asked of
    message: str = ""

    @property
    def job(self) -> JobFacts | None:
        return next((job for job in self.jobs if job.entry.id == self.chosen), None)

    def show(self, jobs: list[JobFacts]) -> None:
        """After a look. What was chosen stays so, wherever it stands now."""
        self.jobs = jobs
        if self.job is None:
            self.chosen = jobs[0].entry.id if jobs else None

    def press(self, key: str) -> str | None:
        """What is to be done: `leave`, `look`, `savepoint` of the chosen run, or nothing."""
        if self.question is not None:
            agreed, self.question = key in "yY" and self.question == self.chosen, None
            self.message = "" if agreed else "No savepoint was asked for."
            return "savepoint" if agreed else None
        if key in ("q", "Q"):
            return "leave"
        if key in ("s", "S") and self.job is not None:
            self._ask_for_savepoint(self.job.entry)
            return None
        ids = [job.entry.id for job in self.jobs]
        place = ids.index(self.chosen) if self.chosen in ids else 0
        if key in ("up", "k"):
            place -= 1
        elif key in ("down", "j"):
            place += 1
        elif key.isdecimal() and key.isascii():
            place = int(key) - 1
        if 0 <= place < len(ids) and ids[place] != self.chosen:
            self.chosen, self.message = ids[place], ""
            return "look"
        return None

    def _ask_for_savepoint(self, entry: Entry) -> None:
        if entry.state.ended or entry.address is None:
            self.message = f"{plain_text(entry.name)} is {entry.state} and gives no savepoint."
        else:
            self.question = entry.id


def draw(view: View) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [_jobs(view)]
    job = view.job
    if job is not None:
        parts += [Text(), _details(job)]
    message = view.message
    if view.question is not None and job is not None:
        message = f"Take a savepoint of {plain_text(job.entry.name)}? y / n"
    if message:
        parts += [Text(), Text(message, style="bold")]
    return Group(*parts, Text(), Text(_KEYS, style="dim"))


def _jobs(view: View) -> RenderableType:
    clock = datetime.now().astimezone().strftime("%H:%M:%S")
    if not view.jobs:
        return Text(f"penstock top  {clock}\n\nNo job runs.")
    rows = [{**job_row(job.entry), "restarts": job.restarts} for job in view.jobs]
    table = _table(f"penstock top  {clock}", ["", *rows[0]])
    for number, (job, row) in enumerate(zip(view.jobs, rows, strict=True), 1):
        style = "reverse" if job.entry.id == view.chosen else ""
        cells = [Text(plain_text(str(value))) for value in row.values()]
        cells[list(row).index("state")].stylize(_COLOURS.get(job.entry.state, ""))
        table.add_row(Text(str(number)), *cells, style=style)
    return table


def _details(job: JobFacts) -> RenderableType:
    parts: list[RenderableType] = []
    if job.queries:
        table = _table(f"Queries of {plain_text(job.entry.name)}", list(job.queries[0].row()))
        for query in job.queries:
            table.add_row(*map(Text, query.row().values()))
        parts.append(table)
        parts += [Text(f"{query.uid}: {query.error}", style="red") for query in job.queries if query.error]
    told = sentences(job.entry)
    if told:
        body = Text("\n\n").join(Text.assemble((f"{heading}\n", "bold"), sentence) for heading, sentence in told)
        name = plain_text(str((job.entry.error or {}).get("error") or "Error"))
        parts.append(Panel(body, title=Text(name), title_align="left", border_style="red"))
    elif job.exceptions:
        table = _table("Newest exceptions", ["time", "query", "error", "what happened"])
        for exception in job.exceptions:
            table.add_row(*(Text(cell) for cell in _exception(exception)))
        parts.append(table)
    if job.entry.savepoint:
        parts.append(Text(f"Last savepoint: {plain_text(job.entry.savepoint)}"))
    if job.note is not None:
        parts.append(Text(job.note, style="yellow"))
    return Group(*parts)


def _exception(exception: Any) -> list[str]:
    try:
        moment = datetime.fromtimestamp(float(exception["time"]) / 1000).astimezone().strftime("%H:%M:%S")
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        moment = ""
    return [moment, *(plain_text(str(exception.get(key) or "")) for key in ("query", "error", "happened"))]


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold" if column == "what happened" else "ellipsis")
    return table


class Looker:
    """Looks again and again, in a thread of its own, and fills the view."""

    def __init__(self, watched: Watched, view: View, interval: float) -> None:
        self._watched, self._view, self._interval = watched, view, interval
        self._readers: dict[str, JobReader] = {}
        self._wake, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="penstock-top", daemon=True)

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over = True
            self._wake.set()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def _run(self) -> None:
        while not self._over:
            self._wake.clear()
            self.look()
            self._wake.wait(self._interval)

    def look(self) -> None:
        chosen = self._view.chosen or ""
        try:
            self._view.show(look(self._watched, chosen, self._reader))
        except PenstockError as error:  # a server elsewhere that is gone
            self._view.message = plain_text(error.happened)
        if not chosen and self._view.chosen:
            self.look()  # the first one is chosen now, and is to be seen at once

    def _reader(self, id: str) -> JobReader:
        return self._readers.setdefault(id, JobReader(self._watched.client))

    def take_savepoint(self, entry: Entry) -> None:
        """In a thread; the view tells how far it is and what it came to."""

        def take() -> None:
            name, path = plain_text(entry.name), f"/jobs/{entry.id}/savepoints"

            def tell(step: Any) -> None:
                self._view.message = f"Savepoint of {name}: {step_text(step)}"

            self._view.message = f"Savepoint of {name} …"
            try:
                client = self._watched.client(entry)
                answer = client.perform(path, {"formatType": "NATIVE"}, path, progress=tell)
                self._view.message = f"Savepoint of {name}: {plain_text(str(answer.get('location')))}"
            except PenstockError as error:
                parts = (error.happened, error.safe, error.to_do)
                self._view.message = plain_text(" ".join(part for part in parts if part))

        threading.Thread(target=take, name="penstock-savepoint", daemon=True).start()


class Keyboard:
    """Keys of a terminal, one by one and without an echo."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @contextmanager
    def unbuffered(self) -> Iterator[Keyboard]:
        before = termios.tcgetattr(self._handle)
        tty.setcbreak(self._handle)
        try:
            yield self
        finally:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._handle, termios.TCSADRAIN, before)

    def read(self, seconds: float) -> list[str]:
        ready, _, _ = select.select([self._handle], [], [], seconds)
        if not ready:
            return []
        try:
            text = os.read(self._handle, 64).decode("utf-8", "replace")
        except OSError:  # the terminal is gone
            text = ""
        if not text:
            return ["q"]
        return [_ARROWS[match["arrow"]] if match["arrow"] else match["other"] for match in _KEY.finditer(text)]


class NoKeys:
    """Where standard input is no terminal: only Ctrl-C leaves."""

    def read(self, seconds: float) -> list[str]:
        threading.Event().wait(seconds)
        return []


def watch(watched: Watched, chosen: str | None, interval: float) -> None:
    """Until somebody leaves."""
    with contextlib.ExitStack() as opened:
        keys: Keys = NoKeys()
        if sys.stdin.isatty():
            keys = opened.enter_context(Keyboard(sys.stdin.fileno()).unbuffered())
        with contextlib.suppress(KeyboardInterrupt):
            show(watched, View(chosen=chosen), interval, keys, Console())


def show(watched: Watched, view: View, interval: float, keys: Keys, console: Console) -> None:
    """Draw, read keys, do what they ask for; until one of them leaves."""
    looker = Looker(watched, view, interval)
    with looker.looking(), Live(draw(view), console=console, screen=True, auto_refresh=False) as live:
        while True:
            for key in keys.read(_KEY_SECONDS):
                wanted = view.press(key)
                if wanted == "leave":
                    return
                if wanted == "savepoint" and view.job is not None:
                    looker.take_savepoint(view.job.entry)
                if wanted == "look":
                    looker.wake()
            live.update(draw(view), refresh=True)
