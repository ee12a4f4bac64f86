"""`penstock logs JOB`: what a detached job has written."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.job_target import known
from penstock.errors import ControlError
from penstock.process.registry import Registry

_POLL_SECONDS = 0.1
_CHUNK = 1 << 16


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name, its id, or the beginning of it.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Only the last so many.")] = None,
) -> None:
    """Show what a detached job has written; also of one that has ended."""
    entry = known(job)
    if entry.log is None or not Path(entry.log).is_file():
        raise ControlError(
            f"Job {entry.name!r} ({entry.id}) has no log: its output went to whoever started it.",
            to_do="start it with `penstock run -d` to have one.",
        )
    with Path(entry.log).open("rb") as file:
        if lines is not None:
            for line in deque(file, maxlen=lines):
                _write(line)
        while True:
            now = Registry().get(entry.id) if follow else None
            over = now is None or (now.state.ended and not now.supervised)  # asked before the last read
            while part := file.read(_CHUNK):
                _write(part)
            if over:
                return
            time.sleep(_POLL_SECONDS)


def register(app: typer.Typer) -> None:
    app.command("logs")(logs)


def _write(part: bytes) -> None:
    sys.stdout.buffer.write(part)
    sys.stdout.flush()
