"""Commands for running jobs, and how they find the job: by name, by id or the beginning of one, here or elsewhere."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Display, Json, Output, duration_text
from penstock.cli.usage import Command
from penstock.deadline import Deadline
from penstock.errors import ControlError, JobNotFound, PenstockError
from penstock.logs import plain_text
from penstock.ops.process.registry import Entry, Registry, State, earlier, now_ms
from penstock.progress import Progress, Step

if TYPE_CHECKING:
    from typer._click import Context  # type: ignore[import-not-found, unused-ignore]

    from penstock.ops.server.client import Client

_POLL_SECONDS = 0.1
_CHUNK = 1 << 16
_LOOK_SECONDS = 1.0
_SHORTEST_PREFIX = 4
_ELSE = "otherwise execution.checkpointing.savepoint-dir, or _savepoints beside the checkpoint"
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


class Kind(StrEnum):
    """Of a savepoint."""

    CANONICAL = "canonical"
    NATIVE = "native"


def complete(incomplete: str) -> list[str]:
    names = {entry.name for entry in Registry().entries() if not entry.state.ended}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_any(incomplete: str) -> list[str]:
    """Also the names of jobs that have ended."""
    return sorted(name for name in {entry.name for entry in Registry().entries()} if name.startswith(incomplete))


_WHICH = "Its name, its id, or the beginning of it."
Job = Annotated[str, typer.Argument(metavar="JOB", help=_WHICH, autocompletion=complete)]
AnyJob = Annotated[str, typer.Argument(metavar="JOB", help=_WHICH, autocompletion=complete_any)]
Manager = Annotated[
    str | None,
    typer.Option("-m", "--jobmanager", metavar="HOST:PORT", help="A job elsewhere; its token in PENSTOCK_TOKEN."),
]
Type = Annotated[
    Kind, typer.Option("--type", "-type", case_sensitive=False, help="canonical: readable by any tool and backend.")
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait so long without progress; the job still ends."),
]


def list_jobs(
    only_running: Annotated[bool, typer.Option("-r", "--running", help="Only jobs that are RUNNING.")] = False,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """Show the jobs of this machine: those that have not ended, or all with -a."""
    output = Output.choose(as_json)
    entries = Registry().entries() if manager is None else entries_elsewhere(manager)
    if only_running:
        entries = [entry for entry in entries if entry.state is State.RUNNING]
    wanted = [entry for entry in entries if everything or not entry.state.ended]
    if as_json:
        output.table("Jobs", [entry.public() for entry in wanted])
    elif wanted:
        output.table("Jobs", [job_row(entry) for entry in wanted])
    else:
        output.line("No job is known." if everything else "No job runs.")


def savepoint(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Its name or id.", autocompletion=complete)] = None,
    directory: Annotated[str | None, typer.Argument(metavar="DIR", help=f"Where to; {_ELSE}.")] = None,
    kind: Type = Kind.NATIVE,
    dispose: Annotated[
        str | None, typer.Option("-d", "--dispose", metavar="PATH", help="Delete this savepoint instead.")
    ] = None,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """Take a savepoint of a running job, which goes on; or delete one."""
    output = Output.choose(as_json)
    if (job is None) == (dispose is None):
        raise typer.BadParameter("name a job, or --dispose a path; one of the two.")
    if dispose is not None:
        with output.working(f"Deleting {dispose} …"):
            if manager is None:
                from penstock.savepoints.savepoint import dispose as delete

                delete(dispose)
            else:
                client_at(manager).perform("/savepoint-disposal", {"savepoint-path": dispose}, "/savepoint-disposal")
        output.record("Savepoint", {"disposed": dispose})
        return
    assert job is not None
    target = find_running(job, manager)
    body = {"target-directory": directory, "cancel-job": False, "formatType": kind.name}
    with output.progress(f"Savepoint of {target.name}") as display:
        path = _savepoint(target, "savepoints", body, display)
    output.record("Savepoint", {"id": target.id, "name": target.name, "savepoint": path})


def checkpoint(job: Job, manager: Manager = None, as_json: Json = False) -> None:
    """Wait for the next complete checkpoint of a running job."""
    output, target = Output.choose(as_json), find_running(job, manager)
    path = f"/jobs/{target.id}/checkpoints"
    with output.working(f"Checkpoint of {target.name} …"):
        answer = target.client.perform(path, {"checkpointType": "CONFIGURED"}, path)
    output.record("Checkpoint", {"id": target.id, "name": target.name, "checkpoint": answer["checkpointId"]})


def stop(
    job: Job,
    directory: Annotated[
        str | None,
        typer.Option("-p", "--savepoint-path", "--savepointPath", metavar="DIR", help=f"Where it goes; {_ELSE}."),
    ] = None,
    drain: Annotated[bool, typer.Option("-d", "--drain", help="First emit the final results of windows.")] = False,
    kind: Type = Kind.NATIVE,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint/--no-savepoint", help="Whether to take one; checkpoints stay in any case.")
    ] = True,
    timeout: Timeout = 600,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """End a job cleanly: finish the epoch under way, take a savepoint, commit, end."""
    if not with_savepoint and (directory or drain):
        raise typer.BadParameter("-p and --drain belong to a savepoint.")
    body = {"targetDirectory": directory, "drain": drain, "formatType": kind.name}
    _end(job, manager, "stop", body if with_savepoint else None, as_json, timeout)


class WithOptionalValue(Command):
    """`-s` with or without a folder after it, as Flink has it: at the end, or before an option, it is alone."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        filled: list[str] = []
        for argument, following in zip(args, [*args[1:], "-"], strict=False):
            filled.append(argument)
            if argument in ("-s", "--with-savepoint", "--withSavepoint") and following.startswith("-"):
                filled.append("")
        return list(super().parse_args(ctx, filled))


