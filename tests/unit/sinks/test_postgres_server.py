"""Connection parameters are read in every form, and spoken of without their secrets."""

from __future__ import annotations

import pickle
import sys

import pytest

from penstock import PostgresSink
from penstock.contracts.guarantees import Guarantee
from penstock.contracts.sink import SinkScope
from penstock.errors import ConfigurationError, MissingExtra
from penstock.sinks.postgres.connection import Server, client

SECRET = "s3cr/t w@rd"
WAYS = [
    PostgresSink("postgresql://app:s3cr%2Ft%20w%40rd@db:5433/shop?sslmode=disable", table="t"),
    PostgresSink("postgresql://app@db:5433/shop", table="t", password=SECRET),
    PostgresSink("postgresql://app@db:5433/shop?password=s3cr%2Ft%20w%40rd", table="t"),
    PostgresSink(f"host=db port=5433 dbname=shop user=app password='{SECRET}'", table="t"),
    PostgresSink(host="db", port=5433, dbname="shop", user="app", password=SECRET, table="t"),
]


@pytest.mark.parametrize("sink", WAYS)
def test_every_way_leads_to_the_same_server(sink: PostgresSink) -> None:
    from psycopg.conninfo import conninfo_to_dict

    found = conninfo_to_dict(sink.server.libpq())
    wanted = {
        "host": "db",
        "port": "5433",
        "dbname": "shop",
        "user": "app",
        "password": SECRET,
        "connect_timeout": "10",
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["connect_timeout"] == "10"
    assert str(sink.server) == "db:5433/shop"
    assert sink.describe() == "PostgreSQL table public.t at db:5433/shop"


@pytest.mark.parametrize("sink", WAYS)
def test_secrets_are_never_shown(sink: PostgresSink) -> None:
    shown = f"{sink!r} {sink} {sink.describe()} {sink.link('out')} {sink.server} {sink.server!r}"
    shown += sink.server.scrubbed(f'could not log in with "{SECRET}" or s3cr%2Ft%20w%40rd')
    assert "s3cr" not in shown
    again = pickle.loads(pickle.dumps(sink))
    assert again.server.libpq() == sink.server.libpq()


def test_what_the_user_says_wins() -> None:
    from psycopg.conninfo import conninfo_to_dict

    in_text, in_words = Server("connect_timeout=3 host=db"), Server("", {"connect_timeout": "4", "host": "db"})
    assert conninfo_to_dict(in_text.libpq())["connect_timeout"] == "3"
    assert conninfo_to_dict(in_words.libpq())["connect_timeout"] == "4"


@pytest.mark.parametrize("server", [Server("client_encoding=LATIN1"), Server("", {"client_encoding": "SQL_ASCII"})])
def test_rows_are_utf8_whatever_the_user_says(server: Server) -> None:
    from psycopg.conninfo import conninfo_to_dict

    assert conninfo_to_dict(server.libpq())["client_encoding"] == "UTF8"


def test_several_hosts_and_none() -> None:
    assert str(Server("postgresql://u@one:1,two:2/d")) == "one,two:1,2/d"
    assert str(Server("postgresql:///d")) == "localhost/d"
    assert str(Server("postgresql://[::1]:5432/d")) == "[::1]:5432/d"
    assert str(Server()) == "localhost"


@pytest.mark.parametrize("text", ["postgresql://u:hunter2@[db/x", "user=u password=hunter2 nonsense", "nope=hunter2"])
def test_what_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Server(text).libpq()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Server(text))


def test_a_password_that_was_not_encoded_is_hidden_as_a_whole() -> None:
    assert repr(Server("postgresql://u:hunter@2/x@db/shop")) == "u@db/shop"


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    client.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=r"penstock\[postgres\]"):
            PostgresSink(table="t").open_committer(SinkScope("job", "uid", 1))
    finally:
        client.cache_clear()


def test_modes_keys_and_names_are_checked_at_once() -> None:
    with pytest.raises(ConfigurationError, match="has no mode 'merge'"):
        PostgresSink(table="t", mode="merge")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="key="):
        PostgresSink(table="t", mode="upsert")
    with pytest.raises(ConfigurationError, match="does not use it"):
        PostgresSink(table="t", key=["id"])
    with pytest.raises(ConfigurationError, match="column twice"):
        PostgresSink(table="t", mode="upsert", key=["id", "id"])
    with pytest.raises(ConfigurationError, match="63 bytes"):
        PostgresSink(table="ż" * 32)
    with pytest.raises(ConfigurationError, match="name of a table"):
        PostgresSink(table="a.b.c")
    assert PostgresSink(table="t", mode="upsert", key="id").key == ("id",)


def test_all_modes_promise_exactly_once_and_say_how() -> None:
    for mode, word in (("auto", "else staged"), ("two_phase", "prepared"), ("staged", "staging"), ("upsert", "by key")):
        link = PostgresSink(table="t", mode=mode, key=["id"] if mode == "upsert" else ()).link("out")  # type: ignore[arg-type]
        assert link.guarantee is Guarantee.EXACTLY_ONCE
        assert word in link.because


def test_a_redirected_sink_differs_only_in_its_table() -> None:
    sink = PostgresSink(
        "host=db", table='shop."My Orders"', mode="upsert", key=["id"], create=False, own_schema="aside", password="pw"
    )
    fork = sink.redirected("_fork")
    assert str(fork.place) == "shop.My Orders_fork"
    assert (fork.server, fork.mode, fork.key, fork.create) == (sink.server, sink.mode, sink.key, sink.create)
    assert fork.place.own_schema == "aside"
