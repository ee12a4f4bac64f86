"""Requests from anybody: what a body says, understood or refused with 400 or 413; and for whom a request is meant."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]

_ALWAYS = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(?::\d*)?")

MAX_BODY_BYTES = 1 << 20  # bytes; Flink's own requests have a few hundred


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty one."""
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > MAX_BODY_BYTES:
            raise HTTPException(413, "The request's body is too large")
    try:
        body = json.loads(bytes(text) or b"{}")
    except (ValueError, RecursionError):  # the latter: a few thousand brackets inside each other
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "The request's body is not a JSON object")
    return body


def text(body: dict[str, Any], key: str) -> str | None:
    """A line of text, without what could break out of a line, a header or a path's name; None where it is missing."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and value.strip():  # lone surrogates are not printable either
        return value.strip()
    raise HTTPException(400, f"{key} is not a line of text")


def flag(body: dict[str, Any], key: str) -> bool:
    """False where it is missing."""
    value = body.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise HTTPException(400, f"{key} is neither true nor false")


def kind(body: dict[str, Any]) -> str:
    """Of a savepoint. Flink's CANONICAL is its default; ours is native, which costs less and restores just as well."""
    named = (text(body, "formatType") or "native").lower()
    if named not in ("canonical", "native"):
        raise HTTPException(400, f"formatType {named} is neither CANONICAL nor NATIVE")
    return named


class KnownNames:
    """Answers only to names that are ours. A web page anywhere can have its own name resolved to this machine and then
    have the reader's browser ask us in that name (DNS rebinding); the browser says which name it asked for.

    Passes on what was asked of this machine's own name or address, of the address that the connection came in at, or
    of one of `names`; everything else gets `refused`. Ports do not count: a tunnel has another."""

    def __init__(self, app: Asgi, names: Iterable[str], refused: Callable[[str], Response]) -> None:
        self._app, self._refused = app, refused
        self._names = {plain for name in (*_ALWAYS, *names) if (plain := _plain(name))}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        given = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
        match = _HOST.fullmatch(given[0].strip()) if len(given) == 1 else None
        name = _plain(match["name"]) if match else ""
        dialled = _plain(str((scope.get("server") or ("",))[0]))
        if name and (name in self._names or name == dialled):
            await self._app(scope, receive, send)
        else:
            await self._refused(given[0] if given else "")(scope, receive, send)


def _plain(name: str) -> str:
    """One spelling for each: lower case, no brackets, no last dot; an IPv4 address within IPv6 is that address."""
    name = name.strip().lower().strip("[]").rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
