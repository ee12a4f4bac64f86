"""What goes wrong with PostgreSQL has a name, leaves nothing half visible, and goes on once its cause is gone."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    ConstraintViolated,
    DataError,
    PenstockError,
    PreCommitFailed,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TableMissing,
)
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.sql.committer import KEPT_EPOCHS, PRUNE_EVERY
from penstock.testing.sink_harness import PATIENCE, SinkSteps
from tests.support.postgres import PostgresHarness
from tests.support.servers.postgres import Postgres
from tests.support.small_spark import SmallSpark

CONTEXT = CheckContext("job", 1.0, 30.0)
KEYED = "id bigint PRIMARY KEY, name text NOT NULL CHECK (name <> 'bad')"


class Story(SinkSteps):
    """The steps of epochs against one table."""

    harness: PostgresHarness

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.sink = harness.sink()
        self.opened: list[Writer] = []

    def open_writer(self, *arguments: Any, **more: Any) -> Writer:
        self.opened.append(super().open_writer(*arguments, **more))
        return self.opened[-1]

    def goes_on(self, *visible: pa.RecordBatch) -> None:
        """The next run sweeps, writes the epoch again, and all is well."""
        self.sweep(self.sink, generation=2)
        rows = self.harness.rows(3, 100)
        assert self.commit(self.sink, self.prepare(self.sink, [rows], generation=2), generation=2) == {
            Outcome.COMMITTED
        }
        self.assert_visible(*visible, rows)
        assert not self.harness.left(self.job)

    def fails(self, kind: type[PenstockError], *batches: pa.RecordBatch) -> PenstockError:
        with pytest.raises(kind) as caught:
            self.prepare(self.sink, list(batches))
        self.opened[-1].abort()  # as a task does
        assert caught.value.happened
        assert caught.value.safe
        assert caught.value.to_do
        return caught.value


@pytest.fixture
def story(postgres: Postgres) -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def make(mode: Any = "two_phase", columns: str = "id bigint, name text", **more: Any) -> Story:
        made.append(Story(PostgresHarness(postgres, mode, columns, **more)))
        return made[-1]

    yield make
    for one in made:
        one.sweep(one.sink, generation=9)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


both = pytest.mark.parametrize("mode", ["two_phase", "staged"])


# ── rows that the table does not take ────────────────────────────────────────────────────────────────────────────────


@both
@pytest.mark.parametrize("rows", [batch(id=[1], name=["old"]), batch(id=[2], name=["bad"]), batch(id=[3], name=[None])])
def test_a_broken_rule(story: Callable[..., Story], mode: str, rows: pa.RecordBatch) -> None:
    """Found before the decision, whichever the mode."""
    one = story(mode, KEYED)
    one.harness.run(f"INSERT INTO {one.harness.table} VALUES (1, 'there')")
    rows = pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    error = one.fails(ConstraintViolated, one.harness.rows(5, 10), rows)
    assert one.harness.table in str(error)
    one.goes_on(batch(id=[1], name=["there"]))
    assert one.harness.staging() == []


@pytest.mark.parametrize("mode", ["two_phase", "staged", "upsert"])
@pytest.mark.parametrize(
    "rule",
    [
        "FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED",
        "UNIQUE (name) DEFERRABLE INITIALLY DEFERRED",
        "EXCLUDE USING btree (name WITH =) DEFERRABLE INITIALLY DEFERRED",
        "CONSTRAINT TRIGGER",
    ],
)
def test_a_rule_that_is_checked_at_commit_is_broken_before_the_decision(
    story: Callable[..., Story], mode: str, rule: str
) -> None:
    more = "" if "TRIGGER" in rule else f", {rule}"
    story().harness.run("CREATE TABLE IF NOT EXISTS parents (id bigint PRIMARY KEY)")
    one = story(mode, f"id bigint PRIMARY KEY, name text{more}", key=["id"] if mode == "upsert" else [])
    if "TRIGGER" in rule:
        one.harness.run(
            "CREATE OR REPLACE FUNCTION refuse_old() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.name = 'old' THEN RAISE EXCEPTION 'old'; END IF; RETURN NULL; END $$"
        )
        one.harness.run(
            f"CREATE CONSTRAINT TRIGGER later AFTER INSERT ON {one.harness.table} DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse_old()"
        )
    one.harness.run("INSERT INTO parents VALUES (100), (101), (102) ON CONFLICT DO NOTHING")
    one.fails(ConstraintViolated, batch(id=[1, 2], name=["old", "old"]))
    one.goes_on()


def test_two_writers_with_the_same_key_are_named_and_do_not_hang(story: Callable[..., Story]) -> None:
    one = story("two_phase", KEYED, lock_timeout="200ms")
    error = one.fails(ConstraintViolated, one.harness.rows(5), one.harness.rows(5, 4))
    assert "two writers of one epoch" in str(error)
    assert "repartition" in error.to_do
    one.goes_on()


def test_a_task_whose_first_attempt_died_prepared_replays(story: Callable[..., Story]) -> None:
    """Its rows are in the way of the second attempt; that is nobody's mistake, so the epoch is tried again."""
    one = story("two_phase", KEYED, lock_timeout="200ms")
    one.prepare(one.sink, [one.harness.rows(5)])
    error = one.fails(PreCommitFailed, one.harness.rows(5))
    assert error.retryable
    one.goes_on()


