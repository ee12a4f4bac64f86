"""The application: every path with its rules of access, over one run or all of a machine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from penstock.errors import ControlError
from penstock.ops.server import web
from penstock.ops.server.commands import Steering, command_endpoints, steering_endpoints
from penstock.ops.server.control import as_penstock_error
from penstock.ops.server.flink import flink_endpoints
from penstock.ops.server.metrics import Metrics
from penstock.ops.server.own import ROOT, own_endpoints
from penstock.ops.server.runs import MachineRuns, Run, Runs
from penstock.ops.server.web import Access, AsciiJson, Asgi, Endpoint

Forward = Callable[[Request, str], Awaitable[Response | None]]  # sends it on to a run; None: this process answers


@dataclass(eq=False)
class Application:
    """`names` are those it answers to besides this machine's own. With `forward`, `runs` are those of the machine."""

    runs: Runs
    access: Access
    steering: Steering
    metrics: Metrics | None = None
    names: Sequence[str] = ()
    forward: Forward | None = None

    def __post_init__(self) -> None:
        self.endpoints = [
            *flink_endpoints(self.runs),
            *own_endpoints(self.runs),
            Endpoint("POST", f"{ROOT}/codes", self._code, secret=True),
            Endpoint("POST", f"{ROOT}/sessions", self._session, open=True, status=201, body=True),
            *steering_endpoints(self.steering),
            *command_endpoints(self.runs if isinstance(self.runs, MachineRuns) else None),
            Endpoint("GET", "/metrics", self._scrape, flink=True),
        ]

    def asgi(self) -> Asgi:
        flink = self._routes([endpoint for endpoint in self.endpoints if endpoint.flink])
        own = self._routes([endpoint for endpoint in self.endpoints if not endpoint.flink])
        routes = [Mount("/v1", routes=flink), *flink, *own, Mount("/", web.Page(directory=web.PAGE, html=True))]
        app = Starlette(routes=routes, exception_handlers={HTTPException: web.http_error})
        return web.WithHeaders(web.KnownNames(app, self.names))

    def _routes(self, endpoints: Sequence[Endpoint]) -> list[Route]:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        return [Route(path, self._dispatch(methods), methods=list(methods)) for path, methods in by_path.items()]

    def _dispatch(self, methods: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            endpoint = methods["GET" if request.method == "HEAD" else request.method]
            if endpoint.open:
                return await _answer(endpoint, request)
            # Only a client with the token is shown an error's text, which may quote the row that caused it.
            request.state.trusted = self.access.require(request, secret=endpoint.secret)
            try:
                run_id = request.path_params.get("job") or request.path_params.get("run")
                if run_id is not None:
                    forwarded = await self.forward(request, run_id) if self.forward is not None else None
                    if forwarded is not None:
                        return forwarded
                    request.state.run = await run_in_threadpool(self._run, run_id)
                return await _answer(endpoint, request)
            except HTTPException:
                raise
            except Exception as error:
                if not request.state.trusted:
                    return web.error_response(ControlError("It failed. Ask with the job's token to learn why."), 500)
                return web.error_response(as_penstock_error(error), 409 if isinstance(error, ControlError) else 500)

        return handle

    def _run(self, id: str) -> Run:
        run = self.runs.get(id)
        if run is None:
            raise HTTPException(404, f"Job {id} not found")
        return run

    def _code(self, request: Request) -> dict[str, str]:
        code = self.access.new_code()
        return {"code": code, "path": f"/#code={code}"}

    def _session(self, request: Request) -> dict[str, str]:
        return {"token": self.access.new_session(web.text(request.state.body, "code") or "")}

    def _scrape(self, request: Request) -> Response:
        if self.metrics is None:
            raise HTTPException(404, "There are no metrics here: ask a running job's own address")
        body, content_type = self.metrics.render(request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": content_type})


async def _answer(endpoint: Endpoint, request: Request) -> Response:
    if endpoint.body:
        request.state.body = await web.read_object(request)
    if inspect.iscoroutinefunction(endpoint.handler):
        answer = await endpoint.handler(request)
    else:
        answer = await run_in_threadpool(endpoint.handler, request)
    return answer if isinstance(answer, Response) else AsciiJson(answer, endpoint.status)
