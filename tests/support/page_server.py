"""The page on a server of its own, with runs that never ran behind it: no Spark is needed to see every part of it.

python -m tests.support.page_server [--port 8080] [--epochs 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.ops.server.flink import spread
from penstock.ops.server.serving import listen
from penstock.ops.server.web import PAGE
from tests.support.page_data import Json, Run, typical_runs

Handler = Callable[[Request], Awaitable[Response]]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
OWN = "/penstock/v1/runs/{id}"


class PageWorld:
    """What the server knows, and what it was asked. Tests change the runs while a page looks at them."""

    def __init__(self, runs: list[Run], *, locked: bool = False, clock: Callable[[], int] | None = None) -> None:
        self.runs = {run.id: run for run in runs}
        self._clock = clock or now_ms
        self.locked = locked
        self.asked: list[tuple[str, str, Json]] = []
        self.refusal: Json | None = None
        self.streams = 0
        self._events: list[Json] = []
        self._work: dict[str, Json] = {}

    def tell(self, event: str, **fields: Any) -> None:
        """Let something happen that every open page hears of."""
        self._events.append({"time": time.time(), "event": event, "query": "alerts", **fields})

    def complete_epoch(self, run: Run) -> None:
        run.epochs += 1
        self.tell("checkpoint", epoch=run.epochs, outcome="complete", rows=21_000, total_ms=612)

    def end(self, run: Run, state: str, error: Json | None = None) -> None:
        run.state, run.end, run.error = state, self._clock(), error
        self.tell("stopped", error=error["happened"] if error else None)

    def paths_asked(self, method: str) -> list[str]:
        return [path for asked, path, _ in self.asked if asked == method]

    def application(self) -> Starlette:
        own: dict[str, Callable[[Run, Request], Json]] = {
            "": lambda run, _: run.detail(),
            "/epochs": _epochs,
            "/series": lambda run, request: {
                "series": run.series(_query(run, request), _number(request, "points", 500))
            },
            "/alignment": lambda run, _: run.alignment(),
            "/state": lambda run, _: {"operators": [_operator(run)]},
            "/inflight": lambda run, _: {
                "sinks": [{"query": "alerts", "sink": "alerts", "epochs": 2, "bytes": 8_000_000}]
            },
            "/restarts": _restarts,
            "/exceptions": lambda run, _: {"exceptions": run.exceptions},
            "/settings": lambda run, _: {
                "settings": SETTINGS,
                "spark": [{"key": "spark.master", "value": "local[4]"}],
                "arguments": ["--topic", "payments"],
                "directory": "/srv/jobs",
                "config": None,
            },
            "/log": lambda run, _: {"path": "/logs/payments.log", "text": LOG if run.live else None},
            "/threads": lambda run, _: {
                "python": [{"name": "MainThread", "stack": "  File job.py, line 7\n    wait()"}],
                "jvm": [{"name": "Executor task launch worker (RUNNABLE)", "stack": "java.lang.Thread.run"}],
            },
            "/savepoints": lambda run, _: {"savepoints": run.savepoints},
            "/audit": lambda run, _: {"audit": run.audit},
            "/transactions": lambda run, _: {
                "transactions": run.transactions,
                "unseen": [{"query": "alerts", "sink": "totals", "why": "it cannot say"}],
            },
        }
        flink: dict[str, Callable[[Run, Request], Json]] = {
            "/checkpoints": _flink_checkpoints,
            "/checkpoints/config": lambda run, _: CHECKPOINT_CONFIG,
        }
        routes = [
            Route("/penstock/v1/runs", self._get(lambda _: {"runs": [run.summary() for run in self._all()]})),
            Route("/penstock/v1/runs", self._post(self._start), methods=["POST"]),
            *(Route(OWN + path, self._get(self._of_run(tell))) for path, tell in own.items()),
            Route(OWN + "/events", self._stream),
            Route(OWN + "/transactions/{verb}", self._post(self._settle), methods=["POST"]),
            Route(OWN + "/audit", self._post(self._audit), methods=["POST"]),
            *(Route("/jobs/{id}" + path, self._get(self._of_run(tell))) for path, tell in flink.items()),
            Route("/jobs/{id}", self._post(self._end), methods=["PATCH"]),
            Route("/jobs/{id}/{verb:str}", self._post(self._begin), methods=["POST"]),
            Route("/jobs/{id}/{verb:str}/{request:str}", self._get(self._poll)),
            Route("/savepoint-disposal", self._post(self._begin), methods=["POST"]),
            Route("/savepoint-disposal/{request:str}", self._get(self._poll)),
            Mount("/", _Page(directory=PAGE, html=True)),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse})

    def _all(self) -> list[Run]:
        for run in self.runs.values():
            run.now = self._clock()
        return list(self.runs.values())

    def _of_run(self, tell: Callable[[Run, Request], Json]) -> Callable[[Request], Json]:
        def answer(request: Request) -> Json:
            self._all()
            run = self.runs.get(request.path_params["id"])
            if run is None:
                raise HTTPException(404, f"Run {request.path_params['id']} is not known here")
            return tell(run, request)

        return answer

    def _get(self, answer: Callable[[Request], Json]) -> Handler:
        async def handle(request: Request) -> Response:
            self._check(request)
            self.asked.append(("GET", request.url.path, {}))
            return JSONResponse(answer(request), headers=HEADERS)

        return handle

    def _post(self, answer: Callable[[Request, Json], Json]) -> Handler:
        async def handle(request: Request) -> Response:
            self._check(request)
            body = json.loads(await request.body() or b"{}")
            self.asked.append((request.method, str(request.url.path), body))
            if self.refusal is not None:
                raise HTTPException(409, self.refusal["happened"], {"X-Penstock-Error": json.dumps(self.refusal)})
            return JSONResponse(answer(request, body), 202, headers=HEADERS)

        return handle

    def _check(self, request: Request) -> None:
        if self.locked:
            raise HTTPException(401, "The token is wrong, or the code was used before.")

    def _start(self, request: Request, body: Json) -> Json:
        name = next((run.name for run in self.runs.values() if run.id == body.get("run")), "payments")
        run = Run(f"{len(self.runs):032x}", body.get("fork") or name, now_ms(), epochs=1, now=now_ms())
        self.runs[run.id] = run
        return {"id": run.id}

    def _settle(self, request: Request, body: Json) -> Json:
        run = self.runs[request.path_params["id"]]
        run.transactions = [one for one in run.transactions if one["id"] not in body["ids"]]
        return {}

    def _audit(self, request: Request, body: Json) -> Json:
        run = self.runs[request.path_params["id"]]
        sound = {"status": 0, "unaccounted_rows": 0, "verdict": "Every row is accounted for.", "findings": []}
        places = [{"query": query, "sink": query} for query in run.queries]
        epochs = [{**place, "epoch": 1, "decided": 9, "visible": 9, "unaccounted": 0} for place in places]
        about = {"kind": "FileSink", "first_epoch": 1, "last_epoch": 1, "writers": 1, "rows": 9, "not_yet": 0}
        run.audit = {"job": run.name, "at": now_ms() / 1000, "epochs": epochs, **sound}
        run.audit["sinks"] = [{**place, **about} for place in places]
        return {"audit": run.audit}

    def _end(self, request: Request, body: Json) -> Json:
        mode = request.query_params["mode"]
        self.end(self.runs[request.path_params["id"]], "CANCELED" if mode == "cancel" else "FINISHED")
        return {}

    def _begin(self, request: Request, body: Json) -> Json:
        path = "/savepoints/savepoint-payments-made"
        operation: Json = {}
        run = self.runs.get(request.path_params.get("id", ""))
        verb = request.path_params.get("verb", "disposal")
        if verb == "disposal":
            for each in self.runs.values():
                each.savepoints = [one for one in each.savepoints if one["path"] != body["savepoint-path"]]
        elif run is not None and verb == "checkpoints":
            operation = {"checkpointId": run.epochs}
        elif run is not None:
            operation = {"location": path}
            made = {"path": path, "kind": "native", "time": now_ms(), "bytes": 50_000_000, "drained": False}
            run.savepoints = [made, *run.savepoints]
            run.savepoint = path
            if verb == "stop":
                self.end(run, "FINISHED")
        self._work[body["triggerId"]] = operation
        return {"request-id": body["triggerId"]}

    def _poll(self, request: Request) -> Json:
        return {"status": {"id": "COMPLETED"}, "operation": self._work[request.path_params["request"]]}

    async def _stream(self, request: Request) -> Response:
        self._check(request)

        async def lines() -> AsyncIterator[str]:
            self.streams += 1
            sent = len(self._events)
            try:
                yield ": here\n\n"
                while not await request.is_disconnected():
                    for number, event in enumerate(self._events[sent:], sent + 1):
                        yield f"id: {number}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"
                        sent = number
                    await asyncio.sleep(0.1)
            finally:
                self.streams -= 1

        return StreamingResponse(lines(), media_type="text/event-stream", headers=HEADERS)


SETTINGS = [
    {"key": "execution.checkpointing.interval", "value": "5 s", "source": "file"},
    {"key": "state.backend.type", "value": "rocksdb", "source": "-D"},
    {"key": "execution.checkpointing.timeout", "value": "10 min", "source": "default"},
    {"key": "kafka.sasl.password", "value": "******", "source": "code"},
]
LOG = "12:00:01 INFO penstock epoch 120 is complete\n12:00:02 WARNING kafka a broker does not answer"
CHECKPOINT_CONFIG = {
    "mode": "exactly_once",
    "interval": 5000,
    "timeout": 600_000,
    "min_pause": 0,
    "max_concurrent": 1,
    "externalization": {"enabled": True, "delete_on_cancellation": False},
    "state_backend": "rocksdb",
    "checkpoint_storage": "file:///var/lib/penstock",
    "unaligned_checkpoints": True,
    "tolerable_failed_checkpoints": 3,
    "aligned_checkpoint_timeout": 30_000,
}


class _Page(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def _epochs(run: Run, request: Request) -> Json:
    before = _number(request, "before", 0) or None
    return run.page(_query(run, request), before, min(1000, _number(request, "limit", 100)))


def _query(run: Run, request: Request) -> str:
    return request.query_params.get("query") or run.queries[0]


def _operator(run: Run) -> Json:
    return {
        "query": run.queries[0],
        "operator": "sum per account",
        "index": 0,
        "rows": 40_000 + run.epochs * 30,
        "state_bytes": 9_000_000 + run.epochs * 7_000,
        "memory_bytes": 31_000_000,
        "backend": "rocksdb",
        "partitions": 8,
    }


def _restarts(run: Run, request: Request) -> Json:
    if not run.restarts:
        return {"restarts": [], "recoveries": []}
    hour_ago = run.now - 3_600_000
    return {
        "restarts": [
            {"time": hour_ago, "error": "SystemUnavailable: Kafka does not answer.", "verdict": "retry", "seconds": 1.0}
        ],
        "recoveries": [
            {
                "time": hour_ago + 4000,
                "query": "alerts",
                "generation": 3,
                "epoch": 91,
                "action": "finished",
                "seconds": 0.8,
            }
        ],
    }


def _flink_checkpoints(run: Run, request: Request) -> Json:
    query = _query(run, request)
    newest = run.epoch(query, run.epochs)
    epochs = [epoch for epoch in run.page(query, None, 200)["epochs"] if epoch["outcome"] == "complete"]
    measures = {"end_to_end_duration": "total_ms", "state_size": "state_bytes", "processed_data": "bytes"}
    measures |= {"checkpointed_size": "bytes", "persisted_data": "inflight_bytes"}
    completed = {
        "id": run.epochs,
        "query": query,
        "status": "COMPLETED",
        "trigger_timestamp": newest["opened"],
        "latest_ack_timestamp": newest["ended"],
        "end_to_end_duration": newest["total_ms"],
        "state_size": newest["state_bytes"],
        "external_path": "/checkpoints/chk",
    }
    return {
        "counts": {
            "restored": run.restarts,
            "total": run.epochs,
            "in_progress": 1,
            "completed": run.epochs - 2,
            "failed": 1,
        },
        "summary": {name: spread(epoch[ours] for epoch in epochs) for name, ours in measures.items()},
        "latest": {"completed": completed, "failed": None, "savepoint": None, "restored": None},
        "history": [],
    }


def _number(request: Request, name: str, default: int) -> int:
    return int(float(request.query_params.get(name) or default))


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"errors": [error.detail]}, error.status_code, headers={**HEADERS, **(error.headers or {})})


def now_ms() -> int:
    return int(time.time() * 1000)


@contextmanager
def serving(world: PageWorld) -> Iterator[str]:
    """The address of the page while this lasts."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(world.application(), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two epochs of the run that runs")
    given = parser.parse_args()
    world = PageWorld(typical_runs(now_ms(), given.epochs))
    listener = listen("127.0.0.1", given.port)
    living = next(iter(world.runs.values()))

    def live_on() -> None:
        while True:
            time.sleep(given.every)
            world.complete_epoch(living)

    threading.Thread(target=live_on, daemon=True).start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)  # noqa: T201 - whoever started it waits for this
    uvicorn.Server(uvicorn.Config(world.application(), log_level="warning", lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()
