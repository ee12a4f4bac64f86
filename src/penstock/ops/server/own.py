"""Penstock's own paths that read, below `/penstock/v1`. Times are milliseconds since 1970."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.ops.process.registry import Entry, now_ms
from penstock.ops.server.history import read_audit
from penstock.ops.server.run_view import QueryView
from penstock.ops.server.runs import Run, Runs, transactions_at, unseen_transactions
from penstock.ops.server.web import Endpoint, whole
from penstock.secrets import masked
from penstock.storage.storage import local_path

ROOT = "/penstock/v1"
RUN = f"{ROOT}/runs/{{run}}"

LOOK_SECONDS = 3.0  # how old an answer of other systems may be: however many clients look, they are asked no more often
LOG_BYTES = 1 << 16  # of a log's end
MOST_STREAMS = 32  # of events: each holds a connection, of which a server has few
_EVENTS_POLL = 0.25
_EVENTS_SILENCE = 15.0

_T = TypeVar("_T")
_Facts = Mapping[str, Any]


class Remembered:
    """What a function returned lately. One thread calls it at a time; the others get the result before."""

    def __init__(self, seconds: float = LOOK_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: tuple[float, Any] | None = None

    def get(self, function: Callable[[], _T], default: _T) -> _T:
        last = self._last
        if not self._lock.acquire(timeout=self._seconds if last is None else 0):
            return default if last is None else last[1]
        try:
            if self._last is None or time.monotonic() - self._last[0] >= self._seconds:
                self._last = (time.monotonic(), function())
            return self._last[1]
        finally:
            self._lock.release()


def of_run(name: str, answer: Callable[[Run], dict[str, Any]], *, secret: bool = False) -> Endpoint:
    """A path whose answer the run alone decides."""
    return Endpoint("GET", f"{RUN}/{name}", lambda request: answer(request.state.run), secret=secret)


def own_endpoints(runs: Runs) -> list[Endpoint]:
    paths = OwnPaths(runs)
    return [
        Endpoint("GET", f"{ROOT}/health", health, open=True),
        Endpoint("GET", f"{ROOT}/runs", paths.runs),
        Endpoint("GET", RUN, paths.run),
        Endpoint("GET", f"{RUN}/epochs", epochs),
        Endpoint("GET", f"{RUN}/series", series),
        Endpoint("GET", f"{RUN}/alignment", alignment),
        of_run("state", lambda run: {"operators": run.view.operators()}),
        of_run("inflight", lambda run: {"sinks": run.view.inflight()}),
        of_run(
            "restarts", lambda run: {kind: run.view.notes(kind) for kind in ("restarts", "recoveries")}, secret=True
        ),
        of_run("exceptions", lambda run: {"exceptions": run.exceptions()}, secret=True),
        Endpoint("GET", f"{RUN}/settings", settings, secret=True),
        Endpoint("GET", f"{RUN}/log", log_tail, secret=True),
        Endpoint("GET", f"{RUN}/threads", threads, secret=True),
        Endpoint("GET", f"{RUN}/savepoints", savepoints, secret=True),
        Endpoint("GET", f"{RUN}/transactions", paths.transactions, secret=True),
        of_run("audit", lambda run: {"audit": read_audit(run.entry.id)}, secret=True),
        Endpoint("GET", f"{RUN}/events", events, secret=True),
    ]


class OwnPaths:
    """Handlers that keep something between requests. `request.state` has the run, and whether errors may be shown."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._positions, self._transactions = Remembered(), Remembered(5.0)

    def runs(self, request: Request) -> dict[str, Any]:
        return {"runs": [run_facts(run.entry, run.live, shown=request.state.trusted) for run in self._runs.all()]}

    def run(self, request: Request) -> dict[str, Any]:
        run: Run = request.state.run
        shown, described = request.state.trusted, run.describe()
        plan: Mapping[str, Any] = described.get("plan") or {}
        positions: Mapping[str, Any] = {}
        if run.insight is not None and run.live:
            positions = self._positions.get(run.insight.positions, {})
        planned = {query["uid"]: query for query in plan.get("queries") or []}
        queries, status = run.view.queries(), run.status.get("queries") or {}

        def facts(uid: str) -> dict[str, Any]:
            view = _with_reading(run, queries.get(uid) or QueryView(uid))
            about = (each.get(uid) or {} for each in (planned, positions, status))
            return _query_facts(run, view, *about, shown=shown)

        return {
            "run": run_facts(run.entry, run.live, shown=shown),
            "queries": [facts(uid) for uid in dict.fromkeys((*planned, *queries, *status))],
            "weakest": plan.get("weakest"),
            "spark_ui": described.get("spark_ui") if run.live else None,
            "damage": list(run.damage),
        }

    def transactions(self, request: Request) -> dict[str, Any]:
        run: Run = request.state.run
        if run.insight is None or not run.live:
            return transactions_at(run.folder)
        return self._transactions.get(run.insight.transactions, unseen_transactions("another client asks just now"))


async def health(request: Request) -> dict[str, str]:
    return {"status": "ok"}


def epochs(request: Request) -> dict[str, Any]:
    query = request.query_params.get("query") or None
    before, limit = whole(request, "before", None), whole(request, "limit", 100)
    page, more = request.state.run.view.epochs(query, before, limit or 100)
    return {"epochs": page if request.state.trusted else [{**epoch, "why": None} for epoch in page], "more": more}


def series(request: Request) -> dict[str, Any]:
    query, points = request.query_params.get("query") or None, whole(request, "points", 500)
    return {"series": request.state.run.view.series(query, points or 500)}


