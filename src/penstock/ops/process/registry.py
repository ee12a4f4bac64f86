"""The jobs of this machine: one small file for each run of a job, in a folder that every command can read.

The file is readable by its owner only, because it holds a token. A run has one writer at a time: its driver while that
lives, its supervisor before and after. Files appear whole or not at all, so readers need no lock. A registry that
cannot be written never stops a job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from penstock.deadline import polling
from penstock.errors import ControlError, PenstockError
from penstock.naming import user_folder
from penstock.ops.process import lifeline
from penstock.processes import is_running, mark
from penstock.secrets import masked
from penstock.storage.local import create_own, own_folder, read_own
from penstock.storage.storage import local_path

log = logging.getLogger("penstock")

HOME_VARIABLE = "PENSTOCK_HOME"
VERSION = 1
MAX_ENDED_RUNS = 100
MAX_LOG_BYTES = 16 << 20  # of a detached job's log, and of the one before it
_LOG_SECONDS = 2.0
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
    driver's; each process is named with its mark, see `processes`. `error` has the fields of an error's `to_json`."""

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
    savepoint_request: str | None = None  # and the request for it
    progress: Mapping[str, Any] | None = None  # how far a restore is, see `progress.Step`
    lease: str | None = None  # who holds the lease of the job, for people

    def __repr__(self) -> str:
        return f"Entry({self.id}, {self.name!r}, {self.state})"  # never the token

    @property
    def here(self) -> bool:
        return self.host in ("", socket.gethostname())

    @property
    def supervised(self) -> bool:
        return is_running(self.supervisor, self.supervisor_mark)

    @property
    def driven(self) -> bool:
        return is_running(self.pid, self.pid_mark)

    def checked(self, last_sign: Callable[[], int] = int) -> Entry:
        """Its state now, judged by its processes too. `last_sign` gives the milliseconds of the run's last event."""
        if self.state.ended or not self.here or self.driven:
            return self
        gone = replace(self, address=None, token=None, certificate=None)  # the port may be another program's by now
        if self.supervised:
            return replace(gone, state=State.RESTARTING) if self.state is State.RUNNING else gone
        error = self.error or {
            "error": "ControlError",
            "happened": f"The process of job {self.name!r} has ended and left no message.",
            "safe": "every decided epoch is safe.",
            "to_do": "start it again, which recovers it.",
        }
        return replace(gone, state=State.FAILED, end=self.end or max(self.modified, last_sign()), error=error)

    def public(self) -> dict[str, Any]:
        """Everything but the token and the marks."""
        hidden = {"token", "pid_mark", "supervisor_mark", "savepoint_request"}
        return {key: value for key, value in asdict(self).items() if key not in hidden}


def home(environ: Mapping[str, str] | None = None) -> Path:
    """`$PENSTOCK_HOME`, else `$XDG_STATE_HOME/penstock`, else `~/.local/state/penstock`; not created here."""
    return user_folder(HOME_VARIABLE, "XDG_STATE_HOME", ".local/state", environ)


def history_folder(id: str, root: Path | None = None) -> Path:
    """Where the events of a run are kept, see `server.history`."""
    return (root or home()) / "history" / id


def now_ms() -> int:
    return int(time.time() * 1000)