def test_a_rule_broken_after_the_decision_waits_for_its_cause_to_go(story: Callable[..., Story]) -> None:
    one = story("staged", KEYED)
    decided = one.prepare(one.sink, [one.harness.rows(3)])
    one.harness.run(f"INSERT INTO {one.harness.table} VALUES (2, 'stranger')")
    with pytest.raises(ConstraintViolated, match="the epoch is decided and its rows are kept"):
        one.commit(one.sink, decided)
    one.harness.run(f"DELETE FROM {one.harness.table}")
    assert one.commit(one.sink, decided) == {Outcome.COMMITTED}
    one.assert_visible(one.harness.rows(3))


@both
def test_a_character_that_postgres_cannot_store(story: Callable[..., Story], mode: str) -> None:
    one = story(mode)
    error = one.fails(DataError, batch(id=[1, 2], name=["fine", "nul \0 inside"]))
    assert "column 'name'" in str(error)
    assert "NUL" in error.to_do
    one.goes_on()


@pytest.mark.parametrize(
    ("columns", "rows", "word"),
    [
        ("id int, name varchar(3)", batch(id=pa.array([1], pa.int32()), name=["long one"]), "too long"),
        ("id int, name varchar(3)", batch(id=pa.array([1], pa.int32()), name=["ab  "]), "too long"),
        ("id int, name short", batch(id=pa.array([1], pa.int32()), name=["ab  "]), "too long"),
        ("id timestamp", batch(id=pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us"))), "out of range"),
        ("id date", batch(id=pa.array([-(2**31) + 10_957], pa.int32()).cast(pa.date32())), "out of range"),
        ("id int, name jsonb", batch(id=pa.array([1], pa.int32()), name=["{"]), "json"),
        ("id int, name uuid", batch(id=pa.array([1], pa.int32()), name=["1234"]), "'1234' is none"),
        ("id numeric(4, 2), name text", batch(id=[Decimal("123.45")], name=["x"]), "overflow"),
        ("id int, name inet", batch(id=pa.array([1], pa.int32()), name=["nowhere"]), "nowhere"),
    ],
)
def test_a_value_that_its_column_does_not_take(
    story: Callable[..., Story], columns: str, rows: pa.RecordBatch, word: str
) -> None:
    if " short" in columns:
        story().harness.run("DROP DOMAIN IF EXISTS short CASCADE; CREATE DOMAIN short AS varchar(3)")
    one = story("two_phase", columns)
    assert word in str(one.fails(DataError, rows))
    assert one.harness.run(f"SELECT * FROM {one.harness.table}") == []
    assert not one.harness.left(one.job)


@both
def test_text_goes_into_a_database_of_another_encoding(
    story: Callable[..., Story], postgres: Postgres, mode: str
) -> None:
    plain = story()
    if not plain.harness.run("SELECT 1 FROM pg_database WHERE datname = 'latin'"):
        plain.harness.run("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    there = SimpleNamespace(dsn=make_conninfo(postgres.dsn, dbname="latin"))
    one = Story(PostgresHarness(there, mode, "id bigint, name text, short varchar(3)"))  # type: ignore[arg-type]
    rows = batch(id=[1], name=["Zoë"], short=["Zoë"])
    one.commit(one.sink, one.prepare(one.sink, [rows]))
    assert one.harness.run(f"SELECT name, short, length(name) FROM {one.harness.table}") == [("Zoë", "Zoë", 3)]
    assert "LATIN1" in str(one.fails(DataError, batch(id=[2], name=["日本"], short=["x"])))
    assert one.harness.run(f"SELECT count(*) FROM {one.harness.table}") == [(1,)]
    one.sweep(one.sink, generation=9)


# ── a table that is not as it was ────────────────────────────────────────────────────────────────────────────────────


@both
def test_a_dropped_table(story: Callable[..., Story], mode: str) -> None:
    one = story(mode)
    one.harness.run(f"DROP TABLE {one.harness.table}")
    one.fails(TableMissing, one.harness.rows(3))
    one.harness.run(one.harness.create)
    one.goes_on()


@both
def test_a_changed_column(story: Callable[..., Story], mode: str) -> None:
    one = story(mode)
    rows = one.harness.rows(3)
    one.commit(one.sink, one.prepare(one.sink, [rows]))
    one.harness.run(f"ALTER TABLE {one.harness.table} ALTER id TYPE int")
    one.harness.run(f"ALTER TABLE {one.harness.table} RENAME name TO title")
    error = one.fails(SchemaMismatch, one.harness.rows(3))
    assert "column 'id' is int64, the table's is integer: it is too narrow" in str(error)
    assert "no column 'name'" in str(error)
    one.harness.run(f"ALTER TABLE {one.harness.table} RENAME title TO name")
    one.harness.run(f"ALTER TABLE {one.harness.table} ALTER id TYPE bigint")
    one.goes_on(rows)


@both
def test_a_column_changed_under_an_open_writer(story: Callable[..., Story], mode: str) -> None:
    one = story(mode)
    writer = one.open_writer(one.sink, one.scope(), epoch=0)
    one.harness.run(f"ALTER TABLE {one.harness.table} ALTER name TYPE int USING 1")
    with pytest.raises(SchemaMismatch):
        writer.write(one.harness.rows(3))
    writer.abort()
    one.harness.run(f"ALTER TABLE {one.harness.table} ALTER name TYPE text")
    one.goes_on()


# ── a server that goes, refuses, or fills up ─────────────────────────────────────────────────────────────────────────


@both
def test_a_server_killed_in_the_middle(story: Callable[..., Story], postgres: Postgres, mode: str) -> None:
    """What was prepared survives; a writer under way is told; both go on with the same server."""
    one = story(mode)
    rows = one.harness.rows(3)
    prepared = one.prepare(one.sink, [rows])
    writer = one.open_writer(one.sink, one.scope(), epoch=1, writer=1)
    writer.write(one.harness.rows(3, 50))
    postgres.kill()
    with pytest.raises(SystemUnavailable):
        writer.pre_commit()
    writer.abort()
    assert one.commit(one.sink, prepared, seconds=0.5) == {Outcome.UNKNOWN}
    with pytest.raises(SystemUnavailable):
        one.open_writer(one.sink, one.scope(), epoch=1)
    with pytest.raises(SystemUnavailable):
        one.sink.check(CONTEXT, "uid")
    postgres.restart()
    assert one.commit(one.sink, prepared) <= {Outcome.COMMITTED}
    one.goes_on(rows)


def test_a_connection_kept_over_a_restart_is_replaced(story: Callable[..., Story], postgres: Postgres) -> None:
    one = story()
    rows = one.harness.rows(3)
    one.commit(one.sink, one.prepare(one.sink, [rows]))
    postgres.restart()
    one.goes_on(rows)


def test_an_answer_is_waited_for_as_long_as_allowed_and_no_longer(postgres: Postgres) -> None:
    with PostgresSink(postgres.dsn, table="t").line("test", 0.2) as line:
        with pytest.raises(psycopg.OperationalError):
            line.ask("SELECT pg_sleep(3600)")
        line.limit(Deadline(PATIENCE))
        assert line.ask("SELECT 1") == [(1,)]


@pytest.mark.parametrize("how", ["url", "keyword"])
def test_a_wrong_password_is_refused_and_not_repeated(postgres: Postgres, how: str) -> None:
    where = postgres.dsn.replace(postgres.password, "s3cret%2Fone") if how == "url" else ""
    parts: dict[str, Any] = (
        {} if how == "url" else {"host": "127.0.0.1", "port": postgres.port, "user": "penstock", "dbname": "postgres"}
    )
    if how == "keyword":
        parts["password"] = "s3cret/one"
    sink = PostgresSink(where, table="t", **parts)
    scope = SinkScope("job", "uid", 1)
    attempts: list[Callable[[], object]] = [
        lambda: sink.check(CONTEXT, "uid"),
        lambda: sink.open_writer(WriterScope(scope, 0, 0, 0, 0)),
        lambda: sink.open_committer(scope).hints(),
    ]
    for attempt in attempts:
        with pytest.raises(AccessDenied) as caught:
            attempt()
        assert "s3cret" not in f"{caught.value} {sink!r} {sink.describe()} {sink.link('uid')}"


def test_a_full_disk(story: Callable[..., Story], postgres: Postgres) -> None:
    """A tablespace on a small disk. What is committed stays, what is not is gone, and with space it goes on."""
    one = story()
    disk = Path(postgres.folder) / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        shutil.chown(disk, "postgres")
        one.harness.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
        one.harness.run(f"ALTER TABLE {one.harness.table} SET TABLESPACE small")
        rows = one.harness.rows(3)
        one.commit(one.sink, one.prepare(one.sink, [rows]))
        one.fails(StorageFull, batch(id=list(range(30_000)), name=["x" * 100] * 30_000))
        one.assert_visible(rows)
        one.harness.run(f"ALTER TABLE {one.harness.table} SET TABLESPACE pg_default")
        one.goes_on(rows)
        one.harness.run("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


# ── writers and drivers that live too long ───────────────────────────────────────────────────────────────────────────


@both
def test_a_writer_that_comes_after_the_sweep_refuses_itself(story: Callable[..., Story], mode: str) -> None:
    """Its task was told of the fence before the sweep, slept, and connects only now: nothing of it stays behind."""
    one = story(mode)
    committer = one.sink.open_committer(one.scope())
    told = dict(committer.hints())
    one.sweep(one.sink, generation=2)
    zombie = one.sink.open_writer(WriterScope(one.scope(), 0, 0, 0, 0, told))
    zombie.write(one.harness.rows(3))
    with pytest.raises(PreCommitFailed, match="is fenced"):
        zombie.pre_commit()
    zombie.abort()
    committer.close()
    assert one.harness.left(one.job) == []
    assert one.harness.staging() == []


@both
def test_a_task_that_fails_after_it_prepared_undoes_it(story: Callable[..., Story], mode: str) -> None:
    one = story(mode)
    writer = one.open_writer(one.sink, one.scope(), epoch=0)
    writer.write(one.harness.rows(3))
    payload = writer.pre_commit()
    writer.abort()
    assert one.harness.left(one.job) == []
    assert one.harness.staging() == []
    assert one.commit(one.sink, [Committable(one.uid, 0, 3, 0, payload)]) == {Outcome.LOST}


def test_a_sweep_of_an_older_run_does_not_raise_the_fence(story: Callable[..., Story]) -> None:
    one = story()
    one.sweep(one.sink, generation=3)
    writer = one.open_writer(one.sink, one.scope(3), epoch=0)
    writer.write(one.harness.rows(3))
    one.sweep(one.sink, generation=2)
    decided = [Committable(one.uid, 0, 3, 0, writer.pre_commit())]
    assert one.commit(one.sink, decided, generation=3) == {Outcome.COMMITTED}


def test_a_driver_that_holds_its_move_is_ended_by_the_next_one(story: Callable[..., Story]) -> None:
    one = story("staged")
    rows = one.harness.rows(3)
    writer = one.open_writer(one.sink, one.scope(), epoch=0)
    writer.write(rows)
    decided = [Committable(one.uid, 0, 3, 0, writer.pre_commit())]
    zombie = one.sink.open_committer(one.scope())
    zombie.seal(decided, Deadline(PATIENCE))
    one.assert_visible()
    assert one.commit(one.sink, decided, generation=2) == {Outcome.COMMITTED}
    assert zombie.commit(0, decided, Deadline(PATIENCE)) == {0: Outcome.ALREADY_COMMITTED}
    zombie.close()
    one.assert_visible(rows)


def test_the_move_that_was_sealed_is_the_one_that_is_committed(story: Callable[..., Story]) -> None:
    one = story("staged")
    writer = one.open_writer(one.sink, one.scope(), epoch=0)
    writer.write(one.harness.rows(3))
    decided = [Committable(one.uid, 0, 3, 0, writer.pre_commit())]
    driver = one.sink.open_committer(one.scope())
    driver.seal(decided, Deadline(PATIENCE))
    locks = one.harness.run(f"SELECT 1 FROM pg_locks WHERE relation = '{one.harness.table}'::regclass AND granted")
    assert locks, "the rows are not moved yet"
    assert driver.commit(0, decided, Deadline(PATIENCE)) == {0: Outcome.COMMITTED}
    assert driver.commit(0, decided, Deadline(PATIENCE)) == {0: Outcome.ALREADY_COMMITTED}
    driver.close()
    one.assert_visible(one.harness.rows(3))


@pytest.mark.parametrize("limit", [2, 3])
@pytest.mark.parametrize("mode", ["staged", "upsert"])
def test_epochs_under_way_do_not_wait_for_the_locks_of_later_ones(
    story: Callable[..., Story], tmp_path: Path, mode: str, limit: int
) -> None:
    """The coordinator moves a later epoch on trial while the drainer commits an earlier one with the same keys."""
    harness = story(mode, "id bigint PRIMARY KEY, n bigint", key=["id"] if mode == "upsert" else []).harness
    keys = 3 if mode == "upsert" else 30

    def rows(first: int, last: int) -> pa.RecordBatch:
        return batch(id=[number % keys for number in range(first, last)], n=list(range(first, last)))

    SmallSpark(tmp_path, harness.sink(), rows, max_concurrent=limit).run(30)
    found = harness.run(f"SELECT id, n FROM {harness.table} ORDER BY n")
    assert found == [(number % keys, number) for number in range(30 - keys, 30)]
    assert not harness.staging()


# ── proof ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_markers_are_pruned_and_what_they_proved_is_unknown_then_not_lost(story: Callable[..., Story]) -> None:
    one = story()
    first = one.prepare(one.sink, [one.harness.rows(1)])
    one.commit(one.sink, first)
    later = KEPT_EPOCHS + PRUNE_EVERY
    one.commit(one.sink, one.prepare(one.sink, [one.harness.rows(1, 1)], epoch=later), epoch=later)
    count = f"SELECT count(*) FROM penstock_markers WHERE sink = '{one.scope().prefix}'"
    assert one.harness.run(count) == [(1,)]
    assert one.commit(one.sink, first) == {Outcome.UNKNOWN}


def test_with_its_own_tables_dropped_nothing_is_taken_for_lost(story: Callable[..., Story]) -> None:
    one = story()
    decided = one.prepare(one.sink, [one.harness.rows(1)])
    one.commit(one.sink, decided)
    one.harness.run("DROP TABLE penstock_markers, penstock_sinks")
    assert one.commit(one.sink, decided) == {Outcome.UNKNOWN}
    one.goes_on(one.harness.rows(1))


def test_a_sink_finishes_what_it_left_under_another_mode(story: Callable[..., Story]) -> None:
    one = story("staged")
    staged = one.prepare(one.sink, [one.harness.rows(3)])
    other = one.harness.sink(mode="two_phase")
    prepared = one.prepare(other, [one.harness.rows(3, 3)], epoch=1)
    assert one.commit(other, staged) == {Outcome.COMMITTED}
    assert one.commit(one.sink, prepared, epoch=1) == {Outcome.COMMITTED}
    one.assert_visible(one.harness.rows(6))


# ── every type ───────────────────────────────────────────────────────────────────────────────────────────────────────

UTC = dt.UTC
EVERYTHING: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "flag": ("boolean", pa.bool_(), [True, False]),
    "tiny": ("smallint", pa.int8(), [-128, 127]),
    "small": ("smallint", pa.int16(), [-32768, 32767]),
    "whole": ("integer", pa.int32(), [-(2**31), 2**31 - 1]),
    "wider": ("bigint", pa.int32(), [-(2**31), 2**31 - 1]),
    "big": ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    "single": ("real", pa.float32(), [1.5, float("-inf")]),
    "double": ("double precision", pa.float64(), [0.1, float("inf")]),
    "money": ("numeric(12, 2)", pa.decimal128(12, 2), [Decimal("-9999999999.99"), Decimal("0.00")]),
    "huge": ("numeric", pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal("-1E-10")]),
    "counted": ("numeric", pa.int64(), [Decimal(-(2**63)), Decimal(7)]),
    "text": ("text", pa.string(), ['Zażółć, "日本語"\n🚀', ""]),
    "short": ("varchar(3)", pa.string(), ["abc", ""]),
    "raw": ("bytea", pa.binary(), [b"\x00\xff", b""]),
    "day": ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "moment": (
        "timestamptz",
        pa.timestamp("us", "Europe/Warsaw"),
        [dt.datetime(2026, 3, 29, 1, 59, 59, 999999, UTC), dt.datetime(1900, 1, 1, 0, 0, 0, 1, UTC)],
    ),
    "local": ("timestamp", pa.timestamp("us"), [dt.datetime(2026, 3, 29, 2, 30), dt.datetime(1900, 1, 1, 0, 0, 0, 1)]),
    "took": ("interval", pa.duration("us"), [dt.timedelta(days=1, microseconds=1), dt.timedelta(0)]),
    "clock": ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0)]),
    "id": ("uuid", pa.string(), [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    "doc": ("jsonb", pa.string(), [{"a": [1, None, "ż"]}, []]),
    "old_doc": ("json", pa.string(), [{"a": [1, None, "ż"]}, []]),
    "mood": ("mood", pa.string(), ["happy", "sad"]),
    "labelled": ("label", pa.string(), ["a", "b"]),
    "words": ("text[]", pa.list_(pa.string()), [["a", None, ""], []]),
    "numbers": ("bigint[]", pa.list_(pa.int32()), [[1, None], []]),
    "prices": ("numeric(10, 2)[]", pa.list_(pa.decimal128(10, 2)), [[Decimal("1.50")], []]),
    "moments": ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), [[dt.datetime(2026, 1, 1, tzinfo=UTC)], []]),
    "nothing": ("text", pa.null(), [None, None]),
}
#: Types that only have a text form; the whole table then goes as CSV, which has no arrays.
TEXTUAL: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "address": ("inet", pa.string(), ["10.0.0.1/32", "::1/128"]),
    "span": ("int4range", pa.string(), ["[1,5)", "empty"]),
    **{name: one for name, one in EVERYTHING.items() if not one[0].endswith("[]")},
}


