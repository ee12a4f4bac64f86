"""The paths and answers of Flink's REST interface, with and without `/v1`, over one job.

Flink's own client takes the shape of an answer for its meaning: an error is `{"errors": […]}` and nothing else, and
what it cannot read it sends again. So every way out of here, a wrong path included, has one of the shapes it knows.
The three sentences of an error of ours travel beside it, in the header `X-Penstock-Error`, for our own client.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from penstock.errors import ControlError, PenstockError
from penstock.process.registration import Registration
from penstock.process.registry import ID, now_ms
from penstock.server import requests
from penstock.server.lifecycle import Lifecycle, Steerable
from penstock.server.operations import Operations, as_penstock_error
from penstock.server.requests import Asgi, KnownNames

ERROR_HEADER = "X-Penstock-Error"
PROGRESS_HEADER = "X-Penstock-Progress"
_MOST_IN_HEADER = 8000
_BEARER = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Controls:
    """What the paths lead to. `open_reads`: reading needs no token, but then shows no error's text. `names`: those it
    answers to besides this machine's own."""

    job: Steerable
    registration: Registration
    lifecycle: Lifecycle
    operations: Operations
    token: str
    open_reads: bool = False
    names: tuple[str, ...] = ()


def application(controls: Controls) -> Asgi:
    """The ASGI application for one job."""
    paths = _Paths(controls)
    job = "/jobs/{job}"
    routes = [
        ("GET", "/jobs", paths.ids),
        ("GET", "/jobs/overview", paths.overview),
        ("GET", job, paths.detail),
        ("PATCH", job, paths.end),
        ("POST", f"{job}/savepoints", paths.savepoint),
        ("GET", f"{job}/savepoints/{{request}}", paths.poll_savepoint),
        ("POST", f"{job}/stop", paths.stop),
        ("POST", f"{job}/checkpoints", paths.checkpoint),
        ("GET", f"{job}/checkpoints/{{request}}", paths.poll_checkpoint),
        ("POST", "/savepoint-disposal", paths.dispose),
        ("GET", "/savepoint-disposal/{request}", paths.poll_disposal),
    ]
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in routes:
        by_path.setdefault(path, {})[method] = handler
    mine = [Route(path, _dispatch(controls, methods), methods=list(methods)) for path, methods in by_path.items()]
    app = Starlette(routes=[Mount("/v1", routes=mine), *mine], exception_handlers={HTTPException: _http_error})
    return KnownNames(app, controls.names, _wrong_host)


def _dispatch(controls: Controls, methods: dict[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        request.state.trusted = _is_trusted(request, controls.token)
        # What long work came to is told to whoever may ask for it: an error may quote the row that caused it.
        secret = method != "GET" or "request" in request.path_params
        if not request.state.trusted and (secret or not controls.open_reads):
            needed = "The job's token is needed, in the header Authorization, as Bearer TOKEN"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})
        job = request.path_params.get("job")
        if job is not None and job != controls.registration.entry.id:
            raise HTTPException(404, f"Job {job} not found")
        try:
            return await methods[method](request)
        except HTTPException:
            raise
        except Exception as error:
            if not request.state.trusted:
                return _error_response(ControlError("It failed. Ask with the job's token to learn why."), 500)
            return _error_response(as_penstock_error(error), 409 if isinstance(error, ControlError) else 500)

    return handle


def _is_trusted(request: Request, token: str) -> bool:
    match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
    given = match["token"].encode("latin-1") if match is not None else b""  # the bytes that were sent
    return hmac.compare_digest(given, token.encode())


