"""The application for all runs of this machine, and the server that `penstock ui` runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.errors import ControlError
from penstock.ops.server.access import Access
from penstock.ops.server.app import Application
from penstock.ops.server.commands import CommandPaths
from penstock.ops.server.control import Operations
from penstock.ops.server.forward import Forwarding
from penstock.ops.server.job_app import add_job_paths
from penstock.ops.server.runs import MachineRuns, Run
from penstock.ops.server.serving import check_certificate, listen, names_of, place_of, warn_in_clear
from penstock.ops.server.steer import SteeringPaths

if TYPE_CHECKING:
    from penstock.config.operations import Rest


class EndedSteering(SteeringPaths):
    """Steering a run that cannot be steered any more: whoever asked for its end still learns where the savepoint is."""

    def __init__(self) -> None:
        pass

    async def end(self, request: Request) -> Response:
        raise _ended(request.state.run)

    savepoint = stop = checkpoint = end

    async def poll_savepoint(self, request: Request) -> Response:
        entry, asked = request.state.run.entry, request.path_params["request"]
        if entry.savepoint is not None and entry.savepoint_request == asked:
            return JSONResponse({"status": {"id": "COMPLETED"}, "operation": {"location": entry.savepoint}})
        raise HTTPException(404, f"There was no savepoint with the request id {asked}")

    async def poll_checkpoint(self, request: Request) -> Response:
        raise HTTPException(404, f"There was no checkpoint with the request id {request.path_params['request']}")


def ui_application(
    access: Access, storages: Iterable[str] = (), names: Sequence[str] = (), runs: MachineRuns | None = None
) -> Application:
    machine = runs or MachineRuns(storages)
    app = Application(machine, access, names, Forwarding(machine))
    add_job_paths(app.table, EndedSteering(), Operations(), CommandPaths(machine, machine))
    return app


def serve_ui(rest: Rest, token: str, storages: Iterable[str], opened: Callable[[str], Any]) -> None:
    """Serve until the process is ended. `opened` is told the link, with its one-time code, once the port is open."""
    from penstock.ops.server.connections import Server, uvicorn_config

    secure = rest.certificate is not None
    check_certificate(rest)
    listener = listen(rest.bind_address, rest.port)
    warn_in_clear(listener.getsockname()[0], rest)
    access = Access(token)
    app = ui_application(access, storages, names_of(listener, rest))
    server = Server(uvicorn_config(app.asgi(), rest, "critical"))
    server.config.timeout_graceful_shutdown = 1  # a page that follows events would hold the end back
    opened(f"{'https' if secure else 'http'}://{place_of(listener, rest)}{access.new_path()}")
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _ended(run: Run) -> ControlError:
    return ControlError(
        f"Job {run.entry.name!r} is {run.entry.state} and takes no commands.",
        safe="nothing was done.",
        to_do="start it again, if it is to go on.",
    )
