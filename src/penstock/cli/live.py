"""`penstock run` in a terminal: one row for each query at the bottom of the screen. The rows lie outside the terminal's
scroll region, so the driver, its JVM and the supervisor may all write at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from penstock import logs
from penstock.cli.output import number_text, short_duration_text
from penstock.cli.program import Start
from penstock.cli.show import JobFacts, read_facts
from penstock.deadline import polling
from penstock.ops.process.registry import Registry, now_ms


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


@contextmanager
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

    with closing(rows), polling("penstock-live", 1.0, look):
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
