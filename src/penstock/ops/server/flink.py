"""Flink's paths that read, as its command line and its dashboard ask. One epoch of one query is one checkpoint; each
source, query and sink is a vertex. Fields that could only hold a constant are left out, or empty, except where Flink's
own programs need them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request

from penstock.checkpoint.record import CheckpointRecord
from penstock.ops.process.registry import State, now_ms
from penstock.ops.server.run_view import QueryView, RunView, epoch_of, percentile
from penstock.ops.server.runs import Run, Runs
from penstock.ops.server.web import Endpoint

JOB = "/jobs/{job}"
REFRESH_MS = 3000
MOST_HISTORY = 100
SUMMARY_SECONDS = 5.0  # how old a summary of many epochs may be
_FEW = 1000
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_TASK_STATES = {"CANCELLING": "CANCELING", "FAILING": "FAILED", "RESTARTING": "SCHEDULED", "SUSPENDED": "RECONCILING"}
_MEASURES = ("checkpointed_size", "state_size", "end_to_end_duration", "processed_data", "persisted_data")
_summaries: WeakKeyDictionary[RunView, dict[str | None, tuple[float, dict[str, Any]]]] = WeakKeyDictionary()


def flink_endpoints(runs: Runs) -> list[Endpoint]:
    """To be served before the paths that steer: a path that ends with a request id comes last."""
    details, vertex = f"{JOB}/checkpoints/details/{{number}}", f"{JOB}/vertices/{{vertex}}"
    return [
        Endpoint("GET", "/overview", lambda _: overview(runs.all()), flink=True),
        Endpoint("GET", "/config", config, flink=True),
        Endpoint("GET", "/jobs", lambda _: ids(runs.all()), flink=True),
        Endpoint("GET", "/jobs/overview", lambda _: jobs(runs.all()), flink=True),
        Endpoint("GET", JOB, detail, flink=True),
        Endpoint("GET", f"{JOB}/config", job_config, secret=True, flink=True),
        Endpoint("GET", vertex, lambda _: {"subtasks": []}, flink=True),
        Endpoint("GET", f"{vertex}/watermarks", lambda _: [], flink=True),
        Endpoint("GET", f"{vertex}/subtasks/metrics", vertex_metrics, flink=True),
        Endpoint("GET", f"{JOB}/exceptions", exceptions, secret=True, flink=True),
        Endpoint("GET", f"{JOB}/checkpoints", checkpoints, flink=True),
        Endpoint("GET", f"{JOB}/checkpoints/config", checkpoint_config, flink=True),
        Endpoint("GET", details, checkpoint_details, flink=True),
        Endpoint("GET", f"{details}/subtasks/{{vertex}}", subtasks, flink=True),
    ]


def overview(runs: Sequence[Run]) -> dict[str, Any]:
    states = [run.entry.state for run in runs]
    return {
        "jobs-running": sum(not state.ended for state in states),
        "jobs-finished": states.count(State.FINISHED),
        "jobs-cancelled": states.count(State.CANCELED),
        "jobs-failed": states.count(State.FAILED),
        "flink-version": f"penstock-{version('penstock')}",
    }


def ids(runs: Sequence[Run]) -> dict[str, Any]:
    return {"jobs": [{"id": run.entry.id, "status": run.entry.state} for run in runs]}


def jobs(runs: Sequence[Run]) -> dict[str, Any]:
    """Flink's command line needs every field of it."""
    return {"jobs": [_times(run) | {"tasks": _tasks(run, "total"), "pending-operators": 0} for run in runs]}


def config(request: Request) -> dict[str, Any]:
    return {
        "refresh-interval": REFRESH_MS,
        "timezone-name": time.tzname[0],
        "timezone-offset": -time.timezone * 1000,
        "flink-version": f"penstock-{version('penstock')}",
        "flink-revision": version("penstock"),
        "features": {"web-submit": False, "web-cancel": False, "web-rescale": False, "web-history": False},
    }


def _times(run: Run) -> dict[str, Any]:
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


def _tasks(run: Run, *more: str) -> dict[str, int]:
    """A job, or a vertex, counts as one task."""
    state = _TASK_STATES.get(run.entry.state, str(run.entry.state))
    return dict.fromkeys((state.lower() if more else state, *more), 1)


