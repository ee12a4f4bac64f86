"""`serving`: while a job runs it is in the registry and answers on a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import itertools
import logging
import os
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.config.levels import FILE_VARIABLE
from penstock.ops.process.registry import Entry, Registry, State, expected_run, now_ms, register_driver
from penstock.ops.server import history
from penstock.ops.server.control import Lifecycle, Operations
from penstock.ops.server.history import HistoryWriter
from penstock.ops.server.metrics import Metrics
from penstock.ops.server.run_view import RunView
from penstock.ops.server.runs import OneRun, Run
from penstock.processes import raise_file_limit
from penstock.secrets import MASK, is_secret, masked
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from penstock.config.operations import Rest
    from penstock.config.resolve import Settings
    from penstock.engine.control import Insight, Steerable
    from penstock.events import Events
    from penstock.ops.server.connections import Server
    from penstock.ops.server.web import Asgi

log = logging.getLogger("penstock")

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105 - a variable's name
"""The token of a job's control server, read by the job, which otherwise generates one, and by commands with `-m`."""

FINISH_SECONDS = 10.0  # a savepoint is on disk before the job ends for it; only its answer is outstanding
FETCH_SECONDS = 5.0  # clients poll every second or faster
_JOIN_SECONDS = 5.0
_STREAMS_SECONDS = 1.0  # for streams of events to send the last


@contextmanager
def serving(job: Steerable, settings: Settings, events: Events, insight: Insight | None = None) -> Iterator[Entry]:
    """Register the job, listen for commands, follow its state, keep its history. At the end, record how it ended and
    close the server as soon as the clients that asked for the end have their answers. No failure here stops the job."""
    raise_file_limit()
    before = Registry().read_entry(expected_run() or "")  # as the supervisor left it
    registration = register_driver(job.name, settings.checkpoints.storage)
    lifecycle = Lifecycle(job, registration)
    operations = Operations()
    view = RunView()
    describe = functools.cache(functools.partial(_describe, job.name, settings, insight))
    writer = _keep_history(registration.entry.id, view, describe)
    metrics = Metrics(view, registration, lifecycle, insight.positions if insight is not None else None)
    for listener in (view, lifecycle, writer, metrics):  # the view first: the others read it
        events.listen(listener.on_event)
    for note in _death(before):
        view.on_event(note)
        writer.on_event(note)

    def run() -> Run:
        """As it is now. Asking the job brings its state up to date."""
        status, entry = lifecycle.status(), registration.entry
        return Run(entry, view, describe, not entry.state.ended, status, lifecycle.since, insight)

    def application(token: str, names: Sequence[str], open_reads: bool) -> Asgi:
        from penstock.ops.server.app import Application
        from penstock.ops.server.commands import Steering
        from penstock.ops.server.web import Access

        access, steering = Access(token, open_reads=open_reads), Steering(operations, lifecycle)
        return Application(OneRun(run), access, steering, metrics=metrics, names=names).asgi()

    server = _Server.start(settings.rest, application) if settings.rest.enabled else None
    if server is not None:
        registration.entry = replace(
            registration.entry, address=server.address, token=server.token, certificate=settings.rest.certificate
        )
    registration.write()
    try:
        yield registration.entry
    except BaseException as error:
        lifecycle.ended(error)
        operations.close(f"The job has failed: {type(error).__name__}: {error}", finish=0.5, fetch=FETCH_SECONDS)
        raise
    else:
        lifecycle.ended(None)
        operations.close("The job has ended.", finish=FINISH_SECONDS, fetch=FETCH_SECONDS)
    finally:
        view.close(_STREAMS_SECONDS if server is not None else 0.0)
        if server is not None:
            server.end()
        registration.update(address=None, token=None, certificate=None)
        writer.close()


def _keep_history(id: str, view: RunView, describe: Callable[[], Mapping[str, Any]]) -> HistoryWriter:
    """A driver that was started again continues what the one before it has left."""
    with contextlib.suppress(OSError):
        registry = Registry()
        ended = {entry.id for entry in registry.entries() if entry.state.ended}
        history.prune(registry.ids() | {id}, ended - {id})
    view.load(history.read_history(id).events)
    return HistoryWriter(id, describe)


def _death(before: Entry | None) -> list[dict[str, Any]]:
    """How the driver before this one ended, as an event of that time, where only its supervisor could record it."""
    error = before.error if before is not None and before.state is State.RESTARTING else None
    if before is None or not error or not error["happened"].startswith("The driver "):
        return []
    about = {"query": None, "error": f"{error['happened']}\nSafe: {error.get('safe', '')}", "verdict": None}
    seconds = max(0, now_ms() - before.modified) / 1000
    return [{"time": before.modified / 1000, "event": "restarting", "seconds": seconds, **about}]


