"""A way to an S3 server on which chosen requests are answered badly, before or after the server has had them."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Match = Callable[[str, str], bool]

_UPLOAD = re.compile(rb"<Upload>.*?</Upload>", re.DOTALL)


@dataclass
class Fault:
    """The answer to the next `count` requests that match; `late`: the server has carried them out all the same."""

    match: Match
    status: int
    code: str
    count: int
    late: bool = False


class S3Proxy:
    """Stands between clients and one server. It hands requests on as they are, signatures included."""

    def __init__(self, url: str) -> None:
        self._server_at = urlsplit(url).netloc
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.answered_badly = 0
        self.conditions_ignored = False
        """As a store without conditional writes: a put whose name is taken is told that it went well."""
        self.uploads_by_whole_name = False
        """As MinIO: open uploads are listed for one object, and not for all whose names begin so."""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        handler = type("Handler", (_Handler,), {"proxy": self, "server_at": self._server_at})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def inject(self, match: Match, status: int, code: str, *, count: int = 1, late: bool = False) -> None:
        with self._lock:
            self._faults.append(Fault(match, status, code, count, late))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.count > 0 and fault.match(method, path):
                    fault.count -= 1
                    self.answered_badly += 1
                    return fault
        return None

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> S3Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy
    server_at: str

    def _handle(self) -> None:
        body = self._body()
        self.proxy.asked.append(
            (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        fault = self.proxy.fault_for(self.command, self.path)
        if fault is not None and not fault.late:
            return self._refuse(fault)
        status, headers, answer = self._ask(body)
        if fault is not None:
            return self._refuse(fault)
        if status == 412 and self.proxy.conditions_ignored:
            return self._answer(200, {"ETag": '"0"'}, b"")
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if self.proxy.uploads_by_whole_name and self.command == "GET" and "uploads" in query:
            whole = f"<Key>{query.get('prefix', [''])[0]}</Key>".encode()
            answer = _UPLOAD.sub(lambda found: found[0] if whole in found[0] else b"", answer)
        return self._answer(status, headers, answer)

    def do_GET(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def handle_expect_100(self) -> bool:
        answer = super().handle_expect_100()
        self.wfile.flush()
        return answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        whole = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server_at, timeout=120)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("transfer-encoding", "expect", "connection", "content-length"):
                    connection.putheader(name, value)  # the host, too, as the client has signed it
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _refuse(self, fault: Fault) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>as the test has it</Message></Error>"
        self._answer(fault.status, {"Content-Type": "application/xml"}, text.encode())

    def _answer(self, status: int, headers: dict[str, Any], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        if status != 204:
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return None


def is_part(method: str, path: str) -> bool:
    return method == "PUT" and "partNumber=" in path


def is_completion(method: str, path: str) -> bool:
    return method == "POST" and "uploadId=" in path


def is_any(method: str, path: str) -> bool:
    return True
