"""The Redis sink keeps the contract in every mode, against a real server."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, TwoPhaseSink, WriterScope
from penstock.deadline import Deadline
from penstock.dev.kafka import free_port
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    DataError,
    PenstockError,
    PreCommitFailed,
    StorageFull,
    SystemUnavailable,
    ValueTooLarge,
)
from penstock.sinks.redis import RedisSink, committer, writer
from penstock.sinks.redis.client import Script
from penstock.testing.sink_contract import LOST, VISIBLE, SinkContract, SinkHarness
from tests.support.servers.redis import RedisServer

redis = pytest.importorskip("redis")

TEXT = ["plain", "", "Zażółć gęślą jaźń", "日本語", "🚀 \u2028 line", "nul \x00 and \r\n"]
CONTEXT = CheckContext("job", interval_seconds=1.0, timeout_seconds=30.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer.start(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test that mistreats it."""
    with RedisServer.start(tmp_path / "own") as started:
        yield started


class RedisHarness(SinkHarness):
    """Keys under a prefix of their own; a reader sees (key, field, value), where nothing else is a list of pairs."""

    mode: Literal["hash", "string", "counter"] = "hash"

    def __init__(self, server: RedisServer, **settings: Any) -> None:
        self.server = server
        self.prefix = settings.pop("prefix", f"t{uuid.uuid4().hex[:8]}:")
        self.settings = settings
        self.client = redis.Redis.from_url(server.url)

    def make_sink(self) -> TwoPhaseSink:
        return RedisSink(self.server.url, mode=self.mode, key="id", prefix=self.prefix, **self.settings)

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        return pa.RecordBatch.from_pydict({"id": [f"k{i}" for i in numbers], "name": [f"row {i}" for i in numbers]})

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        return [(key, "name", name) for key, name in (row.values() for row in batch.to_pylist()) if name is not None]

    def keys(self) -> list[bytes]:
        return list(self.client.scan_iter(match=f"{self.prefix}*", count=1000))

    def read_visible(self) -> list[Any]:
        return [
            (key.decode().removeprefix(self.prefix), field.decode(), value.decode())
            for key in self.keys()
            for field, value in self.client.hgetall(key).items()
        ]

    def special(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [*TEXT, "null"], "name": [*TEXT, None]})

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": ["large"], "name": ["x" * 500_000]})

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """Gone, as by eviction or by an administrator."""
        self.client.delete(staged_key(committable))
        return True


class StringHarness(RedisHarness):
    mode = "string"

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        return [(key, name) for key, name in (row.values() for row in batch.to_pylist()) if name is not None]

    def read_visible(self) -> list[Any]:
        return [(key.decode().removeprefix(self.prefix), self.client.get(key).decode()) for key in self.keys()]


class CounterHarness(RedisHarness):
    """Every row is a key that is counted once, so a row seen twice shows. One key is counted by all."""

    mode = "counter"

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        return pa.RecordBatch.from_pydict({"id": [f"k{i}" for i in numbers], "n": [i + 1 for i in numbers]})

    def expected(self, batch: pa.RecordBatch) -> list[Any]:
        return [(key, n) for key, n in (row.values() for row in batch.to_pylist())]

    def read_visible(self) -> list[Any]:
        return [(key.decode().removeprefix(self.prefix), int(self.client.get(key))) for key in self.keys()]

    def special(self) -> pa.RecordBatch:
        largest = 9_200_000_000_000_000_000
        return pa.RecordBatch.from_pydict({"id": [*TEXT, "low"], "n": [1, 0, -1, largest, 2, 3, -largest]})

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": ["k" * 100_000], "n": [7]})


def staged_key(committable: Committable) -> str:
    return f"{committable.payload['base']}:s:{committable.payload['name']}"


class TestRedisHashes(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, server: RedisServer) -> None:
        self.harness = RedisHarness(server)

    def test_other_sinks_with_a_similar_name_are_not_touched(self) -> None:
        """The suite expects the same rows of two sinks twice; in Redis the second overwrites the first."""
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        for name in (f"{self.uid}-2", f"{self.uid}2"):
            prepared = self.prepare(sink, [rows], uid=name)
            assert self.sweep(sink, generation=2) == 0
            assert self.commit(sink, prepared, uid=name) == {Outcome.COMMITTED}
        self.assert_visible(rows)


