"""The description of a MySQL sink: names, kinds, rules, and what the server's numbers are called."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock import errors
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.errors import ConfigurationError
from penstock.sinks.mysql import MySqlSink, tables
from penstock.sinks.mysql.session import ServerError, fault, mapper, refused_rows
from penstock.sinks.mysql.tables import Names, Table, ambiguous_keys, collation, creation, require_key, unique_keys
from penstock.sinks.mysql.types import bent, column_type, refusal
from penstock.sinks.sql.tables import Column

SCOPE = SinkScope("job", "out", 7)


def sink(**more: Any) -> MySqlSink:
    return MySqlSink(**{"user": "app", "password": "s3cret", "database": "shop", "table": "orders", **more})


class Saying:
    """A session that answers what a test wrote down."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        for part, answer in self.answers.items():
            if part.replace("_", " ").lower() in " ".join([statement, *map(str, values)]).replace("_", " ").lower():
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return []


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_xa_id_fits_and_is_known_again() -> None:
    names = Names.of(SCOPE, "d" * 64, "t" * 64)
    largest = WriterScope(SinkScope("j" * 200, "u", 9_999_999), 999_999_999_999, 999_999, 99_999, 2**31)
    branch = names.branch(largest)
    assert len(names.global_id) <= 64
    assert len(branch) <= 64
    assert names.numbers_in(branch) == {"generation": 9_999_999, "epoch": 999_999_999_999, "partition": 99_999}
    assert names.branch(largest) != branch
    assert len(names.staging()) <= 64
    assert names.numbers_in(names.staging()) == {"generation": 7}
    assert names.numbers_in("g1-something-else") is None


def test_no_two_sinks_share_a_name() -> None:
    made = [
        Names.of(SinkScope("job", "out", 1), "shop", "orders"),
        Names.of(SinkScope("job", "out2", 1), "shop", "orders"),
        Names.of(SinkScope("job2", "out", 1), "shop", "orders"),
        Names.of(SinkScope("job", "out", 1), "shop", "orders_fork"),
        Names.of(SinkScope("job", "out", 1), "other", "orders"),
    ]
    assert len({one.global_id for one in made}) == 5
    assert len({(one.database, one.sink) for one in made}) == 5
    assert len({(one.database, one.staging_prefix) for one in made}) == 5


# ── the description ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_secret_is_told() -> None:
    one = sink(options={"ssl_key_password": "k3y"})
    for text in (repr(one), one.describe(), str(one.link("out")), one.where):
        assert "s3cret" not in text
        assert "k3y" not in text
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "sometimes"}, "no mode"),
        ({"mode": "upsert"}, "needs the columns"),
        ({"key": ["id"]}, "does not use it"),
        ({"database": ""}, "does not know the database"),
        ({"table": "a.b.c"}, "cannot read"),
        ({"table": "t" * 65}, "longer than"),
        ({"lock_timeout": "10ms"}, "whole seconds"),
    ],
)
def test_what_cannot_work_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sink(**wrong)


