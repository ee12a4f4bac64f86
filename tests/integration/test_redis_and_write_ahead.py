"""Redis and a write-ahead sink under one decision, from Spark; and the HTTP example as a user runs it."""

from __future__ import annotations

import json
import runpy
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, Epoch, Job, Mode, RedisSink, RestartStrategy, WriteAheadSink
from penstock.errors import GuaranteeError, SchemaMismatch
from penstock.failpoints import InjectedFault
from tests.support.run_job import CrashAt, Numbers, failing, run_all
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

redis = pytest.importorskip("redis")

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, PER_EPOCH, KEYS = 300, 100, 7

TYPES = {
    "id": "id",
    "money": "cast(id AS decimal(38, 18)) / 1000000000000000000",
    "moment": "timestamp'2026-03-29 00:59:59.123456Z' + make_interval(0, 0, 0, 0, 0, 0, id)",
    "local": "timestamp_ntz'1900-01-01 00:00:00.000001'",
    "day": "date'1969-07-20'",
    "raw": "unhex('00FF')",
    "list": "array('日本語', null)",
    "point": "named_struct('x', id, 'at', timestamp'2026-03-29 00:59:59.123456Z')",
    "counts": "map('a', 1)",
    "span": "make_dt_interval(1)",
    "`dotted.name`": "'dot'",
    "nothing": "cast(null AS string)",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer.start(tmp_path_factory.mktemp("redis")) as started:
        yield started


class Target:
    """SQLite as somebody else's system: rows and ids in one transaction."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db:
            db.executescript("CREATE TABLE events (id INTEGER); CREATE TABLE taken (id TEXT PRIMARY KEY)")

    def write(self, rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            db.execute("INSERT INTO taken VALUES (?)", (epoch_id,))
            for batch in rows:
                db.executemany("INSERT INTO events VALUES (?)", [(row["id"],) for row in batch.to_pylist()])

    def ids(self) -> list[str]:
        return [found for (found,) in self.query("SELECT id FROM taken")]

    def query(self, text: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as db:
            return db.execute(text).fetchall()


@pytest.mark.parametrize("point", ["epoch.decided", "commit.first"])
def test_counters_hashes_and_a_log_agree_through_a_crash(
    session: SparkSession, server: RedisServer, storage: str, tmp_path: Path, crash_at: CrashAt, point: str
) -> None:
    client, prefix = redis.Redis.from_url(server.url), f"{point}:"
    target = Target(str(tmp_path / "target.db"))
    sinks = {
        "counters": RedisSink(server.url, mode="counter", key="key", prefix=f"n:{prefix}"),
        "hashes": RedisSink(server.url, key="id", prefix=f"h:{prefix}", ttl="1d"),
        "events": WriteAheadSink(target.write, log=str(tmp_path / "log"), marker=target.ids),
    }

    def job() -> Job:
        made = Job("three", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
        frame = made.read(Numbers(ROWS, TYPES, per_epoch=PER_EPOCH), uid="in")

        @made.epoch(frame, uid="all", sinks=sinks)
        def write(batch: DataFrame, epoch: Epoch) -> None:
            epoch.write(batch.selectExpr(f"id % {KEYS} AS key", "1 AS n", "id AS total"), "counters")
            epoch.write(batch, "hashes")
            epoch.write(batch.select("id"), "events")

        return made

    crash_at(point, 2 if point == "epoch.decided" else 5)
    failing(job(), InjectedFault)
    crash_at.no_more()
    run_all(job())
    for key in range(KEYS):
        own = range(key, ROWS, KEYS)
        assert client.hgetall(f"n:{prefix}{key}") == {b"n": b"%d" % len(own), b"total": b"%d" % sum(own)}
    assert Counter(found for (found,) in target.query("SELECT id FROM events")) == Counter(range(ROWS))
    assert len(list(client.scan_iter(match=f"h:{prefix}*", count=1000))) == ROWS
    found = client.hgetall(f"h:{prefix}42")
    assert json.loads(found.pop(b"point")) == {"x": 42, "at": "2026-03-29T00:59:59.123456Z"}
    assert found == {
        b"money": b"0.000000000000000042",
        b"moment": b"2026-03-29T01:00:41.123456Z",
        b"local": b"1900-01-01T00:00:00.000001",
        b"day": b"1969-07-20",
        b"raw": b"\x00\xff",
        b"list": '["日本語",null]'.encode(),
        b"counts": b'{"a":1}',
        b"span": b"INTERVAL '1 00:00:00' DAY TO SECOND",
        b"dotted.name": b"dot",
    }
    assert client.ttl(f"h:{prefix}42") > 80_000


def test_the_shape_of_a_redis_row(session: SparkSession) -> None:
    frame = session.range(1).selectExpr("id", "'x' AS a", "1.5D AS b", "array(1) AS c")
    several = RedisSink("redis://localhost", mode="string", key="id").shape(frame)
    assert [tuple(row) for row in several.collect()] == [(0, '{"a":"x","b":1.5,"c":[1]}')]
    for mode, columns, said in (
        ("hash", ["a"], "takes its keys"),
        ("hash", ["id"], "nothing to write"),
        ("counter", ["id", "b"], "whole numbers"),
        ("hash", ["id", "a", "a"], "same name"),
    ):
        with pytest.raises(SchemaMismatch, match=said):
            RedisSink("redis://localhost", mode=mode, key="id").shape(frame.select(*columns))  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch, match="array"):
        RedisSink("redis://localhost", key="c").shape(frame)


def test_less_than_exactly_once_is_refused_or_asked_for(
    session: SparkSession, server: RedisServer, storage: str, tmp_path: Path
) -> None:
    """A job that asks for everything does not start on a weaker sink; one that asks for less gets its rows."""
    target, path = Target(str(tmp_path / "target.db")), str(tmp_path / "target.db")

    def append(rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:  # called in tasks, which cannot import a test
        with closing(sqlite3.connect(path, timeout=30)) as db, db:
            for batch in rows:
                db.executemany("INSERT INTO events VALUES (?)", [(row["id"],) for row in batch.to_pylist()])

    weak: list[Callable[[], Any]] = [
        lambda: RedisSink(server.url, key="id", prefix="weak:", staged=False),
        lambda: WriteAheadSink(append, log=str(tmp_path / "log")),
    ]

    def job(mode: Mode) -> Job:
        checkpoints = Checkpoints(storage=storage, mode=mode)
        made = Job(f"weak-{mode}", checkpoints=checkpoints, spark=session, restart=RestartStrategy.none())
        frame = made.read(Numbers(50, {"id": "id", "name": "concat('n', id)"}, per_epoch=50), uid="in")

        @made.epoch(frame, uid="all", sinks={f"s{n}": make() for n, make in enumerate(weak)})
        def write(batch: DataFrame, epoch: Epoch) -> None:
            epoch.write(batch, "s0")
            epoch.write(batch.select("id"), "s1")

        return made

    refused = failing(job(Mode.EXACTLY_ONCE), GuaranteeError)
    assert "at-least-once" in str(refused)
    run_all(job(Mode.AT_LEAST_ONCE))
    client = redis.Redis.from_url(server.url)
    assert {client.hget(f"weak:{n}", "name") for n in range(50)} == {b"n%d" % n for n in range(50)}
    assert Counter(found for (found,) in target.query("SELECT id FROM events")) == Counter(range(50))


class Endpoint(ThreadingHTTPServer):
    """Honours idempotency keys, and loses its answer to every third request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.rows: list[dict[str, Any]] = []
        self.known: set[str] = set()
        self.requests = 0


class _Requests(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body, key = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Idempotency-Key"]
        if key not in self.server.known:
            self.server.known.add(key)
            self.server.rows += [json.loads(line) for line in body.decode().split("\n") if line]
        self.server.requests += 1
        if self.server.requests % 3 == 0:
            self.close_connection = True
            return
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_example_http_endpoint(
    session: SparkSession, storage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Endpoint()
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        monkeypatch.setenv("URL", f"http://127.0.0.1:{served.server_address[1]}/payments")
        monkeypatch.setenv("CHECKPOINTS", storage)
        monkeypatch.setenv("ROWS", "2000")
        runpy.run_path(str(EXAMPLES / "http_endpoint.py"), run_name="__main__")
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
    assert "exactly-once" in capsys.readouterr().out
    assert served.requests > len(served.known)  # answers were lost, and the same keys came again
    ids = [row["id"] for row in served.rows]
    assert len(ids) == len(set(ids))
    assert 1_900 < len(ids) < 2_000