class Registry:
    """Reads never fail: a file that cannot be read counts as missing. Writes raise OSError."""

    def __init__(self, folder: Path | None = None) -> None:
        self._home = folder or home()

    def log_file(self, id: str) -> Path:
        return self._home / "logs" / f"{id}.log"

    def open_log(self, id: str) -> BinaryIO:
        own_folder(self._home / "logs")
        return open(create_own(self.log_file(id), os.O_APPEND), "ab")

    def entries(self) -> list[Entry]:
        """All known runs of this machine, as they are now, the newest first."""
        known = filter(None, map(self.read_entry, self.ids()))
        entries = [self._checked(entry) for entry in known if entry.here]
        return sorted(entries, key=lambda entry: (entry.start, entry.id), reverse=True)

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
        if not ID.fullmatch(id):
            return None
        try:
            body = json.loads(read_own(self._file(id)))
            if body["version"] > VERSION or not ID.fullmatch(body["id"]):
                return None  # a newer Penstock's: not ours to understand or to delete
            known = [field for field in fields(Entry) if field.name in body]
            if not all(isinstance(body[field.name], _kinds(field.type)) for field in known):
                return None
            return Entry(**{**{field.name: body[field.name] for field in known}, "state": State(body["state"])})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def put(self, entry: Entry) -> None:
        """Write the run's file, whole or not at all, private to its owner."""
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
        """Forget the oldest runs that have ended, with their logs, and the start files of dead supervisors."""
        ended = [entry for entry in self.entries() if entry.state.ended]
        for entry in ended:
            if not entry.supervised:
                for file in (self._home / "starts").glob(f"{entry.id}.*"):
                    file.unlink(missing_ok=True)
        for entry in sorted(ended, key=lambda entry: entry.end or entry.start, reverse=True)[MAX_ENDED_RUNS:]:
            self._file(entry.id).unlink(missing_ok=True)
            for file in (self.log_file(entry.id), earlier(self.log_file(entry.id))):
                file.unlink(missing_ok=True)

    def _checked(self, entry: Entry) -> Entry:
        def last_event() -> int:
            with contextlib.suppress(OSError):
                files = history_folder(entry.id, self._home).iterdir()
                return max((file.stat().st_mtime_ns // 1_000_000 for file in files), default=0)
            return 0

        return entry.checked(last_event)

    def _file(self, id: str) -> Path:
        return self._home / "jobs" / f"{id}.json"


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The types that JSON may hold for a field: only Penstock writes these files, but a disk may return anything."""
    names = [name.partition("[")[0].strip() for name in str(annotation).split("|")]
    return tuple({"str": str, "State": str, "int": int, "Mapping": dict, "None": NoneType}[name] for name in names)


class Registration:
    """The entry of a run, which this process keeps up to date. Safe from any thread; never raises."""

    def __init__(self, entry: Entry, registry: Registry | None = None) -> None:
        self._registry = registry or Registry()
        self._lock = threading.RLock()
        self._warned = False
        self.entry = entry

    def update(self, **changes: Any) -> Entry:
        with self._lock:
            changed = replace(self.entry, **changes)
            if changed != self.entry:
                self.entry = changed
                self.write()
            return self.entry

    def write(self) -> None:
        try:
            with self._lock:
                self._registry.put(self.entry)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("the job runs, but commands will not find it: the registry cannot be written: %s", error)


_expected: str | None = None
_alone = False


def expect_run(id: str | None, *, alone: bool = False) -> None:
    """The next job of this process is the run `id`, which its supervisor has begun, also after a restart. `alone`: it
    is refused where the same job runs already."""
    global _expected, _alone
    _expected, _alone = id, alone


def expected_run() -> str | None:
    return _expected


def register_driver(name: str, storage: str) -> Registration:
    """The entry of a job that runs in this process: a new one, or the one that its supervisor has created."""
    global _expected
    registry = Registry()
    with contextlib.suppress(OSError):
        registry.prune()
    run, _expected = _expected or uuid.uuid4().hex, None  # once: another job of this process is another run
    entry = registry.read_entry(run) or Entry(run, name, start=now_ms())
    if local_path(storage) is not None and not storage.startswith(("/", "file:")):
        storage = str(local_path(storage))  # a relative path means another folder to a reader elsewhere
    if _alone and entry.pid is None:
        _refuse_second(registry, replace(entry, name=name, storage=masked(storage)))
    restarted, program = entry.pid is not None, sys.argv[0] if sys.argv else ""
    entry = replace(
        entry,
        name=name,
        state=State.RESTARTING if restarted else State.CREATED,
        end=None,
        error=None,
        pid=os.getpid(),
        pid_mark=mark(os.getpid()),
        host=socket.gethostname(),
        storage=masked(storage),
        script=entry.script or ("" if program in ("", "-c", "-m") else str(Path(program).absolute())),
        restarts=entry.restarts + int(restarted),
        lease=_lease_text(lifeline.lease()),
    )
    return Registration(entry, registry)


def _refuse_second(registry: Registry, entry: Entry) -> None:
    """Raise where the job runs already on this machine. The error is in the registry, for the command that waits."""
    for other in registry.entries():
        same = (other.name, other.storage) == (entry.name, entry.storage) and other.id != entry.id
        over = other.state.ended or other.state is State.SUSPENDED  # which waits for the lease
        if same and not over and (other.driven or other.supervised):
            error = ControlError(
                f"Job {entry.name!r} runs already: {other.id}, {other.state}.",
                safe="it goes on; the new run has read and written nothing.",
                to_do=f"end it by `penstock stop {entry.name}`, or let the new run replace it: `run -d --take-over`.",
            )
            with contextlib.suppress(OSError):
                registry.put(replace(entry, error=error_fields(error)))
            raise error


class SupervisorEntry:
    """Keeps the entry of a run while no driver does: a listener for the supervisor's events."""

    def __init__(self, script: Path, *, id: str | None = None, log_file: str | None = None) -> None:
        self.id = id or uuid.uuid4().hex
        self._registry = Registry()
        with contextlib.suppress(OSError):
            self._registry.prune()
        entry = Entry(self.id, script.stem, start=now_ms(), script=str(script.absolute()), log=log_file)
        me = {"supervisor": os.getpid(), "supervisor_mark": mark(os.getpid()), "host": socket.gethostname()}
        self._registration = Registration(entry, self._registry)
        self._registration.update(**me)

    def __call__(self, event: Mapping[str, Any]) -> None:
        action, reason = event.get("action"), str(event.get("reason", ""))
        if event.get("event") != "supervisor" or action in ("started", "has_lease"):
            return
        last = self._registry.read_entry(self.id) or self._registration.entry  # as the driver left it
        self._registration.entry, update = last, self._registration.update
        failed = {"error": "ControlError", "happened": f"The driver {reason}.", "safe": "every decided epoch is safe."}
        match action:
            case "awaits_lease" if not last.driven:
                update(state=State.SUSPENDED, end=None, lease=_lease_text(event))
            case "lost_turn":
                update(state=State.SUSPENDED, end=None, lease=None, address=None, token=None, certificate=None)
            case "restarting":
                update(state=State.RESTARTING, end=None, error=last.error or failed)
            case "failed" | "gave_up":
                update(state=State.FAILED, end=now_ms(), error=last.error or failed)
            case "stopped" | "done" if not last.state.ended:
                end = State.FINISHED if action == "done" else State.CANCELED
                update(state=State.FAILED if last.state is State.FAILING else end, end=now_ms())


def error_fields(error: BaseException) -> dict[str, str]:
    if isinstance(error, PenstockError):
        return {key: str(value) for key, value in json.loads(error.to_json()).items()}
    return {"error": "ControlError", "happened": masked(f"{type(error).__name__}: {error}")[:4000]}


def _lease_text(lease: Mapping[str, Any] | None) -> str | None:
    if lease is None:
        return None
    return f"turn {lease['turn']}, {'here' if lease.get('here') else 'on ' + str(lease['host'])}"


def earlier(file: Path) -> Path:
    """The log before it was last truncated."""
    return file.with_name(f"{file.name}.1")


@contextmanager
def kept_small(file: Path) -> Iterator[None]:
    """Limit the log in the block: copied aside and truncated, as several processes have it open for appending."""

    def look() -> bool:
        try:
            _truncate(file)
        except OSError as error:
            logging.getLogger("penstock.supervisor").warning("the log cannot be kept small: %s", error)
            return False
        return True

    with polling("penstock-log", _LOG_SECONDS, look):
        yield


def _truncate(file: Path) -> None:
    """Where it is too large. Lines written between the copy and the truncation, a moment, are lost."""
    if file.stat().st_size <= MAX_LOG_BYTES:
        return
    aside = earlier(file).with_suffix(".new")
    aside.unlink(missing_ok=True)
    with file.open("rb") as content, open(create_own(aside), "wb") as copy:
        content.seek(-MAX_LOG_BYTES, os.SEEK_END)
        shutil.copyfileobj(content, copy)
        os.truncate(file, 0)
    aside.replace(earlier(file))