def alignment(request: Request) -> dict[str, Any]:
    query, epoch = request.query_params.get("query", ""), whole(request, "epoch", None)
    if epoch is None or not query:
        raise HTTPException(400, "query and epoch are needed")
    record = request.state.run.record(query, epoch)
    if record is None:
        raise HTTPException(404, f"The record of epoch {epoch} of query {query} is not kept")
    return {"alignment": None if record.alignment is None else asdict(record.alignment)}


def settings(request: Request) -> dict[str, Any]:
    described = request.state.run.describe()
    return {name: described.get(name) or [] for name in ("settings", "spark", "arguments")} | {
        name: described.get(name) for name in ("directory", "config")
    }


def log_tail(request: Request) -> dict[str, Any]:
    """`text` is None where the run has no log of its own: it was not detached."""
    path, text = request.state.run.entry.log, None
    with contextlib.suppress(OSError), open(path or "", "rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - LOG_BYTES)
        file.seek(begin)
        lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()[1 if begin else 0 :]
        text = "\n".join(map(masked, lines))
    return {"path": path, "text": text}


def threads(request: Request) -> dict[str, Any]:
    """Stacks by thread, of Python and, where Spark runs, of the JVM; of a run that has ended nothing."""
    run: Run = request.state.run
    if not run.live:
        return {"python": [], "jvm": []}
    frames, names = sys._current_frames(), {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [(names.get(key, str(key)), "".join(traceback.format_stack(frame))) for key, frame in frames.items()]
    jvm: list[dict[str, str]] = []
    with contextlib.suppress(Exception):  # Spark ends
        jvm = run.insight.threads() if run.insight is not None else []
    return {"python": [{"name": name, "stack": stack} for name, stack in sorted(stacks)], "jvm": jvm}


def savepoints(request: Request) -> dict[str, Any]:
    """Those that still exist, as far as this machine can see."""
    notes = [
        {name: note.get(name) for name in ("path", "kind", "time", "bytes", "drained", "epochs")}
        for note in request.state.run.view.notes("savepoints")
        if (path := local_path(str(note["path"]))) is None or path.exists()
    ]
    return {"savepoints": notes}


async def events(request: Request) -> Response:
    run: Run = request.state.run
    if not run.live:
        return Response(status_code=204)  # nothing more will come
    if run.view.streams >= MOST_STREAMS:
        raise HTTPException(429, f"{MOST_STREAMS} clients already follow the events of this run")
    newest = run.view.newest_event
    last = request.headers.get("Last-Event-ID") or request.query_params.get("after") or ""
    after = int(last) if last.isdecimal() and len(last) < 19 else newest
    lines = _event_lines(run, after if after <= newest else 0)  # one beyond is of an earlier process of this run
    return StreamingResponse(lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _event_lines(run: Run, after: int) -> AsyncIterator[bytes]:
    run.view.streams += 1
    sent, last = time.monotonic(), False
    try:
        yield b"retry: 2000\n\n"
        while not last:
            last = run.view.closed  # read before the last look
            for number, event in run.view.events_after(after):
                after, body = number, json.dumps(event, default=str)
                yield f"id: {number}\nevent: {event.get('event')}\ndata: {body}\n\n".encode()
                sent = time.monotonic()
            if time.monotonic() - sent > _EVENTS_SILENCE:
                yield b": still here\n\n"
                sent = time.monotonic()
            if not last:
                await asyncio.sleep(_EVENTS_POLL)
    finally:
        run.view.streams -= 1


def run_facts(entry: Entry, live: bool, *, shown: bool) -> dict[str, Any]:
    error, names = entry.error or {}, ("error", "happened", "safe", "to_do")
    return {name: getattr(entry, name) for name in ("id", "name", "start", "end", "restarts", "savepoint")} | {
        "state": str(entry.state),
        "duration": (entry.end or now_ms()) - entry.start,
        "error": {name: str(error.get(name) or "") for name in names} if error and shown else None,
        "address": entry.address if live else None,
        "live": live,
        "program": entry.script or None,
        "storage": entry.storage or None,
    }


def _query_facts(
    run: Run, query: QueryView, planned: _Facts, positions: _Facts, status: _Facts, *, shown: bool
) -> dict[str, Any]:
    """`status` is what the job itself reports, which counts until the first event of an epoch."""
    by_source: Mapping[str, Any] = positions.get("sources") or {}
    lags = [part["lag"] for parts in by_source.values() for part in parts if part.get("lag") is not None]
    sources, own = planned.get("sources") or [], positions.get("watermarks") or {}
    as_is = ("uid", "phase_since", "rows_total", "complete", "failed", "inflight_bytes")
    return {name: getattr(query, name) for name in as_is} | {
        "generation": query.generation or status.get("generation") or 0,
        "epoch": query.epoch if query.epoch is not None else status.get("epoch"),
        "phase": query.phase if run.live else "idle",
        "watermark": positions.get("watermark"),
        "rows_per_second": query.rows_per_second if run.live else 0.0,
        "p50_ms": query.duration_ms(0.5),
        "p99_ms": query.duration_ms(0.99),
        "lag": sum(lags) if lags else None,
        "sums": query.sums,
        "committed": query.recent[-1][0] if query.recent else None,
        "error": status.get("error") if shown else None,
        "guarantee": planned.get("guarantee"),
        "sources": [
            {**source, "partitions": by_source.get(source["uid"]) or [], "watermark": own.get(source["uid"])}
            for source in sources
        ],
        "sinks": list(planned.get("sinks") or []),
        "operators": list(planned.get("operators") or []),
    }


def _with_reading(run: Run, query: QueryView) -> QueryView:
    """No event tells when the last source partition was read: Spark is asked when a client looks."""
    if run.live and run.insight is not None and query.phase == "prepare" and query.epoch is not None:
        with contextlib.suppress(Exception):  # the phase then stays as the events have it
            if run.insight.reading(query.uid, query.epoch):
                return replace(query, phase="read")
    return query