def given(name: str, value: Any) -> Any:
    import json

    if value is None or name not in ("doc", "old_doc", "id", "counted"):
        return value
    return int(value) if name == "counted" else str(value) if name == "id" else json.dumps(value, ensure_ascii=False)


@both
@pytest.mark.parametrize("kinds", [EVERYTHING, TEXTUAL], ids=["binary", "text"])
def test_every_type_comes_back_as_it_was(
    story: Callable[..., Story], mode: str, kinds: dict[str, tuple[str, pa.DataType, list[Any]]]
) -> None:
    types = story("staged")
    types.harness.run("DROP DOMAIN IF EXISTS label; DROP TYPE IF EXISTS mood")
    types.harness.run("CREATE TYPE mood AS ENUM ('happy', 'sad')")
    types.harness.run("CREATE DOMAIN label AS text CHECK (value <> '')")
    one = story(mode, ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in kinds.items()))
    columns = [
        pa.array([*(given(name, value) for value in values), None], kind) for name, (_, kind, values) in kinds.items()
    ]
    rows = pa.RecordBatch.from_arrays(columns, names=list(kinds))
    one.commit(one.sink, one.prepare(one.sink, [rows]))
    shown = ", ".join(f'"{name}"::text' if name in ("address", "span") else f'"{name}"' for name in kinds)
    found = one.harness.run(f"SELECT {shown} FROM {one.harness.table} ORDER BY ctid")
    wanted = list(zip(*([*values, None] for _, _, values in kinds.values()), strict=True))
    assert found == wanted
    one.harness.run(f"DROP TABLE {one.harness.table}")