def cancel(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Its name or id.", autocompletion=complete)] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "-s", "--withSavepoint", "--with-savepoint", metavar="[DIR]", help="With a savepoint; DIR is optional."
        ),
    ] = None,
    kind: Type = Kind.NATIVE,
    timeout: Timeout = 600,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """End a job at once: an undecided epoch is aborted, a decided one is committed."""
    with_savepoint = directory is not None
    if job is None:
        job, directory = directory or None, None  # `cancel -s JOB`: what follows -s is the job
    if not job:
        raise typer.BadParameter("name a job.")
    body = {"target-directory": directory or None, "cancel-job": True, "formatType": kind.name}
    _end(job, manager, "cancel", body if with_savepoint else None, as_json, timeout)


def _end(
    job: str, manager: str | None, mode: str, savepoint: dict[str, Any] | None, as_json: bool, timeout: float
) -> None:
    output, target = Output.choose(as_json), find_running(job, manager)
    doing, verb = {"stop": ("Stopping", "stop"), "cancel": ("Cancelling", "savepoints")}[mode]
    path = None
    with output.progress(f"{doing} {target.name}") as display:
        wait = Wait(target, f"{doing} {target.name}", display, timeout)
        if savepoint is not None:
            path = _savepoint(target, verb, savepoint, wait.step, wait)
        else:
            target.client.ask("PATCH", f"/jobs/{target.id}?mode={mode}")
        entry = target.wait_until_ended(wait)
    state = entry.state if entry is not None else None
    output.record("Job", {"id": target.id, "name": target.name, "state": state, "savepoint": path})
    if state is State.FAILED:
        raise typer.Exit(1)