class TestRedisStrings(TestRedisHashes):
    @pytest.fixture(autouse=True)
    def _harness(self, server: RedisServer) -> None:
        self.harness = StringHarness(server)


class TestRedisCounters(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two rows a script: every commit has several parts."""
        self.harness = CounterHarness(server)
        monkeypatch.setattr(writer, "ELEMENTS_AT_ONCE", 6)

    def test_other_sinks_with_a_similar_name_are_not_touched(self) -> None:
        """As in the suite; here the second adds to the first."""
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        for name in (f"{self.uid}-2", f"{self.uid}2"):
            prepared = self.prepare(sink, [rows], uid=name)
            assert self.sweep(sink, generation=2) == 0
            assert self.commit(sink, prepared, uid=name) == {Outcome.COMMITTED}
        assert sorted(self.harness.read_visible()) == [(key, 2 * n) for key, n in sorted(self.harness.expected(rows))]


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False


def tell(harness: RedisHarness) -> SinkContract:
    told = Story()
    told.harness = harness
    return told


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


# ── proof ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lost", range(1, 6), ids=lambda n: f"answer {n}")
def test_an_answer_lost_anywhere_counts_nothing_twice(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Five parts; the connection breaks after Redis has done one of them and before it could say so."""
    monkeypatch.setattr(writer, "ELEMENTS_AT_ONCE", 3)
    harness = CounterHarness(server)
    story, rows = tell(harness), harness.rows(5)
    prepared = story.prepare(harness.make_sink(), [rows])
    calls = 0
    real = Script.__call__

    def cut(self: Script, *arguments: Any) -> Any:
        nonlocal calls
        answer = real(self, *arguments)
        calls += 1
        if calls == lost:
            raise redis.exceptions.ConnectionError("cut off after the work was done")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Script, "__call__", cut)
        assert story.commit(harness.make_sink(), prepared) <= VISIBLE
    assert calls == (6 if lost == 5 else 5)  # only the last part has to be asked about again
    story.assert_visible(rows)


