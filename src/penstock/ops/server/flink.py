"""Flink's paths that only read, with Flink's field names, over one run or many."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.ops.process.registry import State, now_ms
from penstock.ops.server import checkpoints
from penstock.ops.server.answers import AsciiJson
from penstock.ops.server.routes import Table
from penstock.ops.server.runs import Run, Runs

JOB = "/jobs/{job}"
REFRESH_MS = 3000


class FlinkPaths:
    """The handlers; `request.state` has the run, and whether errors may be told."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def overview(self, request: Request) -> Response:
        states = [run.entry.state for run in await run_in_threadpool(self._runs.all)]
        running = sum(not state.ended for state in states)
        return AsciiJson(
            {
                "taskmanagers": running,
                "slots-total": running,
                "slots-available": 0,
                "jobs-running": running,
                "jobs-finished": states.count(State.FINISHED),
                "jobs-cancelled": states.count(State.CANCELED),
                "jobs-failed": states.count(State.FAILED),
                "flink-version": f"penstock-{version('penstock')}",
                "flink-commit": "",
            }
        )

    async def config(self, request: Request) -> Response:
        return AsciiJson(
            {
                "refresh-interval": REFRESH_MS,
                "timezone-name": time.tzname[0],
                "timezone-offset": -time.timezone * 1000,
                "flink-version": f"penstock-{version('penstock')}",
                "flink-revision": "",
                "features": {
                    "web-submit": False,
                    "web-cancel": True,
                    "web-rescale": False,
                    "web-history": False,
                },
            }
        )

    async def ids(self, request: Request) -> Response:
        runs = await run_in_threadpool(self._runs.all)
        return AsciiJson({"jobs": [{"id": run.entry.id, "status": run.entry.state} for run in runs]})

    async def jobs(self, request: Request) -> Response:
        runs = await run_in_threadpool(self._runs.all)
        return AsciiJson({"jobs": [{**times(run), "tasks": {"total": 1}, "pending-operators": 0} for run in runs]})

    async def detail(self, request: Request) -> Response:
        return await run_in_threadpool(self._detail, request)

    def _detail(self, request: Request) -> Response:
        run: Run = request.state.run
        entry, status = run.entry, run.status()
        hidden = () if request.state.trusted else ("error",)
        facts = status.get("queries") or {
            uid: {"epoch": now.epoch, "generation": now.generation} for uid, now in run.view.queries().items()
        }
        return AsciiJson(
            {
                **times(run),
                "isStoppable": True,
                "job-type": "STREAMING",
                "now": now_ms(),
                "maxParallelism": -1,
                "timestamps": {str(state): since for state, since in run.since.items()},
                "vertices": [
                    {"id": uid, "name": uid, "status": entry.state}
                    | {name: fact for name, fact in told.items() if name not in hidden}
                    for uid, told in facts.items()
                ],
                "status-counts": {str(entry.state): len(facts)} if facts else {},
                "plan": plan_of(run),
                "pending-operators": 0,
                "restarts": max(entry.restarts, int(status.get("restarts", 0))),
                "last-savepoint": entry.savepoint,
            }
        )

    async def plan(self, request: Request) -> Response:
        return AsciiJson({"plan": await run_in_threadpool(plan_of, request.state.run)})

    async def job_config(self, request: Request) -> Response:
        run: Run = request.state.run
        settings = (await run_in_threadpool(run.describe)).get("settings") or []
        values = {str(row.get("key")): row.get("value") for row in settings}
        return AsciiJson(
            {
                "jid": run.entry.id,
                "name": run.entry.name,
                "execution-config": {
                    "execution-mode": "PIPELINED",
                    "restart-strategy": values.get("restart-strategy.type", ""),
                    "job-parallelism": -1,
                    "object-reuse-mode": False,
                    "user-config": values,
                },
            }
        )

    async def exceptions(self, request: Request) -> Response:
        run: Run = request.state.run
        entries = [
            {
                "exceptionName": note["error"],
                "stacktrace": note["happened"],
                "timestamp": note["time"],
                "taskName": note["query"],
                "endpoint": None,
                "taskManagerId": None,
                "failureLabels": {},
                "concurrentExceptions": [],
            }
            for note in run.view.notes("exceptions")
        ]
        error: Mapping[str, str] = run.entry.error or {}
        return AsciiJson(
            {
                "root-exception": error.get("happened"),
                "timestamp": run.entry.end if error else None,
                "all-exceptions": [],
                "truncated": False,
                "exceptionHistory": {"entries": entries, "truncated": False},
            }
        )

    async def checkpoints(self, request: Request) -> Response:
        return AsciiJson(
            await run_in_threadpool(checkpoints.statistics, request.state.run, shown=request.state.trusted)
        )

    async def checkpoint_config(self, request: Request) -> Response:
        return AsciiJson(await run_in_threadpool(checkpoints.configuration, request.state.run))

    async def checkpoint_details(self, request: Request) -> Response:
        number = _number(request)
        shown = request.state.trusted
        found = await run_in_threadpool(checkpoints.details, request.state.run, number, shown=shown)
        return _found(found, f"There is no checkpoint {number} in the history of this run")

    async def checkpoint_subtasks(self, request: Request) -> Response:
        number, vertex = _number(request), request.path_params["vertex"]
        found = await run_in_threadpool(checkpoints.subtasks, request.state.run, number, vertex)
        return _found(found, f"The record of checkpoint {number} of query {vertex} is not kept any more, or never was")

    async def metrics(self, request: Request) -> Response:
        values = await run_in_threadpool(metrics_of, request.state.run)
        wanted = request.query_params.get("get")
        if wanted is None:
            return AsciiJson([{"id": name} for name in values])
        names = [name for name in wanted.split(",") if name in values]
        return AsciiJson([{"id": name, "value": str(values[name])} for name in names])


