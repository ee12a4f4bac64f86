"""An object store that speaks as much S3 as table libraries ask for: objects in memory, created only once on demand.

It checks no signatures and knows no buckets. What it shares with the real thing is what commits rest on: a PUT with
`If-None-Match: *` answers 412 where the object is there, and what was put is read and listed at once.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_TIME = "2026-01-01T00:00:00.000Z"
_HTTP_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"


class _Store:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet, or every answer waits for an acknowledgement
    disable_nagle_algorithm = True
    store: _Store

    def handle_expect_100(self) -> bool:
        answer = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it before it sends a body
        return answer

    def do_GET(self) -> None:
        key, query = self._target()
        if "list-type" in query:
            return self._list(key, query)
        found = self.store.objects.get(key)
        if found is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        wanted = self.headers.get("Range")
        if not wanted:
            return self._answer(200, found, found)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(found) - int(last)
        end = min(int(last) + 1 if first and last else len(found), len(found))
        span = {"Content-Range": f"bytes {start}-{end - 1}/{len(found)}"}
        return self._answer(206, found[start:end], found, span)

    def do_HEAD(self) -> None:
        found = self.store.objects.get(self._target()[0])
        if found is None:
            return self._answer(404, b"")
        return self._answer(200, found, found)

    def do_PUT(self) -> None:
        key, query = self._target()
        body = self._body()
        with self.store.lock:
            if "uploadId" in query:
                self.store.parts[query["uploadId"]][int(query["partNumber"])] = body
            elif self.headers.get("If-None-Match") == "*" and key in self.store.objects:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                self.store.objects[key] = body
        return self._answer(200, b"", body)

    def do_POST(self) -> None:
        key, query = self._target()
        body = self._body()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.store.parts[upload] = {}
            return self._answer(200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"))
        if "uploadId" in query:
            parts = self.store.parts.pop(query["uploadId"])
            whole = b"".join(parts[number] for number in sorted(parts))
            with self.store.lock:
                self.store.objects[key] = whole
            return self._answer(200, _xml("CompleteMultipartUploadResult", f"<ETag>{_etag(whole)}</ETag>"))
        names = [one.text or "" for one in ElementTree.fromstring(body).iter() if one.tag.endswith("Key")]
        bucket = key.split("/")[0]
        with self.store.lock:
            for name in names:
                self.store.objects.pop(f"{bucket}/{name}", None)
        return self._answer(
            200, _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(n)}</Key></Deleted>" for n in names))
        )

    def do_DELETE(self) -> None:
        key, query = self._target()
        with self.store.lock:
            self.store.parts.pop(query.get("uploadId", ""), None)
            if "uploadId" not in query:
                self.store.objects.pop(key, None)
        return self._answer(204, b"")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, mark = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("start-after", "")
        with self.store.lock:
            sizes = {
                key.split("/", 1)[1]: body for key, body in self.store.objects.items() if key.startswith(f"{bucket}/")
            }
        rows, folders = [], set()
        for name in sorted(sizes):
            rest = name[len(prefix) :]
            if not name.startswith(prefix) or name <= after:
                continue
            if mark and mark in rest:
                folders.add(prefix + rest.split(mark)[0] + mark)
                continue
            rows.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(sizes[name])}</Size>"
                f"<LastModified>{_TIME}</LastModified><ETag>{_etag(sizes[name])}</ETag></Contents>"
            )
        rows += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        count = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
        return self._answer(200, _xml("ListBucketResult", f"<Prefix>{escape(prefix)}</Prefix>{count}{''.join(rows)}"))

    def _target(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        return unquote(parts.path).strip("/"), {name: values[0] for name, values in query.items()}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            raw = b"".join(iter(self._chunk, b""))
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        whole = b""
        while raw:
            head, _, raw = raw.partition(b"\r\n")
            size = int(head.split(b";")[0] or b"0", 16)
            if size == 0:
                break
            whole, raw = whole + raw[:size], raw[size + 2 :]
        return whole

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        body = self.rfile.read(size)
        self.rfile.readline()
        return body

    def _answer(self, code: int, body: bytes, thing: bytes | None = None, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        headers = {"Content-Length": str(len(body)), "Last-Modified": _HTTP_TIME, **(more or {})}
        if thing is not None:
            headers["ETag"] = _etag(thing)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return None


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _xml(root: str, inside: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inside}</{root}>'.encode()


@contextmanager
def object_store() -> Iterator[str]:
    """The address of an empty store, gone afterwards. In a process of its own: the libraries that call it may hold
    this one's interpreter while they wait."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.support.s3"]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # it ends with its input, also where this process dies
            process.wait(30)


def main() -> None:
    handler = type("Handler", (_Handler,), {"store": _Store()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
