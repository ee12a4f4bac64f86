"""Names of what SQL sinks leave behind: within limits, read back, never mixed up; and errors by SQLSTATE."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.sinks.postgres.connection import Server, mapper
from penstock.sinks.postgres.dialect import application
from penstock.sinks.sql import tables as names
from penstock.sinks.sql.dialect import Fault

LARGE = 2**63 - 1


def scope(job: str = "job", uid: str = "uid", number: int = 3) -> WriterScope:
    return WriterScope(SinkScope(job, uid, number), number, number, number, number)


@pytest.mark.parametrize("one", [scope(), scope("j" * 100, "u" * 100, 999_999_999)])
def test_names_fit_and_are_read_back(one: WriterScope) -> None:
    prefix = one.sink.prefix
    writer, table = names.writer_name(one), names.staging_name(one)
    assert len(writer.encode()) <= 200
    assert len(table.encode()) <= 63
    assert len(application(prefix, LARGE, "writer")) <= 63
    numbers = names.numbers_in(writer, prefix)
    assert numbers == dict.fromkeys(("generation", "epoch", "partition"), one.epoch)
    assert names.numbers_in(table, prefix) == {"generation": one.epoch}
    assert table.startswith(names.staging_prefix(prefix))


def test_names_are_never_given_twice_and_never_taken_for_anothers() -> None:
    assert len({names.writer_name(scope()) for _ in range(100)}) == 100
    mine, similar = scope().sink.prefix, [scope(uid="uid-2"), scope(uid="uid2"), scope(job="jo", uid="b:uid")]
    assert not [one for one in similar if names.numbers_in(names.writer_name(one), mine)]
    assert not [one for one in similar if names.numbers_in(names.staging_name(one), mine)]
    long = [scope("j" * 100, "u" * 99 + end).sink.prefix for end in "ab"]
    assert names.label(long[0]) != names.label(long[1])
    assert names.numbers_in(mine, mine) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", (None, "orders")),
        ("Shop.orders", ("Shop", "orders")),
        ('"My.Shop"."or""ders"', ("My.Shop", 'or"ders')),
        ("`a``b`.c", ("a`b", "c")),
    ],
)
def test_tables(text: str, parts: tuple[str | None, str]) -> None:
    assert names.split_table(text, "Sink") == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a b", "a..b", '"a', "a.b.c"])
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="name of a table"):
        names.split_table(text, "Sink")


def test_quotes() -> None:
    assert names.quoted('a"b') == '"a""b"'
    assert names.quoted("a`b", "`") == "`a``b`"
    assert names.literal("it's") == "'it''s'"


@pytest.mark.parametrize(
    ("state", "text", "kind", "retryable"),
    [
        ("", 'FATAL: password authentication failed for user "app"', errors.AccessDenied, False),
        ("", "connection refused", errors.SystemUnavailable, True),
        ("", 'Column "x" does not exist in target table "public" . "t"', errors.SchemaMismatch, False),
        ("57P01", "terminating connection", errors.SystemUnavailable, True),
        ("53300", "too many clients", errors.SystemUnavailable, True),
        ("53100", "no space left", errors.StorageFull, True),
        ("53200", "maximum number of prepared transactions reached", errors.PreCommitFailed, True),
        ("42501", "permission denied", errors.AccessDenied, False),
        ("42P01", "relation does not exist", errors.TableMissing, False),
        ("42703", "column does not exist", errors.SchemaMismatch, False),
        ("08P01", "insufficient data left in message", errors.SchemaMismatch, False),
        ("08P01", "query_wait_timeout", errors.SystemUnavailable, True),  # PgBouncer's code for everything
        ("08P01", "transaction blocks not allowed in statement pooling mode", errors.ConfigurationError, False),
        ("23505", "duplicate key", errors.ConstraintViolated, False),
        ("P0001", "a trigger says no", errors.ConstraintViolated, False),
        ("22003", "out of range", errors.DataError, False),
        ("54000", "index row too large", errors.ValueTooLarge, False),
        ("55P03", "lock timeout", errors.PreCommitFailed, True),
        ("55000", "prepared transactions are disabled", errors.ConfigurationError, False),
        ("0A000", "cannot PREPARE a transaction that has executed NOTIFY", errors.ConfigurationError, False),
        ("XX000", "internal", errors.PreCommitFailed, True),
        ("42P10", "no unique constraint matching ON CONFLICT", errors.SchemaMismatch, False),
        ("42883", "a trigger's function does not exist", errors.SchemaMismatch, False),
        ("42P07", "relation already exists", errors.PreCommitFailed, True),
        ("P0002", "a trigger's query returned no rows", errors.ConstraintViolated, False),
        ("21000", "a trigger's subquery returned more than one row", errors.ConstraintViolated, False),
        ("57014", "statement timeout", errors.PreCommitFailed, True),
    ],
)
def test_what_postgres_says_has_a_name(
    state: str, text: str, kind: type[errors.PenstockError], retryable: bool
) -> None:
    error = mapper(Server(), "public.t").explain(Fault(state, text), "preparing")
    assert type(error) is kind
    assert error.retryable is retryable
    assert error.safe
    assert error.to_do


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("0A000", "COPY FROM not supported with row-level security"),
        ("55000", "cannot update table because it does not have a replica identity and publishes updates"),
    ],
)
def test_what_a_table_can_never_do_is_not_tried_again(state: str, text: str) -> None:
    error = mapper(Server(), "public.t").explain(Fault(state, text), "loading rows")
    assert type(error) is errors.ConfigurationError
    assert "public.t" in error.happened
    assert text in error.happened
    assert error.to_do
