"""The page's files, and how a browser is told to treat them. They hold nothing of any job, so they need no token."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "page"

HEADERS = {
    # No script, style, picture or answer from anywhere else, and none that stands inside a page.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""For every answer, data included."""


def page_routes() -> list[BaseRoute]:
    """`/` is the page; what it is made of lies below `/page/`, out of the way of every path for data."""
    return [Route("/", _index), Mount("/page", _Files(directory=FOLDER))]


async def _index(request: Request) -> Response:
    return _fresh(FileResponse(FOLDER / "index.html"))


class _Files(StaticFiles):
    def file_response(self, *args: object, **kwargs: object) -> Response:
        return _fresh(super().file_response(*args, **kwargs))  # type: ignore[arg-type]


def _fresh(response: Response) -> Response:
    """Asked for again at each visit, which costs a few bytes as long as nothing has changed: after an upgrade no
    browser mixes old files with new ones."""
    response.headers["Cache-Control"] = "no-cache"
    response.headers.update(HEADERS)
    return response
