"""How far long work is, shown to a person: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.text import duration_text, plain_text, size_text
from penstock.ops.process.registry import Entry, Registry, State
from penstock.progress import Pace, Step

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.cli.output import Output

LINE_SECONDS = 10.0
"""Between two lines, where there is no terminal. Work that is over sooner leaves none."""

_LOOK_SECONDS = 0.5


class Display:
    """Is told; shows nothing. Safe from any thread."""

    def __call__(self, step: Step) -> None:
        pass

    def say(self, text: str) -> None:
        """What is being done as a whole, from now on."""


class LineDisplay(Display):
    """Lines for a log file."""

    def __init__(self, text: str, console: Console) -> None:
        self._text, self._console = text, console
        self._pace, self._last = Pace(), time.monotonic()

    def __call__(self, step: Step) -> None:
        remaining = self._pace.remaining(step)
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            line = f"{self._text}: {step_text(step)}, {_seconds(self._pace.elapsed)}{_rest(remaining)}"
            self._console.print(line, markup=False, highlight=False)

    def say(self, text: str) -> None:
        self._text = plain_text(text)


class BarDisplay(Display):
    """A bar that is gone when the work is over."""

    def __init__(self, text: str, console: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._pace = Pace()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rest]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,  # of a job that runs in this process, they are its own
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(text, total=None, amount="", rest="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: Step) -> None:
        fields: dict[str, Any] = {"amount": step_text(step), "rest": _rest(self._pace.remaining(step)).lstrip(", ")}
        self._bar.update(self._task, completed=step.done, total=step.total or None, **fields)

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=plain_text(text))


def step_text(step: Step) -> str:
    """`checking: 3.1 of 12.4 GB (25 %)`."""
    if step.unit == "bytes":
        amount = f"{size_text(step.done)} of {size_text(step.total)}"
    else:
        amount = f"{step.done:,} of {step.total:,} {step.unit}"
    share = f" ({100 * step.done // step.total} %)" if step.total else ""
    return plain_text(f"{step.what}: {amount}{share}")


def _seconds(seconds: float) -> str:
    return duration_text(int(seconds * 1000))


def _rest(seconds: float | None) -> str:
    return f", about {_seconds(seconds)} left" if seconds else ""


def show_start(display: Display, entry: Entry) -> None:
    """A job on its way up: its state, and how far its restore is."""
    display.say(f"Starting {entry.name}: {entry.state}")
    step = Step.of(entry.progress)
    if step is not None:
        display(step)


@contextmanager
def show_restore(output: Output, id: str) -> Iterator[None]:
    """Until the job of this run has started, show how far its restore is, as the registry tells it."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(output, id, over), name="penstock-restore", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(output: Output, id: str, over: threading.Event) -> None:
    display: Display | None = None
    with ExitStack() as shown:
        while not over.wait(_LOOK_SECONDS):
            entry = Registry().read_entry(id)
            step = Step.of(entry.progress) if entry is not None else None
            if entry is not None and step is not None:
                display = display or shown.enter_context(output.progress(f"Restoring {entry.name}"))
                display(step)
            elif display is not None or (entry is not None and (entry.state.ended or entry.state is State.RUNNING)):
                return