class Wait:
    """A command's wait for a job, which shows what the job waits for. Called again and again, it raises `ControlError`
    after `seconds` without progress."""

    def __init__(self, target: JobTarget, doing: str, display: Display, seconds: float) -> None:
        self._target, self._doing, self._display, self._seconds = target, doing, display, seconds
        self._patience, self._look = Deadline(seconds), Deadline(_LOOK_SECONDS)
        self._last: Step | None = None

    def step(self, step: Step) -> None:
        if step != self._last:
            self._last, self._patience = step, Deadline(self._seconds)
        self._display(step)

    def __call__(self) -> None:
        if self._patience.passed():
            raise ControlError(
                f"{self._doing} has made no progress for {self._seconds:g} s: it waits for {self._reason()}.",
                safe="the job has the request and still ends when it can; nothing is half done.",
                to_do="see `penstock show` and its log, wait, or end it at once by `penstock cancel`.",
            )
        if self._look.passed():
            self._look = Deadline(_LOOK_SECONDS)
            self._display.describe(f"{self._doing}: waits for {self._reason()}")

    def _reason(self) -> str:
        entry = Registry().read_entry(self._target.id) if self._target.local else None
        with contextlib.suppress(PenstockError, LookupError, TypeError):
            for query in self._target.client.ask("GET", f"/penstock/v1/runs/{self._target.id}")["queries"]:
                if query["phase"] != "idle":
                    since = duration_text(now_ms() - query["phase_since"])
                    return f"epoch {query['epoch']} of query {query['uid']} (in {query['phase']} for {since})"
            return f"{self._last.what} to end" if self._last is not None else "its queries to end"
        process = None if entry is None else entry.pid if entry.driven else entry.supervisor
        return "an answer" if process is None else f"process {process} to end"


def _savepoint(
    target: JobTarget, verb: str, body: dict[str, Any], progress: Progress, waiting: Callable[[], None] = lambda: None
) -> str:
    """The path. A job that ends for its savepoint may be gone before the next poll; the registry then has it."""
    from penstock.ops.server.client import NoAnswer

    requests: list[str] = []
    try:
        job = f"/jobs/{target.id}"
        answer = target.client.perform(f"{job}/{verb}", body, f"{job}/savepoints", requests.append, progress, waiting)
        return str(answer["location"])
    except NoAnswer:
        entry = target.wait_until_ended(waiting) if requests else None
        if entry is None or entry.savepoint is None or entry.savepoint_request != requests[0]:
            raise
        return entry.savepoint


def entries_elsewhere(manager: str) -> list[Entry]:
    """The jobs at that address, as far as its overview says."""

    def entry(facts: dict[str, Any]) -> Entry:
        start, end = facts["start-time"], facts["end-time"]
        end = end if end >= 0 else None
        return Entry(facts["jid"], facts["name"], State(facts["state"]), start=start, end=end, address=manager)

    try:
        return [entry(facts) for facts in client_at(manager).jobs()]
    except (KeyError, ValueError) as error:
        raise ControlError(f"What answers at {manager} is not a job: {error!r}.") from error


def job_row(entry: Entry) -> dict[str, Any]:
    """Fits a terminal of 80 columns; JSON has everything."""
    age = duration_text((entry.end or now_ms()) - entry.start)
    return {
        "id": entry.id[:12], "name": entry.name, "state": entry.state, "for": age, "restarts": entry.restarts,
        "address": entry.address or "",
    }  # fmt: skip


def logs(
    job: AnyJob,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Only the last so many.")] = None,
) -> None:
    """Show what a detached job has written; also of one that has ended."""
    entry = find_entry(job)
    if entry.log is None or not Path(entry.log).is_file():
        raise ControlError(
            f"Job {entry.name!r} ({entry.id}) has no log: its output went to the process that started it.",
            to_do="start it with `penstock run -d` to have one.",
        )
    write = _writer()
    before = earlier(Path(entry.log))
    with before.open("rb") if before.is_file() else io.BytesIO() as old, Path(entry.log).open("rb") as file:
        for line in old if lines is None else deque(itertools.chain(old, file), maxlen=lines):
            write(line)
        while True:
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # it has begun anew
            now = Registry().get(entry.id) if follow else None
            over = now is None or (now.state.ended and not now.supervised)  # asked before the last read
            while part := file.read(_CHUNK):
                write(part)
            if over:
                return
            time.sleep(_POLL_SECONDS)


