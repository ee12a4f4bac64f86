"""How commands speak: a table for people or JSON for programs, behind one interface. Commands never print."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.logs import plain_text

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.cli.progress_display import Display
    from penstock.errors import PenstockError


_WIDE = 240


class Output(ABC):
    """Results go to stdout, errors to stderr, so a pipe only ever carries results."""

    @staticmethod
    def for_people() -> Output:
        return TableOutput()

    @staticmethod
    def choose(as_json: bool) -> Output:
        return JsonOutput() if as_json else TableOutput()

    @abstractmethod
    def record(self, title: str, fields: Mapping[str, Any]) -> None:
        """One thing and its properties."""

    @abstractmethod
    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Many things with the same properties."""

    @abstractmethod
    def line(self, text: str) -> None:
        """A sentence for people; programs are not shown it."""

    @abstractmethod
    def working(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """While long work lasts, on a terminal: a sign of life, on stderr. Call what it gives with another text."""

    @abstractmethod
    def progress(self, text: str) -> AbstractContextManager[Display]:
        """While long work lasts, on stderr: how far it is and how long it will take. A bar on a terminal, elsewhere a
        line now and then. Call what it gives with a `Step`."""

    @abstractmethod
    def error(self, error: PenstockError) -> None:
        """What happened, what is safe, what to do."""


class JsonOutput(Output):
    """One JSON document on stdout per command; an error is one on stderr."""

    def record(self, title: str, fields: Mapping[str, Any]) -> None:
        self._write(dict(fields))

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._write([dict(row) for row in rows])

    def line(self, text: str) -> None:
        pass

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        yield lambda _: None

    @contextmanager
    def progress(self, text: str) -> Iterator[Display]:
        from penstock.cli.progress_display import Display

        yield Display()

    def error(self, error: PenstockError) -> None:
        sys.stderr.write(error.to_json() + "\n")

    def _write(self, body: Any) -> None:
        sys.stdout.write(json.dumps(body, indent=2, default=str) + "\n")


class TableOutput(Output):
    """For a terminal, and readable in a log file."""

    def record(self, title: str, fields: Mapping[str, Any]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(plain_text(title)), title_justify="left", show_header=False, box=None, pad_edge=False)
        for key, value in fields.items():
            if value not in (None, ""):
                table.add_row(Text(_cell(key).replace("_", " "), style="bold"), Text(_cell(value)))
        self._console().print(table)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(plain_text(title)), title_justify="left", box=None, pad_edge=False)
        for key in rows[0] if rows else ():
            table.add_column(Text(_cell(key).replace("_", " ")))
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        self._console().print(table)

    def line(self, text: str) -> None:
        self._console().print(plain_text(text), markup=False, highlight=False)

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        from rich.text import Text

        console = self._console(stderr=True)
        if not console.is_terminal:
            yield lambda _: None
            return
        with console.status(Text(plain_text(text))) as status:
            yield lambda changed: status.update(Text(plain_text(changed)))

    @contextmanager
    def progress(self, text: str) -> Iterator[Display]:
        from penstock.cli.progress_display import BarDisplay, LineDisplay

        console = self._console(stderr=True)
        if not console.is_terminal:
            yield LineDisplay(plain_text(text), console)
            return
        with BarDisplay(plain_text(text), console) as display:
            yield display

    def error(self, error: PenstockError) -> None:
        from rich.panel import Panel
        from rich.text import Text

        parts = [("What happened", error.happened), ("What is safe", error.safe), ("What to do", error.to_do)]
        body = Text("\n\n").join(
            Text.assemble((f"{label}\n", "bold"), plain_text(sentence)) for label, sentence in parts if sentence
        )
        self._console(stderr=True).print(
            Panel(body, title=type(error).__name__, title_align="left", border_style="red")
        )

    def _console(self, *, stderr: bool = False) -> Console:
        from rich.console import Console

        console = Console(stderr=stderr, soft_wrap=not stderr)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDE  # in a file or a pipe nothing may be cut off to fit a screen
        return console


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else plain_text(str(value))