class _Paths:
    def __init__(self, controls: Controls) -> None:
        self._on = controls

    async def ids(self, request: Request) -> Response:
        self._on.lifecycle.status()
        entry = self._on.registration.entry
        return JSONResponse({"jobs": [{"id": entry.id, "status": entry.state}]})

    async def overview(self, request: Request) -> Response:
        self._on.lifecycle.status()
        return JSONResponse({"jobs": [{**self._times(), "tasks": {"total": 1}, "pending-operators": 0}]})

    async def detail(self, request: Request) -> Response:
        status = self._on.lifecycle.status()
        hidden = () if request.state.trusted else ("error",)
        entry = self._on.registration.entry
        times = self._times()
        return JSONResponse(
            {
                **times,
                "isStoppable": True,
                "job-type": "STREAMING",
                "now": now_ms(),
                "maxParallelism": -1,
                "timestamps": {str(state): since for state, since in self._on.lifecycle.since.items()},
                "vertices": [
                    {"id": uid, "name": uid, "status": entry.state}
                    | {name: fact for name, fact in facts.items() if name not in hidden}
                    for uid, facts in status.get("queries", {}).items()
                ],
                "status-counts": {},
                "plan": {"jid": entry.id, "name": entry.name, "type": "STREAMING", "nodes": []},
                "pending-operators": 0,
                "restarts": max(entry.restarts, int(status.get("restarts", 0))),
                "last-savepoint": entry.savepoint,
            }
        )

    async def end(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "cancel")
        if mode not in ("cancel", "stop"):
            raise HTTPException(400, f"mode={mode} is neither cancel nor stop")
        if mode == "cancel":
            self._on.lifecycle.cancelling()
        await run_in_threadpool(self._on.job.cancel if mode == "cancel" else self._on.job.stop)
        return JSONResponse({}, 202)

    async def savepoint(self, request: Request) -> Response:
        body = await requests.read_object(request)
        directory, kind = requests.text(body, "target-directory"), requests.kind(body)
        cancel = requests.flag(body, "cancel-job")

        def work(asked: str) -> dict[str, Any]:
            progress = self._on.operations.progress(asked)
            if cancel:
                # Nothing may become visible after the savepoint, so the job stops at it. Then it counts as cancelled.
                with self._on.lifecycle.cancelling_at_end():
                    path = self._on.job.stop_with_savepoint(directory, kind=kind, cancel=True, progress=progress)
            else:
                path = self._on.job.savepoint(directory, kind=kind, progress=progress)
            self._on.lifecycle.savepoint(path, asked)
            return {"location": path}

        return self._start("savepoint", body, work)

    async def stop(self, request: Request) -> Response:
        body = await requests.read_object(request)
        directory, kind = requests.text(body, "targetDirectory"), requests.kind(body)
        drain = requests.flag(body, "drain")

        def work(asked: str) -> dict[str, Any]:
            progress = self._on.operations.progress(asked)
            path = self._on.job.stop_with_savepoint(directory, drain=drain, kind=kind, progress=progress)
            self._on.lifecycle.savepoint(path, asked)
            return {"location": path}

        return self._start("savepoint", body, work)  # one place to ask after both

    async def checkpoint(self, request: Request) -> Response:
        body = await requests.read_object(request)
        return self._start("checkpoint", body, lambda _: {"checkpointId": self._on.job.checkpoint()})

    async def dispose(self, request: Request) -> Response:
        body = await requests.read_object(request)
        path = requests.text(body, "savepoint-path")
        if path is None:
            raise HTTPException(400, "savepoint-path is missing")

        def work(_: str) -> dict[str, Any]:
            from penstock.savepoints.savepoint import dispose

            dispose(path)
            return {}

        return self._start("disposal", body, work)

    async def poll_savepoint(self, request: Request) -> Response:
        return self._poll("savepoint", request)

    async def poll_checkpoint(self, request: Request) -> Response:
        return self._poll("checkpoint", request)

    async def poll_disposal(self, request: Request) -> Response:
        return self._poll("disposal", request)

    def _start(self, kind: str, body: dict[str, Any], work: Callable[[str], dict[str, Any]]) -> Response:
        asked = requests.text(body, "triggerId")
        if asked is not None and not ID.fullmatch(asked):
            raise HTTPException(400, f"triggerId {asked!r} is not 32 hexadecimal digits")
        return JSONResponse({"request-id": self._on.operations.start(kind, asked, work)}, 202)

    def _poll(self, kind: str, request: Request) -> Response:
        asked = request.path_params["request"]
        operation = self._on.operations.get(kind, asked)
        if operation is None:
            raise HTTPException(404, f"There was no {kind} with the request id {asked}")
        if not operation.over.is_set():
            # Beside the body and not in it: of Flink's clients the older refuse a body with a field they do not know.
            more = {PROGRESS_HEADER: operation.step.to_json()} if operation.step is not None else {}
            return JSONResponse({"status": {"id": "IN_PROGRESS"}, "operation": None}, headers=more)
        if operation.error is not None:
            answer = _error_response(as_penstock_error(operation.error), 500)
        else:
            answer = JSONResponse({"status": {"id": "COMPLETED"}, "operation": operation.answer})
        return _NotifyingResponse(answer, operation.fetched.set)

    def _times(self) -> dict[str, Any]:
        entry = self._on.registration.entry
        return {
            "jid": entry.id,
            "name": entry.name,
            "state": entry.state,
            "start-time": entry.start,
            "end-time": entry.end if entry.end is not None else -1,
            "duration": (entry.end or now_ms()) - entry.start,
            "last-modification": max(self._on.lifecycle.since.values()),
        }


class _AsciiJson(JSONResponse):
    """JSON in ASCII: an error may quote a path that is no valid text, and it must still be told."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


class _NotifyingResponse(Response):
    """An answer, and what is to be done once it has been sent."""

    def __init__(self, answer: Response, sent: Callable[[], None]) -> None:
        self._answer, self._sent = answer, sent

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._answer(scope, receive, send)
        self._sent()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:
        detail = f"{detail}: {request.method} {request.url.path}"
    return _error_response(ControlError(detail), error.status_code, dict(error.headers or {}))


def _wrong_host(host: str) -> Response:
    return _error_response(
        ControlError(
            f"The request was meant for {host[:200]!r}, which is none of this job's names.",
            safe="nothing was done.",
            to_do="ask 127.0.0.1 or localhost, or add the name to penstock.control.hosts.",
        ),
        403,
    )


def _error_response(error: PenstockError, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    header = error.to_json()  # ASCII, one line
    more = {ERROR_HEADER: header} if len(header) <= _MOST_IN_HEADER else {}
    return _AsciiJson({"errors": [str(error)]}, status, headers={**(headers or {}), **more})
