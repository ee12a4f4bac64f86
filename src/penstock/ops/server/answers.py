"""How this server answers: JSON, Flink's shape of an error, and what every answer carries.

Flink's own client takes the shape of an answer for its meaning: an error is `{"errors": […]}` and nothing else, and
what it cannot read it sends again. So every way out of here, a wrong path included, has one of the shapes it knows.
The three sentences of an error of ours travel beside it, in the header `X-Penstock-Error`, for our own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.errors import ControlError, PenstockError
from penstock.ops.server.requests import Asgi, Scope

ERROR_HEADER = "X-Penstock-Error"
_MOST_IN_HEADER = 8000

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


_ENDED = ControlError(
    "The job ended before it could answer.",
    safe="what was decided is safe. Whether this was done is not known.",
    to_do="see with `penstock list` how it ended.",
)


class AsciiJson(JSONResponse):
    """JSON in ASCII: an error may quote a path that is no valid text, and it must still be told."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, default=str).encode("ascii")


class NotifyingResponse(Response):
    """An answer, and what is to be done once it has been sent."""

    def __init__(self, answer: Response, sent: Callable[[], None]) -> None:
        self._answer, self._sent = answer, sent

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._answer(scope, receive, send)
        self._sent()


class WithHeaders:
    """What every answer carries, also that of a wrong name, and of a server that ends before it could answer. Answers
    are not stored unless they say so themselves."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        started = False

        async def send_with(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                more = [*HEADERS, (b"cache-control", b"no-store")]
                message = {**message, "headers": given + [pair for pair in more if pair[0] not in names]}
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


def wrong_host(host: str) -> Response:
    return error_response(
        ControlError(
            f"The request was meant for {host[:200]!r}, which is none of this job's names.",
            safe="nothing was done.",
            to_do="ask 127.0.0.1 or localhost, or add the name to penstock.control.hosts.",
        ),
        403,
    )


def error_response(error: PenstockError, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    header = error.to_json()  # ASCII, one line
    more = {ERROR_HEADER: header} if len(header) <= _MOST_IN_HEADER else {}
    return AsciiJson({"errors": [str(error)]}, status, headers={**(headers or {}), **more})
