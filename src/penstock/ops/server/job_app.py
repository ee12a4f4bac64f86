"""The application of one running job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.ops.process.registry import Registration
from penstock.ops.server.access import Access
from penstock.ops.server.app import Application
from penstock.ops.server.commands import CommandPaths, add_commands
from penstock.ops.server.control import Lifecycle, Operations, Steerable
from penstock.ops.server.metrics import Metrics
from penstock.ops.server.routes import Table
from penstock.ops.server.run_view import RunView
from penstock.ops.server.runs import Insight, OneRun, Run
from penstock.ops.server.steer import DisposalPaths, Steered, SteeringPaths, add_disposal, add_steering


@dataclass(frozen=True)
class Controls:
    """What the paths lead to. `open_reads`: reading needs no token, but then shows no error's text. `names`: those it
    answers to besides this machine's own."""

    job: Steerable
    registration: Registration
    lifecycle: Lifecycle
    operations: Operations
    token: str
    view: RunView
    describe: Callable[[], Mapping[str, Any]] = dict
    insight: Insight | None = None
    open_reads: bool = False
    names: Sequence[str] = field(default=())
    metrics: Metrics | None = None

    def run(self) -> Run:
        """As it is now. Asking the job brings its state up to date."""
        status = self.lifecycle.status()
        entry = self.registration.entry
        return Run(
            entry,
            self.view,
            self.describe,
            live=not entry.state.ended,
            status=lambda: status,
            since=self.lifecycle.since,
            insight=self.insight,
        )


def job_application(controls: Controls) -> Application:
    access = Access(controls.token, open_reads=controls.open_reads)
    runs = OneRun(controls.run)
    app = Application(runs, access, controls.names)
    steering = SteeringPaths(Steered(controls.job, controls.lifecycle, controls.operations))
    add_job_paths(app.table, steering, controls.operations, CommandPaths(runs), controls.metrics)
    return app


def add_job_paths(
    table: Table,
    steering: SteeringPaths,
    operations: Operations,
    commands: CommandPaths,
    metrics: Metrics | None = None,
) -> None:
    """What every server has: whether a run is living or past shows in what they answer."""
    add_steering(table, steering)
    add_disposal(table, DisposalPaths(operations))
    add_commands(table, commands)
    table.add("GET", "/metrics", _scraped(metrics), "Metrics for Prometheus", flink=True, media="text/plain")


def _scraped(metrics: Metrics | None) -> Callable[[Request], Awaitable[Response]]:
    """Answers `GET /metrics`."""

    async def scrape(request: Request) -> Response:
        if metrics is None:
            raise HTTPException(404, "There are no metrics here: ask a running job's own address")
        body, content_type = await run_in_threadpool(metrics.render, request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return scrape
