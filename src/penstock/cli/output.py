"""The output of commands: a table for people or JSON for programs, by one interface. Commands never print."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from penstock.logs import plain_text

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.errors import PenstockError
    from penstock.progress import Step

LINE_SECONDS = 10.0  # between two lines of progress without a terminal; work that is over sooner prints none
_WIDE = 240

Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


class Output:
    """Results go to stdout, errors to stderr, so a pipe only ever carries results. This one is for a terminal, and
    readable in a log file."""

    def __init__(self, console: Console | None = None) -> None:
        self._given = console

    @staticmethod
    def choose(as_json: bool) -> Output:
        return JsonOutput() if as_json else Output()

    def record(self, title: str, fields: Mapping[str, Any]) -> None:
        """One thing and its properties."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(plain_text(title)), title_justify="left", show_header=False, box=None, pad_edge=False)
        for key, value in fields.items():
            if value not in (None, ""):
                table.add_row(Text(_cell(key).replace("_", " "), style="bold"), Text(_cell(value)))
        self._console().print(table)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Many things with the same properties."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(plain_text(title)), title_justify="left", box=None, pad_edge=False)
        for key in rows[0] if rows else ():
            table.add_column(Text(_cell(key).replace("_", " ")))
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        self._console().print(table)

    def line(self, text: str) -> None:
        """A sentence for people; JSON leaves it out."""
        self._console().print(plain_text(text), markup=False, highlight=False)

    def row(self, fields: Mapping[str, Any], text: str) -> None:
        """One of many that come one by one: `text` for people, `fields` as a line of JSON."""
        sys.stdout.write(plain_text(text) + "\n")
        sys.stdout.flush()

    def working(self, text: str) -> AbstractContextManager[object]:
        """While long work lasts, on a terminal: a spinner, on stderr."""
        from rich.text import Text

        console = self._console(stderr=True)
        return console.status(Text(plain_text(text))) if console.is_terminal else nullcontext()

    def progress(self, text: str) -> AbstractContextManager[Display]:
        """During long work, on stderr: a bar on a terminal, elsewhere a line now and then. It takes each `Step`."""
        return ProgressDisplay(text, self._console(stderr=True))

    def error(self, error: PenstockError) -> None:
        """What happened, what is safe, what to do: a line each, which only a terminal wraps."""
        from rich.text import Text

        console, name = self._console(stderr=True), type(error).__name__
        for label, sentence in ((name, error.happened), ("What is safe", error.safe), ("What to do", error.to_do)):
            if sentence:
                text = Text.assemble((f"{label}: ", "bold red" if label == name else "bold"), plain_text(sentence))
                console.print(text, soft_wrap=not console.is_terminal)

    def _console(self, *, stderr: bool = False) -> Console:
        from rich.console import Console

        if self._given is not None:
            return self._given
        console = Console(stderr=stderr, soft_wrap=not stderr)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDE  # in a file or a pipe nothing may be cut off to fit a screen
        return console


class JsonOutput(Output):
    """One JSON document on stdout per command; an error is one on stderr."""

    def record(self, title: str, fields: Mapping[str, Any]) -> None:
        self._write(dict(fields))

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._write([dict(row) for row in rows])

    def line(self, text: str) -> None:
        pass

    def row(self, fields: Mapping[str, Any], text: str) -> None:
        sys.stdout.write(json.dumps(fields, default=str) + "\n")
        sys.stdout.flush()

    def working(self, text: str) -> AbstractContextManager[object]:
        return nullcontext()

    def progress(self, text: str) -> AbstractContextManager[Display]:
        return nullcontext(Display())

    def error(self, error: PenstockError) -> None:
        sys.stderr.write(error.to_json() + "\n")

    def _write(self, body: Any) -> None:
        sys.stdout.write(json.dumps(body, indent=2, default=str) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else plain_text(str(value))


class Display:
    """Takes progress and shows nothing. Safe from any thread."""

    def __call__(self, step: Step) -> None:
        pass

    def describe(self, text: str) -> None:
        """Change the text for the work as a whole."""


class ProgressDisplay(Display):
    """A bar that disappears when the work is over; without a terminal, a line every `LINE_SECONDS`."""

    def __init__(self, text: str, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console, self._printed, self._what = console, time.monotonic(), ""
        columns = (
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}", markup=False), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        own = {"redirect_stdout": False, "redirect_stderr": False}  # of a job that runs in this process
        self._bar = Progress(*columns, console=console, transient=True, get_time=time.monotonic, **own)
        self._task = self._bar.add_task(plain_text(text), total=None, amount="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, step: Step) -> None:
        if step.what != self._what:
            self._what = step.what
            self._bar.reset(self._task, total=step.total or None, completed=step.done)
        self._bar.update(self._task, completed=step.done, total=step.total or None, amount=step_text(step))
        self._print_at_times(f": {step_text(step)}")

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=plain_text(text))
        self._print_at_times("")

    def _print_at_times(self, amount: str) -> None:
        if not self._console.is_terminal and time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            task = self._bar.tasks[0]
            line = f"{task.description}{amount}, {duration_text(int((task.elapsed or 0) * 1000))}"
            if task.time_remaining:
                line += f", about {duration_text(int(task.time_remaining * 1000))} left"
            self._console.print(line, markup=False, highlight=False)


def step_text(step: Step) -> str:
    """`checking: 3.1 of 12.4 GB (25 %)`; `writing state: 12 tasks` where the total is not known."""
    amount = f"{step.done:,} of {step.total:,} {step.unit}" if step.total else f"{step.done:,} {step.unit}"
    if step.unit == "bytes":
        amount = f"{size_text(step.done)} of {size_text(step.total)}"
    share = f" ({100 * step.done // step.total} %)" if step.total else ""
    return plain_text(f"{step.what}: {amount}{share}")


def duration_text(milliseconds: int) -> str:
    """The two largest units: `3d 4h`, `12m 5s`, `7s`."""
    seconds = max(0, milliseconds) // 1000
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((place for place, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count}{unit}" for count, unit in units[first : first + 2])


def short_duration_text(milliseconds: float) -> str:
    """`48 ms`, `1.2 s`, and from a minute on as `duration_text`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else duration_text(int(milliseconds))


def size_text(size: int) -> str:
    """`512 bytes`, `3.1 MB`: in thousands, as disks are sold."""
    from rich.filesize import decimal

    return decimal(size)


def number_text(number: float) -> str:
    """`12,345`; a small one with a digit behind the point."""
    return f"{number:.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"