def vertices_of(run: Run) -> list[dict[str, Any]]:
    """The sources, the query and the sinks of each query: vertices and nodes of the plan, which need the same set."""
    planned = {query["uid"]: query for query in (run.describe().get("plan") or {}).get("queries") or []}
    times = {name: value for name, value in _times(run).items() if name.endswith("-time") or name == "duration"}
    vertices: list[dict[str, Any]] = []

    def add(uid: str, id: str, kind: str, name: str, description: str, inputs: Iterable[str]) -> None:
        links = [{"num": number, "id": source} for number, source in enumerate(inputs)]
        about = {"id": id, "query": uid, "operator": kind, "name": description, "description": description}
        about["operator_strategy"] = ""
        vertices.append({**about, "inputs": links, "status": run.entry.state, "tasks": _tasks(run), **times})
        vertices[-1] |= _numbers(run, uid, kind, name)

    for uid in dict.fromkeys((*planned, *run.view.queries(), *(run.status.get("queries") or {}))):
        query: Mapping[str, Any] = planned.get(uid) or {}
        sources, sinks = query.get("sources") or (), query.get("sinks") or ()
        for source in sources:
            add(uid, f"{uid}:source:{source['uid']}", "Source", source["uid"], source["describe"], ())
        names = [operator["name"] for operator in query.get("operators") or ()]
        inputs = [f"{uid}:source:{source['uid']}" for source in sources]
        add(uid, uid, "Query", uid, " → ".join([uid, *names]), inputs)
        for sink in sinks:
            add(uid, f"{uid}:sink:{sink['uid']}", "Sink", sink["uid"], sink["describe"], [uid])
    return vertices


def _numbers(run: Run, uid: str, kind: str, name: str) -> dict[str, Any]:
    """What the epochs that are kept have written is sent by a query and received by a sink."""
    complete = [epoch for epoch in run.view.all_epochs() if epoch["query"] == uid and epoch["outcome"] == "complete"]
    shares = [[share for share in epoch["sinks"] if kind == "Query" or share.get("sink") == name] for epoch in complete]
    sums = {ours: sum(share.get(ours) or 0 for each in shares for share in each) for ours in ("bytes", "rows")}
    metrics: dict[str, Any] = {}
    for way, sender in (("read", "Sink"), ("write", "Query")):
        for what, ours in (("bytes", "bytes"), ("records", "rows")):
            metrics |= {f"{way}-{what}": sums[ours] if kind == sender else 0, f"{way}-{what}-complete": kind == sender}
    newest = shares[-1] if shares else []
    return {"parallelism": max((share.get("writers") or 0 for share in newest), default=None), "metrics": metrics}


def detail(request: Request) -> dict[str, Any]:
    run: Run = request.state.run
    entry, vertices = run.entry, vertices_of(run)
    hidden = () if request.state.trusted else ("error",)
    queries = run.status.get("queries") or {
        uid: {"epoch": query.epoch, "generation": query.generation} for uid, query in run.view.queries().items()
    }
    for vertex in vertices:
        vertex |= {name: fact for name, fact in (queries.get(vertex["id"]) or {}).items() if name not in hidden}
    return {
        **_times(run),
        "job-type": "STREAMING",
        "now": now_ms(),
        "timestamps": {str(state): since for state, since in run.since.items()},
        "vertices": vertices,
        "status-counts": {state: len(vertices) for state in _tasks(run)} if vertices else {},
        "plan": {"jid": entry.id, "name": entry.name, "type": "STREAMING", "nodes": vertices},
        "restarts": max(entry.restarts, int(run.status.get("restarts", 0))),
        "last-savepoint": entry.savepoint,
    }


def job_config(request: Request) -> dict[str, Any]:
    run: Run = request.state.run
    rows = {str(row["key"]): row["value"] for row in run.describe().get("settings") or ()}
    execution = {"restart-strategy": rows.get("restart-strategy.type"), "user-config": rows}
    execution["job-parallelism"] = rows.get("parallelism.default") or -1
    return {"jid": run.entry.id, "name": run.entry.name, "execution-config": execution}


def vertex_metrics(request: Request) -> list[dict[str, Any]]:
    """`busyTimeMsPerSecond` of a query, over its newest epochs. The dashboard needs an entry for each that it names."""
    query: QueryView | None = request.state.run.view.query(request.path_params["vertex"])
    busy = query.busy if query is not None and request.state.run.live else None
    values = {} if busy is None else dict.fromkeys(("min", "max", "avg", "sum"), round(busy * 1000))
    names = request.query_params.get("get", "").split(",")
    return [{"id": name, **(values if name == "busyTimeMsPerSecond" else {})} for name in names if name]


