"""What the page asks for that a command does: in a process of its own, so that neither a job nor this server waits for
it, starts Spark, or runs a user's program. The rules are the command's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ControlError, from_json
from penstock.events import FILE_VARIABLE
from penstock.ops.process.registry import ID_VARIABLE, Entry
from penstock.ops.process.supervisor import penstock_command
from penstock.ops.server import history, requests
from penstock.ops.server.answers import AsciiJson
from penstock.ops.server.own import ROOT, RUN
from penstock.ops.server.routes import Table
from penstock.ops.server.runs import MachineRuns, Run, Runs

COMMAND_SECONDS = 300.0
"""For a command to end, and for one that waits behind another to begin."""
MOST_WAITING = 8
_ERROR_CHARACTERS = 2000
_NOT_THEIRS = (ID_VARIABLE, FILE_VARIABLE, "PENSTOCK_OPTIONS")


def run_command(arguments: Sequence[str], folder: Path | None = None, seconds: float = COMMAND_SECONDS) -> Any:
    """What `penstock ARGUMENTS` answers in JSON. Raises the error that it shows."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    process = subprocess.Popen(
        penstock_command(*arguments),
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, told = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise ControlError(
            f"`penstock {arguments[0]}` did not end within {seconds:.0f} s and was ended.",
            to_do="run it in a terminal.",
        ) from None
    if process.returncode == 0:
        return json.loads(out or b"{}")
    raise _error(told.decode(errors="replace"), process.returncode)


def _error(told: str, status: int) -> Exception:
    for line in reversed(told.splitlines()):
        if line.startswith("{"):
            try:
                return from_json(line)
            except (ValueError, KeyError, TypeError):
                break
    return ControlError(f"The command ended with status {status}: {told.strip()[-_ERROR_CHARACTERS:]}")


class CommandPaths:
    """The handlers. `machine`: all runs, where programs may be started; None in a job's own server."""

    def __init__(self, runs: Runs, machine: MachineRuns | None = None) -> None:
        self._runs, self._machine = runs, machine
        self._turn, self._waiting = asyncio.Lock(), 0  # each command may start a Spark of its own

    async def _run_in_turn(self, function: Callable[..., Any], *arguments: Any) -> Any:
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

    async def start(self, request: Request) -> Response:
        body = await requests.read_object(request)
        return AsciiJson(await self._run_in_turn(self._start, body), 201)

    def _start(self, body: dict[str, Any]) -> dict[str, Any]:
        program, path = requests.text(body, "program"), requests.text(body, "from")
        fork, claim = requests.text(body, "fork"), requests.flag(body, "claim")
        suffix = requests.text(body, "suffix")
        if self._machine is None:
            raise ControlError(
                "A job's own page starts no programs.", safe="nothing was started.", to_do="open `penstock ui`."
            )
        known = [entry for entry in self._machine.registry.entries() if entry.script and entry.script == program]
        if program is None or not known or not Path(program).is_file():
            raise HTTPException(404, "This program is not one that the registry knows")
        if fork is not None and path is None:
            raise HTTPException(400, "A fork needs the savepoint that it starts from")
        options = ["run", "-d", "--json"]
        if path is not None:
            options += [f"--from-savepoint={path}", f"--claim-mode={'claim' if claim else 'no_claim'}"]
        if fork is not None:
            options += [f"--fork={fork}", f"--suffix={suffix or f'_{fork}'}"]
        return dict(run_command([*options, "--", program], _directory(known[0])))

    async def lookup(self, request: Request) -> Response:
        body = await requests.read_object(request)
        return AsciiJson(await self._run_in_turn(_lookup, request.state.run, body))

    async def commit(self, request: Request) -> Response:
        return await self._settle("commit", request)

    async def abort(self, request: Request) -> Response:
        return await self._settle("abort", request)

    async def resolve(self, request: Request) -> Response:
        return await self._settle("resolve", request)

    async def _settle(self, verb: str, request: Request) -> Response:
        body = await requests.read_object(request)
        return AsciiJson({"result": await self._run_in_turn(_settle, verb, request.state.run, body)})


def add_commands(table: Table, paths: CommandPaths) -> None:
    secret: dict[str, Any] = {"secret": True}
    table.add(
        "POST", f"{ROOT}/runs", paths.start, "Start a program that the registry knows", status=201,
        body=("program", "from", "claim", "fork", "suffix"), answer=("id", "name", "state"), **secret,
    )  # fmt: skip
    table.add(
        "POST", f"{RUN}/state/lookup", paths.lookup, "Rows of state by key",
        body=("query", "operator", "key", "path"), answer=("rows",), **secret,
    )  # fmt: skip
    for verb, handler in (("commit", paths.commit), ("abort", paths.abort), ("resolve", paths.resolve)):
        table.add(
            "POST", f"{RUN}/transactions/{verb}", handler, f"As `penstock transactions {verb}`", body=("ids", "as"),
            answer=("result",), **secret,
        )  # fmt: skip


def _lookup(run: Run, body: dict[str, Any]) -> dict[str, Any]:
    names = ("query", "operator", "key", "path")
    given = {name: found for name in names if body.get(name) != "" and (found := requests.text(body, name))}
    path = given.get("path") or (str(run.folder) if run.folder is not None else "")
    if not path:
        raise HTTPException(404, "The job's folder is not on this machine; name a path")
    if not given.get("operator", "0").isdecimal():
        raise HTTPException(400, "operator is not a number")
    chosen = {name: value for name, value in given.items() if name != "path"}
    if "key" not in chosen and "operator" not in chosen:
        raise HTTPException(400, "key or operator is needed")
    options = [f"--{name}={value}" for name, value in chosen.items()]
    return {"rows": run_command(["state", "--json", *options, "--", path])}


def _settle(verb: str, run: Run, body: Mapping[str, Any]) -> Any:
    ids, word = body.get("ids"), body.get("as")
    if not isinstance(ids, list) or not ids or not all(isinstance(name, str) and name.isprintable() for name in ids):
        raise HTTPException(400, "ids is not a list of transactions")
    if verb == "resolve" and word not in ("committed", "lost"):
        raise HTTPException(400, "as is neither committed nor lost")
    if run.live:
        raise ControlError(
            f"Job {run.entry.name!r} runs, and ends its own transactions.",
            safe="nothing was touched.",
            to_do="stop it first, if they must be ended by hand.",
        )
    script = run.entry.script
    if not script or not Path(script).is_file():
        raise ControlError(
            "The job's program is not where the registry says, and only it knows the sinks.",
            safe="nothing was touched.",
            to_do="use `penstock transactions` with --job, or with --servers for Kafka.",
        )
    options = [f"--as={word}", "--yes"] if verb == "resolve" else []
    return run_command(["transactions", verb, f"--job={script}", "--json", *options, "--", *ids], _directory(run.entry))


def _directory(entry: Entry) -> Path:
    """Where the run was started, as far as it is known: what its program names may be named from there."""
    directory = history.read_history(entry.id).description.get("directory")
    return Path(directory) if directory and Path(directory).is_dir() else Path(entry.script).parent
