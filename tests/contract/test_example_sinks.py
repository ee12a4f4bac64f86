"""The sinks that the examples show keep the contract: documents in a store of one's own, and an HTTP endpoint."""

from __future__ import annotations

import importlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.checkpoint.decision import Outcome
from penstock.contracts.guarantees import Guarantee
from penstock.contracts.sink import TwoPhaseSink
from penstock.errors import DataError
from penstock.testing.sink_contract import VISIBLE, SinkContract
from tests.support.named_rows import NamedRows

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def examples() -> Iterator[Any]:
    """Imports an example by its name; processes that tests start and kill find it, too."""
    sys.path.insert(0, str(EXAMPLES))
    loaded: list[str] = []

    def load(name: str) -> ModuleType:
        loaded.append(name)
        return importlib.import_module(name)

    yield load
    sys.path.remove(str(EXAMPLES))
    for name in loaded:
        sys.modules.pop(name, None)


class Harness(NamedRows):
    """Rows that come back as JSON objects."""


class DocumentHarness(Harness):
    def __init__(self, example: ModuleType, path: Path) -> None:
        self.example, self.path = example, str(path)

    def make_sink(self) -> TwoPhaseSink:
        sink: TwoPhaseSink = self.example.DocumentSink(self.path)
        return sink

    def read_visible(self) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as db:
            db.executescript(self.example.TABLES)
            return [tuple(json.loads(body).values()) for (body,) in db.execute("SELECT body FROM documents")]


class TestDocumentSink(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, examples: Any, tmp_path: Path) -> None:
        self.harness = DocumentHarness(examples("document_sink"), tmp_path / "documents.db")


class Endpoint(ThreadingHTTPServer):
    """Takes JSON lines. Of requests with the same Idempotency-Key it does the work of the first and answers all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.rows: list[Any] = []
        self.known: dict[str, int] = {}
        self.requests = 0
        self.deaf = 0  # how many answers get lost from now on
        self.answer = 201
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/rows"


class _Requests(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.requests += 1
            if self.server.answer == 201 and self.headers["Idempotency-Key"] not in self.server.known:
                self.server.known[self.headers["Idempotency-Key"]] = 201
                # JSON lines end with \n alone; other line ends are part of the text.
                self.server.rows += [tuple(json.loads(line).values()) for line in body.decode().split("\n") if line]
            if self.server.deaf > 0:
                self.server.deaf -= 1
                self.close_connection = True
                return
        self.send_response(self.server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


class HttpHarness(Harness):
    def __init__(self, example: ModuleType, endpoint: Endpoint, folder: Path) -> None:
        self.example, self.endpoint, self.folder = example, endpoint, folder

    def make_sink(self) -> TwoPhaseSink:
        sink: TwoPhaseSink = self.example.endpoint(self.endpoint.url, str(self.folder))
        return sink

    def read_visible(self) -> list[Any]:
        return list(self.endpoint.rows)


class TestHttpEndpoint(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, examples: Any, endpoint: Endpoint, tmp_path: Path) -> None:
        self.harness = HttpHarness(examples("http_endpoint"), endpoint, tmp_path)


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False


@pytest.fixture
def story(examples: Any, endpoint: Endpoint, tmp_path: Path) -> SinkContract:
    told = Story()
    told.harness = HttpHarness(examples("http_endpoint"), endpoint, tmp_path)
    return told


def test_answers_lost_on_the_way_send_the_same_keys_again(story: SinkContract, endpoint: Endpoint) -> None:
    sink, batches = story.harness.make_sink(), [story.harness.rows(5), story.harness.rows(5, 5)]
    assert sink.link("out").guarantee is Guarantee.EXACTLY_ONCE
    prepared = story.prepare(sink, batches)
    endpoint.deaf = 3
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}
    assert endpoint.requests == 5
    assert len(endpoint.known) == 2
    story.assert_visible(*batches)


def test_an_endpoint_that_is_down_is_waited_for(story: SinkContract, endpoint: Endpoint) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared = story.prepare(sink, [rows])
    endpoint.answer = 503
    assert story.commit(sink, prepared, seconds=0.2) == {Outcome.UNKNOWN}
    story.assert_visible()
    endpoint.answer = 201
    assert story.commit(sink, prepared, generation=2) <= VISIBLE
    story.assert_visible(rows)


def test_rows_that_the_endpoint_refuses_stop_the_job_by_name(story: SinkContract, endpoint: Endpoint) -> None:
    sink, rows = story.harness.make_sink(), story.harness.rows(5)
    prepared = story.prepare(sink, [rows])
    endpoint.answer = 422
    with pytest.raises(DataError, match="422"):
        story.commit(sink, prepared)
    endpoint.answer = 201
    assert story.commit(sink, prepared, generation=2) <= VISIBLE
    story.assert_visible(rows)
