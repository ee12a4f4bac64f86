"""`penstock run -d`: start a job in the background, and say how its start went."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from penstock.cli.output import Output
from penstock.errors import ControlError, PenstockError, from_json
from penstock.process.detach import detach, wait_until_running
from penstock.process.registry import Entry, Registry, State


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
