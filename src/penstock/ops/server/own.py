"""Penstock's own paths, below `/penstock/v1`, that only read. Times are milliseconds since 1970."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.ops.process.registry import Entry, now_ms
from penstock.ops.server.answers import AsciiJson
from penstock.ops.server.orphans import transactions_at
from penstock.ops.server.routes import Table
from penstock.ops.server.run_view import QueryView
from penstock.ops.server.runs import Run, Runs
from penstock.storage.storage import local_path

ROOT = "/penstock/v1"
RUN = f"{ROOT}/runs/{{run}}"

LOOK_SECONDS = 3.0
"""How old what other systems were asked for may be: however many look, they are asked no more often."""
MOST_STREAMS = 32
"""Of events: each holds a connection, of which a server has few."""
_EVENTS_POLL = 0.25
_EVENTS_SILENCE = 15.0

_T = TypeVar("_T")


class Remembered:
    """What a function gave lately. One thread asks it at a time; the others get what it gave before."""

    def __init__(self, seconds: float = LOOK_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: tuple[float, Any] | None = None

    def get(self, function: Callable[[], _T], otherwise: _T) -> _T:
        last = self._last
        if last is not None and time.monotonic() - last[0] < self._seconds:
            return last[1]  # type: ignore[no-any-return]
        if not self._lock.acquire(blocking=last is None, timeout=self._seconds if last is None else -1):
            return otherwise if last is None else last[1]
        try:
            if self._last is not None and time.monotonic() - self._last[0] < self._seconds:
                return self._last[1]  # type: ignore[no-any-return]
            found = function()
            self._last = (time.monotonic(), found)
            return found
        finally:
            self._lock.release()


class OwnPaths:
    """The handlers; `request.state` has the run, and whether errors may be told."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._positions, self._transactions = Remembered(), Remembered(5.0)

    async def health(self, request: Request) -> Response:
        return AsciiJson({"status": "ok"})

    async def runs(self, request: Request) -> Response:
        found = await run_in_threadpool(self._runs.all)
        return AsciiJson({"runs": [run_facts(run.entry, run.live, shown=request.state.trusted) for run in found]})

    async def run(self, request: Request) -> Response:
        return AsciiJson(await run_in_threadpool(self._overview, request.state.run, request.state.trusted))

    def _overview(self, run: Run, shown: bool) -> dict[str, Any]:
        described = run.describe()
        plan: Mapping[str, Any] = described.get("plan") or {}
        positions: Mapping[str, Any] = {}
        if run.insight is not None and run.live:
            positions = self._positions.get(run.insight.positions, {})
        now = {uid: _with_reading(run, query) for uid, query in run.view.queries().items()}
        planned = {query["uid"]: query for query in plan.get("queries") or []}
        return {
            "run": run_facts(run.entry, run.live, shown=shown),
            "queries": [
                query_facts(planned.get(uid) or {}, now.get(uid) or QueryView(uid), positions.get(uid) or {}, run.live)
                for uid in dict.fromkeys((*planned, *now))
            ],
            "weakest": plan.get("weakest"),
            "spark_ui": described.get("spark_ui") if run.live else None,
            "damage": list(run.damage),
        }

    async def epochs(self, request: Request) -> Response:
        query = request.query_params.get("query") or None
        before, limit = whole(request, "before", None), whole(request, "limit", 100)
        run: Run = request.state.run
        found, more = await run_in_threadpool(run.view.epochs, query, before, limit or 100)
        if not request.state.trusted:
            found = [{**epoch, "why": None} for epoch in found]
        return AsciiJson({"epochs": found, "more": more})

    async def series(self, request: Request) -> Response:
        query, points = request.query_params.get("query") or None, whole(request, "points", 500)
        run: Run = request.state.run
        return AsciiJson({"series": await run_in_threadpool(run.view.series, query, points or 500)})

    async def alignment(self, request: Request) -> Response:
        query, epoch = request.query_params.get("query", ""), whole(request, "epoch", None)
        if epoch is None or not query:
            raise HTTPException(400, "query and epoch are needed")
        record = await run_in_threadpool(request.state.run.record, query, epoch)
        if record is None:
            raise HTTPException(404, f"The record of epoch {epoch} of query {query} is not kept any more, or never was")
        return AsciiJson({"alignment": None if record.alignment is None else asdict(record.alignment)})

    async def state(self, request: Request) -> Response:
        return AsciiJson({"operators": await run_in_threadpool(request.state.run.view.operators)})

    async def inflight(self, request: Request) -> Response:
        return AsciiJson({"sinks": request.state.run.view.inflight()})

    async def restarts(self, request: Request) -> Response:
        notes = request.state.run.view.notes
        return AsciiJson({"restarts": notes("restarts"), "recoveries": notes("recoveries")})

    async def exceptions(self, request: Request) -> Response:
        run: Run = request.state.run
        found = run.view.notes("exceptions")
        if run.entry.error and run.entry.state.ended:
            last = {"time": run.entry.end or run.entry.modified, "query": None, **error_facts(run.entry.error)}
            found = [last, *found]
        return AsciiJson({"exceptions": found})

    async def settings(self, request: Request) -> Response:
        told = (await run_in_threadpool(request.state.run.describe)).get("settings") or []
        return AsciiJson({"settings": told})

    async def savepoints(self, request: Request) -> Response:
        return AsciiJson({"savepoints": await run_in_threadpool(_savepoints, request.state.run)})

    async def transactions(self, request: Request) -> Response:
        return AsciiJson(await run_in_threadpool(self._open_transactions, request.state.run))

    def _open_transactions(self, run: Run) -> dict[str, Any]:
        nothing = {"transactions": [], "unseen": [{"query": None, "sink": None, "why": "others are asking just now"}]}
        if run.insight is not None and run.live:
            return self._transactions.get(run.insight.transactions, nothing)
        return transactions_at(run.folder)

    async def events(self, request: Request) -> Response:
        run: Run = request.state.run
        if not run.live:
            return Response(status_code=204)  # nothing more will come
        if run.view.streams >= MOST_STREAMS:
            raise HTTPException(429, f"{MOST_STREAMS} already follow the events of this run")
        given = request.headers.get("Last-Event-ID") or request.query_params.get("after") or ""
        after = int(given) if given.isdecimal() and len(given) < 19 else run.view.newest_event
        if after > run.view.newest_event:
            after = 0  # of an earlier process of this run
        return StreamingResponse(
            _event_lines(run, after), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )


