"""What a request's body says. Whatever it is, it is understood or refused with 400 or 413: it comes from anybody."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

_MOST = 1 << 20  # bytes; Flink's own requests have a few hundred


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty one."""
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > _MOST:
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