def add_flink(table: Table, paths: FlinkPaths) -> None:
    """Before the paths that steer: what is asked after by a request id comes last."""
    flink: dict[str, Any] = {"flink": True}
    table.add("GET", "/overview", paths.overview, "How many jobs there are, by state", **flink)
    table.add("GET", "/config", paths.config, "How often a page should ask, and which version this is", **flink)
    table.add("GET", "/jobs", paths.ids, "Ids and states of jobs", answer=("jobs",), **flink)
    table.add("GET", "/jobs/overview", paths.jobs, "Jobs with their times", answer=("jobs",), **flink)
    table.add("GET", JOB, paths.detail, "One job: state, times, queries, plan", answer=("jid", "name"), **flink)
    table.add("GET", f"{JOB}/plan", paths.plan, "Sources, operators and sinks", answer=("plan",), **flink)
    table.add("GET", f"{JOB}/config", paths.job_config, "Its settings", secret=True, **flink)
    table.add("GET", f"{JOB}/exceptions", paths.exceptions, "What has failed", secret=True, **flink)
    names = ("counts", "summary", "latest", "history")
    table.add("GET", f"{JOB}/checkpoints", paths.checkpoints, "Statistics of checkpoints", answer=names, **flink)
    table.add("GET", f"{JOB}/checkpoints/config", paths.checkpoint_config, "Settings of checkpoints", **flink)
    details = f"{JOB}/checkpoints/details/{{number}}"
    table.add("GET", details, paths.checkpoint_details, "One checkpoint, by query", **flink)
    table.add("GET", f"{details}/subtasks/{{vertex}}", paths.checkpoint_subtasks, "By source partition", **flink)
    table.add("GET", f"{JOB}/metrics", paths.metrics, "Names of metrics; with get=, values", query=("get",), **flink)


def times(run: Run) -> dict[str, Any]:
    entry = run.entry
    return {
        "jid": entry.id,
        "name": entry.name,
        "state": entry.state,
        "start-time": entry.start,
        "end-time": entry.end if entry.end is not None else -1,
        "duration": (entry.end or now_ms()) - entry.start,
        "last-modification": max(run.since.values()) if run.since else entry.modified,
    }


def plan_of(run: Run) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    for query in (run.describe().get("plan") or {}).get("queries") or []:
        uid = query["uid"]
        sources = [f"{uid}/source/{source['uid']}" for source in query["sources"]]
        nodes += [
            _node(place, "Source", source["describe"], [])
            for place, source in zip(sources, query["sources"], strict=True)
        ]
        names = [operator["name"] for operator in query["operators"]]
        nodes.append(_node(uid, "Query", " → ".join([uid, *names]), sources))
        nodes += [_node(f"{uid}/sink/{sink['uid']}", "Sink", sink["describe"], [uid]) for sink in query["sinks"]]
    return {"jid": run.entry.id, "name": run.entry.name, "type": "STREAMING", "nodes": nodes}


def metrics_of(run: Run) -> dict[str, Any]:
    """By Flink's names, as far as they mean something here."""
    queries = run.view.queries().values()
    newest = [now.newest for now in queries if now.newest is not None]
    last = max(newest, key=lambda epoch: epoch["ended"], default=None)
    entry = run.entry
    return {
        "numRestarts": entry.restarts,
        "uptime": (entry.end or now_ms()) - entry.start if run.live else 0,
        "numberOfCompletedCheckpoints": sum(now.complete for now in queries),
        "numberOfFailedCheckpoints": sum(now.failed for now in queries),
        "numberOfInProgressCheckpoints": sum(now.phase != "idle" for now in queries) if run.live else 0,
        "totalNumberOfCheckpoints": sum(now.complete + now.failed for now in queries),
        "lastCheckpointDuration": round(last["total_ms"]) if last else -1,
        "lastCheckpointSize": (last["bytes"] or 0) + last["inflight_bytes"] if last else -1,
        "lastCheckpointFullSize": (last["state_bytes"] or 0) if last else -1,
        "lastCheckpointPersistedData": last["inflight_bytes"] if last else -1,
        "lastCompletedCheckpointId": last["epoch"] if last else -1,
    }


def _node(id: str, kind: str, description: str, inputs: list[str]) -> dict[str, Any]:
    return {
        "id": id,
        "parallelism": -1,
        "operator": kind,
        "operator_strategy": "",
        "description": description,
        "inputs": [{"num": number, "id": source, "ship_strategy": "FORWARD"} for number, source in enumerate(inputs)],
        "optimizer_properties": {},
    }


def _number(request: Request) -> int:
    given = request.path_params["number"]
    if not given.isdecimal() or len(given) > 18:
        raise HTTPException(404, f"{given[:100]!r} is not the number of a checkpoint")
    return int(given)


def _found(body: dict[str, Any] | None, missing: str) -> Response:
    if body is None:
        raise HTTPException(404, missing)
    return AsciiJson(body)