def test_not_a_number_is_a_number_to_postgres(story: Callable[..., Story]) -> None:
    one = story("two_phase", "id double precision, name text")
    one.commit(one.sink, one.prepare(one.sink, [batch(id=[float("nan")], name=["x"])]))
    assert str(one.harness.run(f"SELECT id FROM {one.harness.table}")) == "[(nan,)]"


@both
def test_columns_are_matched_by_name_and_the_rest_fills_itself(story: Callable[..., Story], mode: str) -> None:
    columns = "name text, number bigserial, id bigint, twice bigint GENERATED ALWAYS AS (id * 2) STORED"
    one = story(mode, f'{columns}, "Über ""x""" text')
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], 'Über "x"': ["ä", None], "name": ["a", "b"]})
    one.commit(one.sink, one.prepare(one.sink, [rows]))
    found = one.harness.run(
        f'SELECT name, number IS NULL, id, twice, "Über ""x""" FROM {one.harness.table} ORDER BY id'
    )
    assert found == [("a", False, 1, 2, "ä"), ("b", False, 2, 4, None)]


def test_text_forms_and_arrays_do_not_go_together(story: Callable[..., Story]) -> None:
    one = story("two_phase", "id inet, name text[]")
    error = one.fails(SchemaMismatch, batch(id=["10.0.0.1"], name=[["a"]]))
    assert "id (inet)" in str(error)
    assert "arrays name" in str(error)