async def _event_lines(run: Run, after: int) -> AsyncIterator[bytes]:
    run.view.streams += 1
    try:
        yield b"retry: 2000\n\n"
        async for part in _fresh_events(run, after):
            yield part
    finally:
        run.view.streams -= 1


async def _fresh_events(run: Run, after: int) -> AsyncIterator[bytes]:
    spoken, last = time.monotonic(), False
    while not last:
        last = run.view.closed  # asked before the last look
        for number, event in run.view.events_after(after):
            after, body = number, json.dumps(event, default=str)
            yield f"id: {number}\nevent: {event.get('event')}\ndata: {body}\n\n".encode()
            spoken = time.monotonic()
        if time.monotonic() - spoken > _EVENTS_SILENCE:
            yield b": still here\n\n"
            spoken = time.monotonic()
        if not last:
            await asyncio.sleep(_EVENTS_POLL)


def add_own(table: Table, paths: OwnPaths) -> None:
    secret: dict[str, Any] = {"secret": True}
    table.add("GET", f"{ROOT}/health", paths.health, "Whether this server answers", open=True, answer=("status",))
    table.add("GET", f"{ROOT}/runs", paths.runs, "The runs that are known", answer=("runs",))
    overview = ("run", "queries", "weakest", "spark_ui", "damage")
    table.add("GET", RUN, paths.run, "Where one run stands", answer=overview)
    paged = ("query", "before", "limit")
    table.add("GET", f"{RUN}/epochs", paths.epochs, "Epochs, newest first", query=paged, answer=("epochs", "more"))
    table.add("GET", f"{RUN}/series", paths.series, "Over time", query=("query", "points"), answer=("series",))
    cut = ("query", "epoch")
    table.add("GET", f"{RUN}/alignment", paths.alignment, "Of one epoch", query=cut, answer=("alignment",))
    table.add("GET", f"{RUN}/state", paths.state, "Stateful operators", answer=("operators",))
    table.add("GET", f"{RUN}/inflight", paths.inflight, "What waits for sinks", answer=("sinks",))
    told = ("restarts", "recoveries")
    table.add("GET", f"{RUN}/restarts", paths.restarts, "Restarts and recoveries", answer=told, **secret)
    table.add("GET", f"{RUN}/exceptions", paths.exceptions, "What has failed", answer=("exceptions",), **secret)
    table.add("GET", f"{RUN}/settings", paths.settings, "Each setting and its origin", answer=("settings",), **secret)
    table.add("GET", f"{RUN}/savepoints", paths.savepoints, "Savepoints of the run", answer=("savepoints",), **secret)
    told = ("transactions", "unseen")
    table.add("GET", f"{RUN}/transactions", paths.transactions, "Open transactions", answer=told, **secret)
    table.add(
        "GET", f"{RUN}/events", paths.events, "Events as they come", query=("after",), media="text/event-stream",
        **secret,
    )  # fmt: skip


