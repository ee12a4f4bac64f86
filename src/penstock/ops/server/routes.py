"""The table of paths: what each is for, who may ask, what comes back. Routes and the OpenAPI document come from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]

_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Path:
    """One method of one path. `secret`: not answered to those who may only read where a job stands. `flink`: also
    answered below `/v1`. `query` names what may follow the `?`, `body` the fields of a request's body, `answer` those
    of the answer."""

    method: str
    path: str
    handler: Handler
    summary: str
    secret: bool = False
    flink: bool = False
    open: bool = False  # to everybody
    status: int = 200
    query: Sequence[str] = ()
    body: Sequence[str] = ()
    answer: Sequence[str] = ()
    media: str = "application/json"

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)


def openapi(paths: Sequence[Path], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    documented: dict[str, dict[str, Any]] = {}
    for path in paths:
        for prefix in ("", "/v1") if path.flink else ("",):
            documented.setdefault(prefix + path.path, {})[path.method.lower()] = _operation(path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Flink's paths, and Penstock's own below /penstock/v1. See docs/reference/rest.md.",
        },
        "paths": documented,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Errors": {
                    "type": "object",
                    "required": ["errors"],
                    "properties": {"errors": {"type": "array", "items": {"type": "string"}}},
                }
            },
        },
        "security": [{"token": []}],
    }


def _operation(path: Path) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in path.parameters
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in path.query]
    answer: dict[str, Any] = {"description": "The answer."}
    if path.status != 204:
        answer["content"] = {path.media: {"schema": _fields(path.answer)}}
    operation: dict[str, Any] = {
        "summary": path.summary,
        "responses": {
            str(path.status): answer,
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}},
            },
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if path.body:
        operation["requestBody"] = {"content": {"application/json": {"schema": _fields(path.body)}}}
    if path.open:
        operation["security"] = []
    return operation


def _fields(names: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {} for name in names}} if names else {}


@dataclass
class Table:
    """Paths as they are gathered."""

    paths: list[Path] = field(default_factory=list)

    def add(self, method: str, path: str, handler: Handler, summary: str, **more: Any) -> None:
        self.paths.append(Path(method, path, handler, summary, **more))