@both
def test_a_table_with_a_name_of_every_kind(postgres: Postgres, story: Callable[..., Story], mode: Any) -> None:
    one = story(mode)
    name = f'"Odd "" Tab.le {mode}"'
    one.harness.run(f"CREATE TABLE {name} (id bigint, name text)")
    sink = PostgresSink(postgres.dsn, table=f"public.{name}", mode=mode)
    one.commit(sink, one.prepare(sink, [one.harness.rows(2)]))
    assert one.harness.run(f"SELECT id FROM {name}") == [(0,), (1,)]
    one.harness.run(f"DROP TABLE {name}")


# ── upsert ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upsert_updates_and_the_last_row_of_a_key_counts(story: Callable[..., Story]) -> None:
    one = story("upsert", "id bigint, part text, name text, PRIMARY KEY (part, id)", key=["id", "part"])
    first = batch(id=[1, 2, 1], part=["a", "a", "a"], name=["1", "2", "1 again"])
    one.commit(one.sink, one.prepare(one.sink, [first]))
    assert one.harness.read_visible() == [(1, "1 again"), (2, "2")]
    second = [batch(id=[2], part=["a"], name=["lower writer"]), batch(id=[2, 3], part=["a", "b"], name=["higher", "3"])]
    one.commit(one.sink, one.prepare(one.sink, second, epoch=1), epoch=1)
    assert sorted(one.harness.read_visible()) == [(1, "1 again"), (2, "higher"), (3, "3")]


