"""The application: every path with its rules of access, over the run of one job or over all runs of this machine.

`requests` and `answers` know what goes in and out, `access` who may, `flink`, `steer` and `own` what is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from penstock.errors import ControlError
from penstock.ops.server import page_files
from penstock.ops.server.access import Access
from penstock.ops.server.answers import ERROR_HEADER, AsciiJson, WithHeaders, error_response, http_error, wrong_host
from penstock.ops.server.control import as_penstock_error
from penstock.ops.server.flink import FlinkPaths, add_flink
from penstock.ops.server.own import ROOT, OwnPaths, add_own
from penstock.ops.server.requests import Asgi, KnownNames
from penstock.ops.server.routes import Path, Table, openapi
from penstock.ops.server.runs import Run, Runs

__all__ = ["ERROR_HEADER", "Application"]

Forward = Callable[[Request, str], Awaitable[Response | None]]
"""Sends a request on to the run it is about, in another process; None where this process answers."""


class Application:
    """Paths, gathered and served. `names` are those it answers to besides this machine's own."""

    def __init__(self, runs: Runs, access: Access, names: Sequence[str] = (), forward: Forward | None = None) -> None:
        self._runs, self.access, self._names, self._forward = runs, access, names, forward
        self.table = Table()
        add_flink(self.table, FlinkPaths(runs))
        add_own(self.table, OwnPaths(runs))
        self.table.add("POST", f"{ROOT}/codes", self._code, "A one-time code", secret=True, answer=("code", "path"))
        self.table.add("GET", f"{ROOT}/openapi.json", self._openapi, "This document", answer=("openapi", "paths"))
        self.table.add(
            "POST", f"{ROOT}/sessions", access.open, "A token for the page, for a one-time code", open=True, status=201,
            body=("code",), answer=("token",),
        )  # fmt: skip

    def asgi(self) -> Asgi:
        routes = self._routes([path for path in self.table.paths if path.flink])
        own = self._routes([path for path in self.table.paths if not path.flink])
        # The page itself holds nothing of a job, and a browser that opens it cannot say yet who asks.
        pages = [
            Route(f"/{name}" if name != "index.html" else "/", page_files.page(name), methods=["GET"])
            for name in page_files.files()
        ]
        app = Starlette(
            routes=[Mount("/v1", routes=routes), *routes, *own, *pages], exception_handlers={HTTPException: http_error}
        )
        return WithHeaders(KnownNames(app, self._names, wrong_host))

    def _routes(self, paths: Sequence[Path]) -> list[Route]:
        by_path: dict[str, dict[str, Path]] = {}
        for path in paths:
            by_path.setdefault(path.path, {})[path.method] = path
        return [Route(path, self._dispatch(own), methods=list(own)) for path, own in by_path.items()]

    def _dispatch(self, methods: dict[str, Path]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            path = methods["GET" if request.method == "HEAD" else request.method]
            if path.open:
                return await path.handler(request)
            # What long work came to is told to whoever may ask for it: an error may quote the row that caused it.
            request.state.trusted = self.access.require(request, secret=path.secret)
            try:
                return await self._answer(path, request)
            except HTTPException:
                raise
            except Exception as error:
                if not request.state.trusted:
                    return error_response(ControlError("It failed. Ask with the job's token to learn why."), 500)
                return error_response(as_penstock_error(error), 409 if isinstance(error, ControlError) else 500)

        return handle

    async def _answer(self, path: Path, request: Request) -> Response:
        asked = request.path_params.get("job") or request.path_params.get("run")
        if asked is not None:
            if self._forward is not None:
                answer = await self._forward(request, asked)
                if answer is not None:
                    return answer
            request.state.run = await run_in_threadpool(self._run, asked)
        return await path.handler(request)

    def _run(self, id: str) -> Run:
        run = self._runs.get(id)
        if run is None:
            raise HTTPException(404, f"Job {id} not found")
        return run

    async def _code(self, request: Request) -> Response:
        path = self.access.new_path()
        return AsciiJson({"code": path.partition("=")[2], "path": path})

    async def _openapi(self, request: Request) -> Response:
        return AsciiJson(self.document())

    def document(self) -> dict[str, Any]:
        return openapi(self.table.paths, version("penstock"))
