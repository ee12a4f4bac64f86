"""The connections of a control server. It runs in the driver, so its descriptors are the driver's: clients, which need
no token to connect, hold a bounded number of them, and each only for as long as an honest client takes."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.config.operations import Rest
from penstock.ops.server.web import Asgi

log = logging.getLogger("penstock")

MOST_CONNECTIONS = 64
REQUEST_SECONDS = 10.0  # for a client to deliver a whole request, or to take what it asked for from a full buffer
GRACE_SECONDS = 1.0  # for requests in flight at the server's end
_PAUSE_SECONDS = 1.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def uvicorn_config(app: Asgi, rest: Rest, log_level: str = "error") -> uvicorn.Config:
    """With TLS where there is a certificate. A malformed request, which anyone can send, is not logged."""
    return uvicorn.Config(
        app, loop="asyncio", http=Connection, ws="none", lifespan="off", log_config=None, log_level=log_level,
        access_log=False, server_header=False, ssl_certfile=rest.certificate, ssl_keyfile=rest.key,
    )  # fmt: skip


class Connection(H11Protocol):
    """Closed where its client neither finishes a request nor takes an answer for `REQUEST_SECONDS`."""

    _late: asyncio.TimerHandle | None = None

    @property
    def waits_since(self) -> float | None:
        """When it began to wait for its client, on the loop's clock; None while the client waits for an answer."""
        return None if self._late is None else self._late.when() - REQUEST_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_clock()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_clock()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_clock()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()

    def _set_clock(self) -> None:
        """A request that comes byte by byte does not restart it."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) and not self.flow.write_paused:
            self._stop_clock()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    """uvicorn with an acceptor that has a limit, and logs once when descriptors run out, not for each attempt."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers: list[Any] = [Acceptor(listener, self) for listener in sockets or ()]
        self.started = True

    async def end(self) -> None:
        """Accept nothing new, let requests in flight finish within `GRACE_SECONDS`, then cancel them: their clients are
        answered that the job has ended, see `web.WithHeaders`."""
        for acceptor in getattr(self, "servers", ()):
            acceptor.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if tasks := set(self.server_state.tasks):
            _, slow = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            for task in slow:
                task.cancel()
            if slow:
                await asyncio.wait(slow, timeout=GRACE_SECONDS)


class Acceptor:
    """Accepts connections. When there are too many it closes the one that has waited longest for its client, if any."""

    def __init__(self, listener: socket.socket, server: uvicorn.Server) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._new_protocol = partial(Connection, server.config, server.server_state, server.lifespan.state)
        self._ssl, self._connections = server.config.ssl, server.server_state.connections
        self._most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._exhausted = False
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._accepting,))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._exhausted or error.errno not in _OUT_OF_RESOURCES:
                    log.warning("the control server takes no connections for a while: %s", error)
                self._exhausted = True
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._exhausted = False
            if not self._make_room():
                connected.close()
                continue
            task = loop.create_task(self._shake_hands(connected))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            await asyncio.sleep(0)

    def _make_room(self) -> bool:
        if len(self._connections) + len(self._handshakes) < self._most:
            return True
        waiting: list[Any] = [known for known in self._connections if getattr(known, "waits_since", None) is not None]
        if waiting:
            oldest = min(waiting, key=lambda connection: connection.waits_since)
            oldest.transport.abort()
            self._connections.discard(oldest)
        elif self._handshakes:
            task = next(iter(self._handshakes))
            task.cancel()
            del self._handshakes[task]
        else:
            return False
        return True

    async def _shake_hands(self, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        within = {"ssl_handshake_timeout": REQUEST_SECONDS} if self._ssl else {}
        try:
            await loop.connect_accepted_socket(self._new_protocol, connected, ssl=self._ssl, **within)
        except OSError:  # no TLS spoken, or gone again
            connected.close()
        except BaseException:
            connected.close()
            raise