def test_upsert_of_nothing_but_keys(story: Callable[..., Story]) -> None:
    one = story("upsert", "id bigint PRIMARY KEY, name text", key=["id"])
    for epoch in (0, 1):
        one.commit(one.sink, one.prepare(one.sink, [batch(id=[1])], epoch=epoch), epoch=epoch)
    assert one.harness.read_visible() == [(1, None)]


# ── tables that cannot keep rows ──────────────────────────────────────────────────────────────────────────────────────


@both
def test_a_table_that_forgets_or_commits_apart_is_refused(story: Callable[..., Story], mode: str) -> None:
    """Its markers would say committed, and a crash of the server would leave it empty."""
    one = story(mode, "id bigint, name text")
    table = one.harness.table
    one.harness.run(f"ALTER TABLE {table} SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=f"cannot keep what is committed: {table} is unlogged"):
        one.sink.check(CONTEXT, "uid")
    one.fails(ConfigurationError, one.harness.rows(3))
    one.harness.run(f"ALTER TABLE {table} SET LOGGED")
    one.sink.check(CONTEXT, "uid")
    one.goes_on()

    one.harness.run(f"DROP TABLE {table}")
    one.harness.run(f"CREATE TABLE {table} (id bigint, name text) PARTITION BY RANGE (id)")
    for number in range(3):
        one.harness.run(
            f"CREATE TABLE {table}_{number} PARTITION OF {table} FOR VALUES FROM ({number}) TO ({number + 1})"
        )
    one.sink.check(CONTEXT, "uid")
    one.harness.run(f"ALTER TABLE {table}_1 SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=f"committed: {table}_1 is unlogged"):
        one.sink.check(CONTEXT, "uid")
    one.harness.run(f"DROP TABLE {table}_1")
    one.harness.run("CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere")
    one.harness.run(f"CREATE FOREIGN TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (1) TO (2) SERVER elsewhere")
    with pytest.raises(ConfigurationError, match=f"committed: {table}_1 is unlogged, temporary or foreign"):
        one.sink.check(CONTEXT, "uid")
    one.harness.run("DROP FOREIGN DATA WRAPPER elsewhere CASCADE")


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_check_writes_nothing_and_says_what_is_missing(story: Callable[..., Story], postgres: Postgres) -> None:
    one = story("upsert", "id bigint, name text", key=["id"])
    with pytest.raises(ConfigurationError, match=r"unique index of public\.\w+ on exactly id"):
        one.sink.check(CONTEXT, "uid")
    one.harness.run(f"CREATE UNIQUE INDEX ON {one.harness.table} (id)")
    assert one.sink.check(CONTEXT, "uid") == []
    missing = f"{one.harness.table}_x"
    assert PostgresSink(postgres.dsn, table=missing).check(CONTEXT, "uid") == []
    assert one.harness.run(f"SELECT to_regclass('{missing}')") == [(None,)]
    with pytest.raises(TableMissing, match="create=True"):
        PostgresSink(postgres.dsn, table=missing, create=False).check(CONTEXT, "uid")
    with pytest.raises(ConfigurationError, match="schema 'nowhere' does not exist"):
        PostgresSink(postgres.dsn, table="nowhere.t").check(CONTEXT, "uid")
    one.harness.run("CREATE PUBLICATION everything FOR ALL TABLES")
    [found] = one.sink.check(CONTEXT, "uid")
    one.harness.run("DROP PUBLICATION everything")
    assert "all tables (everything)" in found.message
    view = f"{one.harness.table}_view"
    one.harness.run(f"CREATE VIEW {view} AS SELECT * FROM {one.harness.table}")
    with pytest.raises(ConfigurationError, match="not an ordinary"):
        PostgresSink(postgres.dsn, table=view).check(CONTEXT, "uid")


def test_the_check_compares_the_planned_rows_with_the_table(story: Callable[..., Story]) -> None:
    from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType

    from penstock.sinks.postgres import tables

    one = story("two_phase", "id bigint, name text, doc jsonb")
    inner = StructType().add("a", IntegerType())
    fine = StructType().add("id", IntegerType()).add("name", StringType()).add("doc", inner)
    assert tables.check(one.sink, CONTEXT, fine) == []
    with pytest.raises(SchemaMismatch, match=r"'id' is double.*no column 'nmae' \(it has 'name'\)"):
        tables.check(one.sink, CONTEXT, StructType().add("id", DoubleType()).add("nmae", StringType()))


def test_a_user_without_rights(story: Callable[..., Story], postgres: Postgres) -> None:
    one = story()
    role = f"r_{uuid.uuid4().hex[:8]}"
    one.harness.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'pw'; CREATE SCHEMA {role}; GRANT USAGE ON SCHEMA {role} TO {role}"
    )
    where = postgres.dsn.replace(f"penstock:{postgres.password}", f"{role}:pw")
    sink = PostgresSink(where, table=one.harness.table, own_schema=role)
    with pytest.raises(AccessDenied, match="INSERT"):
        sink.check(CONTEXT, "uid")
    one.harness.run(f"GRANT INSERT ON {one.harness.table} TO {role}")
    with pytest.raises(AccessDenied, match=f"CREATE in the schema '{role}'"):
        sink.check(CONTEXT, "uid")
    with pytest.raises(AccessDenied, match="CREATE TABLE"):
        sink.open_committer(one.scope()).hints()
    one.harness.run(f"GRANT CREATE ON SCHEMA {role} TO {role}")
    assert sink.check(CONTEXT, "uid") == []
    rows = one.harness.rows(3)
    one.commit(sink, one.prepare(sink, [rows]))
    one.assert_visible(rows)
    one.sweep(sink, generation=9)
    one.harness.run(f"DROP OWNED BY {role}; DROP SCHEMA {role}; DROP ROLE {role}")


def test_a_server_without_prepared_transactions(story: Callable[..., Story], postgres: Postgres) -> None:
    """two_phase is refused with the number, auto becomes staged and says so."""
    one = story()
    postgres.restart({"max_prepared_transactions": "0"})
    try:
        with pytest.raises(ConfigurationError, match="max_prepared_transactions=0"):
            one.sink.check(CONTEXT, "uid")
        one.fails(ConfigurationError, one.harness.rows(3))
        auto = one.harness.sink(mode="auto")
        [finding] = auto.check(CONTEXT, "uid")
        assert "staged" in finding.message
        prepared = one.prepare(auto, [one.harness.rows(3)])
        assert prepared[0].payload["kind"] == "staged"
        one.commit(auto, prepared)
        one.assert_visible(one.harness.rows(3))
    finally:
        postgres.restart({"max_prepared_transactions": "64"})


DROPS_SEVEN = """
CREATE OR REPLACE FUNCTION drops_seven() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id = 7 THEN RETURN NULL; END IF; RETURN NEW; END $$
"""


@pytest.mark.parametrize("columns", ["id bigint, name text", "id bigint, name text, at inet"])
@pytest.mark.parametrize("mode", ["two_phase", "staged"])
def test_a_trigger_that_leaves_rows_out_is_not_silent(
    story: Callable[..., Story], postgres: Postgres, mode: str, columns: str
) -> None:
    """The last column has only a text form, which is another way to load."""
    one = story(mode, columns)
    one.commit(one.sink, one.prepare(one.sink, [one.harness.rows(3)]))  # leaves a connection behind that has counted
    one.harness.run(DROPS_SEVEN)
    one.harness.run(
        f"CREATE TRIGGER t BEFORE INSERT ON {one.harness.table} FOR EACH ROW EXECUTE FUNCTION drops_seven()"
    )
    rows = one.harness.rows(5, 5)
    if "inet" in columns:
        rows = rows.append_column("at", pa.array(["127.0.0.1"] * 5))
    error = one.fails(ConstraintViolated, rows)
    assert "5 were sent" in str(error)
    assert "4 are there" in str(error)
    one.goes_on(one.harness.rows(3))


def test_rows_of_partitions_are_counted(story: Callable[..., Story]) -> None:
    one = story("two_phase")
    one.harness.run(f"DROP TABLE {one.harness.table}")
    one.harness.run(f"CREATE TABLE {one.harness.table} (id bigint, name text) PARTITION BY RANGE (id)")
    for first in (0, 5):
        one.harness.run(
            f"CREATE TABLE {one.harness.table}_{first} PARTITION OF {one.harness.table} "
            f"FOR VALUES FROM ({first}) TO ({first + 5})"
        )
    rows = one.harness.rows(10)
    assert one.commit(one.sink, one.prepare(one.sink, [rows])) == {Outcome.COMMITTED}
    one.assert_visible(rows)


def test_a_numeric_that_rounds_to_hundreds_is_refused(story: Callable[..., Story]) -> None:
    one = story("two_phase", "id numeric(12,-2), name text")
    assert "id" in str(one.fails(SchemaMismatch, one.harness.rows(3)))
    exact = pa.array([Decimal("1.25")], pa.decimal128(5, 2))
    assert "cut off" in str(one.fails(SchemaMismatch, pa.RecordBatch.from_arrays([exact, ["x"]], names=["id", "name"])))
    hundreds = pa.array([Decimal("12300")], pa.decimal128(5, -2))
    rows = pa.RecordBatch.from_arrays([hundreds, pa.array(["x"])], names=["id", "name"])
    assert one.commit(one.sink, one.prepare(one.sink, [rows])) == {Outcome.COMMITTED}
    assert one.harness.read_visible() == [(Decimal(12300), "x")]


def test_a_staged_key_is_compared_as_the_table_compares_it(story: Callable[..., Story]) -> None:
    """Otherwise the staging table hands over 'A' and 'a' as two rows, and the move changes one row twice, for ever."""
    one = story("upsert", "id bigint, name text", key=["name"])
    table = one.harness.table
    one.harness.run(f"CREATE COLLATION c_{table} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    one.harness.run(f"ALTER TABLE {table} ALTER name TYPE text COLLATE c_{table}, ADD UNIQUE (name)")
    rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", "A", "b"]})
    assert one.commit(one.sink, one.prepare(one.sink, [rows])) == {Outcome.COMMITTED}
    assert sorted(row[0] for row in one.harness.read_visible()) == [2, 3]


def test_a_row_without_key_is_refused_in_one_batch_as_in_two(story: Callable[..., Story]) -> None:
    """The index would take both for new rows, and a move of one batch folded them into one."""
    one = story("upsert", "id bigint UNIQUE, name text", key=["id"])
    for values in ([None, None], [1, None]):
        rows = pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), pa.array(["a", "b"])], names=["id", "name"])
        assert "'id' is null" in str(one.fails(DataError, rows))
    one.goes_on()