def test_a_table_may_name_its_database_and_be_put_aside() -> None:
    one = sink(table="other.`odd.table`")
    assert one.describe() == "MySQL table other.odd.table at localhost:3306"
    assert one.redirected("_fork").describe() == "MySQL table other.odd.table_fork at localhost:3306"


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymysql", None)
    with pytest.raises(errors.MissingExtra, match=r"penstock\[mysql\]"):
        sink().open_committer(SCOPE)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        ("bigint", "int(11)", True), ("bigint", "decimal(20,0)", True), ("bigint", "varchar(9)", False),
        ("double", "double", True), ("double", "float", False), ("double", "decimal(9,2)", False),
        ("float", "float", True), ("boolean", "tinyint(1)", True), ("boolean", "bit(1)", False),
        ("decimal(12,2)", "decimal(10,2)", True), ("decimal(12,2)", "decimal(12,1)", False),
        ("decimal(12,0)", "bigint(20)", True), ("decimal(12,2)", "double", False),
        ("string", "enum('a','b')", True), ("string", "blob", False), ("json", "longtext", True),
        ("binary", "varbinary(9)", True), ("binary", "text", False), ("date", "datetime(6)", True),
        ("bigint", "double", False), ("int", "double", True), ("ubigint", "double", False),
        ("timestamp", "timestamp", True), ("timestamp", "date", False), ("bigint", "bigint(20) unsigned", True),
        ("double", "double(10,2)", False), ("float", "float(7,2) unsigned", False), ("float", "double(5,5)", False),
        ("double", "real", False), ("int", "double(10,2)", True), ("double", "double unsigned", True),
    ],
)  # fmt: skip
def test_which_kinds_go_where(kind: str, column: str, fits: bool) -> None:
    assert (refusal(kind, Column("c", column)) is None) is fits


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        (Column("c", "timestamp", nullable=False), None, "null would become the present moment"),
        (Column("c", "timestamp(6)"), None, ""),
        (Column("c", "datetime", nullable=False), None, ""),  # of which the server complains
        (Column("c", "enum('active','1','b''s','x\\\\y','a,b')"), "active", ""),
        (Column("c", "enum('active','1','b''s','x\\\\y','a,b')"), "b's", ""),
        (Column("c", "enum('active','1','b''s','x\\\\y','a,b')"), "x\\y", ""),
        (Column("c", "enum('active','1','b''s','x\\\\y','a,b')"), "a,b", ""),
        (Column("c", "enum('active','1')"), "1", ""),
        (Column("c", "enum('active','1')"), None, ""),
        (Column("c", "enum('active','1')"), "2", "'2' is none of its values"),
        (Column("c", "enum('active','1')"), " 1", "' 1' is none of its values"),
        (Column("c", "enum('active')"), "Active", "'Active' is none of its values"),
        (Column("c", "enum('active')"), "active ", "'active ' is none of its values"),
        (Column("c", "enum('active')"), "", "'' is none of its values"),
        (Column("c", "set('a','b')"), "a", ""),
        (Column("c", "set('a','b')"), "b,a", ""),
        (Column("c", "set('a','b')"), "", ""),
        (Column("c", "set('a','b')"), None, ""),
        (Column("c", "set('a','b')"), "3", "'3' is none of its values"),
        (Column("c", "set('a','b')"), "a,3", "'a,3' is none of its values"),
        (Column("c", "binary(4)"), b"abcd", ""),
        (Column("c", "binary(4)"), None, ""),
        (Column("c", "binary(4)"), b"abc", "filled with zero bytes"),
        (Column("c", "binary(4)"), b"", "filled with zero bytes"),
        (Column("c", "varbinary(4)"), b"abc", ""),
        (Column("c", "char(4)"), " ab", ""),
        (Column("c", "char(4)"), None, ""),
        (Column("c", "char(4)"), "ab ", "blanks at the end would be cut"),
        (Column("c", "varchar(4)"), "ab ", ""),
    ],
)
def test_values_that_the_server_changes_without_a_warning_are_known(column: Column, value: Any, what: str) -> None:
    kind = pa.binary() if "binary" in column.type else pa.timestamp("us") if "time" in column.type else pa.string()
    fine = {"enum": "active", "set": "a", "binary": b"abcd", "char": "a"}.get(column.type.partition("(")[0])
    for values in (pa.array([value], kind), pa.array([fine if what else None, value], kind).dictionary_encode()):
        said = bent(values, column)
        assert what in said if what and said else said is None and not what


@pytest.mark.parametrize("kind", ["bigint", "boolean", "double", "float", "decimal(12,2)", "string", "json", "binary"])
def test_a_new_column_takes_its_own_kind(kind: str) -> None:
    assert refusal(kind, Column("c", column_type(kind).replace("JSON", "longtext"))) is None


def test_a_new_table() -> None:
    given = [("Id", "string"), ("at", "timestamp")]
    server: Any = Saying(show_collation=[("utf8mb4_nopad_bin", "utf8mb4")])
    made = creation(Names.of(SCOPE, "shop", "orders"), given, ["id"], collation(server, given, ["id"]))
    assert made.endswith(" COLLATE utf8mb4_nopad_bin")
    old: Any = Saying()
    assert collation(old, given, ["at"]) == "utf8mb4_bin", "no key needs it"
    with pytest.raises(ConfigurationError, match="by trailing blanks"):
        collation(old, given, ["id"])
    made = creation(Names.of(SCOPE, "shop", "orders"), [("id", "string"), ("at", "timestamp")], ["id"], "utf8mb4_bin")
    assert made.startswith(
        "CREATE TABLE IF NOT EXISTS `shop`.`orders` (`id` VARCHAR(255) NOT NULL, `at` DATETIME(6), PRIMARY KEY (`id`))"
    )


@pytest.mark.parametrize(
    ("compared_by", "same"),
    [
        ("utf8mb4_nopad_bin", ""),
        ("utf8mb4_0900_bin", ""),
        ("binary", ""),
        ("utf8mb4_bin", "trailing blanks"),
        ("utf8mb4_0900_ai_ci", "case or accents"),
        ("utf8mb4_0900_as_cs", ""),
        ("utf8mb4_general_ci", "case or accents or trailing blanks"),
    ],
)
def test_keys_that_the_table_takes_for_one_are_told(compared_by: str, same: str) -> None:
    table = Table("InnoDB", (), (), collations={"id": compared_by, "name": "utf8mb4_general_ci"})
    said = ambiguous_keys(table, ["Id", "number"])
    assert bool(said) is bool(same)
    assert not said or f"'Id' is compared by {compared_by}: keys that differ by {same} are one" in said[0]


