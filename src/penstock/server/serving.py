"""`serving`: while a job runs it stands in the registry and answers on a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.process import registration as registrations
from penstock.process.registration import Registration
from penstock.server import traces
from penstock.server.lifecycle import Lifecycle, Steerable
from penstock.server.metrics import Metrics
from penstock.server.operations import Operations

if TYPE_CHECKING:
    import uvicorn

    from penstock.config.rest import Rest
    from penstock.config.settings import Settings
    from penstock.events import Events

log = logging.getLogger("penstock")

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105 - a variable's name
"""The token of a job's control server: read by the job, which makes one up otherwise, and by commands with `-m`."""

FINISH_SECONDS = 10.0  # a savepoint is on disk before the job ends for it; what is left is to say so
FETCH_SECONDS = 5.0  # clients poll every second or faster
_JOIN_SECONDS = 5.0


@dataclass(frozen=True)
class Serving:
    """A job that can be reached: its id, and `HOST:PORT` or None where it has no server."""

    id: str
    address: str | None


@contextmanager
def serving(job: Steerable, settings: Settings, events: Events) -> Iterator[Serving]:
    """Register the job, listen for commands, follow its state; at the end say how it ended and take the server down,
    as soon as whoever asked for the end has its answer. Nothing that goes wrong here stops the job."""
    mine = registrations.register_driver(job.name, settings.checkpoints.storage)
    lifecycle = Lifecycle(job, mine)
    operations = Operations()
    metrics = Metrics(mine, lifecycle)
    events.listen(lifecycle.on_event)
    events.listen(metrics.on_event)
    end_traces = traces.follow(job.name, mine.entry.id, events)
    server = _Server.start(job, settings.rest, mine, lifecycle, operations, metrics) if settings.rest.enabled else None
    if server is not None:
        mine.entry = replace(mine.entry, address=server.address, token=server.token)
    mine.write()
    try:
        yield Serving(mine.entry.id, mine.entry.address)
    except BaseException as error:
        lifecycle.ended(error)
        operations.close(f"The job has failed: {type(error).__name__}: {error}", finish=0.5, fetch=FETCH_SECONDS)
        raise
    else:
        lifecycle.ended(None)
        operations.close("The job has ended.", finish=FINISH_SECONDS, fetch=FETCH_SECONDS)
    finally:
        if server is not None:
            server.end()
        end_traces()
        mine.update(address=None, token=None)


class _Server:
    """uvicorn in a thread. The port is open before the thread has loaded it: requests wait that long."""

    def __init__(self, listener: socket.socket, address: str, token: str) -> None:
        self.address, self.token = address, token
        self._listener = listener
        self._lock = threading.Lock()
        self._ending = False
        self._end: Callable[[], object] | None = None  # wakes the thread
        self._thread: threading.Thread | None = None

    @classmethod
    def start(
        cls,
        job: Steerable,
        rest: Rest,
        mine: Registration,
        lifecycle: Lifecycle,
        operations: Operations,
        metrics: Metrics | None = None,
    ) -> _Server | None:
        try:
            listener = _listen(rest)
        except OSError as error:
            log.warning("the job runs, but takes no commands: it cannot listen on %s: %s", rest.bind_address, error)
            return None
        host, port = listener.getsockname()[:2]
        named = rest.address or (host if not ipaddress.ip_address(host).is_unspecified else socket.gethostname())
        token = os.environ.get(TOKEN_VARIABLE, "").strip() or secrets.token_urlsafe(32)
        server = cls(listener, f"[{named}]:{port}" if ":" in named else f"{named}:{port}", token)
        names = (host, rest.bind_address, rest.address or "", socket.gethostname(), *(rest.hosts or ()))
        open_reads = rest.open_reads and ipaddress.ip_address(host).is_loopback
        controls = (job, mine, lifecycle, operations, token, open_reads, names, metrics)
        server._thread = threading.Thread(target=server._run, args=controls, name="penstock-control", daemon=True)
        server._thread.start()
        return server

    def end(self) -> None:
        with self._lock:
            self._ending = True
            if self._end is not None:
                self._end()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        self._listener.close()

    def _run(self, *controls: Any) -> None:
        try:
            import uvicorn

            from penstock.server.app import Controls, application

            app = application(Controls(*controls))
            config = uvicorn.Config(
                app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, log_level="warning",
                access_log=False, server_header=False,
            )  # fmt: skip
            asyncio.run(self._serve(uvicorn.Server(config)))
        except Exception:
            log.exception("the job runs, but takes no more commands: its control server has failed")

    async def _serve(self, server: uvicorn.Server) -> None:
        """Until the end is asked for. uvicorn's own way to end takes a fifth of a second, in every job."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._ending:
                return
            self._end = lambda: loop.call_soon_threadsafe(end.set)
        serve = loop.create_task(server.serve(sockets=[self._listener]))
        ended = loop.create_task(end.wait())
        await asyncio.wait((serve, ended), return_when=asyncio.FIRST_COMPLETED)
        with self._lock:
            self._end = None
        for listening in getattr(server, "servers", ()):
            listening.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        serve.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serve


def _listen(rest: Rest) -> socket.socket:
    """On the port that is asked for, or on a free one where that is taken: a job is worth more than its port."""
    found = socket.getaddrinfo(rest.bind_address, rest.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)  # what clients try first
    for port in dict.fromkeys((rest.port, 0)):
        listener = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address[0], port, *address[2:]))
                listener.listen(128)
            except OSError as error:
                if port == 0:
                    raise
                log.warning("port %d is taken (%s); the job takes commands on a free one", port, error)
                continue
            undo.pop_all()
            return listener
    raise AssertionError("a free port was tried last")