def exceptions(request: Request) -> dict[str, Any]:
    run: Run = request.state.run
    notes = run.exceptions()
    names = {"exceptionName": "error", "stacktrace": "happened", "timestamp": "time", "taskName": "query"}
    entries = [{name: note[ours] for name, ours in names.items()} | {"concurrentExceptions": []} for note in notes]
    ended = notes[:1] if run.entry.error and run.entry.state.ended else []
    return {
        "root-exception": ended[0]["happened"] if ended else None,
        "timestamp": ended[0]["time"] if ended else None,
        "exceptionHistory": {"entries": entries, "truncated": False},
    }


def checkpoints(request: Request) -> dict[str, Any]:
    return statistics(request.state.run, request.query_params.get("query") or None, shown=request.state.trusted)


def statistics(run: Run, query: str | None = None, *, shown: bool) -> dict[str, Any]:
    """Of one query, or of all. Savepoints and restores are always of all. `shown`: the client may read errors."""
    epochs = [epoch for epoch in run.view.all_epochs() if query in (None, epoch["query"])]
    complete = next((epoch for epoch in reversed(epochs) if epoch["outcome"] == "complete"), None)
    failed = next((epoch for epoch in reversed(epochs) if epoch["outcome"] != "complete"), None)
    queries = [view for uid, view in run.view.queries().items() if query in (None, uid)]
    in_progress = sum(view.phase != "idle" for view in queries) if run.live else 0
    completed, failures = sum(view.complete for view in queries), sum(view.failed for view in queries)
    counts = {"in_progress": in_progress, "completed": completed, "failed": failures}
    restored, savepoints = run.view.notes("restored"), run.view.notes("savepoints")
    latest = {
        "completed": _line(complete, shown) if complete else None,
        "savepoint": _savepoint(savepoints[0]) if savepoints else None,
        "failed": _line(failed, shown) if failed else None,
        "restored": _restored(restored[0]) if restored else None,
    }
    counts |= {"total": in_progress + completed + failures, "restored": len(restored)}
    history = [_line(epoch, shown) for epoch in epochs[: -MOST_HISTORY - 1 : -1]]
    return {"counts": counts, "summary": _summary(run.view, query, epochs), "latest": latest, "history": history}


