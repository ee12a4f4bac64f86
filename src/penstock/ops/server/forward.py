"""Sends a request on to the job it is about, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import ControlError
from penstock.ops.process.registry import Entry
from penstock.ops.server.answers import ERROR_HEADER, error_response
from penstock.ops.server.client import trusting
from penstock.ops.server.commands import COMMAND_SECONDS
from penstock.ops.server.requests import MAX_BODY_BYTES
from penstock.ops.server.runs import MachineRuns, is_live

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
WORK_SECONDS = 2 * COMMAND_SECONDS + 10.0  # a command that waited for its turn
_PASSED_ON = ("content-type", ERROR_HEADER.lower(), "x-penstock-progress", "www-authenticate")
_CHUNK = 1 << 16
_MOST_HEADERS = 1 << 16


class Forwarding:
    """To living runs of this machine, with the token that stands beside their address in the registry. Where one does
    not answer, reading falls back on what it has left, and what changes something is an error."""

    def __init__(self, runs: MachineRuns) -> None:
        self._runs = runs

    async def __call__(self, request: Request, id: str) -> Response | None:
        entry = await run_in_threadpool(self._runs.entry, id)
        if entry is None or not answers(entry):
            return None
        reading = request.method in ("GET", "HEAD")
        try:
            return await _send(request, entry, READ_SECONDS if reading else WORK_SECONDS)
        except TimeoutError:
            # It is there and works on it: to answer in its place would be to do the same once more.
            late = ControlError(
                f"Job {entry.name!r} has not answered in time.",
                safe="what was decided is safe. Whether this was done is not known.",
                to_do="see its log for what it waits for.",
            )
            return error_response(late, 504)
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            if reading:
                return None
            gone = ControlError(
                f"Job {entry.name!r} did not answer: {type(error).__name__}: {error}.",
                safe="what was decided is safe. Whether this was done is not known.",
                to_do="see whether it still runs before you ask again.",
            )
            return error_response(gone, 502)


def answers(entry: Entry) -> bool:
    """Whether the run's own server may be asked. A job that has ended stays until whoever asked for its end has been
    told; the address of a process that is gone may be another's by now."""
    return is_live(entry) or (entry.address is not None and entry.token is not None and entry.driven)


async def _send(request: Request, entry: Entry, seconds: float) -> Response:
    address = str(entry.address)
    split = urlsplit(address if "://" in address else f"http://{address}")
    secure = trusting(entry.certificate) if split.scheme == "https" else None
    body = await _body(request)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(split.hostname, split.port, ssl=secure, limit=_MOST_HEADERS)
    except TimeoutError as error:
        raise EOFError("no connection in time") from error
    done = False
    try:
        # HTTP/1.0: an answer without a length then ends with the connection, and is never cut into chunks.
        head = [
            f"{'GET' if request.method == 'HEAD' else request.method} {_target(request)} HTTP/1.0",
            "Host: localhost",
            f"Content-Length: {len(body)}",
        ]
        head += [f"Authorization: Bearer {entry.token}", "Content-Type: application/json"]
        last = request.headers.get("Last-Event-ID", "")
        if last.isdecimal():
            head.append(f"Last-Event-ID: {last}")
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        async with asyncio.timeout(seconds):
            status, headers = await _head(reader)
            kept = {name: value for name, value in headers.items() if name in _PASSED_ON}
            if headers.get("content-type", "").startswith("text/event-stream"):
                done = True
                return StreamingResponse(_stream(reader, writer), status, headers=kept)
            length = headers.get("content-length")
            text = await reader.readexactly(int(length)) if length is not None else await reader.read()
        return Response(text if status not in (204, 304) else None, status, headers=kept)
    finally:
        if not done:
            writer.close()


def _target(request: Request) -> str:
    """As it was sent: unquoted, a name in it could end the line and begin another."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else str(path)


async def _body(request: Request) -> bytes:
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > MAX_BODY_BYTES:
            raise HTTPException(413, "The request's body is too large")
    return bytes(text)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    pairs = (line.partition(":") for line in lines[1:] if ":" in line)
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


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
