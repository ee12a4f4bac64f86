"""Who may ask what: the token, or a cookie that a one-time code buys.

A link carries a code, never the token: it is good once, for a while, and what is left in a browser's list or a shell's
log afterwards opens nothing. The cookie is sent by the browser alone (HttpOnly), not from pages of other sites
(SameSite). A page at another port of this machine is the same site, so the cookie alone is not enough: what changes
something needs an `Origin` that is our own, and where the browser says whose page asks (`Sec-Fetch-Site`), that must be
ours for reading, too.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

CODE_SECONDS = 600.0
MOST_SESSIONS = 100
SESSION_SECONDS = 12 * 3600.0

_BEARER = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)
_SAFE = ("GET", "HEAD")
_ON = '<!doctype html><title>Penstock</title><meta http-equiv="refresh" content="0;url=/"><a href="/">Penstock</a>'
_USED = "This link has been used, or is too old. `penstock ui` gives another"


class Access:
    """The rules of one server. `open_reads`: reading needs nothing, but shows no error's text."""

    def __init__(
        self,
        token: str,
        *,
        open_reads: bool = False,
        secure: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self.open_reads, self._secure, self._now = token, open_reads, secure, now
        self._lock = threading.Lock()
        self._codes: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def new_code(self) -> str:
        """Good once, for ten minutes."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._codes[code] = self._now() + CODE_SECONDS
            while len(self._codes) > MOST_SESSIONS:
                self._codes.popitem(last=False)
        return code

    def require(self, request: Request, *, secret: bool) -> bool:
        """Raises 401 or 403 for who may not; whether who asks may also read errors. `secret`: needs more than an open
        door."""
        if self._has_token(request):
            return True
        if self._has_session(request):
            if not _is_own_page(request) or (request.method not in _SAFE and not self._is_own_origin(request)):
                raise HTTPException(403, "The request comes from a page that is not this server's own")
            return True
        if secret or request.method not in _SAFE or not self.open_reads:
            needed = "The job's token is needed, in the header Authorization, as Bearer TOKEN"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})
        return False

    async def open(self, request: Request) -> Response:
        """`GET /open?code=…`: a cookie for a code."""
        if not self._take_code(request.query_params.get("code", "")):
            if "text/html" in request.headers.get("Accept", ""):  # a person looks at this
                return PlainTextResponse(f"{_USED}.\n", 401)
            raise HTTPException(401, _USED)
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[session] = self._now() + SESSION_SECONDS
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        # Somebody who follows the link on a page of another site is led on by a page of ours: to a redirect the browser
        # would not send a cookie that other sites' pages must not use.
        elsewhere = request.headers.get("Sec-Fetch-Site") == "cross-site"
        answer: Response = HTMLResponse(_ON) if elsewhere else RedirectResponse("/", 303)
        answer.set_cookie(
            self._cookie(request), session, max_age=int(SESSION_SECONDS), httponly=True, samesite="strict",
            secure=self._secure, path="/",
        )  # fmt: skip
        return answer

    def _has_token(self, request: Request) -> bool:
        match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
        given = match["token"].encode("latin-1") if match is not None else b""  # the bytes that were sent
        return hmac.compare_digest(given, self._token.encode())

    def _has_session(self, request: Request) -> bool:
        given = request.cookies.get(self._cookie(request), "")
        with self._lock:
            end = self._sessions.get(given) if given else None
            return end is not None and self._now() < end

    def _take_code(self, given: str) -> bool:
        with self._lock:
            end = self._codes.pop(given, None)
            return end is not None and self._now() < end

    def _is_own_origin(self, request: Request) -> bool:
        """By the name that was asked for, which `KnownNames` has checked."""
        given = urlsplit(request.headers.get("Origin", ""))
        host = request.headers.get("Host", "").strip().lower()
        scheme = "https" if self._secure else "http"
        return given.scheme == scheme and bool(host) and given.netloc.lower() == host

    def _cookie(self, request: Request) -> str:
        """Browsers keep one box of cookies for all ports of a machine."""
        server = request.scope.get("server") or ("", 0)
        return f"penstock-{server[1]}"


def _is_own_page(request: Request) -> bool:
    """Whether none of another page's scripts, pictures or frames asks, as far as the browser says. Following a link is
    no such thing: whoever follows it sees the answer, not the page that has it."""
    site, kind = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Dest")
    return site in (None, "same-origin", "none") or (request.method in _SAFE and kind == "document")