def test_the_key_must_be_a_whole_index_and_the_only_one_that_decides() -> None:
    def require(key: list[str], given: Sequence[str], **indexes: tuple[str | None, ...]) -> None:
        told = [(index, column, None) for index, columns in indexes.items() for column in columns]
        there = unique_keys(Saying(statistics=told), names)  # type: ignore[arg-type]
        require_key(there, names, key, Table("InnoDB", (), (), frozenset({"n"})), [(one, "bigint") for one in given])

    names = Names.of(SCOPE, "shop", "orders")
    require(["ID", "b"], ["id", "b"], own=("b", "Id"))
    require(["id"], ["id"], own=("id",), wider=("id", "b"), PRIMARY=("N",))
    with pytest.raises(ConfigurationError, match="no unique index on id"):
        require(["id"], ["id"], own=("b", "id"))
    for more in (("a",), ("n",), (None,), (None, "a")):  # None: an expression
        with pytest.raises(ConfigurationError, match=r"another unique index.*: more"):
            require(["id"], ["id", "n", "a"], own=("id",), more=more)


def test_an_index_on_the_beginning_of_a_column_is_none_on_it() -> None:
    there = unique_keys(Saying(statistics=[("own", "id", 10)]), Names.of(SCOPE, "shop", "orders"))  # type: ignore[arg-type]
    assert there == {"own": {None}}


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "more", "refused"),
    [
        ("10.11.6-MariaDB-0", {}, None),
        ("5.5.5-10.4.32-MariaDB", {}, "10.5 and later"),
        ("8.4.3", {}, None),
        ("5.7.5", {}, "5.7.7 and later"),
        ("8.0.36", {"xa_recover": ServerError(1227, "denied")}, "XA_RECOVER_ADMIN"),
        ("8.0.36", {"xa_recover": ServerError(1401, "XAER_RMERR")}, "XA_RECOVER_ADMIN"),
        ("10.11.6-MariaDB", {"wsrep_on": [("wsrep_on", "ON")]}, "Galera"),
    ],
)
def test_which_servers_keep_prepared_transactions(version: str, more: dict[str, Any], refused: str | None) -> None:
    said = tables.two_phase_refusal(Saying(**more, version=[(version,)]))  # type: ignore[arg-type]
    assert said is None if refused is None else refused in str(said)


def test_an_explanation_says_on_what_it_is_tested() -> None:
    """It asks no server, so it says so of all."""
    assert "tested on MariaDB, on MySQL itself by hand only" in sink().link("out").because


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1045, errors.AccessDenied), (1142, errors.AccessDenied), (1049, errors.TableMissing),
        (1146, errors.TableMissing), (1054, errors.SchemaMismatch), (1425, errors.SchemaMismatch),
        (1062, errors.ConstraintViolated),
        (1452, errors.ConstraintViolated), (4025, errors.ConstraintViolated), (1366, errors.DataError),
        (1406, errors.ValueTooLarge), (1114, errors.StorageFull), (2003, errors.SystemUnavailable),
        (2013, errors.SystemUnavailable), (1290, errors.SystemUnavailable), (1205, errors.PreCommitFailed),
        (1213, errors.PreCommitFailed), (1665, errors.ConfigurationError), (9999, errors.PreCommitFailed),
        (1644, errors.ConstraintViolated), (1300, errors.DataError), (3854, errors.DataError),
        (3157, errors.ValueTooLarge), (1305, errors.SchemaMismatch), (3948, errors.ConfigurationError),
        (4166, errors.ConfigurationError),
    ],
)  # fmt: skip
def test_the_servers_numbers_have_names(code: int, error: type[errors.PenstockError]) -> None:
    assert type(mapper("db:3306/shop", "orders").explain(fault(code, "said"), "loading")) is error


def test_a_full_disk_is_known_by_its_text() -> None:
    said = fault(1026, 'Error writing file (Errcode: 28 "No space left on device")')
    assert type(mapper("", "").explain(said, "")) is errors.StorageFull


def test_warnings_of_a_load_are_errors() -> None:
    bent = [("Warning", 1265, "Data truncated for column 'a'"), ("Warning", 1062, "Duplicate entry '1'")]
    known = mapper("db", "orders")
    with pytest.raises(errors.ConstraintViolated, match="Duplicate entry '1'; 1 more"):
        raise refused_rows(known, bent, 2, 1)
    with pytest.raises(errors.DataError, match="odd"):
        raise refused_rows(known, [("Note", 9999, "odd")], 2, 2)
    with pytest.raises(errors.PreCommitFailed, match="2 rows were sent and 1 arrived"):
        raise refused_rows(known, [], 2, 1)