def _describe(name: str, settings: Settings, insight: Insight | None) -> Mapping[str, Any]:
    try:
        plan = insight.plan() if insight is not None else {}
    except Exception as error:  # a job without a picture still runs
        log.warning("the job runs, but its plan cannot be shown: %r", error)
        plan = {}
    storage = settings.checkpoints.storage
    path = local_path(storage)
    return {
        "name": name,
        "directory": os.getcwd(),
        "config": os.environ.get(FILE_VARIABLE),
        "arguments": [
            MASK if name.startswith("-") and is_secret(name) else masked(value)
            for name, value in itertools.pairwise(["", *sys.argv[1:]])
        ],
        "folder": masked(f"{storage.rstrip('/')}/{name}" if path is None else str(path / name)),
        "settings": [{"key": row["key"], "value": row["value"], "source": row["from"]} for row in settings.rows()],
        "checkpoints": _checkpoint_settings(settings),
        **plan,
    }


def _checkpoint_settings(settings: Settings) -> dict[str, Any]:
    """Flink's answer to `/jobs/ID/checkpoints/config`: durations are milliseconds."""
    checkpoints = settings.checkpoints
    return {
        "mode": str(checkpoints.mode),
        **{
            name: round(getattr(checkpoints, f"{name}_seconds") * 1000) for name in ("interval", "timeout", "min_pause")
        },
        "max_concurrent": checkpoints.max_concurrent,
        "externalization": {"enabled": True, "delete_on_cancellation": str(checkpoints.retention) == "delete"},
        "state_backend": None if settings.state_backend is None else str(settings.state_backend.kind),
        "checkpoint_storage": masked(checkpoints.storage),
        "unaligned_checkpoints": checkpoints.unaligned,
        "tolerable_failed_checkpoints": checkpoints.tolerable_failures,
        "aligned_checkpoint_timeout": round(checkpoints.aligned_timeout_seconds * 1000),
    }


class _Server:
    """uvicorn in a thread. The port is open before the thread has loaded it: requests wait that long."""

    def __init__(self, listener: socket.socket, rest: Rest) -> None:
        place = place_of(listener, rest)
        self.address = place if rest.certificate is None else f"https://{place}"
        self.token = os.environ.get(TOKEN_VARIABLE, "").strip() or secrets.token_urlsafe(32)
        self._listener, self._rest = listener, rest
        self._lock = threading.Lock()
        self._ending = False
        self._end: Callable[[], object] | None = None  # wakes the thread
        self._thread: threading.Thread | None = None

    @classmethod
    def start(cls, rest: Rest, application: Callable[[str, Sequence[str], bool], Asgi]) -> _Server | None:
        """`application` makes one of the token, the names it answers to, and whether reads are open."""
        try:
            listener = open_listener(rest)
        except OSError as error:
            log.warning("the job runs, but takes no commands: it cannot listen on %s: %s", rest.bind_address, error)
            return None
        open_reads = rest.open_reads and ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        server = cls(listener, rest)

        def run() -> None:
            try:
                from penstock.ops.server.connections import Server, uvicorn_config

                app = application(server.token, names_of(listener, rest), open_reads)
                asyncio.run(server._serve(Server(uvicorn_config(app, rest))))
            except Exception:
                log.exception("the job runs, but takes no more commands: its control server has failed")

        server._thread = threading.Thread(target=run, name="penstock-control", daemon=True)
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

    async def _serve(self, server: Server) -> None:
        """Until `end` is called. uvicorn's own way to end takes a fifth of a second, in every job."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._ending:
                return
            self._end = lambda: loop.call_soon_threadsafe(end.set)
        serve = loop.create_task(server.serve(sockets=[self._listener]))
        await asyncio.wait((serve, loop.create_task(end.wait())), return_when=asyncio.FIRST_COMPLETED)
        with self._lock:
            self._end = None
        await server.end()
        serve.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serve


def open_listener(rest: Rest) -> socket.socket:
    """Raises OSError also for a certificate that cannot be used."""
    if rest.certificate is not None:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(rest.certificate, rest.key)
    listener = listen(rest.bind_address, rest.port)
    host = listener.getsockname()[0]
    if rest.certificate is None and not ipaddress.ip_address(host).is_loopback:
        log.warning(
            "the control server listens on %s without TLS: anyone who sees the traffic sees the token, and can steer"
            " the job with it; set security.ssl.rest.certificate, or put a proxy in front",
            host,
        )
    return listener


def place_of(listener: socket.socket, rest: Rest) -> str:
    """`HOST:PORT`, as others reach it."""
    host, port = listener.getsockname()[:2]
    name = rest.address or (socket.gethostname() if ipaddress.ip_address(host).is_unspecified else host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def names_of(listener: socket.socket, rest: Rest) -> tuple[str, ...]:
    """The names under which a server answers, besides `localhost`."""
    host = listener.getsockname()[0]
    return host, rest.bind_address, rest.address or "", socket.gethostname(), *(rest.hosts or ())


def listen(bind_address: str, wanted: int) -> socket.socket:
    """On the wanted port, or on a free one where that is taken: a job is worth more than its port."""
    choices = socket.getaddrinfo(bind_address, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(choices, key=lambda choice: choice[0] != socket.AF_INET)  # as clients do
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()

    def on(port: int) -> socket.socket:
        place = (address[0], port, *address[2:])
        return socket.create_server(place, family=family, backlog=128, dualstack_ipv6=both)

    try:
        return on(wanted)
    except OSError as error:
        if wanted == 0:
            raise
        log.warning("port %d is taken (%s); a free one is used", wanted, error)
        return on(0)