def _summary(view: RunView, query: str | None, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = _summaries.setdefault(view, {}).get(query)
    if last is not None and len(epochs) > _FEW and time.monotonic() - last[0] < SUMMARY_SECONDS:
        return last[1]
    complete = [_sizes(epoch) for epoch in epochs if epoch["outcome"] == "complete"]
    summary = {name: spread([sizes[name] for sizes in complete]) for name in _MEASURES}
    if len(epochs) > _FEW:
        _summaries[view][query] = (time.monotonic(), summary)
    return summary


def checkpoint_config(request: Request) -> dict[str, Any]:
    return dict(request.state.run.describe().get("checkpoints") or {})


def checkpoint_details(request: Request) -> dict[str, Any]:
    """The newest attempt at an epoch of this number, each query that has one as a task."""
    run, number = request.state.run, _number(request)
    of_number = (epoch for epoch in run.view.all_epochs() if epoch["epoch"] == number)
    by_query = {epoch["query"]: _line(epoch, request.state.trusted) for epoch in of_number}
    if not by_query:
        raise HTTPException(404, f"There is no checkpoint {number} in the history of this run")
    unknown = {"status": "", "num_subtasks": 0, "num_acknowledged_subtasks": 0, **dict.fromkeys(_MEASURES)}
    unknown |= {"latest_ack_timestamp": -1, "end_to_end_duration": -1}
    tasks = {vertex["id"]: by_query.get(vertex["query"], unknown) for vertex in vertices_of(run)}
    return {**max(by_query.values(), key=lambda line: line["latest_ack_timestamp"]), "tasks": by_query | tasks}


def subtasks(request: Request) -> dict[str, Any]:
    """How each source partition of the epoch came to the cut, while its record is kept."""
    number, query = _number(request), request.path_params["vertex"].partition(":")[0]
    record: CheckpointRecord | None = request.state.run.record(query, number)
    if record is None:
        raise HTTPException(404, f"The record of checkpoint {number} of query {query} is not kept")
    cuts = record.alignment.partitions if record.alignment is not None else ()
    common = {"status": "completed", "unaligned_checkpoint": record.mode == "unaligned"}
    common["aborted"] = record.outcome != "complete"
    tasks = [
        common
        | {
            "index": index,
            "partition": cut.partition,
            "ack_timestamp": round(record.opened * 1000 + cut.reached_ms),
            "end_to_end_duration": round(cut.reached_ms),
            "checkpoint": {"sync": round(cut.took_ms)},
            "alignment": {"duration": round(cut.waited_ms)},
            "start_delay": round(cut.started_ms),
        }
        for index, cut in enumerate(cuts)
    ]
    line = _line({**epoch_of({**record.summary(), **record.extent()}), "why": None}, False)
    return {
        **{name: line[name] for name in ("id", "status", "latest_ack_timestamp", "num_subtasks", *_MEASURES)},
        "num_acknowledged_subtasks": len(tasks),
        "summary": {
            "end_to_end_duration": spread([round(cut.reached_ms) for cut in cuts]),
            "checkpointed_size": {},
            "state_size": {},
            "checkpoint_duration": {"sync": spread([round(cut.took_ms) for cut in cuts]), "async": {}},
            "alignment": {"duration": spread([round(cut.waited_ms) for cut in cuts]), "processed": {}, "persisted": {}},
            "start_delay": spread([round(cut.started_ms) for cut in cuts]),
        },
        "subtasks": tasks,
    }


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """The least, the most, the mean and Flink's percentiles; zero where there is nothing."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return dict.fromkeys(("min", "max", "avg", *_PERCENTILES), 0)
    mean = {"min": known[0], "max": known[-1], "avg": round(sum(known) / len(known))}
    return mean | {name: percentile(known, share) for name, share in _PERCENTILES.items()}


def _sizes(epoch: Mapping[str, Any]) -> dict[str, Any]:
    size = epoch["bytes"] or 0
    return {
        "checkpointed_size": size + epoch["inflight_bytes"],
        "state_size": epoch["state_bytes"] or 0,
        "end_to_end_duration": round(epoch["total_ms"]),
        "processed_data": size,
        "persisted_data": epoch["inflight_bytes"],
    }


def _line(epoch: Mapping[str, Any], shown: bool) -> dict[str, Any]:
    complete, ended = epoch["outcome"] == "complete", epoch["ended"]
    writers = max(1, sum(int(share.get("writers") or 0) for share in epoch["sinks"]))
    status = "completed" if complete else "failed"
    line = (
        {"id": epoch["epoch"], "query": epoch["query"], "className": status, "status": status.upper()}
        | {"trigger_timestamp": epoch["opened"], "latest_ack_timestamp": ended, "is_savepoint": False}
        | {"num_subtasks": writers, "num_acknowledged_subtasks": writers if complete else 0, **_sizes(epoch)}
        | {"checkpoint_type": "UNALIGNED_CHECKPOINT" if epoch["mode"] == "unaligned" else "CHECKPOINT"}
    )
    if not complete:
        line |= {"failure_timestamp": ended, "failure_message": epoch["why"] if shown else None}
    return line


def _savepoint(note: Mapping[str, Any]) -> dict[str, Any]:
    kind, path = str(note.get("kind") or "native").upper(), note.get("path")
    return (
        {"className": "completed", "status": "COMPLETED", "is_savepoint": True, "checkpoint_type": "SAVEPOINT"}
        | {"id": _newest_epoch(note), "savepointFormat": kind, "external_path": path}
        | dict.fromkeys(("trigger_timestamp", "latest_ack_timestamp"), note["time"])
        | dict.fromkeys(("checkpointed_size", "state_size"), note.get("bytes") or 0)
    )


def _restored(note: Mapping[str, Any]) -> dict[str, Any]:
    path = note.get("path")
    return {"id": _newest_epoch(note), "restore_timestamp": note["time"], "is_savepoint": True, "external_path": path}


def _newest_epoch(note: Mapping[str, Any]) -> int:
    epochs = note.get("epochs") or {}
    return max(epochs.values(), default=0) if isinstance(epochs, Mapping) else 0


def _number(request: Request) -> int:
    value = request.path_params["number"]
    if not value.isdecimal() or len(value) > 18:
        raise HTTPException(404, f"{value[:100]!r} is not the number of a checkpoint")
    return int(value)
