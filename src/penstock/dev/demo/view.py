"""What the demo shows while it runs: a live page in a terminal, plain lines elsewhere, nothing but JSON on demand."""

# ruff: noqa: T201  to print is what this module is for

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from penstock.dev.demo.plan import Progress
    from penstock.dev.demo.result import DemoResult

#: Redrawing takes some milliseconds of a core that Spark needs.
_REDRAW_SECONDS = 0.2
_PLAIN_SECONDS = 5.0  # between two lines of progress where nothing can be redrawn


class View(ABC):
    """`note` what happened, `tick` as often as you like, `verdict` once at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.monotonic()
        self._drawn = -1e9

    @property
    def clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"

    def tick(self, progress: Progress) -> None:
        if time.monotonic() - self._drawn >= self.pause:
            self._drawn = time.monotonic()
            self.draw(progress)

    pause = _REDRAW_SECONDS

    @abstractmethod
    def draw(self, progress: Progress) -> None: ...

    @abstractmethod
    def note(self, text: str) -> None: ...

    @abstractmethod
    def verdict(self, result: DemoResult) -> None: ...

    def close(self) -> None:  # noqa: B027  most views have nothing to give back
        """Give the terminal back; safe to call twice."""


class JsonView(View):
    """Standard output gets the result and nothing else; the end of a failed job's log goes to standard error."""

    def draw(self, progress: Progress) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def verdict(self, result: DemoResult) -> None:
        for line in result.log_tail:
            print(line, file=sys.stderr)
        print(json.dumps(result.to_dict()), flush=True)


class PlainView(View):
    """One line for each happening, and one of progress every few seconds."""

    pause = _PLAIN_SECONDS

    def __init__(self, title: str) -> None:
        super().__init__(title)
        print(title, flush=True)

    def draw(self, progress: Progress) -> None:
        print(f"{self.clock}  {_summary(progress)}", flush=True)

    def note(self, text: str) -> None:
        print(f"{self.clock}  {text}", flush=True)

    def verdict(self, result: DemoResult) -> None:
        for line in [*result.log_tail, *result.lines(), _closing(result)]:
            print(line, flush=True)


class LiveView(View):
    """A page that redraws itself, and the verdict below it."""

    def __init__(self, title: str, console: Console) -> None:
        super().__init__(title)
        self._console = console
        self._notes: deque[str] = deque(maxlen=12)
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def draw(self, progress: Progress) -> None:
        self._live.update(self._page(progress), refresh=True)

    def note(self, text: str) -> None:
        self._notes.append(f"{self.clock}  {text}")

    def verdict(self, result: DemoResult) -> None:
        self.close()
        colour = "green" if result.ok else "red"
        for line in result.log_tail:
            self._console.print(Text(line, style="dim"))
        body = Text("\n".join([*result.lines(), "", _closing(result)]))
        self._console.print(Panel(body, title="exactly once" if result.ok else "not proven", border_style=colour))

    def close(self) -> None:
        self._live.stop()

    def _page(self, progress: Progress) -> RenderableType:
        done = progress.committed["payments"]
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=progress.rows, completed=min(done, progress.rows), width=40), _summary(progress))
        queries = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("output", "epoch", "step", "rows out", "commit"):
            queries.add_column(heading, justify="left" if heading in ("output", "step") else "right")
        for name in ("payments", "totals"):
            event = progress.last.get(name, {})
            step = str(event.get("event", "starting"))
            took = f"{event['commit_ms']:.1f} ms" if "commit_ms" in event else ""
            queries.add_row(name, str(event.get("epoch", "")), step, f"{progress.committed[name]:,}", took)
        notes = Text("\n".join(self._notes))
        return Panel(
            Group(bar, Text(), queries, Text(), notes), title=f"{self.title}   {self.clock}", title_align="left"
        )


def open_view(title: str, *, as_json: bool) -> View:
    """The view for where standard output goes."""
    if as_json:
        return JsonView(title)
    console = Console()
    return LiveView(title, console) if console.is_terminal else PlainView(title)


def _summary(progress: Progress) -> str:
    return (
        f"{progress.committed['payments']:,} of {progress.rows:,} rows, {progress.speed:,.0f} rows/s, "
        f"{len(progress.epochs):,} epochs, {len(progress.kills)} of {len(progress.plan)} kills"
    )


def _closing(result: DemoResult) -> str:
    where = f" Everything is kept in {result.folder}." if result.folder else ""
    if result.ok:
        return f"Nothing lost, nothing twice, nothing wrong, in {result.seconds:.0f} s (seed {result.seed}).{where}"
    return f"This run is not as it should be (seed {result.seed}).{where}"