def _writer() -> Callable[[bytes], None]:
    """To a terminal, without control characters or colours: a log quotes errors, and those rows."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(part: bytes) -> None:
        if sys.stdout.isatty():
            sys.stdout.write(plain_text(_COLOUR.sub("", decoder.decode(part))))
        else:
            sys.stdout.buffer.write(part)
        sys.stdout.flush()

    return write


@dataclass(frozen=True)
class JobTarget:
    """A running job, and how to reach it. `local`: it is in this machine's registry."""

    id: str
    name: str
    client: Client
    local: bool

    def wait_until_ended(self, waiting: Callable[[], None]) -> Entry | None:
        """Returns when the job and its supervisor are gone; None where this machine cannot see that."""
        while self.local:
            entry = Registry().get(self.id)
            if entry is None or (entry.state.ended and not entry.supervised):
                return entry
            waiting()
            time.sleep(_POLL_SECONDS)
        return None


def find_running(job: str, manager: str | None) -> JobTarget:
    """The running job of this name or id. Raises `JobNotFound` where there is none, or more than one."""
    if manager is not None:
        chosen = find_elsewhere(job, manager)
        return JobTarget(chosen.id, chosen.name, client_at(manager), local=False)
    entries = [entry for entry in Registry().entries() if _matches(job, entry)]
    alive = [entry for entry in entries if not entry.state.ended]
    if not alive and entries:
        about = f"Job {entries[0].name!r} ({entries[0].id}) does not run: it is {entries[0].state}."
        raise _not_found(about, "`penstock list -a` shows jobs that have ended.")
    entry = _choose(job, alive, "on this machine")
    if entry.address is None:
        yet, process = (" yet", entry.supervisor) if entry.supervised else ("", entry.pid)
        raise ControlError(
            f"Job {entry.name!r} ({entry.id}) is {entry.state} and takes no commands{yet}.",
            safe="no command was sent.",
            to_do=f"try again once it runs, or send SIGTERM to its process {process}, which ends it cleanly.",
        )
    return JobTarget(entry.id, entry.name, client_of(entry), local=True)


def find_elsewhere(job: str, manager: str) -> Entry:
    return _choose(job, [entry for entry in entries_elsewhere(manager) if _matches(job, entry)], f"at {manager}")


def client_of(entry: Entry) -> Client:
    """Of a run of this machine that has an address."""
    from penstock.ops.server.client import Client

    return Client(str(entry.address), entry.token, entry.certificate)


def client_at(manager: str) -> Client:
    """Its token is `PENSTOCK_TOKEN`, or the registry's, which is only sent to the address recorded with it."""
    from penstock.ops.server.client import Client

    client = Client(manager, None)
    tokens = (entry.token for entry in Registry().entries() if client.is_at(entry.address) and not entry.state.ended)
    return Client(manager, os.environ.get("PENSTOCK_TOKEN") or next(tokens, None))


def find_entry(job: str) -> Entry:
    """The run of this name or id, whether it runs or not: of one name the one that runs, or else the newest."""
    entries = [entry for entry in Registry().entries() if _matches(job, entry)]
    return _choose(job, [entry for entry in entries if not entry.state.ended] or entries[:1], "known here")


def _matches(wanted: str, entry: Entry) -> bool:
    return wanted == entry.name or (len(wanted) >= _SHORTEST_PREFIX and entry.id.startswith(wanted.lower()))


def _choose(wanted: str, matches: Sequence[Entry], where: str) -> Entry:
    candidates = [entry for entry in matches if entry.name == wanted] or matches
    if not candidates:
        about = f"No job {wanted!r} {'is known here' if where == 'known here' else f'runs {where}'}."
        raise _not_found(about, "see `penstock list`; a job is named by its name, its id, or at least 4 digits of it.")
    if len(candidates) > 1:
        listed = ", ".join(f"{candidate.name} {candidate.id} ({candidate.state})" for candidate in candidates)
        about = f"{wanted!r} may be any of {len(candidates)} jobs: {listed}."
        raise _not_found(about, "give the id of the one you mean, or as much of it as is unique.")
    return candidates[0]


def _not_found(happened: str, to_do: str) -> JobNotFound:
    return JobNotFound(happened, safe="no command was sent.", to_do=to_do)
