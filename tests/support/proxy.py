"""A way to a Kafka broker on which chosen requests get stuck and arrive late, as they may on any network."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter

END_TXN = 26


class Proxy:
    """Stands between clients and one broker. A frame is four bytes of length and a body; a request's body begins with
    the number of its kind.

    `hold(kind)`: the next request of that kind is kept here and its connection cut, so the client learns nothing of it
    and asks again over a new one. `release()` lets the broker have what was kept, and returns when it has answered.
    """

    def __init__(self, servers: str) -> None:
        host, port = servers.rsplit(":", 1)
        self._host, self._port = host, int(port)
        self._lock = threading.Lock()
        self._to_hold: Counter[int] = Counter()
        self._open: list[socket.socket] = []
        self.held: list[bytes] = []
        self.passed: Counter[int] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0))
        own = self._listener.getsockname()[1]
        self.servers = f"{host}:{own}"
        # Brokers tell clients where to go; what they say must lead here.
        self._said, self._instead = (host.encode() + struct.pack(">i", number) for number in (self._port, own))
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, kind: int, count: int = 1) -> None:
        self._to_hold[kind] += count

    def release(self) -> None:
        held, self.held = self.held, []
        for frame in held:
            with socket.create_connection((self._host, self._port), 30) as broker:
                broker.sendall(frame)
                assert _frame(broker) is not None, "the broker did not answer"

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            for each in self._open:
                _shut(each)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection((self._host, self._port), 30)
            except OSError:
                return
            broker.settimeout(None)
            with self._lock:
                self._open += [client, broker]
            threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=self._answers, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        while (frame := _frame(client)) is not None:
            kind = struct.unpack_from(">h", frame, 4)[0]
            if self._to_hold[kind] > 0:
                self._to_hold[kind] -= 1
                self.held.append(frame)
                break
            self.passed[kind] += 1
            try:
                broker.sendall(frame)
            except OSError:
                break
        _shut(client)
        _shut(broker)

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        while (frame := _frame(broker)) is not None:
            try:
                client.sendall(frame.replace(self._said, self._instead))
            except OSError:
                break
        _shut(client)
        _shut(broker)


def _frame(connection: socket.socket) -> bytes | None:
    """The next whole frame, its length included; None at the connection's end."""
    head = _exactly(connection, 4)
    body = _exactly(connection, struct.unpack(">i", head)[0]) if head else None
    return head + body if head and body else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        try:
            more = connection.recv(count - len(found))
        except OSError:
            return None
        if not more:
            return None
        found += more
    return found


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()
