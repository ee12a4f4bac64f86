"""A run's events as a real job would emit them, the ui's server in a thread, and requests with any headers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.operations import Rest
from penstock.ops.server.app import ui_application
from penstock.ops.server.connections import Server, uvicorn_config
from penstock.ops.server.serving import listen
from penstock.ops.server.web import Access


def checkpoint(epoch: int, query: str = "out", **more: Any) -> dict[str, Any]:
    """The fields of a `checkpoint` event."""
    ended = 1_767_225_600.0 + epoch
    return {
        "query": query, "epoch": epoch, "generation": 3, "mode": "aligned", "outcome": "complete", "why": None,
        "rows": 10, "total_ms": 500.0, "precommit_ms": 300.0, "commit_ms": 100.0, "inflight_bytes": 0,
        "state_rows": 4, "state_bytes": 400, "slowest": "in-0", "skew": 1.0, "waited_ms": 5.0,
        "opened": ended - 0.5, "decided": ended - 0.15, "ended": ended, "read_ms": 200.0, "bytes": 1000,
        "sinks": [{"sink": "out", "rows": 10, "writers": 2, "bytes": 1000}],
        "operators": [{"operator": "stateStoreSave", "rows": 4, "state_bytes": 400, "memory_bytes": 900,
                       "backend": "hashmap", "partitions": 2, "updated": 1, "removed": 0}],
    } | more  # fmt: skip


def a_story(emit: Any, epochs: int = 3) -> None:
    """What a job tells that starts, works, fails, restarts and takes a savepoint."""
    emit("started", query="out", generation=3)
    emit("recovered", query="out", generation=3, epoch=1, action="finished", seconds=0.2)
    for epoch in range(1, epochs + 1):
        emit("checkpoint", **checkpoint(epoch))
    failed = checkpoint(epochs + 1, outcome="failed", why="the row {'iban': 'DE02'} was refused", decided=None)
    emit("checkpoint", **failed)
    error = "PreCommitFailed: the row {'iban': 'DE02'} was refused\nSafe: All.\nTo do: Look."
    emit("failed", query="out", generation=3, epoch=epochs + 1, error=error)
    emit("restarting", query="out", seconds=1.0, verdict="retry", error=error)
    emit(
        "savepoint",
        query=None,
        path="s3a://bucket/savepoint-1",
        kind="native",
        bytes=77,
        epochs={"out": 2},
        drained=False,
    )
    emit("logged", query="out", generation=3, epoch=9, sink="out", backlog=2, backlog_bytes=900, bytes=500)
    emit("drained", query="out", generation=1, epoch=9, sink="out", backlog=1, bytes=500)


def request(
    address: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, body."""
    host, _, port = address.rpartition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


class Ui:
    """The ui's application on a free port, with a token of its own."""

    token = "the-token-of-the-ui"

    def __init__(self, *storages: str) -> None:
        self.access = Access(self.token)
        self.app = ui_application(self.access, storages)
        self._listener = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = Server(uvicorn_config(self.app.asgi(), Rest()))
        self._server.config.timeout_graceful_shutdown = 1
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def ask(self, method: str, path: str, body: Any = None, token: str | None = token) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        status, _, text = request(self.address, method, path, headers, body)
        return status, json.loads(text) if text else None

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def ui(*storages: str) -> Iterator[Ui]:
    one = Ui(*storages)
    try:
        yield one
    finally:
        one.end()
