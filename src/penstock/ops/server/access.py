"""Who may ask what: the token, or a session that a one-time code buys.

A link carries a code, never the token: it is good once, for a while, and what is left in a browser's list or a shell's
log afterwards opens nothing. It stands behind the `#`, which a browser sends to no server. The page buys a session with
it and sends that in the header of each request, as others send the token. It keeps it for its own origin, which has the
port in it. A cookie would not do: browsers send it to every port of a machine, whoever listens there.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.ops.server import requests

CODE_SECONDS = 600.0
MOST_SESSIONS = 100
SESSION_SECONDS = 12 * 3600.0

_BEARER = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)
_SAFE = ("GET", "HEAD")
_USED = "This link has been used, or is too old. `penstock ui` gives another"


class Access:
    """The rules of one server. `open_reads`: reading needs nothing, but shows no error's text."""

    def __init__(self, token: str, *, open_reads: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._token, self.open_reads, self._now = token, open_reads, now
        self._lock = threading.Lock()
        self._codes: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def new_code(self) -> str:
        """Good once, for ten minutes."""
        return self._new(self._codes, CODE_SECONDS)

    def new_path(self) -> str:
        """Where the page is opened, with a code."""
        return f"/#code={self.new_code()}"

    def require(self, request: Request, *, secret: bool) -> bool:
        """Raises 401 for who may not; whether who asks may also read errors. `secret`: needs more than an open door."""
        if self._is_known(request):
            return True
        if secret or request.method not in _SAFE or not self.open_reads:
            needed = "The job's token is needed, in the header Authorization, as Bearer TOKEN"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})
        return False

    async def open(self, request: Request) -> Response:
        """A session for a code."""
        code = requests.text(await requests.read_object(request), "code") or ""
        with self._lock:
            end = self._codes.pop(code, None)
        if end is None or self._now() >= end:
            raise HTTPException(401, _USED)
        return JSONResponse({"token": self._new(self._sessions, SESSION_SECONDS)}, 201)

    def _new(self, kept: OrderedDict[str, float], seconds: float) -> str:
        made = secrets.token_urlsafe(32)
        with self._lock:
            kept[made] = self._now() + seconds
            while len(kept) > MOST_SESSIONS:
                kept.popitem(last=False)
        return made

    def _is_known(self, request: Request) -> bool:
        match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
        given = match["token"] if match is not None else ""
        if hmac.compare_digest(given.encode("latin-1"), self._token.encode()):  # the bytes that were sent
            return True
        with self._lock:
            end = self._sessions.get(given)
            return end is not None and self._now() < end
