"""A job without Spark that the control server can steer, and one that is served while a test asks it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.config.resolve import resolve
from penstock.errors import PenstockError
from penstock.events import Events
from penstock.ops.process.registry import Entry, Registry
from penstock.ops.server.serving import serving
from penstock.progress import Progress, Step, silent


class Steered:
    """Does what it is told as a job would; `gate` holds long work back, `error` makes it fail."""

    def __init__(self, name: str = "payments") -> None:
        self.name = name
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.failed: str | None = None  # why its query has failed, as `status` tells it
        self.asked: list[tuple[Any, ...]] = []
        self.ending = threading.Event()
        self.state = "RUNNING"
        self.step: Step | None = None  # how far its long work says it is

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        self._tell(progress)
        return self._work("savepoint", directory, kind)

    def checkpoint(self) -> int:
        self._work("checkpoint")
        return 7

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        kind: str = "native",
        cancel: bool = False,
        progress: Progress = silent,
    ) -> str:
        self._tell(progress)
        path = self._work("stop_with_savepoint", directory, drain, kind)
        if cancel:
            self.asked.append(("cancel",))
        self.ending.set()
        return path

    def stop(self) -> None:
        self.asked.append(("stop",))
        self.ending.set()

    def cancel(self) -> None:
        self.asked.append(("cancel",))
        self.ending.set()

    def status(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"epoch": 12, "generation": 3}
        if self.failed is not None:
            facts["error"] = self.failed
        return {"state": self.state, "queries": {"out": facts}, "restarts": 0}

    def _tell(self, progress: Progress) -> None:
        if self.step is not None:
            progress(self.step)

    def _work(self, *asked: Any) -> str:
        self.asked.append(asked)
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        return f"{asked[1] if len(asked) > 1 and asked[1] else '/default'}/savepoint-{len(self.asked)}"


class Served:
    """A steered job that runs in a thread of its own, as `Job.run` would, until it is asked to end."""

    def __init__(self, job: Steered, **rest: Any) -> None:
        self.job, self.events = job, Events()
        settings = resolve()
        self._settings = replace(settings, rest=replace(settings.rest, **rest))
        self._ready = threading.Event()
        self.serving: Entry
        self.failure: PenstockError | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._ready.wait(60)

    def _run(self) -> None:
        try:
            with serving(self.job, self._settings, self.events) as self.serving:
                self.events.emit("started", query="out", generation=3)
                self._ready.set()
                assert self.job.ending.wait(60)
                if self.failure is not None:
                    raise self.failure
        except PenstockError:
            pass
        finally:
            self._ready.set()

    @property
    def id(self) -> str:
        return self.serving.id

    @property
    def entry(self) -> Entry:
        found = Registry().read_entry(self.id)
        assert found is not None
        return found

    def ask(self, method: str, path: str, body: Any = None, token: str | None = "its own") -> tuple[int, Any]:
        """Status and body."""
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        given = self.entry.token if token == "its own" else token
        headers: dict[str, Any] = {"Authorization": f"Bearer {given}".encode()} if token else {}
        request = urllib.request.Request(
            f"http://{self.serving.address}{path}", data, {**headers, "Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def end(self) -> None:
        self.job.gate.set()
        self.job.ending.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def served(job: Steered | None = None, **rest: Any) -> Iterator[Served]:
    one = Served(job or Steered(), **rest)
    try:
        yield one
    finally:
        one.end()
