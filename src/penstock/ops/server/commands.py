"""The paths that change something. Flink's steer the job of this process. Penstock's own run its commands, each in a
process of its own: neither a job nor this server waits for it, starts Spark, or runs a user's program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.config.levels import OPTIONS
from penstock.config.operations import ALLOW, CLAIM, FORK_NAME, FORK_SUFFIX, PATH, RESTORE_ID
from penstock.errors import ControlError, from_json
from penstock.events import FILE_VARIABLE
from penstock.ops.process.registry import ID, Entry
from penstock.ops.process.supervisor import penstock_command
from penstock.ops.server import history
from penstock.ops.server.client import PROGRESS_HEADER
from penstock.ops.server.control import Lifecycle, Operations, as_penstock_error
from penstock.ops.server.flink import JOB
from penstock.ops.server.own import ROOT, RUN
from penstock.ops.server.runs import MachineRuns, Run
from penstock.ops.server.web import Endpoint, error_response, flag, text
from penstock.progress import Progress
from penstock.secrets import MASK

COMMAND_SECONDS = 300.0  # for a command to end, and for one that waits behind another to begin
MOST_WAITING = 8
_ERROR_CHARACTERS = 2000
_OF_SUBMIT = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")  # with them a command would use the job's own JVM
_NOT_INHERITED = (FILE_VARIABLE, "PENSTOCK_OPTIONS", *_OF_SUBMIT)


class Steering:
    """`lifecycle`: of the job in this process; None in a server of past runs, which takes no command."""

    def __init__(self, operations: Operations, lifecycle: Lifecycle | None = None) -> None:
        self._operations, self._lifecycle = operations, lifecycle

    def end(self, request: Request) -> dict[str, Any]:
        mode = request.query_params.get("mode", "cancel")
        if mode not in ("cancel", "stop"):
            raise HTTPException(400, f"mode={mode} is neither cancel nor stop")
        lifecycle = self._running(request)
        if mode == "stop":
            lifecycle.job.stop()
        else:
            lifecycle.cancelling()
            lifecycle.job.cancel()
        return {}

    def savepoint(self, request: Request) -> Response:
        body, lifecycle = request.state.body, self._running(request)
        directory, kind, cancel = text(body, "target-directory"), _kind(body), flag(body, "cancel-job")

        def take(progress: Progress) -> str:
            if not cancel:
                return lifecycle.job.savepoint(directory, kind=kind, progress=progress)
            # Nothing may become visible after the savepoint, so the job stops at it. Then it counts as cancelled.
            with lifecycle.cancelling_at_end():
                return lifecycle.job.stop_with_savepoint(directory, kind=kind, cancel=True, progress=progress)

        return self._start_savepoint(lifecycle, body, take)

    def stop(self, request: Request) -> Response:
        body, lifecycle = request.state.body, self._running(request)
        directory, kind, drain = text(body, "targetDirectory"), _kind(body), flag(body, "drain")
        stop = partial(lifecycle.job.stop_with_savepoint, directory, drain=drain, kind=kind)
        return self._start_savepoint(lifecycle, body, lambda progress: stop(progress=progress))

    def _start_savepoint(
        self, lifecycle: Lifecycle, body: Mapping[str, Any], take: Callable[[Progress], str]
    ) -> Response:
        def work(id: str) -> dict[str, Any]:
            path = take(self._operations.progress(id))
            lifecycle.savepoint(path, id)
            return {"location": path}

        return self._start("savepoint", body, work)

    def checkpoint(self, request: Request) -> Response:
        job = self._running(request).job
        return self._start("checkpoint", request.state.body, lambda _: {"checkpointId": job.checkpoint()})

    def dispose(self, request: Request) -> Response:
        path = text(request.state.body, "savepoint-path")
        if path is None:
            raise HTTPException(400, "savepoint-path is missing")

        def work(_: str) -> dict[str, Any]:
            from penstock.savepoints.savepoint import dispose

            dispose(path)
            return {}

        return self._start("disposal", request.state.body, work)

    def poll_savepoint(self, request: Request) -> Response:
        entry = request.state.run.entry
        if self._lifecycle is None and entry.savepoint and entry.savepoint_request == request.path_params["request"]:
            return _completed({"location": entry.savepoint})
        return self.poll("savepoint", request)

    def _running(self, request: Request) -> Lifecycle:
        if self._lifecycle is None:
            entry = request.state.run.entry
            happened = f"Job {entry.name!r} is {entry.state} and takes no commands."
            raise ControlError(happened, safe="nothing was done.", to_do="start it again, if it is to go on.")
        return self._lifecycle

    def _start(self, kind: str, body: Mapping[str, Any], work: Callable[[str], dict[str, Any]]) -> Response:
        request = text(body, "triggerId")
        if request is not None and not ID.fullmatch(request):
            raise HTTPException(400, f"triggerId {request!r} is not 32 hexadecimal digits")
        return JSONResponse({"request-id": self._operations.start(kind, request, work)}, 202)

    def poll(self, kind: str, request: Request) -> Response:
        request_id = request.path_params["request"]
        operation = self._operations.get(kind, request_id)
        if operation is None:
            raise HTTPException(404, f"There was no {kind} with the request id {request_id}")
        if not operation.done():
            # A header, not a field: Flink's clients go by the shape of the body.
            headers = {PROGRESS_HEADER: operation.step.to_json()} if operation.step is not None else {}
            return JSONResponse({"status": {"id": "IN_PROGRESS"}, "operation": None}, headers=headers)
        failure = operation.exception()
        answer = _completed(operation.result()) if failure is None else error_response(as_penstock_error(failure), 500)
        answer.background = BackgroundTask(operation.fetched.set)  # once it has been sent
        return answer


def _completed(operation: dict[str, Any] | None) -> Response:
    return JSONResponse({"status": {"id": "COMPLETED"}, "operation": operation})


def _kind(body: Mapping[str, Any]) -> str:
    """Of a savepoint. Flink's default is CANONICAL; ours is native, which costs less and restores just as well."""
    kind = (text(body, "formatType") or "native").lower()
    if kind not in ("canonical", "native"):
        raise HTTPException(400, f"formatType {kind} is neither CANONICAL nor NATIVE")
    return kind


