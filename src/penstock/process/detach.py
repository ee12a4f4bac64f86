"""A supervisor that outlives the terminal it was started in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.process.registration import ID_VARIABLE
from penstock.process.registry import Entry, Registry, State

_COMMAND = "from penstock.cli.main import main; main()"
_POLL_SECONDS = 0.05


def detach(script: Path, arguments: Sequence[str], id: str) -> subprocess.Popen[bytes]:
    """Start `penstock run script` in a session of its own, its output in the registry's log of `id`. Raises OSError
    where there is no place for that log."""
    with Registry().open_log(id) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND, "run", str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, ID_VARIABLE: id, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def wait_until_running(
    id: str, process: subprocess.Popen[bytes], each: Callable[[Entry], None] = lambda _: None
) -> Entry | None:
    """The entry once the job runs, or has ended; None where it ended without having made one."""
    registry = Registry()
    while True:
        gone = process.poll() is not None  # asked before the registry: what it wrote last is then seen
        entry = registry.get(id)
        if entry is not None:
            each(entry)
        if gone or (entry is not None and entry.state in (State.RUNNING, State.FINISHED, State.CANCELED)):
            return entry
        time.sleep(_POLL_SECONDS)
