"""What every request and answer of these servers has in common: who may ask, what a body holds, how an answer looks.

Flink's client repeats a request whose answer it cannot read, so every answer has a shape it knows: an error is
`{"errors": […]}`, with Penstock's three sentences in a header. docs/reference/rest.md has the rules of access.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import mimetypes
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from penstock.errors import ControlError, PenstockError
from penstock.ops.server.client import ERROR_HEADER

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]

CODE_SECONDS = 600.0
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 100
MAX_BODY_BYTES = 1 << 20  # Flink's own requests have a few hundred
PAGE = Path(__file__).parent / "page"
LINK_USED = "This link has been used, or is too old. `penstock ui` gives another"

mimetypes.add_type("text/javascript", ".js")  # older tables of systems have another name for it

_MOST_IN_HEADER = 8000
_BEARER = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(?::\d*)?")
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ENDED = ControlError(
    "The job ended before it could answer.",
    safe="what was decided is safe. Whether this was done is not known.",
    to_do="see with `penstock list` how it ended.",
)


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. The handler returns a response or the body of one; one that is not a coroutine runs in a
    thread. `secret`: open reads do not include it. `flink`: also below `/v1`. `open`: needs no token. `body`: requests
    have one, a JSON object, which is in `request.state.body`."""

    method: str
    path: str
    handler: Callable[[Request], Any]
    secret: bool = False
    flink: bool = False
    open: bool = False
    status: int = 200
    body: bool = False


class Access:
    """The rules of one server. `open_reads`: reading needs no token, but shows no error's text."""

    def __init__(self, token: str, *, open_reads: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._token, self.open_reads, self._now = token, open_reads, now
        self._lock = threading.Lock()
        self._codes: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def new_code(self) -> str:
        """Good once, for ten minutes. The page is opened at `/#code=CODE`."""
        return self._new(self._codes, CODE_SECONDS)

    def require(self, request: Request, *, secret: bool) -> bool:
        """Whether the client may also read errors. Raises 401 where it may not ask at all."""
        if self._is_known(request):
            return True
        if secret or request.method not in ("GET", "HEAD") or not self.open_reads:
            needed = "The job's token is needed, in the header Authorization, as Bearer TOKEN"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})
        return False

    def new_session(self, code: str) -> str:
        """For a code. Raises 401 for one that was used, is too old or never was."""
        with self._lock:
            end = self._codes.pop(code, None)
        if end is None or self._now() >= end:
            raise HTTPException(401, LINK_USED)
        return self._new(self._sessions, SESSION_SECONDS)

    def _new(self, kept: OrderedDict[str, float], seconds: float) -> str:
        value = secrets.token_urlsafe(32)
        with self._lock:
            kept[value] = self._now() + seconds
            if len(kept) > MOST_SESSIONS:
                kept.popitem(last=False)
        return value

    def _is_known(self, request: Request) -> bool:
        match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
        token = match["token"] if match else ""
        if hmac.compare_digest(token.encode("latin-1"), self._token.encode()):  # the bytes that were sent
            return True
        with self._lock:
            end = self._sessions.get(token)
            return end is not None and self._now() < end


class KnownNames:
    """Passes on requests for this machine's own name or address, for the address that the connection came in at, and
    for one of `names`; others get 403. Ports do not count: a tunnel has another. Otherwise a web page could have its
    own name resolved to this machine, and the reader's browser would ask us in that name (DNS rebinding)."""

    def __init__(self, app: Asgi, names: Iterable[str]) -> None:
        self._app = app
        self._names = {plain for name in (*_THIS_MACHINE, *names) if (plain := _plain(name))}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        hosts = Headers(scope=scope).getlist("host")
        match = _HOST.fullmatch(hosts[0].strip()) if len(hosts) == 1 else None
        name = _plain(match["name"]) if match else ""
        dialled = _plain(str((scope.get("server") or ("",))[0]))
        if name and name in (*self._names, dialled):
            await self._app(scope, receive, send)
            return
        happened = (
            f"The request was meant for {(hosts[0] if hosts else '')[:200]!r}, which is none of this job's names."
        )
        to_do = "ask 127.0.0.1 or localhost, or add the name to penstock.control.hosts."
        wrong = ControlError(happened, safe="nothing was done.", to_do=to_do)
        await error_response(wrong, 403)(scope, receive, send)


def _plain(name: str) -> str:
    """One spelling for each: lower case, no brackets, no last dot; an IPv4 address within IPv6 is that address."""
    name = name.strip().lower().strip("[]").rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


async def read_body(request: Request) -> bytes:
    """Raises 413 for one that is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "The request's body is too large")
    return bytes(body)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty one. Raises 400 for anything else."""
    try:
        body = json.loads(await read_body(request) or b"{}")
    except (ValueError, RecursionError):  # the latter: a few thousand brackets inside each other
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "The request's body is not a JSON object")
    return body


def text(body: Mapping[str, Any], key: str) -> str | None:
    """Text without characters that could break out of a line, a header or a path's name; None where it is missing."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and value.strip():  # lone surrogates are not printable either
        return value.strip()
    raise HTTPException(400, f"{key} is not a line of text")


def flag(body: Mapping[str, Any], key: str) -> bool:
    """False where it is missing."""
    value = body.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise HTTPException(400, f"{key} is neither true nor false")


def whole(request: Request, name: str, default: int | None) -> int | None:
    value = request.query_params.get(name)
    if not value:
        return default
    if not value.isdecimal() or len(value) > 18:
        raise HTTPException(400, f"{name} is not a number")
    return int(value)


class AsciiJson(JSONResponse):
    """JSON in ASCII: an error may quote a path that is no valid text, and must still arrive."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, default=str).encode("ascii")


class WithHeaders:
    """Adds the headers that every answer carries, that of a wrong name and of a server that ends included."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        started = False

        async def send_with(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with)
        except asyncio.CancelledError:  # only the end of the server cancels; raised, it would be logged as a fault
            if started:  # a stream, which has no other end than this
                with contextlib.suppress(Exception):
                    await send({"type": "http.response.body"})
            else:
                await error_response(_ENDED, 503)(scope, receive, send_with)


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:
        detail = f"{detail}: {request.method} {request.url.path}"
    return error_response(ControlError(detail), error.status_code, dict(error.headers or {}))


def error_response(error: PenstockError, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    header = error.to_json()  # ASCII, one line
    more = {ERROR_HEADER: header} if len(header) <= _MOST_IN_HEADER else {}
    return AsciiJson({"errors": [str(error)]}, status, headers={**(headers or {}), **more})


class Page(StaticFiles):
    """The page's files. They need no token: they hold nothing of a job, and a browser that opens them has none yet."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response
