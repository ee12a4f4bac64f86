"""`penstock run -d`: a supervisor that outlives the terminal it was started in, and how its start went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.cli.output import Output
from penstock.errors import ControlError, PenstockError, from_json
from penstock.process.registration import ID_VARIABLE
from penstock.process.registry import Entry, Registry, State

_COMMAND = "from penstock.cli.main import main; main()"
_POLL_SECONDS = 0.05


def start(script: Path, arguments: list[str], *, as_json: bool) -> int:
    """0 once the job runs, or has already done all it had to. Otherwise its error is shown, and the status is the one
    it ended with. Left early by Ctrl-C, the job goes on."""
    output, run = Output.choose(as_json), uuid.uuid4().hex
    try:
        process = detach(script, arguments, run)
    except OSError as error:
        output.error(
            ControlError(
                f"The job's log cannot be written: {error}.",
                safe="nothing was started.",
                to_do="set PENSTOCK_HOME to a folder of yours.",
            )
        )
        return 1
    with output.working(f"Starting {script.name} …") as say:
        entry = wait_until_running(run, process, lambda now: say(f"Starting {now.name}: {now.state} …"))
    if entry is None or entry.state is State.FAILED:
        output.error(_error(entry, run))
        return process.wait() or 1
    facts = {"id": run, "name": entry.name, "state": entry.state, "address": entry.address, "log": entry.log}
    output.record("Job", facts)
    return 0


def _error(entry: Entry | None, run: str) -> PenstockError:
    log = Registry().log_file(run)
    if entry is None or entry.error is None:
        return ControlError("The job ended before it ran.", to_do=f"see {log}.")
    error = from_json(json.dumps({"error": "", **entry.error}))
    error.to_do = f"{error.to_do} Its log is {log}.".strip()
    return error


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
