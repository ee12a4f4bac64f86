"""Ways to a Kafka broker on which requests get stuck, arrive late, or do not arrive, as they may on any network.

`Proxy` knows Kafka's frames and holds chosen requests. `Cable` knows bytes alone: it is cut, stalls, or loses answers.
"""

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


class Cable:
    """Between clients and a broker whose listener at `port` is advertised as `self.port`.

    `cut`: connections are closed, and new ones too. `stall`: what is sent waits, and arrives late. `deafen`: requests
    arrive, and answers are lost; the connections are closed at the end. `mend` ends all of them.
    """

    def __init__(self, port: int) -> None:
        self._broker = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = self._is_deaf = False
        self._moves = threading.Event()
        self._moves.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        self._close_all()

    def stall(self) -> None:
        self._moves.clear()

    def deafen(self) -> None:
        self._is_deaf = True

    def mend(self) -> None:
        if self._is_deaf:
            self._close_all()  # an answer that was lost leaves a gap in the stream
        self._is_cut = self._is_deaf = False
        self._moves.set()

    def close(self) -> None:
        _shut(self._listener)
        self._is_cut = True
        self._moves.set()
        self._close_all()

    def _close_all(self) -> None:
        with self._lock:
            connections, self._open = self._open, set()
        for each in connections:
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker), 30)
            except OSError:  # it is not there at the moment
                _shut(client)
                continue
            broker.settimeout(None)
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, broker}
            if self._is_cut:
                self._close_all()
            threading.Thread(target=self._carry, args=(client, broker, False), daemon=True).start()
            threading.Thread(target=self._carry, args=(broker, client, True), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self._moves.wait()
                if not (answers and self._is_deaf):
                    target.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._open -= {source, target}
        _shut(source)
        _shut(target)


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