def steering_endpoints(steering: Steering) -> list[Endpoint]:
    def post(path: str, handler: Callable[[Request], Response]) -> Endpoint:
        return Endpoint("POST", path, handler, secret=True, flink=True, status=202, body=True)

    def poll(path: str, handler: Callable[[Request], Response]) -> Endpoint:
        return Endpoint("GET", f"{path}/{{request}}", handler, secret=True, flink=True)

    savepoints, checkpoints, disposal = f"{JOB}/savepoints", f"{JOB}/checkpoints", "/savepoint-disposal"
    return [
        Endpoint("PATCH", JOB, steering.end, secret=True, flink=True, status=202),
        post(savepoints, steering.savepoint),
        poll(savepoints, steering.poll_savepoint),
        post(f"{JOB}/stop", steering.stop),
        post(checkpoints, steering.checkpoint),
        poll(checkpoints, partial(steering.poll, "checkpoint")),
        post(disposal, steering.dispose),
        poll(disposal, partial(steering.poll, "disposal")),
    ]


def command_endpoints(machine: MachineRuns | None) -> list[Endpoint]:
    commands = Commands(machine)

    def settle(verb: str) -> Endpoint:
        return Endpoint("POST", f"{RUN}/transactions/{verb}", partial(commands.settle, verb), secret=True, body=True)

    start = Endpoint("POST", f"{ROOT}/runs", commands.start, secret=True, status=201, body=True)
    audit = Endpoint("POST", f"{RUN}/audit", commands.audit, secret=True, body=True)
    return [start, audit, *map(settle, ("commit", "abort", "resolve"))]


