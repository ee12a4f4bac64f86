"""`JobHandle`: a job that runs beside the program that started it, and how a notebook shows it."""

from __future__ import annotations

import html
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.deadline import Deadline
from penstock.processes import stop_on_signals
from penstock.secrets import masked

if TYPE_CHECKING:
    from penstock.events import Listener
    from penstock.job.job import Job

_DRAW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One epoch, for callbacks and `JobHandle.progress`. `error` is None for a complete checkpoint."""

    query: str
    epoch: int
    generation: int
    seconds: float
    error: str | None = None
    rows: int = 0

    def __str__(self) -> str:
        how = f"{self.rows:,} rows, complete after {self.seconds:.2f} s" if self.error is None else self.error
        return f"epoch {self.epoch}: {how}"

    def _repr_html_(self) -> str:
        return table(f"query {self.query}", [("newest", self)])


class JobHandle:
    """A job that `Job.start` has started, in a thread of this process. It ends with the process; the next start
    recovers, as after any crash. `progress` is the newest epoch of each query, `error` what made the job fail."""

    def __init__(self, job: Job, on_event: Listener | None, link: Callable[[], str | None]) -> None:
        self._job, self._link, self._ended = job, link, threading.Event()
        self.progress: dict[str, CheckpointInfo] = {}
        self.error: BaseException | None = None
        for follow in (job.on_checkpoint_complete, job.on_checkpoint_aborted):
            follow(lambda info: self.progress.update({info.query: info}))
        threading.Thread(target=self._run, args=[on_event], name=f"penstock-job-{job.name}", daemon=True).start()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    @property
    def page(self) -> str | None:
        """A link to the job's page, which works once, for ten minutes; None where the job serves none."""
        return self._link() if self.running else None

    def stop(self) -> None:
        """End cleanly: each query finishes the epoch under way. Then as `wait`."""
        self._job.stop()
        self.wait()

    def wait(self, seconds: float | None = None) -> bool:
        """Return when the job has ended, at most after `seconds`; whether it has. Raises what made it fail. SIGINT, so
        also a notebook's "interrupt", stops the job cleanly. In a notebook the cell shows the progress meanwhile."""
        patience, place = Deadline(threading.TIMEOUT_MAX if seconds is None else seconds), None
        if hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel"):
            from IPython.display import display

            place = display(self, display_id=True)  # type: ignore[no-untyped-call]
        with stop_on_signals(self._job.stop):
            while self.running and not patience.passed():
                self._ended.wait(min(_DRAW_SECONDS, patience.remaining()))
                if place is not None:
                    place.update(self)
        if self.error is not None:
            raise self.error
        return not self.running

    def _run(self, on_event: Listener | None) -> None:
        try:
            self._job.run(on_event)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()

    def _repr_html_(self) -> str:
        state = "running" if self.running else "ended" if self.error is None else f"failed: {self.error}"
        return table(f"job {self._job.name}", [("state", state), *sorted(self.progress.items())])


def table(title: str, rows: Iterable[tuple[object, object]]) -> str:
    """A small table for a notebook, which keeps it when it is saved. Everything in it is text, with secrets masked."""
    cells = ("".join(f'<td style="text-align:left">{_shown(cell)}</td>' for cell in row) for row in rows)
    return f"<table><caption>{html.escape(title)}</caption>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _shown(cell: object) -> str:
    return html.escape(masked(str(cell)))