def run_facts(entry: Entry, live: bool, *, shown: bool) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": entry.name,
        "state": str(entry.state),
        "start": entry.start,
        "end": entry.end,
        "duration": (entry.end or now_ms()) - entry.start,
        "restarts": entry.restarts,
        "savepoint": entry.savepoint,
        "error": error_facts(entry.error) if entry.error and shown else None,
        "address": entry.address if live else None,
        "live": live,
        "program": entry.script or None,
        "storage": entry.storage or None,
    }


def error_facts(error: Mapping[str, str]) -> dict[str, str]:
    return {name: str(error.get(name) or "") for name in ("error", "happened", "safe", "to_do")}


def query_facts(planned: Mapping[str, Any], now: QueryView, positions: Mapping[str, Any], live: bool) -> dict[str, Any]:
    by_source: Mapping[str, Any] = positions.get("sources") or {}
    return {
        "uid": now.uid,
        "generation": now.generation,
        "epoch": now.epoch,
        "phase": now.phase if live else "idle",
        "phase_since": now.phase_since,
        "watermark": positions.get("watermark"),
        "rows_per_second": now.rows_per_second if live else 0.0,
        "rows_total": now.rows_total,
        "complete": now.complete,
        "failed": now.failed,
        "guarantee": planned.get("guarantee"),
        "sources": [
            {**source, "partitions": by_source.get(source["uid"]) or []} for source in planned.get("sources") or []
        ],
        "sinks": list(planned.get("sinks") or []),
        "operators": list(planned.get("operators") or []),
    }


def _with_reading(run: Run, now: QueryView) -> QueryView:
    """No event says when the last source partition was read: Spark is asked, while somebody looks."""
    if run.live and run.insight is not None and now.phase == "prepare" and now.epoch is not None:
        with contextlib.suppress(Exception):  # then it stays what the events say
            if run.insight.reading(now.uid, now.epoch):
                return replace(now, phase="read")
    return now


def whole(request: Request, name: str, otherwise: int | None) -> int | None:
    given = request.query_params.get(name)
    if given is None or given == "":
        return otherwise
    if not given.isdecimal() or len(given) > 18:
        raise HTTPException(400, f"{name} is not a number")
    return int(given)


def _savepoints(run: Run) -> list[dict[str, Any]]:
    """Those that are still there, as far as this machine can see."""
    found = []
    for note in run.view.notes("savepoints"):
        path = local_path(str(note["path"]))
        if path is None or path.exists():
            kept = ("path", "kind", "time", "bytes", "drained")
            found.append({name: note.get(name) for name in kept})
    return found
