"""What the demo shows: a live page in a terminal, plain lines elsewhere; with `--json` only the result."""

# ruff: noqa: T201  to print is what this module is for

from __future__ import annotations

import json
import sys
import time
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


class View:
    """Plain lines: one for each `note`, and one of progress every few seconds. `as_json` leaves standard output to the
    result alone; the end of a failed job's log goes to standard error then."""

    pause = 5.0  # seconds between two lines of progress

    def __init__(self, title: str, *, as_json: bool = False) -> None:
        self.title, self._as_json = title, as_json
        self._began, self._drawn = time.monotonic(), -1e9
        self.note(title)

    @property
    def clock(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"

    def tick(self, progress: Progress) -> None:
        """Show the progress, at most every `pause` seconds; call it as often as you like."""
        if time.monotonic() - self._drawn >= self.pause:
            self._drawn = time.monotonic()
            self._draw(progress)

    def note(self, text: str) -> None:
        if not self._as_json:
            print(f"{self.clock}  {text}", flush=True)

    def verdict(self, result: DemoResult) -> None:
        for line in result.log_tail:
            print(line, file=sys.stderr if self._as_json else sys.stdout)
        lines = [json.dumps(result.to_dict())] if self._as_json else [*result.lines(), _closing(result)]
        print("\n".join(lines), flush=True)

    def close(self) -> None:
        """Restore the terminal; safe to call twice."""

    def _draw(self, progress: Progress) -> None:
        self.note(_summary(progress))


class LiveView(View):
    """A page that redraws itself, and the verdict below it."""

    pause = 0.2  # redrawing takes some milliseconds of a core that Spark needs

    def __init__(self, title: str, console: Console) -> None:
        self._console = console
        self._notes: deque[str] = deque(maxlen=12)
        super().__init__(title)
        self._notes.clear()  # the title is on the frame
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

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

    def _draw(self, progress: Progress) -> None:
        self._live.update(self._page(progress), refresh=True)

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
        page = Group(bar, Text(), queries, Text(), Text("\n".join(self._notes)))
        return Panel(page, title=f"{self.title}   {self.clock}", title_align="left")


def open_view(title: str, *, as_json: bool) -> View:
    """The view for where standard output goes."""
    console = Console()
    return LiveView(title, console) if console.is_terminal and not as_json else View(title, as_json=as_json)


def _summary(progress: Progress) -> str:
    return (
        f"{progress.committed['payments']:,} of {progress.rows:,} rows, "
        f"{len(progress.epochs):,} epochs, {len(progress.kills)} of {len(progress.plan)} kills"
    )


def _closing(result: DemoResult) -> str:
    where = f" Everything is kept in {result.folder}." if result.folder else ""
    if result.ok:
        return f"Nothing lost, nothing twice, nothing wrong, in {result.seconds:.0f} s (seed {result.seed}).{where}"
    return f"This run is not as it should be (seed {result.seed}).{where}"
