"""Flink's paths that change something: savepoints, stop, cancel, checkpoints, disposal; and what became of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.ops.process.registry import ID
from penstock.ops.server import requests
from penstock.ops.server.answers import NotifyingResponse, error_response
from penstock.ops.server.client import PROGRESS_HEADER
from penstock.ops.server.control import Lifecycle, Operations, Steerable, as_penstock_error
from penstock.ops.server.routes import Table

JOB = "/jobs/{job}"


@dataclass(frozen=True)
class Steered:
    """What is steered, and what came of it so far."""

    job: Steerable
    lifecycle: Lifecycle
    operations: Operations


class SteeringPaths:
    """Of the job in this process."""

    def __init__(self, steered: Steered) -> None:
        self._on = steered

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

    async def poll_savepoint(self, request: Request) -> Response:
        return poll(self._on.operations, "savepoint", request)

    async def poll_checkpoint(self, request: Request) -> Response:
        return poll(self._on.operations, "checkpoint", request)

    def _start(self, kind: str, body: dict[str, Any], work: Callable[[str], dict[str, Any]]) -> Response:
        return start(self._on.operations, kind, body, work)


class DisposalPaths:
    """Deletes savepoints, whichever job's they are."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def dispose(self, request: Request) -> Response:
        body = await requests.read_object(request)
        path = requests.text(body, "savepoint-path")
        if path is None:
            raise HTTPException(400, "savepoint-path is missing")

        def work(_: str) -> dict[str, Any]:
            from penstock.savepoints.savepoint import dispose

            dispose(path)
            return {}

        return start(self._operations, "disposal", body, work)

    async def poll(self, request: Request) -> Response:
        return poll(self._operations, "disposal", request)


def add_steering(table: Table, paths: SteeringPaths) -> None:
    flink: dict[str, Any] = {"secret": True, "flink": True}
    asked: dict[str, Any] = {**flink, "status": 202, "answer": ("request-id",)}
    polled: dict[str, Any] = {**flink, "answer": ("status", "operation")}
    table.add("PATCH", JOB, paths.end, "End a job: mode=cancel or mode=stop", status=202, query=("mode",), **flink)
    body: tuple[str, ...] = ("target-directory", "cancel-job", "formatType", "triggerId")
    table.add("POST", f"{JOB}/savepoints", paths.savepoint, "Take a savepoint", body=body, **asked)
    table.add(
        "GET", f"{JOB}/savepoints/{{request}}", paths.poll_savepoint, "What became of a savepoint or a stop", **polled
    )
    body = ("targetDirectory", "drain", "formatType", "triggerId")
    table.add("POST", f"{JOB}/stop", paths.stop, "Stop with a savepoint", body=body, **asked)
    body = ("checkpointType", "triggerId")
    table.add("POST", f"{JOB}/checkpoints", paths.checkpoint, "Complete a checkpoint now", body=body, **asked)
    table.add("GET", f"{JOB}/checkpoints/{{request}}", paths.poll_checkpoint, "What became of a checkpoint", **polled)


def add_disposal(table: Table, paths: DisposalPaths) -> None:
    flink: dict[str, Any] = {"secret": True, "flink": True}
    table.add(
        "POST", "/savepoint-disposal", paths.dispose, "Delete a savepoint", status=202,
        body=("savepoint-path", "triggerId"), answer=("request-id",), **flink,
    )  # fmt: skip
    table.add(
        "GET", "/savepoint-disposal/{request}", paths.poll, "What became of a disposal",
        answer=("status", "operation"), **flink,
    )  # fmt: skip


def start(operations: Operations, kind: str, body: dict[str, Any], work: Callable[[str], dict[str, Any]]) -> Response:
    asked = requests.text(body, "triggerId")
    if asked is not None and not ID.fullmatch(asked):
        raise HTTPException(400, f"triggerId {asked!r} is not 32 hexadecimal digits")
    return JSONResponse({"request-id": operations.start(kind, asked, work)}, 202)


def poll(operations: Operations, kind: str, request: Request) -> Response:
    asked = request.path_params["request"]
    operation = operations.get(kind, asked)
    if operation is None:
        raise HTTPException(404, f"There was no {kind} with the request id {asked}")
    if not operation.over.is_set():
        # Beside the body and not in it: the shape of the body is what Flink's clients go by.
        more = {PROGRESS_HEADER: operation.step.to_json()} if operation.step is not None else {}
        return JSONResponse({"status": {"id": "IN_PROGRESS"}, "operation": None}, headers=more)
    if operation.error is not None:
        answer = error_response(as_penstock_error(operation.error), 500)
    else:
        answer = JSONResponse({"status": {"id": "COMPLETED"}, "operation": operation.answer})
    return NotifyingResponse(answer, operation.fetched.set)
