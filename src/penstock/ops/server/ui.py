"""The server that `penstock ui` runs: all runs of this machine. Requests about a running job are sent on to the job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.config.operations import Rest
from penstock.errors import ControlError
from penstock.ops.process.registry import Entry
from penstock.ops.server.app import Application
from penstock.ops.server.client import ERROR_HEADER, PROGRESS_HEADER, trusting
from penstock.ops.server.commands import COMMAND_SECONDS, Steering
from penstock.ops.server.control import Operations
from penstock.ops.server.runs import MachineRuns, is_live
from penstock.ops.server.serving import names_of, open_listener, place_of
from penstock.ops.server.web import Access, error_response, read_body

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
WORK_SECONDS = 2 * COMMAND_SECONDS + 10.0  # a command that waited for its turn
_PASSED_ON = ("content-type", ERROR_HEADER.lower(), PROGRESS_HEADER.lower(), "www-authenticate")
_CHUNK = 1 << 16
_MOST_HEADERS = 1 << 16


def serve_ui(rest: Rest, token: str, storages: Iterable[str], opened: Callable[[str], Any]) -> None:
    """Serve until the process is ended. Once the port is open, calls `opened` with the link and its one-time code."""
    from penstock.ops.server.connections import Server, uvicorn_config

    listener, access = open_listener(rest), Access(token)
    app = ui_application(access, storages, names_of(listener, rest)).asgi()
    server = Server(uvicorn_config(app, rest, "critical"))
    server.config.timeout_graceful_shutdown = 1  # a page that follows events would hold the end back
    opened(f"{'http' if rest.certificate is None else 'https'}://{place_of(listener, rest)}/#code={access.new_code()}")
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def ui_application(access: Access, storages: Iterable[str] = (), names: Sequence[str] = ()) -> Application:
    runs = MachineRuns(storages)
    return Application(runs, access, Steering(Operations()), names=names, forward=partial(_forward, runs))


async def _forward(runs: MachineRuns, request: Request, id: str) -> Response | None:
    """Sends requests on to living runs. Where one does not answer, reads fall back on its history; changes fail."""
    entry = await run_in_threadpool(runs.entry, id)
    if entry is None or not answers(entry):
        return None
    reading = request.method in ("GET", "HEAD")
    safe = "what was decided is safe. Whether this was done is not known."
    try:
        return await _send(request, entry, READ_SECONDS if reading else WORK_SECONDS)
    except TimeoutError:
        # The job is there and works on it: to answer in its place would do the same work twice.
        happened = f"Job {entry.name!r} has not answered in time."
        return error_response(ControlError(happened, safe=safe, to_do="see its log for what it waits for."), 504)
    except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        if reading:
            return None
        happened = f"Job {entry.name!r} did not answer: {type(error).__name__}: {error}."
        to_do = "see whether it still runs before you ask again."
        return error_response(ControlError(happened, safe=safe, to_do=to_do), 502)


def answers(entry: Entry) -> bool:
    """Also a job that has ended, until its clients have their answers. A dead process's address may be another's."""
    return is_live(entry) or (entry.address is not None and entry.token is not None and entry.driven)


async def _send(request: Request, entry: Entry, seconds: float) -> Response:
    address = str(entry.address)
    split = urlsplit(address if "://" in address else f"http://{address}")
    secure = trusting(entry.certificate) if split.scheme == "https" else None
    body = await read_body(request)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(split.hostname, split.port, ssl=secure, limit=_MOST_HEADERS)
    except TimeoutError as error:
        raise EOFError("no connection in time") from error
    streaming = False
    try:
        writer.write(_head(request, entry, len(body)) + body)
        async with asyncio.timeout(seconds):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ", 2)[1])
            pairs = (line.partition(":") for line in lines[1:] if ":" in line)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            kept = {name: value for name, value in headers.items() if name in _PASSED_ON}
            if headers.get("content-type", "").startswith("text/event-stream"):
                streaming = True
                return StreamingResponse(_stream(reader, writer), status, headers=kept)
            length = headers.get("content-length")
            text = await reader.readexactly(int(length)) if length is not None else await reader.read()
        return Response(text if status not in (204, 304) else None, status, headers=kept)
    finally:
        if not streaming:
            writer.close()


def _head(request: Request, entry: Entry, length: int) -> bytes:
    # The path as it was sent: unquoted, a name in it could end the line and begin another.
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    lines = [
        # HTTP/1.0: an answer without a length then ends with the connection, and is never cut into chunks.
        f"{'GET' if request.method == 'HEAD' else request.method} {path}{'?' if query else ''}{query} HTTP/1.0",
        "Host: localhost",
        f"Content-Length: {length}",
        f"Authorization: Bearer {entry.token}",
        "Content-Type: application/json",
    ]
    last = request.headers.get("Last-Event-ID", "")
    if last.isdecimal():
        lines.append(f"Last-Event-ID: {last}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while part := await reader.read(_CHUNK):
            yield part
    except OSError:
        return  # the job is gone, and the stream ends with it
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
