"""What a `RedisSink` says of itself, what it refuses, and how rows become commands; no server."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

import pyarrow as pa
import pytest

from penstock import RedisSink
from penstock.contracts.guarantees import Guarantee
from penstock.contracts.sink import CheckContext, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, DataError, MissingExtra, PenstockError, SchemaMismatch
from penstock.sinks.files.commit import attempt_name, numbers_in
from penstock.sinks.redis.client import Layout, hash_tag, public_address, translated
from penstock.sinks.redis.sink import findings
from penstock.sinks.redis.writer import commands, lay_out, portions

URL = "redis://alice:s3cret@db.example:6380/2"


def test_secrets_are_never_shown() -> None:
    sink = RedisSink(URL, prefix="totals:", options={"password": "0ther"})
    shown = f"{sink!r} {sink} {sink.describe()} {sink.link('out')}"
    assert "s3cret" not in shown
    assert "0ther" not in shown
    assert sink.describe() == "Redis hashes totals:<key> at db.example:6380/2"
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "localhost:6379"),
        ("rediss://u:p@[::1]:7000/0?password=s3cret", "[::1]:7000/0"),
        ("unix://u:s3cret@/run/redis.sock?db=1", "/run/redis.sock"),
    ],
)
def test_where_it_is(url: str, shown: str) -> None:
    assert public_address(url) == shown


ODD = [
    "redis://user:{}@host:notaport/0", "redis://user:{}@host:99999/0", "redis://user:{}@[::1/0",
    "redis://user:{}@host]/0", "redis://:{}/x@host/0", "redis://user:a/{}@host:1/0", "redis://user:1/{}@host/0",
    "redis://user:{}#x@host/0", "redis://user:1#{}@host/0", "redis://user:{}?x=1@host/0", "redis://user:1?{}@host/0",
    "redis://user:x@{}@host/0", "redis://user:{}@host/notadb", "redis://host:6379/{}", "redis://user:{}",
    "redis://host:{}/0", "redis://user:{}%40host:6379/0", "redis://user:{}@", "redis:/user:{}@host",
    "http://user:{}@host", "redis://user:{}@ho st:1", "redis://user:{}@ho\u2100st:1/0", "redis://user:ab[{}@host:1",
    "unix://user:{}@/run/redis.sock?db=a", "redis://user:{}@127.0.0.1:1/0?db={}", "redis://127.0.0.1:1/0?protocol={}",
    "redis://127.0.0.1:1/0?password={}&socket_timeout=abc", "redis://127.0.0.1:1?health_check_interval={}",
    "rediss://user:{}@127.0.0.1:1?ssl_cert_reqs={}", "redis://user:{}@127.0.0.1:1/0", "redis://127.0.0.1:1?nonsense={}",
]  # fmt: skip


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("odd", ODD)
def test_no_odd_address_shows_its_password(odd: str, cluster: bool) -> None:
    """Whatever is raised is one of ours, and neither it nor what caused it repeats the secret."""
    url = odd.replace("{}", "s3cret-pass")

    def use() -> None:
        sink = RedisSink(url, prefix="{t}:", cluster=cluster)
        told.append(f"{sink!r} {sink.describe()} {sink.link('out')}")
        for work in (
            lambda: sink.check(CheckContext("job", 1.0, 30.0), "out"),
            lambda: sink.open_committer(SinkScope("job", "out", 1)).abort_dangling([], Deadline(1.0)),
        ):
            try:
                work()
            except PenstockError as error:
                errors.append(error)

    told: list[str] = []
    errors: list[BaseException] = []
    try:
        use()
    except PenstockError as error:
        errors.append(error)
    assert errors, "none of these leads anywhere"
    while errors:
        one = errors.pop()
        told.append(str(one))
        if cause := one.__cause__ or (None if one.__suppress_context__ else one.__context__):
            errors.append(cause)
    assert "s3cret" not in " ".join(told)


def test_the_guarantee_is_honest() -> None:
    staged, direct = RedisSink(URL), RedisSink(URL, staged=False)
    assert staged.link("out").guarantee is Guarantee.EXACTLY_ONCE
    assert RedisSink(URL, mode="counter").link("out").guarantee is Guarantee.EXACTLY_ONCE
    link = direct.link("out")
    assert link.guarantee is Guarantee.EFFECTIVELY_ONCE
    assert "readers see it" in link.because
    assert "staged=True" in link.lift


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "list"}, "mode"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": "soon"}, "ttl"),
        ({"mode": "counter", "staged": False}, "counts a replay twice"),
        ({"cluster": True}, "hash tag"),
        ({"cluster": True, "prefix": "{}x:"}, "hash tag"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RedisSink(URL, **settings)


def test_an_address_that_is_none_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisSink("alice:s3cret@db.example")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "tag"),
    [("", ""), ("a:", ""), ("{t}:", "{t}"), ("a{t}b{u}", "{t}"), ("{}{t}", ""), ("{t", ""), ("}{t}", "{t}")],
)
def test_the_hash_tag(prefix: str, tag: str) -> None:
    assert hash_tag(prefix) == tag
    assert Layout.of(SinkScope("job", "uid", 1), prefix).open == f"{tag}penstock:job:uid:open"


@pytest.mark.parametrize(
    ("prefix", "moved"), [("totals:", "totals-fork:"), ("totals", "totals-fork"), ("", "-fork:"), ("{t}:", "{t}-fork:")]
)
def test_output_put_aside(prefix: str, moved: str) -> None:
    sink = RedisSink(URL, prefix=prefix, mode="counter", ttl="1h")
    aside = sink.redirected("-fork")
    assert aside.prefix == moved
    assert (aside.mode, aside.ttl, aside.url) == (sink.mode, sink.ttl, sink.url)


def test_names_carry_their_generation() -> None:
    scope = WriterScope(SinkScope("job", "uid", 12), 3, 1, 4, 7)
    assert numbers_in(attempt_name(scope, "0a1b")) == (12, 3, 4)
    assert numbers_in("g12-something-else") is None


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "redis":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for use in (
        lambda: RedisSink(URL).check(CheckContext("job", 1.0, 10.0), "out"),
        lambda: RedisSink(URL).open_committer(SinkScope("job", "out", 1)),
        lambda: RedisSink(URL).open_writer(WriterScope(SinkScope("job", "out", 1), 0, 0, 0, 0)),
    ):
        with pytest.raises(MissingExtra, match=r"penstock\[redis\]"):
            use()


def test_findings_name_what_a_crash_would_take() -> None:
    def said(fsync: str = "always", *, ttl: bool = False, **info: Any) -> str:
        return " ".join(findings({"aof_enabled": 1, **info}, fsync, "here", ttl=ttl))

    assert said() == ""
    assert "appendonly off" in said(aof_enabled=0)
    assert "power cut" in said("everysec")
    assert "failover" in said(connected_slaves=2)
    assert said(maxmemory=1, maxmemory_policy="volatile-ttl") == ""
    assert "evict" in said(maxmemory=1, maxmemory_policy="volatile-ttl", ttl=True)


def test_a_refusal_that_nobody_foresaw_keeps_its_text() -> None:
    redis = pytest.importorskip("redis")
    error = translated(redis.exceptions.ResponseError("ERR something new"), "redis://here")
    assert "something new" in str(error)
    assert error.retryable


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_are_laid_out_one_after_the_other() -> None:
    rows = lay_out(batch(id=["a", "b"], x=[1, None], y=["u", "v"]), "id", "p:")
    assert rows.elements == [b"", b"p:a", "1", "u", b"01", b"p:b", "", "v"]
    assert (rows.width, len(rows.elements)) == (4, 8)


def test_the_key_may_stand_anywhere_and_be_anything() -> None:
    rows = lay_out(batch(x=["v"], id=pa.array([b"\xff\x00"], pa.binary())), "id", "ü:")
    assert rows.elements == [b"", "ü:".encode() + b"\xff\x00", "v"]


def test_increments_of_one_key_stay_rows_of_their_own() -> None:
    rows = lay_out(batch(id=["a", "b", "a"], n=pa.array([1, None, 41], pa.int16())), "id", "")
    assert rows.elements == [b"", b"a", "1", b"0", b"b", "", b"", b"a", "41"]


@pytest.mark.parametrize(
    ("prefix", "key", "fits"),
    [
        ("", "penstock:job:out:done", False),
        ("", "penstock:another job's", False),
        ("pen", "stock:", False),
        ("{t}", "penstock:x", False),
        ("{t}:", "penstock:x", True),
        ("", "{}penstock:x", True),
        ("", "penstocks", True),
        ("a:", "penstock:x", True),
    ],
)
def test_no_row_has_a_key_of_the_sinks_own(prefix: str, key: str, fits: bool) -> None:
    rows = batch(id=["a", key], x=[1, None])
    if fits:
        laid_out = lay_out(rows, "id", prefix)
        assert len(laid_out.elements) == 2 * laid_out.width
        return
    with pytest.raises(DataError, match="begins with 'penstock:'"):
        lay_out(rows, "id", prefix)


@pytest.mark.parametrize("column", [[{"a": 1}], [[1]]], ids=["struct", "list"])
def test_what_has_no_text_is_refused(column: list[Any]) -> None:
    with pytest.raises(SchemaMismatch, match="'x'"):
        lay_out(batch(id=["a"], x=column), "id", "")


def test_a_row_without_key_is_not_laid_out() -> None:
    with pytest.raises(DataError, match="no key"):
        lay_out(batch(id=[None], x=[1]), "id", "")


def test_rows_are_cut_into_parts_that_one_command_carries() -> None:
    many = batch(id=[f"k{n}" for n in range(20_000)], x=["v"] * 20_000)
    target = RedisSink(URL, mode="string", key="id")
    parts = [len(rows.elements) // rows.width for rows, _ in portions(many, target)]
    assert sum(parts) == 20_000
    assert max(parts) == 16_000 // 3
    long = batch(id=["a", "b", "c"], x=["x" * (5 << 20)] * 3)
    assert [len(rows.elements) // rows.width for rows, _ in portions(long, target)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("mode", "ttl", "wanted"),
    [
        ("hash", None, [("HSET", b"a", "x", "1", "y", "2"), ("HSET", b"b", "y", "4"), ("HDEL", b"b", "x")]),
        (
            "counter",
            5,
            [
                ("HINCRBY", b"a", "x", "1"), ("HINCRBY", b"a", "y", "2"), ("PEXPIRE", b"a", 5000),
                ("HINCRBY", b"b", "y", "4"), ("PEXPIRE", b"b", 5000),
            ],
        ),
    ],
)  # fmt: skip
def test_commands_for_the_direct_road(mode: Any, ttl: float | None, wanted: list[tuple[Any, ...]]) -> None:
    target = RedisSink(URL, mode=mode, key="id", ttl=ttl)
    rows = lay_out(batch(id=["a", "b"], x=[1, None], y=[2, 4]), "id", "")
    assert list(commands(rows, ["x", "y"], target)) == wanted


def test_a_counter_of_nulls_has_no_command() -> None:
    target = RedisSink(URL, mode="counter", key="id", ttl=5)
    rows = lay_out(batch(id=["a", "b"], x=pa.array([None, 2], pa.int64())), "id", "")
    assert list(commands(rows, ["x"], target)) == [("INCRBY", b"b", "2"), ("PEXPIRE", b"b", 5000)]
