"""The application: every path with its rules of access, over one run or all of a machine.

`penstock ui` serves all runs of this machine, and sends requests about a running job on to the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from penstock.errors import ControlError
from penstock.ops.process.registry import Entry
from penstock.ops.server import web
from penstock.ops.server.client import ERROR_HEADER, PROGRESS_HEADER, trusting
from penstock.ops.server.commands import COMMAND_SECONDS, Steering, command_endpoints, steering_endpoints
from penstock.ops.server.control import Operations, as_penstock_error
from penstock.ops.server.flink import flink_endpoints
from penstock.ops.server.metrics import Metrics
from penstock.ops.server.own import ROOT, own_endpoints
from penstock.ops.server.runs import MachineRuns, Run, Runs, is_live
from penstock.ops.server.web import Access, AsciiJson, Asgi, Endpoint

Forward = Callable[[Request, str], Awaitable[Response | None]]  # sends it on to a run; None: this process answers

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
WORK_SECONDS = 2 * COMMAND_SECONDS + 10.0  # a command that waited for its turn
_PASSED_ON = ("content-type", ERROR_HEADER.lower(), PROGRESS_HEADER.lower(), "www-authenticate")
_CHUNK = 1 << 16
_MOST_HEADERS = 1 << 16


@dataclass(eq=False)
class Application:
    """`names` are those it answers to besides this machine's own. With `forward`, `runs` are those of the machine."""

    runs: Runs
    access: Access
    steering: Steering
    metrics: Metrics | None = None
    names: Sequence[str] = ()
    forward: Forward | None = None

    def __post_init__(self) -> None:
        self.endpoints = [
            *flink_endpoints(self.runs),
            *own_endpoints(self.runs),
            Endpoint("POST", f"{ROOT}/codes", self._code, secret=True),
            Endpoint("POST", f"{ROOT}/sessions", self._session, open=True, status=201, body=True),
            *steering_endpoints(self.steering),
            *command_endpoints(self.runs if isinstance(self.runs, MachineRuns) else None),
            Endpoint("GET", "/metrics", self._scrape, flink=True),
        ]

    def asgi(self) -> Asgi:
        flink = self._routes([endpoint for endpoint in self.endpoints if endpoint.flink])
        own = self._routes([endpoint for endpoint in self.endpoints if not endpoint.flink])
        routes = [Mount("/v1", routes=flink), *flink, *own, Mount("/", web.Page(directory=web.PAGE, html=True))]
        app = Starlette(routes=routes, exception_handlers={HTTPException: web.http_error})
        return web.WithHeaders(web.KnownNames(app, self.names))

    def _routes(self, endpoints: Sequence[Endpoint]) -> list[Route]:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        return [Route(path, self._dispatch(methods), methods=list(methods)) for path, methods in by_path.items()]

    def _dispatch(self, methods: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            endpoint = methods["GET" if request.method == "HEAD" else request.method]
            if endpoint.open:
                return await _answer(endpoint, request)
            # Only a client with the token is shown an error's text, which may quote the row that caused it.
            request.state.trusted = self.access.require(request, secret=endpoint.secret)
            try:
                run_id = request.path_params.get("job") or request.path_params.get("run")
                if run_id is not None:
                    forwarded = await self.forward(request, run_id) if self.forward is not None else None
                    if forwarded is not None:
                        return forwarded
                    request.state.run = await run_in_threadpool(self._run, run_id)
                return await _answer(endpoint, request)
            except HTTPException:
                raise
            except Exception as error:
                if not request.state.trusted:
                    return web.error_response(ControlError("It failed. Ask with the job's token to learn why."), 500)
                return web.error_response(as_penstock_error(error), 409 if isinstance(error, ControlError) else 500)

        return handle

    def _run(self, id: str) -> Run:
        run = self.runs.get(id)
        if run is None:
            raise HTTPException(404, f"Job {id} not found")
        return run

    def _code(self, request: Request) -> dict[str, str]:
        code = self.access.new_code()
        return {"code": code, "path": f"/#code={code}"}

    def _session(self, request: Request) -> dict[str, str]:
        return {"token": self.access.new_session(web.text(request.state.body, "code") or "")}

    def _scrape(self, request: Request) -> Response:
        if self.metrics is None:
            raise HTTPException(404, "There are no metrics here: ask a running job's own address")
        body, content_type = self.metrics.render(request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": content_type})


async def _answer(endpoint: Endpoint, request: Request) -> Response:
    if endpoint.body:
        request.state.body = await web.read_object(request)
    if inspect.iscoroutinefunction(endpoint.handler):
        answer = await endpoint.handler(request)
    else:
        answer = await run_in_threadpool(endpoint.handler, request)
    return answer if isinstance(answer, Response) else AsciiJson(answer, endpoint.status)


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
        return web.error_response(ControlError(happened, safe=safe, to_do="see its log for what it waits for."), 504)
    except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        if reading:
            return None
        happened = f"Job {entry.name!r} did not answer: {type(error).__name__}: {error}."
        to_do = "see whether it still runs before you ask again."
        return web.error_response(ControlError(happened, safe=safe, to_do=to_do), 502)


def answers(entry: Entry) -> bool:
    """Also a job that has ended, until its clients have their answers. A dead process's address may be another's."""
    return is_live(entry) or (entry.address is not None and entry.token is not None and entry.driven)


async def _send(request: Request, entry: Entry, seconds: float) -> Response:
    address = str(entry.address)
    split = urlsplit(address if "://" in address else f"http://{address}")
    secure = trusting(entry.certificate) if split.scheme == "https" else None
    body = await web.read_body(request)
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