def test_with_its_row_gone_nothing_is_taken_for_lost(story: Callable[..., Story]) -> None:
    one = story()
    prepared = one.prepare(one.sink, [one.harness.rows(5)])
    committer = one.sink.open_committer(one.scope())
    try:
        committer.hints()  # from now on it takes its tables for granted
        one.commit(one.sink, prepared)
        one.harness.run(f"DELETE FROM penstock_markers WHERE sink = '{one.scope().prefix}'")
        one.harness.run(f"DELETE FROM penstock_sinks WHERE sink = '{one.scope().prefix}'")
        assert set(committer.commit(0, prepared, Deadline(PATIENCE)).values()) == {Outcome.UNKNOWN}
    finally:
        committer.close()


AT_THE_END = """
import sys
import pyarrow as pa
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.sinks.postgres import PostgresSink

sink = PostgresSink(sys.argv[1], table=sys.argv[2], mode="two_phase")
scopes = [WriterScope(SinkScope("at-the-end", "out", 1), 0, 0, number, 0) for number in range(3)]
kept = [sink.open_writer(scope) for scope in scopes]
for writer in kept:
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "name": ["x"]}))
kept[0].pre_commit()
kept[1].abort()
kept.append(kept)  # only the garbage collector finds these
"""


def test_a_process_that_ends_in_the_middle_says_nothing_and_leaves_nothing_live(story: Callable[..., Story]) -> None:
    one = story()
    command = [sys.executable, "-c", AT_THE_END, one.harness.server.dsn, one.harness.table]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(one.harness.left("at-the-end")) == 1, "what was prepared"
    for gid in one.harness.left("at-the-end"):
        one.harness.run(f"ROLLBACK PREPARED '{gid}'")
