"""The jobs of this machine: one small file for each run of a job, in a folder that every command can read.

    $PENSTOCK_HOME/jobs/ID.json     what is known of the run; readable by its owner only, because it holds a token
    $PENSTOCK_HOME/logs/ID.log      what a detached job has written; ID.log.1 what it wrote before, see `log_file`

A run has one writer at a time: its driver while that lives, its supervisor before and after. Files appear whole or
not at all, so readers need no lock. What a file says is checked against the processes it names: a run that
ended without a word reads as failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from penstock.ops.process.log_file import earlier
from penstock.processes import is_running
from penstock.storage.private import create_own, own_folder, read_own

HOME_VARIABLE = "PENSTOCK_HOME"
"""The registry's folder."""

VERSION = 1
MAX_ENDED_RUNS = 100  # runs that have ended
ID = re.compile(r"[0-9a-f]{32}")


class State(StrEnum):
    """Flink's JobStatus, word for word."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def ended(self) -> bool:
        return self in (State.FAILED, State.CANCELED, State.FINISHED)


@dataclass(frozen=True)
class Entry:
    """One run of a job: the fields of its file, so they are many. Times are milliseconds since 1970. `pid` is the
    driver's; each process stands with its mark, see `processes`. `error` has the fields of an error's `to_json`."""

    id: str
    name: str
    state: State = State.CREATED
    start: int = 0
    end: int | None = None
    modified: int = 0
    pid: int | None = None
    pid_mark: str | None = None
    supervisor: int | None = None
    supervisor_mark: str | None = None
    host: str = ""  # a home folder may be shared by machines, which do not know each other's processes
    restarts: int = 0
    script: str = ""
    storage: str = ""
    address: str | None = None  # HOST:PORT of its control server
    token: str | None = None
    certificate: str | None = None  # path of the one it shows, where it is asked by HTTPS
    log: str | None = None
    error: Mapping[str, str] | None = None
    savepoint: str | None = None  # the last one
    savepoint_request: str | None = None  # and who asked for it
    progress: Mapping[str, Any] | None = None  # how far a restore is, see `progress.Step`
    lease: str | None = None  # who has the lease of the job, for people

    def __repr__(self) -> str:
        return f"Entry({self.id}, {self.name!r}, {self.state})"  # never the token

    @property
    def here(self) -> bool:
        """Whether it is a run of this machine."""
        return self.host in ("", socket.gethostname())

    @property
    def supervised(self) -> bool:
        """Whether a supervisor looks after it now."""
        return is_running(self.supervisor, self.supervisor_mark)

    @property
    def driven(self) -> bool:
        """Whether its driver runs now."""
        return is_running(self.pid, self.pid_mark)

    def checked(self, last_sign: Callable[[], int] = int) -> Entry:
        """As it is now, going by its processes and not only by the file. `last_sign` gives when the run last left
        anything behind, in milliseconds: its file changes with its state alone."""
        if self.state.ended or not self.here or self.driven:
            return self
        gone = replace(self, address=None, token=None, certificate=None)  # the port may be another program's by now
        if self.supervised:
            return replace(gone, state=State.RESTARTING) if self.state is State.RUNNING else gone
        error = self.error or {
            "error": "ControlError",
            "happened": f"The process of job {self.name!r} has ended and left no message.",
            "safe": "what was decided is safe.",
            "to_do": "start it again, which recovers it.",
        }
        return replace(gone, state=State.FAILED, end=self.end or max(self.modified, last_sign()), error=error)

    def public(self) -> dict[str, Any]:
        """Everything but the token and the marks."""
        hidden = {"token", "pid_mark", "supervisor_mark", "savepoint_request"}
        return {key: value for key, value in asdict(self).items() if key not in hidden}


def home(environ: Mapping[str, str] | None = None) -> Path:
    """`$PENSTOCK_HOME`, else `$XDG_STATE_HOME/penstock`, else `~/.local/state/penstock`; not created here."""
    environ = os.environ if environ is None else environ
    if own := environ.get(HOME_VARIABLE):
        return Path(own).expanduser().absolute()
    if xdg := environ.get("XDG_STATE_HOME"):
        return Path(xdg).expanduser().absolute() / "penstock"
    try:
        user = Path.home()
    except RuntimeError:
        user = Path("/")  # a container's user without a name; where this cannot be written, the job says so
    return user / ".local" / "state" / "penstock"


def history_folder(id: str, root: Path | None = None) -> Path:
    """Where the events of a run are kept, see `server.history`."""
    return (root or home()) / "history" / id


def now_ms() -> int:
    return int(time.time() * 1000)


class Registry:
    """Reads never fail: what cannot be read is not there. Writes raise OSError."""

    def __init__(self, folder: Path | None = None) -> None:
        self._home = folder or home()

    def log_file(self, id: str) -> Path:
        return self._home / "logs" / f"{id}.log"

    def open_log(self, id: str) -> BinaryIO:
        """The log of a detached run, to be added to; for its owner's eyes only."""
        own_folder(self._home / "logs")
        return open(create_own(self.log_file(id), os.O_APPEND), "ab")

    def entries(self) -> list[Entry]:
        """All runs of this machine that are known, as they are now, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for file in (self._home / "jobs").iterdir():
                entry = self._read(file) if file.suffix == ".json" else None
                if entry is not None and entry.here:
                    found.append(self._checked(entry))
        return sorted(found, key=lambda one: (one.start, one.id), reverse=True)

    def ids(self) -> set[str]:
        """Of all runs that have a file, also those of other machines that share this folder."""
        with contextlib.suppress(OSError):
            return {file.stem for file in (self._home / "jobs").iterdir() if file.suffix == ".json"}
        return set()

    def get(self, id: str) -> Entry | None:
        """The run as it is now."""
        entry = self.read_entry(id)
        return None if entry is None else self._checked(entry)

    def read_entry(self, id: str) -> Entry | None:
        """The run as its file says."""
        return self._read(self._file(id)) if ID.fullmatch(id) else None

    def put(self, entry: Entry) -> None:
        """Write the run's file, whole or not at all, for its owner's eyes only."""
        folder = own_folder(self._home / "jobs")
        body = {"version": VERSION, **asdict(entry), "modified": now_ms()}
        handle, aside = tempfile.mkstemp(prefix=f".{entry.id}.", dir=folder)  # made with mode 0600
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(body, file, indent=1)
            Path(aside).replace(self._file(entry.id))
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise

    def prune(self) -> None:
        """Forget the oldest runs that have ended, with their logs."""
        ended = [entry for entry in self.entries() if entry.state.ended]
        for entry in sorted(ended, key=lambda one: one.end or one.start, reverse=True)[MAX_ENDED_RUNS:]:
            self._file(entry.id).unlink(missing_ok=True)
            for log in (self.log_file(entry.id), earlier(self.log_file(entry.id))):
                log.unlink(missing_ok=True)

    def _checked(self, entry: Entry) -> Entry:
        return entry.checked(lambda: self._last_event(entry.id))

    def _last_event(self, id: str) -> int:
        """When a line was last added to the run's history, which is when the event of that line was; 0 for none."""
        with contextlib.suppress(OSError):
            files = history_folder(id, self._home).iterdir()
            return max((file.stat().st_mtime_ns // 1_000_000 for file in files), default=0)
        return 0

    def _file(self, id: str) -> Path:
        return self._home / "jobs" / f"{id}.json"

    def _read(self, file: Path) -> Entry | None:
        try:
            body = json.loads(read_own(file))
            if body["version"] > VERSION or not ID.fullmatch(body["id"]):
                return None  # a newer Penstock's: not ours to understand or to delete
            known = [field for field in fields(Entry) if field.name in body]
            if not all(isinstance(body[field.name], _kinds(field.type)) for field in known):
                return None
            return Entry(**{**{field.name: body[field.name] for field in known}, "state": State(body["state"])})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None


def _kinds(annotation: Any) -> tuple[type, ...]:
    """What JSON may hold for a field: nobody else writes these files, but a disk may give back anything."""
    names = [name.partition("[")[0].strip() for name in str(annotation).split("|")]
    return tuple({"str": str, "State": str, "int": int, "Mapping": dict, "None": NoneType}[name] for name in names)
