"""One run's place in the registry, kept up to date. A registry that cannot be written never stops a job."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.ops.process import lifeline
from penstock.ops.process.registry import ID, Entry, Registry, State, now_ms
from penstock.processes import mark
from penstock.secrets import masked

log = logging.getLogger("penstock")

ID_VARIABLE = "PENSTOCK_JOB_ID"
"""The id of the run that the supervisor has begun; its driver takes it over, also after a restart."""


class Registration:
    """The entry of a run that this process writes. Safe from any thread; never raises for the registry's sake."""

    def __init__(self, entry: Entry, registry: Registry | None = None) -> None:
        self._registry = registry or Registry()
        self._lock = threading.Lock()
        self._complained = False
        self.entry = entry

    def update(self, **changes: Any) -> Entry:
        """Change the entry and write it, if anything is different."""
        with self._lock:
            changed = replace(self.entry, **changes)
            if changed != self.entry:
                self.entry = changed
                self._write()
            return self.entry

    def write(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        try:
            self._registry.put(self.entry)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("the job runs, but commands will not find it: its registry cannot be written: %s", error)


def register_driver(name: str, storage: str) -> Registration:
    """The entry of a job that runs in this process: a new one, or the one that its supervisor has begun."""
    registry = Registry()
    with contextlib.suppress(OSError):
        registry.prune()
    given = os.environ.pop(ID_VARIABLE, "")  # once: another job of this process is another run
    begun = registry.read_entry(given) if given else None
    entry = begun or Entry(given if ID.fullmatch(given) else uuid.uuid4().hex, name, start=now_ms())
    restarted = begun is not None and begun.pid is not None
    return Registration(
        replace(
            entry,
            name=name,
            state=State.RESTARTING if restarted else State.CREATED,
            end=None,
            pid=os.getpid(),
            pid_mark=mark(os.getpid()),
            host=socket.gethostname(),
            script=entry.script or _script(),
            storage=masked(storage),
            error=None,
            restarts=entry.restarts + (1 if restarted else 0),
            lease=_lease_text(lifeline.lease()),
        ),
        registry,
    )


class SupervisorEntry:
    """The entry as the supervisor keeps it while no driver does; an `Events` listener."""

    def __init__(self, script: Path, *, id: str | None = None, log_file: Path | None = None) -> None:
        self.id = id or uuid.uuid4().hex
        self._registry = Registry()
        with contextlib.suppress(OSError):
            self._registry.prune()
        self._mine = Registration(
            Entry(
                self.id,
                script.stem,
                start=now_ms(),
                supervisor=os.getpid(),
                supervisor_mark=mark(os.getpid()),
                host=socket.gethostname(),
                script=str(script.absolute()),
                log=str(log_file) if log_file is not None else None,
            ),
            self._registry,
        )
        self._mine.write()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Follow one `supervisor` event."""
        action, reason = event.get("action"), str(event.get("reason", ""))
        if event.get("event") != "supervisor" or action in ("started", "has_lease"):
            return
        self._mine.entry = last = self._registry.read_entry(self.id) or self._mine.entry  # as the driver left it
        failed = {"error": "ControlError", "happened": f"The driver {reason}.", "safe": "what was decided is safe."}
        match action:
            case "awaits_lease" if not last.driven:
                self._mine.update(state=State.SUSPENDED, end=None, lease=_lease_text(event))
            case "lost_turn":
                gone = {"address": None, "token": None, "certificate": None}
                self._mine.update(state=State.SUSPENDED, end=None, lease=None, **gone)
            case "restarting":
                self._mine.update(state=State.RESTARTING, end=None, error=last.error or failed)
            case "failed" | "gave_up":
                self._mine.update(state=State.FAILED, end=now_ms(), error=last.error or failed)
            case "stopped" | "done" if not last.state.ended:
                unsaid = State.FINISHED if action == "done" else State.CANCELED
                self._mine.update(state=State.FAILED if last.state is State.FAILING else unsaid, end=now_ms())


def error_fields(error: BaseException) -> dict[str, str]:
    """An error as an entry holds it."""
    if isinstance(error, PenstockError):
        return {key: str(value) for key, value in json.loads(error.to_json()).items()}
    return {"error": "ControlError", "happened": masked(f"{type(error).__name__}: {error}")[:4000]}


def _lease_text(lease: Mapping[str, Any] | None) -> str | None:
    if lease is None:
        return None
    return f"turn {lease['turn']}, {'here' if lease.get('here') else 'on ' + str(lease['host'])}"


def _script() -> str:
    return str(Path(sys.argv[0]).absolute()) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
