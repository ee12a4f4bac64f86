"""The names a server answers to. A web page anywhere can have its own name resolved to this machine and then have the
reader's browser ask us in that name (DNS rebinding). The browser says which name it asked for, and only ours count."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.responses import Response

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]

_ALWAYS = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(?::\d*)?")


class KnownNames:
    """Passes on what was asked of this machine's own name or address, of the address that the connection came in at, or
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
