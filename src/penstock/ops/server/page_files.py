"""The page: files inside the package, served as they are."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".ico": "image/x-icon",
}


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """Each file by its path below the folder: its bytes, media type and tag. The package does not change while it
    runs, and a name that is not here is not asked of the disk."""
    found = {}
    if FOLDER.is_dir():
        for file in sorted(FOLDER.rglob("*")):
            if file.is_file() and not file.name.startswith((".", "__")):
                body = file.read_bytes()
                kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
                found[file.relative_to(FOLDER).as_posix()] = (body, kind, tag)
    return found


def page(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Answers with one of `files`."""

    async def answer(request: Request) -> Response:
        body, kind, tag = files()[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if tag in [given.strip() for given in request.headers.get("If-None-Match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    return answer
