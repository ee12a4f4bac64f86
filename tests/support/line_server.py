"""A TCP server that sends lines, as the world outside does: without knowing who listens or how far they came."""

from __future__ import annotations

import socket
import threading


class LineServer:
    """One client at a time; a new one replaces the one before. `send` waits for one."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._client: socket.socket | None = None
        self._there = threading.Condition()
        self._thread = threading.Thread(target=self._accept, name="line-server", daemon=True)
        self._thread.start()

    def send(self, data: bytes, seconds: float = 60.0) -> bool:
        """Hand it to the connection; False where that broke meanwhile."""
        assert self.connected(seconds), "nobody connects"
        client = self._client
        if client is None:
            return False
        try:
            client.sendall(data)
        except OSError:
            self._drop(client)
            return False
        return True

    def connected(self, seconds: float) -> bool:
        """Whether somebody is there, or comes within so many seconds."""
        if self._client is not None and _ended(self._client):
            self._drop(self._client)
        with self._there:
            return self._there.wait_for(lambda: self._client is not None, seconds)

    def hang_up(self) -> None:
        """End the connection from this side."""
        if self._client is not None:
            self._drop(self._client)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._there:
                if self._client is not None:
                    self._client.close()
                self._client = client
                self.connections += 1
                self._there.notify_all()

    def _drop(self, client: socket.socket) -> None:
        with self._there:
            client.close()
            if self._client is client:
                self._client = None

    def __enter__(self) -> LineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ended(client: socket.socket) -> bool:
    """Whether the other side has hung up. A plain sender would not look, and lose what it sends next."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