class Commands:
    """The handlers. `machine`: all runs, where programs may be started; None in a job's own server."""

    def __init__(self, machine: MachineRuns | None) -> None:
        self._machine = machine
        self._turn, self._waiting = asyncio.Lock(), 0  # each command may start a Spark of its own

    async def start(self, request: Request) -> dict[str, Any]:
        return dict(await self._in_turn(self._start, request.state.body))

    async def settle(self, verb: str, request: Request) -> dict[str, Any]:
        return {"result": await self._in_turn(_settle, verb, request.state.run, request.state.body)}

    async def audit(self, request: Request) -> dict[str, Any]:
        return {"audit": await self._in_turn(_audit, request.state.run)}

    async def _in_turn(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """One after the other; those that wait hold no thread, which others need to read."""
        if self._waiting >= MOST_WAITING:
            raise HTTPException(429, "Too many commands wait for each other; ask again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise HTTPException(429, "Another command has not ended; ask again later") from None
        finally:
            self._waiting -= 1
        try:
            return await run_in_threadpool(function, *arguments)
        finally:
            self._turn.release()

    def _start(self, body: Mapping[str, Any]) -> Any:
        program, path, fork = text(body, "program"), text(body, "from"), text(body, "fork")
        suffix, claim, run = text(body, "suffix"), flag(body, "claim"), text(body, "run")
        if self._machine is None:
            happened = "A job's own page starts no programs."
            raise ControlError(happened, safe="nothing was started.", to_do="open `penstock ui`.")
        known = [entry for entry in self._machine.registry.entries() if entry.script and entry.script == program]
        known = [entry for entry in known if run in (None, entry.id)]
        if program is None or not known or not Path(program).is_file():
            raise HTTPException(404, "This program is not one that the registry knows")
        if fork is not None and path is None:
            raise HTTPException(400, "A fork needs the savepoint that it starts from")
        options, arguments = ["run", "-d", "--json"], list[str]()
        if run is not None:
            dropped = (PATH, ALLOW, CLAIM, RESTORE_ID) if path is not None else ()
            again, arguments = _as_started(known[0], (*dropped, FORK_NAME, FORK_SUFFIX) if fork else dropped)
            options += again
        if path is not None:
            options += [f"--from-savepoint={path}", f"--claim-mode={'claim' if claim else 'no_claim'}"]
        if fork is not None:
            options += [f"--fork={fork}", f"--suffix={suffix or f'_{fork}'}"]
        return run_command([*options, "--", program, *arguments], _directory(known[0]))


def _as_started(entry: Entry, dropped: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, without the settings `dropped`, and the arguments that a run was started with. Without its restore
    dropped, the program resumes from the job's own checkpoint. Raises where a secret would be needed again."""
    described = history.read_history(entry.id).description
    rows = [row for row in described.get("settings") or () if row.get("source") == OPTIONS]
    given = {str(row["key"]): str(row["value"]) for row in rows if row["key"] not in dropped}
    arguments = [str(argument) for argument in described.get("arguments") or ()]
    hidden = [f"-D {key}" for key, value in given.items() if MASK in value]
    hidden += ["its arguments"] if any(MASK in argument for argument in arguments) else []
    if hidden:
        happened = f"The run was started with secrets, which are not kept: {', '.join(hidden)}."
        to_do = f"start it in a terminal with `penstock run -d`, as before: {entry.script}."
        raise ControlError(happened, safe="nothing was started.", to_do=to_do)
    config = [f"--config={described['config']}"] if described.get("config") else []
    return [*config, *(f"-D{key}={value}" for key, value in given.items())], arguments


def _settle(verb: str, run: Run, body: Mapping[str, Any]) -> Any:
    ids, outcome = body.get("ids"), body.get("as")
    if not isinstance(ids, list) or not ids or not all(isinstance(name, str) and name.isprintable() for name in ids):
        raise HTTPException(400, "ids is not a list of transactions")
    if verb == "resolve" and outcome not in ("committed", "lost"):
        raise HTTPException(400, "as is neither committed nor lost")
    if run.live:
        happened = f"Job {run.entry.name!r} runs, and ends its own transactions."
        raise ControlError(happened, safe="nothing was touched.", to_do="stop it first, if they must be ended by hand.")
    script = _program(run.entry, "use `penstock transactions` with --job.")
    options = [f"--as={outcome}", "--yes"] if verb == "resolve" else []
    return run_command(["transactions", verb, f"--job={script}", "--json", *options, "--", *ids], _directory(run.entry))


def _audit(run: Run) -> Any:
    _program(run.entry, "run `penstock audit JOB.py` where the program is.")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "audit.json")
        arguments = ["audit", "--json", str(report), "--", run.entry.id]
        return run_command(arguments, _directory(run.entry), report=report)


def _program(entry: Entry, to_do: str) -> str:
    if not entry.script or not Path(entry.script).is_file():
        happened = "The job's program is not where the registry says, and only it knows the sinks."
        raise ControlError(happened, safe="nothing was touched.", to_do=to_do)
    return entry.script


def _directory(entry: Entry) -> Path:
    """Where the run was started, as far as it is known: its program may name files relative to it."""
    directory = history.read_history(entry.id).description.get("directory")
    return Path(directory) if directory and Path(directory).is_dir() else Path(entry.script).parent


def run_command(arguments: Sequence[str], folder: Path | None = None, *, report: Path | None = None) -> Any:
    """What `penstock ARGUMENTS` answers in JSON, or writes into the file `report`, which it may do with any status.
    Raises the error that it shows."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    process = subprocess.Popen(
        penstock_command(*arguments),
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        happened = f"`penstock {arguments[0]}` did not end within {COMMAND_SECONDS:.0f} s and was killed."
        raise ControlError(happened, to_do="run it in a terminal.") from None
    if report is not None and report.exists():
        return json.loads(report.read_bytes())
    if process.returncode == 0:
        return json.loads(out or b"{}")
    raise _error(errors.decode(errors="replace"), process.returncode)


def _error(shown: str, status: int) -> Exception:
    last = next((line for line in reversed(shown.splitlines()) if line.startswith("{")), "")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return from_json(last)
    return ControlError(f"The command ended with status {status}: {shown.strip()[-_ERROR_CHARACTERS:]}")