def test_a_commit_killed_between_two_parts_goes_on_where_it_was(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ELEMENTS_AT_ONCE", 3)
    harness = CounterHarness(server)
    story, rows = tell(harness), harness.rows(4)
    sink = harness.make_sink()
    [prepared] = story.prepare(sink, [rows])
    _apply_parts(sink, story, prepared, 2)
    assert len(harness.read_visible()) == 2
    story.abort(sink, [prepared])  # never asked for what is decided; if it is, nothing is taken away
    assert story.sweep(sink, generation=2) == 0
    assert story.commit(sink, [prepared], generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_rows_lost_after_a_part_was_applied_are_unknown_and_never_guessed(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ELEMENTS_AT_ONCE", 3)
    harness = CounterHarness(server)
    story, sink = tell(harness), harness.make_sink()
    [prepared] = story.prepare(sink, [harness.rows(4)])
    _apply_parts(sink, story, prepared, 1)
    harness.client.delete(staged_key(prepared))
    assert story.commit(sink, [prepared]) == {Outcome.UNKNOWN}
    assert len(harness.read_visible()) == 1


def _apply_parts(sink: TwoPhaseSink, story: SinkContract, prepared: Committable, parts: int) -> None:
    """A driver that dies after some scripts."""

    class Few(Deadline):
        left = parts

        def passed(self) -> bool:
            self.left -= 1
            return self.left < 0

    opened = sink.open_committer(story.scope())
    assert opened.commit(0, [prepared], Few(60)) == {0: Outcome.UNKNOWN}
    opened.close()


def test_the_proofs_of_old_epochs_are_forgotten_and_nothing_else_is_left(server: RedisServer) -> None:
    harness = StringHarness(server)
    story, sink = tell(harness), harness.make_sink()
    for epoch in range(committer.KEPT_EPOCHS + 10):
        prepared = story.prepare(sink, [harness.rows(1, epoch)], epoch=epoch)
        story.commit(sink, prepared, epoch=epoch)
    base = prepared[0].payload["base"]
    assert harness.client.zcard(f"{base}:done") == committer.KEPT_EPOCHS + 1
    assert list(harness.client.scan_iter(match=f"{base}:*")) == [f"{base}:done".encode()]


def test_a_changed_prefix_still_finds_what_was_decided(server: RedisServer) -> None:
    harness = StringHarness(server, prefix=f"{{{uuid.uuid4().hex[:6]}}}:")
    story, rows = tell(harness), harness.rows(3)
    prepared = story.prepare(harness.make_sink(), [rows])
    other = RedisSink(server.url, mode="string", key="id", prefix="{elsewhere}:")
    assert story.commit(other, prepared, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_seal_refuses_rows_that_are_gone(server: RedisServer) -> None:
    harness = StringHarness(server)
    story, sink = tell(harness), harness.make_sink()
    [prepared] = story.prepare(sink, [harness.rows(3)])
    harness.client.delete(staged_key(prepared))
    with pytest.raises(PreCommitFailed, match="gone"):
        story.seal(sink, story.scope(), [prepared])


def test_a_writer_that_was_swept_is_refused_and_leaves_nothing(server: RedisServer) -> None:
    harness = StringHarness(server)
    story, sink = tell(harness), harness.make_sink()
    zombie = story.open_writer(sink, story.scope(1), epoch=0)
    zombie.write(harness.rows(3))
    assert story.sweep(sink, generation=2) == 1
    with pytest.raises(PreCommitFailed, match="removed"):
        zombie.write(harness.rows(3))
    with pytest.raises(PreCommitFailed, match="removed"):
        zombie.pre_commit()
    assert not list(harness.client.scan_iter(match=f"penstock:{story.job}:*"))


def test_a_server_killed_after_the_decision_has_everything_when_it_is_back(own: RedisServer) -> None:
    harness = CounterHarness(own)
    story, sink = tell(harness), harness.make_sink()
    first, second = harness.rows(5), harness.rows(5, 5)
    done = story.prepare(sink, [first], epoch=0)
    story.commit(sink, done, epoch=0)
    decided = story.prepare(sink, [second], epoch=1)
    own.kill()
    assert story.commit(sink, decided, epoch=1, seconds=0.2) == {Outcome.UNKNOWN}
    with pytest.raises(SystemUnavailable):
        story.open_writer(sink, story.scope(), epoch=2).write(first)
    own.restart()
    assert story.commit(sink, done, epoch=0, generation=2) == {Outcome.ALREADY_COMMITTED}
    assert story.commit(sink, decided, epoch=1, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(first, second)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_type_has_a_text_of_its_own(server: RedisServer) -> None:
    moment = datetime(2024, 12, 31, 23, 59, 59, 1, tzinfo=UTC)
    early = datetime(1969, 12, 31, 20, tzinfo=timezone(timedelta(hours=-5)))
    columns: dict[str, tuple[pa.Array, list[bytes | None]]] = {
        "small": (pa.array([-128, None], pa.int8()), [b"-128", None]),
        "big": (pa.array([2**63 - 1, -(2**63)]), [b"9223372036854775807", b"-9223372036854775808"]),
        "double": (pa.array([0.1, float("nan")]), [b"0.1", b"nan"]),
        "infinite": (pa.array([float("inf"), float("-inf")]), [b"inf", b"-inf"]),
        "float": (pa.array([0.1, 1e20], pa.float32()), [b"0.1", b"1e+20"]),
        "truth": (pa.array([True, False]), [b"true", b"false"]),
        "money": (
            pa.array([decimal.Decimal("-12345678901234567890.123456789"), None], pa.decimal128(38, 9)),
            [b"-12345678901234567890.123456789", None],
        ),
        "tiny": (
            pa.array([decimal.Decimal("1E-18"), decimal.Decimal("0")], pa.decimal128(38, 18)),
            [b"0.000000000000000001", b"0.000000000000000000"],
        ),
        "day": (pa.array([date(1, 1, 1), date(9999, 12, 31)]), [b"0001-01-01", b"9999-12-31"]),
        "moment": (
            pa.array([moment, early], pa.timestamp("us", "Asia/Tokyo")),
            [b"2024-12-31T23:59:59.000001Z", b"1970-01-01T01:00:00.000000Z"],
        ),
        "local": (
            pa.array([datetime(2024, 2, 29), None], pa.timestamp("us")),
            [b"2024-02-29T00:00:00.000000", None],
        ),
        "bytes": (pa.array([b"\x00\xff", b""], pa.binary()), [b"\x00\xff", b""]),
        "text": (pa.array(["naïve 🚀", "0"]), ["naïve 🚀".encode(), b"0"]),
        "Ünïcode.name `x`": (pa.array(["a", "b"]), [b"a", b"b"]),
    }  # fmt: skip
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], **{name: array for name, (array, _) in columns.items()}})
    harness = RedisHarness(server)
    story, sink = tell(harness), harness.make_sink()
    story.commit(sink, story.prepare(sink, [rows]))
    for number in (1, 2):
        wanted = {
            name.encode(): texts[number - 1] for name, (_, texts) in columns.items() if texts[number - 1] is not None
        }
        assert harness.client.hgetall(f"{harness.prefix}{number}") == wanted


def test_a_row_of_ten_thousand_columns(server: RedisServer) -> None:
    harness = RedisHarness(server)
    story, sink = tell(harness), harness.make_sink()
    values = {f"c{n}": [f"v{n}", None if n % 2 else "again"] for n in range(10_000)}
    story.commit(sink, story.prepare(sink, [pa.RecordBatch.from_pydict({"id": ["w", "w"], **values})]))
    found = harness.client.hgetall(f"{harness.prefix}w")
    assert len(found) == 5_000
    assert set(found.values()) == {b"again"}


def test_a_null_removes_the_field_or_the_key(server: RedisServer) -> None:
    hashes, strings = RedisHarness(server), StringHarness(server)
    for harness in (hashes, strings):
        story, sink = tell(harness), harness.make_sink()
        rows = [batch(id=["a", "b"], name=["1", "2"]), batch(id=["a", "a", "b"], name=["3", "4", None])]
        for epoch, one in enumerate(rows):
            story.commit(sink, story.prepare(sink, [one], epoch=epoch), epoch=epoch)
    assert hashes.read_visible() == [("a", "name", "4")]
    assert strings.read_visible() == [("a", "4")]


def test_fields_that_a_row_does_not_have_stay(server: RedisServer) -> None:
    harness = RedisHarness(server)
    harness.client.hset(f"{harness.prefix}a", "theirs", "kept")
    story, sink = tell(harness), harness.make_sink()
    story.commit(sink, story.prepare(sink, [batch(id=["a"], name=["ours"])]))
    assert sorted(harness.read_visible()) == [("a", "name", "ours"), ("a", "theirs", "kept")]


def test_several_counters_by_key_live_in_a_hash(server: RedisServer) -> None:
    harness = RedisHarness(server)
    sink = RedisSink(server.url, mode="counter", key="id", prefix=harness.prefix)
    story = tell(harness)
    first = batch(id=["a", "b", "a"], orders=[1, 1, 1], cents=[250, None, -50])
    story.commit(sink, story.prepare(sink, [first, first], epoch=0), epoch=0)
    assert sorted(harness.read_visible()) == [
        ("a", "cents", "400"), ("a", "orders", "4"), ("b", "orders", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
def test_a_counter_of_nulls_is_not_made_and_one_that_is_there_keeps_its_ttl(server: RedisServer, direct: bool) -> None:
    harness = CounterHarness(server)
    sink, story = RedisSink(server.url, mode="counter", key="id", prefix=harness.prefix, ttl="1h"), tell(harness)
    harness.client.set(f"{harness.prefix}there", 7)
    rows = batch(id=["none", "there"], n=pa.array([None, None], pa.int64()))
    if direct:
        writer = sink.open_direct_writer(WriterScope(story.scope(), 0, 0, 0, 0))
        writer.write(rows)
        writer.pre_commit()
    else:
        assert story.commit(sink, story.prepare(sink, [rows])) == {Outcome.COMMITTED}
    assert harness.keys() == [f"{harness.prefix}there".encode()]
    assert harness.client.get(f"{harness.prefix}there") == b"7"
    assert harness.client.ttl(f"{harness.prefix}there") == -1


@pytest.mark.parametrize("mode", ["hash", "string", "counter"])
@pytest.mark.parametrize("direct", [False, True], ids=["staged", "direct"])
def test_a_ttl_counts_from_the_write(server: RedisServer, mode: Any, direct: bool) -> None:
    harness = RedisHarness(server)
    sink = RedisSink(server.url, mode=mode, key="id", prefix=harness.prefix, ttl="1h")
    story, rows = tell(harness), batch(id=["a"], n=[1])
    if direct:
        opened = sink.open_direct_writer(WriterScope(story.scope(), 0, 0, 0, 0))
        opened.write(rows)
        opened.pre_commit()
    else:
        [prepared] = story.prepare(sink, [rows])
        assert harness.client.ttl(staged_key(prepared)) == -1  # what is decided must not expire
        story.commit(sink, [prepared])
    assert 3_500_000 < harness.client.pttl(f"{harness.prefix}a") <= 3_600_000


def test_rows_written_directly_are_the_same_rows(server: RedisServer) -> None:
    """The road of at-least-once, in every mode."""
    for harness in (RedisHarness(server), StringHarness(server), CounterHarness(server)):
        rows = harness.special()
        opened = harness.make_sink().open_direct_writer(WriterScope(tell(harness).scope(), 0, 0, 0, 0))
        opened.write(rows)
        assert opened.pre_commit() == {}
        tell(harness).assert_visible(rows)


def test_without_staging_a_replay_converges(server: RedisServer) -> None:
    harness = RedisHarness(server, staged=False)
    story, rows = tell(harness), harness.rows(5)
    sink = harness.make_sink()
    story.prepare(sink, [harness.rows(3)], attempt=0)  # dies, and is seen on the way
    assert len(harness.read_visible()) == 3
    assert story.sweep(sink, generation=2) == 0
    assert story.commit(sink, story.prepare(sink, [rows], generation=2), generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_of_another_type_is_named_before_the_decision(server: RedisServer) -> None:
    for harness, value in (
        (RedisHarness(server), "a string"),
        (CounterHarness(server), "no number"),
        (StringHarness(server), None),
    ):
        if value is None:
            harness.client.rpush(f"{harness.prefix}k3", "a list")
        else:
            harness.client.set(f"{harness.prefix}k3", value)
        story, sink = tell(harness), harness.make_sink()
        with pytest.raises(DataError, match="k3"):
            story.prepare(sink, [harness.rows(5)])
        assert harness.keys() == [f"{harness.prefix}k3".encode()]
        harness.client.delete(f"{harness.prefix}k3")
        assert story.sweep(sink, generation=1) == 1
        story.commit(sink, story.prepare(sink, [harness.rows(5)], attempt=1))
        story.assert_visible(harness.rows(5))


def test_a_key_that_changes_its_type_after_the_decision_holds_everything_back(server: RedisServer) -> None:
    """Nothing half visible; once the key is out of the way the same decision is carried out."""
    for harness in (RedisHarness(server), CounterHarness(server), StringHarness(server)):
        story, sink, rows = tell(harness), harness.make_sink(), harness.rows(5)
        prepared = story.prepare(sink, [rows])
        harness.client.rpush(f"{harness.prefix}k4", "in the way")
        assert story.commit(sink, prepared) == {Outcome.UNKNOWN}
        assert harness.keys() == [f"{harness.prefix}k4".encode()]
        harness.client.delete(f"{harness.prefix}k4")
        assert story.commit(sink, prepared) == {Outcome.COMMITTED}
        story.assert_visible(rows)


def test_a_counter_never_overflows(server: RedisServer) -> None:
    harness = CounterHarness(server)
    story, sink = tell(harness), harness.make_sink()
    near = 9_200_000_000_000_000_000
    story.commit(sink, story.prepare(sink, [batch(id=["a"], n=[near])]))
    with pytest.raises(DataError, match="overflow"):
        story.prepare(sink, [batch(id=["b", "a"], n=[1, near])], epoch=1)
    with pytest.raises(DataError, match="overflow"):
        story.prepare(sink, [batch(id=["b", "b"], n=[near, near])], epoch=1)
    assert harness.read_visible() == [("a", near)]


@pytest.mark.parametrize("tasks", [1, 2])
def test_increments_that_overflow_only_together_wait_until_the_counter_is_lowered(
    server: RedisServer, tasks: int
) -> None:
    """Keys are checked 16,000 values of a task at a time, before the decision; what passes there is never wrapped."""
    harness = CounterHarness(server)
    story, sink = tell(harness), harness.make_sink()
    step, rows = 1_700_000_000_000_000, 6_000 // tasks
    prepared = story.prepare(sink, [batch(id=["a"] * rows, n=[step] * rows)] * tasks)
    assert Outcome.UNKNOWN in story.commit(sink, prepared)
    [(_, there)] = harness.read_visible()
    assert 0 < there < 6_000 * step
    harness.client.decrby(f"{harness.prefix}a", there)
    assert Outcome.UNKNOWN not in story.commit(sink, prepared)
    assert harness.read_visible() == [("a", 6_000 * step - there)]


def test_a_row_without_key_is_refused(server: RedisServer) -> None:
    harness = RedisHarness(server)
    with pytest.raises(DataError, match="no key"):
        tell(harness).prepare(harness.make_sink(), [batch(id=["a", None], name=["x", "y"])])
    assert harness.read_visible() == []


def test_a_wrong_password_is_named_and_no_password_is_shown(own: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    client = redis.Redis.from_url(own.url)
    client.config_set("requirepass", "right-secret")
    sink = RedisSink(own.url.replace("//", "//:wrong-secret@"), key="id")
    story = tell(RedisHarness(own))
    payload = {"base": "b", "name": "n", "elements": 3, "at_once": 3}
    shown = [repr(sink), sink.describe(), str(sink.link("out"))]
    for refused in (
        lambda: sink.check(CONTEXT, "out"),
        lambda: story.open_writer(sink, story.scope(), epoch=0).write(story.harness.rows(1)),
        lambda: story.commit(sink, [Committable("out", 0, 1, 0, payload)]),
    ):
        with pytest.raises(AccessDenied) as caught:
            refused()
        shown += [str(caught.value), repr(caught.value)]
    assert "secret" not in "".join(shown) + caplog.text
    right = RedisSink(own.url, key="id", options={"password": "right-secret"})
    assert right.check(CONTEXT, "out")
    assert "secret" not in repr(right)


def test_a_right_that_is_missing_is_named(own: RedisServer) -> None:
    client = redis.Redis.from_url(own.url)
    client.execute_command("ACL", "SETUSER", "half", "on", ">pw", "~penstock:*", "+@all")
    url = own.url.replace("//", "//half:pw@")
    story, sink = tell(RedisHarness(own)), RedisSink(url, key="id", prefix="out:")
    with pytest.raises(PenstockError) as caught:
        story.prepare(sink, [story.harness.rows(3)])
    assert isinstance(caught.value, AccessDenied), caught.value
    client.execute_command("ACL", "SETUSER", "half", "~out:*")
    prepared = story.prepare(sink, [story.harness.rows(3)], attempt=1)
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}


def test_a_right_taken_away_in_the_middle_of_a_commit(own: RedisServer) -> None:
    """Keys that are overwritten go on once the right is back. Counters, part of which is counted, are left to a person
    and never counted twice."""
    admin = redis.Redis.from_url(own.url)
    admin.execute_command("ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all")
    url = own.url.replace("//", "//u:pw@")
    hashes, counters = RedisHarness(own), CounterHarness(own)
    stories = [
        (tell(one), RedisSink(url, mode=one.mode, key="id", prefix=one.prefix, ttl=60)) for one in (hashes, counters)
    ]
    prepared = [story.prepare(sink, [story.harness.rows(3)]) for story, sink in stories]
    admin.execute_command("ACL", "SETUSER", "u", "-pexpire")
    with pytest.raises(AccessDenied):
        stories[0][0].commit(stories[0][1], prepared[0])
    assert stories[1][0].commit(stories[1][1], prepared[1]) == {Outcome.UNKNOWN}
    assert counters.read_visible() == [("k0", 1)]
    admin.execute_command("ACL", "SETUSER", "u", "+pexpire")
    assert stories[0][0].commit(stories[0][1], prepared[0]) == {Outcome.COMMITTED}
    stories[0][0].assert_visible(hashes.rows(3))
    assert stories[1][0].commit(stories[1][1], prepared[1]) == {Outcome.UNKNOWN}
    assert counters.read_visible() == [("k0", 1)]


def test_full_memory_is_named_and_what_is_decided_waits(own: RedisServer) -> None:
    harness = StringHarness(own)
    story, sink, rows = tell(harness), harness.make_sink(), harness.rows(1000)
    decided = story.prepare(sink, [rows])
    harness.client.config_set("maxmemory", "1mb")
    with pytest.raises(StorageFull) as caught:
        story.prepare(sink, [rows], epoch=1)
    assert caught.value.retryable
    with pytest.raises(StorageFull):
        story.commit(sink, decided)
    assert harness.read_visible() == []
    harness.client.config_set("maxmemory", "0")
    assert story.commit(sink, decided) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_a_value_larger_than_redis_takes_is_refused_before_it_is_sent(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LARGEST_VALUE", 1 << 20)
    harness = StringHarness(server)
    for sink in (harness.make_sink(), StringHarness(server, staged=False).make_sink()):
        with pytest.raises(ValueTooLarge, match="'name' has 2,097,152 bytes"):
            tell(harness).prepare(sink, [batch(id=["b", "a"], name=["small", "x" * (2 << 20)])])
    assert harness.read_visible() == []


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_check_says_what_can_be_lost(own: RedisServer) -> None:
    client = redis.Redis.from_url(own.url)
    sink = RedisSink(own.url, key="id", ttl=60)

    def said() -> str:
        return " ".join(finding.message for finding in sink.check(CONTEXT, "out"))

    assert "appendfsync everysec" in said()
    client.config_set("appendfsync", "always")
    assert said() == ""
    client.config_set("appendonly", "no")
    assert "appendonly off" in said()
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "volatile-lru")
    assert "evict" in said()
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigurationError, match="allkeys-lru"):
        said()
    assert "evict" in str(RedisSink(own.url, key="id", staged=False).check(CONTEXT, "out"))
    assert client.dbsize() == 0


def test_a_replica_and_nobody_at_all_are_refused(own: RedisServer) -> None:
    client = redis.Redis.from_url(own.url)
    client.replicaof("127.0.0.1", "1")
    sink = RedisSink(own.url, key="id")
    with pytest.raises(ConfigurationError, match="replica"):
        sink.check(CONTEXT, "out")
    own.stop()
    with pytest.raises(SystemUnavailable):
        sink.check(CONTEXT, "out")


def test_a_cluster_needs_a_tag_and_then_keeps_the_promise(tmp_path: Path) -> None:
    """One node that has all slots; scripts are held to one slot just the same."""
    with RedisServer.start(
        tmp_path / "node", settings={"cluster-enabled": "yes", "cluster-port": str(free_port())}
    ) as node:
        client = redis.Redis.from_url(node.url)
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        with pytest.raises(ConfigurationError, match="cluster=True"):
            RedisSink(node.url, key="id").check(CONTEXT, "out")
        from tests.support.waiting import until

        until(lambda: client.cluster("info")["cluster_state"] == "ok", "the cluster to know its slots")
        harness = CounterHarness(node, prefix="{t}:", cluster=True)
        story, sink, rows = tell(harness), harness.make_sink(), harness.rows(20)
        sink.check(CONTEXT, "out")
        prepared = story.prepare(sink, [rows, harness.rows(5, 100)])
        story.assert_visible()
        assert story.commit(sink, prepared) == {Outcome.COMMITTED}
        assert story.commit(sink, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}
        story.assert_visible(rows, harness.rows(5, 100))
        left = story.prepare(sink, [rows], epoch=1)
        assert story.sweep(sink, generation=2) == 1
        assert story.commit(sink, left, epoch=1) == LOST
        spread = StringHarness(node, prefix="s", cluster=True, staged=False)
        told = tell(spread)
        told.commit(spread.make_sink(), told.prepare(spread.make_sink(), [spread.rows(50)]))
        told.assert_visible(spread.rows(50))
