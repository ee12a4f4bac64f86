"""What rows may hold, and what happens to those that cannot be stored, against a real MariaDB."""

from __future__ import annotations

import datetime as dt
import subprocess
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    ConstraintViolated,
    DataError,
    PenstockError,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TableMissing,
)
from penstock.sinks.mysql import MySqlSink
from penstock.testing.sink_harness import SinkSteps
from tests.support.servers.mariadb import MariaDb
from tests.support.small_spark import SmallSpark

CONTEXT = CheckContext("job", interval_seconds=1.0, timeout_seconds=30.0)
SECRET = "wonder'land\\1"


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with MariaDb.start() as started:
        yield started


class Target(SinkSteps):
    """One table of its own, asked and written."""

    def __init__(self, server: MariaDb) -> None:
        self.server = server
        self.table = f"t_{uuid.uuid4().hex[:12]}"
        login = {**server.login, "database": "test", "autocommit": True, "ssl_disabled": True}
        self.connection = pymysql.connect(**login, init_command="SET time_zone = '+00:00'")

    def sink(self, **more: Any) -> MySqlSink:
        return MySqlSink(**{**self.server.login, "database": "test", "table": self.table, **more})

    def ask(self, statement: str, *values: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def all(self, columns: str = "*") -> list[Any]:
        return self.ask(f"SELECT {columns} FROM {self.table}")

    def write(self, sink: MySqlSink, rows: pa.RecordBatch) -> None:
        assert self.commit(sink, self.prepare(sink, [rows])) == {Outcome.COMMITTED}

    def refused(self, error: type[PenstockError], rows: pa.RecordBatch, **more: Any) -> str:
        """That the sink names `error`, before anything is visible, in the mode's first phase. Returns what it said."""
        sink = self.sink(**more)
        before = self.all() if self.ask(f"SHOW TABLES LIKE '{self.table}'") else None
        with pytest.raises(error) as caught:
            self.prepare(sink, [rows])
        assert (self.all() if before is not None else None) == before
        self.sweep(sink, generation=1)
        return str(caught.value)


@pytest.fixture
def target(server: MariaDb) -> Iterator[Target]:
    made = Target(server)
    yield made
    made.connection.close()


modes = pytest.mark.parametrize("mode", ["two_phase", "staged"])


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


# ── what may be in a row ─────────────────────────────────────────────────────────────────────────────────────────────

UTC = dt.UTC
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 127, None]),
    "i16": (pa.int16(), [-32768, 32767, None]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "u64": (pa.uint64(), [0, 2**64 - 1, None]),
    "f32": (pa.float32(), [0.1, -1.5e38, None]),
    "f64": (pa.float64(), [0.1, 1.7976931348623157e308, None]),
    "small": (pa.float64(), [5e-324, -2.2250738585072014e-308, None]),
    "dec": (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("-123456789012345678901234567.0123456789"), None]),
    "digits": (pa.decimal128(38, 38), [Decimal("0.00000001234567890123456789012345678901"), Decimal("-1.23E-7"), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["'\"\\\t\n\r\0 %s 🚀", "", None]),
    "long": (pa.large_string(), ["\\N", "NULL", None]),
    "raw": (pa.binary(), [bytes(range(256)), b"", None]),
    "day": (pa.date32(), [dt.date(1000, 1, 1), dt.date(9999, 12, 31), None]),
    "at": (pa.timestamp("us", "Asia/Tokyo"), [dt.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC),
                                              dt.datetime(1969, 12, 31, 23, 59, 59, 1, UTC), None]),
    "local": (pa.timestamp("us"), [dt.datetime(2024, 3, 31, 2, 30), dt.datetime(1582, 10, 10), None]),
    "clock": (pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None]),
    "nothing": (pa.null(), [None, None, None]),
    "odd `name`": (pa.int64(), [1, 2, None]),
}  # fmt: skip


def every_type() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for kind, values in TYPES.values()], names=list(TYPES))


def read_back(name: str, value: Any) -> Any:
    """What a reader of the table gets: UTC without a zone, a duration for a time of day."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, dt.time):
        return dt.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    return int(value) if isinstance(value, bool) else value


@modes
def test_every_type_comes_back_as_it_was(target: Target, mode: Any) -> None:
    # Sliced, as Arrow often hands out columns: offsets are not zero.
    batch = pa.concat_batches([every_type(), every_type()]).slice(2, 3)
    target.write(target.sink(mode=mode), batch)
    wanted = [[read_back(name, values[number]) for name, (_, values) in TYPES.items()] for number in (2, 0, 1)]
    assert [list(row) for row in target.all()] == wanted


def test_many_rows_go_in_several_statements(target: Target) -> None:
    numbers = pa.array(range(200_000))
    batch = rows(id=numbers, text=pa.array(["x" * 100] * 200_000))
    sink = target.sink()
    writer = target.open_writer(sink, target.scope(), epoch=0)
    for start in range(0, 200_000, 30_000):
        writer.write(batch.slice(start, 30_000))
    target.commit(sink, [Committable(target.uid, 0, 200_000, 0, writer.pre_commit())])
    assert target.ask(f"SELECT COUNT(*), SUM(id), MIN(text) FROM {target.table}") == [
        (200_000, sum(range(200_000)), "x" * 100)
    ]


def test_rows_of_several_packets(target: Target) -> None:
    packet = target.ask("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    target.ask("SET GLOBAL max_allowed_packet = 1048576")
    try:
        target.write(target.sink(), rows(id=list(range(3000)), text=["\\" * 1000] * 3000))
    finally:
        target.ask(f"SET GLOBAL max_allowed_packet = {packet}")
    assert target.ask(f"SELECT COUNT(*), MIN(LENGTH(text)) FROM {target.table}") == [(3000, 1000)]


def test_a_row_larger_than_a_packet(target: Target) -> None:
    packet = target.ask("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    target.ask("SET GLOBAL max_allowed_packet = 1048576")
    try:
        target.write(target.sink(), rows(id=[1, 2, 3], text=["a", "x" * 1_500_000, "b"]))
    finally:
        target.ask(f"SET GLOBAL max_allowed_packet = {packet}")
    assert target.ask(f"SELECT id, LENGTH(text) FROM {target.table} ORDER BY id") == [(1, 1), (2, 1_500_000), (3, 1)]


def test_a_table_of_the_users_own_is_used_as_it_is(target: Target) -> None:
    target.ask(
        f"CREATE TABLE {target.table} (n BIGINT AUTO_INCREMENT PRIMARY KEY, Id INT, price DECIMAL(12,4),"
        " seen TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), doubled INT AS (Id * 2) STORED,"
        " body JSON, word VARCHAR(20) CHARACTER SET latin1)"
    )
    moment = dt.datetime(2024, 7, 1, 12, 0, 0, 5, UTC)
    given = rows(id=[7], price=[Decimal("1.25")], body=['{"a": 1}'], word=["café"])
    given = given.append_column("seen", pa.array([moment], pa.timestamp("us", "UTC")))
    target.write(target.sink(create=False), given)
    assert target.all("n, Id, price, seen, doubled, body, word") == [
        (1, 7, Decimal("1.2500"), moment.replace(tzinfo=None), 14, '{"a": 1}', "café")
    ]


def test_values_into_other_columns_than_a_new_table_has(target: Target) -> None:
    target.ask(
        f"CREATE TABLE {target.table} (id DECIMAL(20,0), single FLOAT, day DATETIME, at DATETIME(3),"
        " stamp TIMESTAMP(6), choice ENUM('a', 'b'), own UUID, raw VARBINARY(300), flag BIGINT, whole DOUBLE,"
        " word VARCHAR(300) CHARACTER SET utf8mb4)"
    )
    moment, own = dt.datetime(2024, 7, 1, 12, 0, 0, 123999, UTC), "123e4567-e89b-12d3-a456-426655440000"
    given = rows(
        id=[2**62], single=pa.array([0.1], pa.float32()), day=[dt.date(2024, 2, 29)], at=[moment], stamp=[moment],
        choice=["b"], own=[own], raw=[b"\xff" * 251], flag=[True],
        whole=pa.array([7], pa.int32()), word=["ż" * 300],
    )  # fmt: skip
    target.write(target.sink(create=False), given)
    [found] = target.all()
    assert found == (
        2**62, 0.1, dt.datetime(2024, 2, 29), dt.datetime(2024, 7, 1, 12, 0, 0, 123000), moment.replace(tzinfo=None),
        "b", own, b"\xff" * 251, 1, 7.0, "ż" * 300,
    )  # fmt: skip


# ── what may not ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_named(target: Target, value: float) -> None:
    """Found while the rows are already on their way: the connection is given up, and aborting does not wait for it."""
    sink = target.sink()
    writer = target.open_writer(sink, target.scope(), epoch=0)
    writer.write(rows(id=[1], price=[1.0]))
    writer.write(rows(id=[2], price=[value]))
    with pytest.raises(DataError, match="'price'"):
        writer.pre_commit()
    writer.abort()
    target.sweep(sink, generation=1)
    assert target.all() == []


@modes
@pytest.mark.parametrize(
    ("error", "column", "value"),
    [
        (ConstraintViolated, "id", 1),  # there already
        (ConstraintViolated, "part", None),
        (ConstraintViolated, "part", -1),
        (ConstraintViolated, "parent", 9),
        (DataError, "part", 4_000_000_000),
        (DataError, "word", "much too long"),
        (DataError, "word", "日本"),
    ],
)
def test_rows_that_break_a_rule_are_named_and_undone(
    target: Target, mode: Any, error: type[PenstockError], column: str, value: Any
) -> None:
    """In staged mode the trial move finds what a staging table alone cannot, before the decision."""
    target.ask(f"CREATE TABLE {target.table}_p (id BIGINT PRIMARY KEY)")
    target.ask(
        f"CREATE TABLE {target.table} (id BIGINT PRIMARY KEY, part INT NOT NULL CHECK (part >= 0),"
        f" parent BIGINT REFERENCES {target.table}_p (id), word VARCHAR(5) CHARACTER SET latin1)"
    )
    target.ask(f"INSERT INTO {target.table} VALUES (1, 1, NULL, 'old')")
    good = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("parent", pa.int64()), ("word", pa.string())])
    first, second = (
        {"id": 2, "part": 2, "parent": None, "word": "two"},
        {"id": 3, "part": 3, "parent": None, "word": "3"},
    )
    bad = pa.RecordBatch.from_pylist([first, {**second, column: value}], good)
    target.refused(error, bad, mode=mode, lock_timeout=1)
    target.write(target.sink(mode=mode), pa.RecordBatch.from_pylist([first, second], good))
    assert sorted(target.all("id")) == [(1,), (2,), (3,)], "it went on after the cause was gone"


@modes
@pytest.mark.parametrize(
    ("error", "column", "value"),
    [
        (ConstraintViolated, "TIMESTAMP NOT NULL", pa.array([None], pa.timestamp("us", "UTC"))),
        (ConstraintViolated, "BIGINT AUTO_INCREMENT PRIMARY KEY", pa.array([None], pa.int64())),
        (DataError, "ENUM('active','closed')", pa.array(["1"])),
        (DataError, "SET('a','b','c')", pa.array(["5"])),
        (SchemaMismatch, "DOUBLE(10,2)", pa.array([1.23456])),
        (SchemaMismatch, "FLOAT(7,2)", pa.array([1.23456], pa.float32())),
        (DataError, "BINARY(4)", pa.array([b"ab"])),
        (DataError, "CHAR(4)", pa.array(["ab "])),
    ],
)
def test_values_that_the_server_would_change_without_a_warning_are_refused(
    target: Target, mode: Any, error: type[PenstockError], column: str, value: pa.Array
) -> None:
    target.ask(f"CREATE TABLE {target.table} (x {column}) CHARACTER SET utf8mb4")
    said = target.refused(error, pa.RecordBatch.from_arrays([value], names=["X"]), mode=mode)
    assert "'x' is" in said


@modes
def test_values_that_only_look_as_if_they_would_be_changed_are_kept(target: Target, mode: Any) -> None:
    choices = "'1','b''s','x\\\\y','a,b','a\\nb','ż'"
    target.ask(
        f"CREATE TABLE {target.table} (e ENUM({choices}), s SET('1','x y'), b BINARY(2), c CHAR(4))"
        " CHARACTER SET utf8mb4"
    )
    given = rows(
        e=["1", "b's", "x\\y", "a,b", "a\nb", "ż", None],
        s=["1,x y", "", "1", "x y", None, "1", "1"],
        b=[b"\0\0", b"ab", None, b"a\0", b"  ", b"ab", b"ab"],
        c=["", " ab", None, "abcd", "a b", "żółw", "x"],
    )
    target.write(target.sink(mode=mode), given)
    assert sorted(map(str, target.all())) == sorted(str(tuple(row.values())) for row in given.to_pylist())


@modes
def test_a_missing_and_a_dropped_table_are_named(target: Target, mode: Any) -> None:
    assert "create=True" in target.refused(TableMissing, rows(id=[1]), mode=mode, create=False)
    sink = target.sink(mode=mode)
    target.write(sink, rows(id=[1]))
    target.ask(f"DROP TABLE {target.table}")
    target.refused(TableMissing, rows(id=[1]), mode=mode, create=False)
    target.write(sink, rows(id=[2]))
    assert target.all() == [(2,)]


def test_a_staged_epoch_waits_for_its_dropped_table(target: Target) -> None:
    sink = target.sink(mode="staged")
    prepared = target.prepare(sink, [rows(id=[1])])
    target.ask(f"RENAME TABLE {target.table} TO {target.table}_away")
    assert target.commit(sink, prepared, seconds=1) == {Outcome.UNKNOWN}
    target.ask(f"RENAME TABLE {target.table}_away TO {target.table}")
    assert target.commit(sink, prepared) == {Outcome.COMMITTED}
    assert target.all() == [(1,)]


@modes
def test_other_columns_are_named_before_the_first_row(target: Target, mode: Any) -> None:
    target.ask(f"CREATE TABLE {target.table} (id INT, name DATE, needed INT NOT NULL)")
    said = target.refused(SchemaMismatch, rows(id=[1], name=["x"], nam=[1]), mode=mode)
    for part in (
        "'name' is string, the table's is date",
        "no column 'nam' (it has 'name')",
        "'needed' may not be null",
    ):
        assert part in said


def test_a_column_changed_between_two_batches_is_named(target: Target) -> None:
    sink = target.sink(mode="staged")
    writer = target.open_writer(sink, target.scope(), epoch=0)
    writer.write(rows(id=[1]))
    staging = writer.name  # type: ignore[attr-defined]
    target.ask(f"ALTER TABLE {staging} CHANGE id other BIGINT")
    with pytest.raises(SchemaMismatch, match="id"):
        writer.pre_commit()
    writer.abort()
    target.sweep(sink, generation=1)
    assert target.ask(f"SHOW TABLES LIKE '{staging}'") == []


def test_tables_that_cannot_roll_back_are_refused(target: Target) -> None:
    target.ask(f"CREATE TABLE {target.table} (id BIGINT) ENGINE=MyISAM")
    assert "InnoDB" in target.refused(ConfigurationError, rows(id=[1]))
    with pytest.raises(ConfigurationError, match="InnoDB"):
        target.sink().check(CONTEXT, "out")


@pytest.fixture
def weak(target: Target) -> Iterator[str]:
    """A user who may read and write one table of one database, both of this name, and nothing else."""
    name = f"w_{uuid.uuid4().hex[:8]}"
    target.ask(f"CREATE DATABASE {name}")
    target.ask(f"CREATE TABLE {name}.{name} (id BIGINT)")
    target.ask(f"CREATE USER {name}@'%%' IDENTIFIED BY %s", SECRET)
    target.ask(f"GRANT SELECT, INSERT ON {name}.{name} TO {name}@'%'")
    yield name
    target.ask(f"DROP DATABASE {name}")
    target.ask(f"DROP USER {name}@'%'")


def test_a_wrong_password_and_a_missing_right_are_named_and_no_secret_is_shown(target: Target, weak: str) -> None:
    for secret, doing in (("wrong-" + SECRET, "using password"), (SECRET, "CREATE")):
        sink = target.sink(user=weak, password=secret, table=f"{weak}.{weak}")
        with pytest.raises(AccessDenied, match=doing) as caught:
            sink.open_committer(target.scope())
        for text in (str(caught.value), repr(sink), sink.describe(), str(sink.link("out")), caught.value.to_json()):
            assert secret not in text
    with pytest.raises(AccessDenied, match="using password"):
        target.sink(user=weak, password="wrong", table=f"{weak}.{weak}").check(CONTEXT, "out")


def test_rights_on_the_database_are_enough(target: Target, weak: str) -> None:
    target.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON {weak}.* TO {weak}@'%'")
    for mode in ("two_phase", "staged"):
        sink = target.sink(user=weak, password=SECRET, table=f"{weak}.{weak}", mode=mode)
        assert list(sink.check(CONTEXT, "out")) == []
        undecided = target.prepare(sink, [rows(id=[1])])
        assert target.sweep(sink, generation=2) == 1
        assert target.commit(sink, undecided) == {Outcome.LOST}
        target.write(sink, rows(id=[2]))
    assert target.ask(f"SELECT id FROM {weak}.{weak}") == [(2,), (2,)]


def test_a_server_that_is_not_there_is_named(target: Target) -> None:
    sink = target.sink(port=1)
    with pytest.raises(SystemUnavailable, match="does not answer"):
        sink.open_committer(target.scope())
    with pytest.raises(SystemUnavailable):
        sink.check(CONTEXT, "out")


# ── before the start ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_for_tests_keeps_its_temporary_tables_to_itself(target: Target, server: MariaDb) -> None:
    """A second server that starts beside it would remove them, and this one fails or dies over that."""
    assert Path(target.ask("SELECT @@tmpdir")[0][0]).is_relative_to(server.folder)


def test_a_check_writes_nothing(target: Target) -> None:
    before = target.ask("SHOW TABLES")
    assert list(target.sink().check(CONTEXT, "out")) == []
    with pytest.raises(TableMissing):
        target.sink(create=False).check(CONTEXT, "out")
    assert target.ask("SHOW TABLES") == before


def test_a_server_that_takes_no_local_data_is_refused_by_name(target: Target) -> None:
    target.ask("SET GLOBAL local_infile = 0")
    try:
        with pytest.raises(ConfigurationError, match="local_infile") as checked:
            target.sink().check(CONTEXT, "out")
        assert "SET GLOBAL local_infile = 1" in checked.value.to_do
        assert "SET GLOBAL local_infile = 1" in target.refused(ConfigurationError, rows(id=[1]))
    finally:
        target.ask("SET GLOBAL local_infile = 1")


def test_a_check_tells_what_makes_the_server_forgetful(target: Target) -> None:
    target.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    target.ask("SET GLOBAL max_connections = 12")
    try:
        said = " ".join(finding.message for finding in target.sink().check(CONTEXT, "out"))
    finally:
        target.ask("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        target.ask("SET GLOBAL max_connections = 100")
    for part in ("innodb_flush_log_at_trx_commit=2", "connections are free"):
        assert part in said


def test_keys_that_differ_by_blanks_at_their_end_are_two(target: Target) -> None:
    keys = ["a", "a ", "A", "ä", " a"]
    target.write(target.sink(mode="upsert", key="k"), rows(k=keys, v=list(range(5))))
    assert sorted(target.all()) == sorted(zip(keys, range(5), strict=True))
    assert list(target.sink(mode="upsert", key="k").check(CONTEXT, "out")) == []
    target.ask(f"CREATE TABLE {target.table}_own (k VARCHAR(9) PRIMARY KEY) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    [found] = target.sink(mode="upsert", key="K", table=f"{target.table}_own").check(CONTEXT, "out")
    assert "'K' is compared by utf8mb4_bin: keys that differ by trailing blanks are one" in found.message


def test_an_upsert_needs_an_index_on_its_key(target: Target) -> None:
    target.ask(f"CREATE TABLE {target.table} (id BIGINT, other BIGINT, UNIQUE (id, other))")
    for key in (["id"], ["other"]):
        sink = target.sink(mode="upsert", key=key)
        with pytest.raises(ConfigurationError, match="no unique index"):
            sink.check(CONTEXT, "out")
        with pytest.raises(ConfigurationError, match="no unique index"):
            target.prepare(sink, [rows(id=[1], other=[1])])
    target.write(target.sink(mode="upsert", key=["other", "ID"]), rows(id=[1], other=[1]))


def test_an_upsert_refuses_a_table_whose_other_index_could_pick_the_row(target: Target) -> None:
    """Row (2, 'a') would have been written over row 1, whose mail it has."""
    target.ask(f"CREATE TABLE {target.table} (id BIGINT PRIMARY KEY, mail VARCHAR(50) UNIQUE, name TEXT)")
    sink, given = target.sink(mode="upsert", key=["id"]), rows(id=[2], mail=["a"])
    target.ask(f"INSERT INTO {target.table} VALUES (1, 'a', 'first')")
    with pytest.raises(ConfigurationError, match=r"another unique index.*: mail"):
        sink.check(CONTEXT, "out")
    with pytest.raises(ConfigurationError, match=r"another unique index.*: mail"):
        target.prepare(sink, [given])
    assert target.all() == [(1, "a", "first")]
    target.ask(f"ALTER TABLE {target.table} DROP INDEX mail, ADD INDEX (mail)")
    target.write(sink, given)
    assert target.all("id, mail") == [(1, "a"), (2, "a")]


def test_an_upsert_beside_a_number_of_the_tables_own(target: Target) -> None:
    target.ask(f"CREATE TABLE {target.table} (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, name TEXT)")
    sink = target.sink(mode="upsert", key=["id"])
    assert list(sink.check(CONTEXT, "out")) == []
    for number, name in enumerate(["old", "new"]):
        prepared = target.prepare(sink, [rows(id=[1], name=[name])], epoch=number)
        assert target.commit(sink, prepared, epoch=number) == {Outcome.COMMITTED}
    assert target.all("id, name") == [(1, "new")]
    with pytest.raises(ConfigurationError, match="another unique index"):
        target.prepare(sink, [rows(n=[1], id=[1])])


@pytest.mark.parametrize("limit", [2, 3])
@pytest.mark.parametrize("mode", ["staged", "upsert"])
def test_epochs_under_way_do_not_wait_for_the_locks_of_later_ones(
    target: Target, tmp_path: Path, mode: Any, limit: int
) -> None:
    """The coordinator moves a later epoch on trial while the drainer commits an earlier one with the same keys."""
    target.ask(f"CREATE TABLE {target.table} (id BIGINT PRIMARY KEY, n BIGINT)")
    keys = 3 if mode == "upsert" else 30
    sink = target.sink(mode=mode, key=["id"] if mode == "upsert" else [])

    def numbers(first: int, last: int) -> pa.RecordBatch:
        return rows(id=[number % keys for number in range(first, last)], n=list(range(first, last)))

    SmallSpark(tmp_path, sink, numbers, max_concurrent=limit).run(30)
    assert sorted(target.all("n, id")) == [(number, number % keys) for number in range(30 - keys, 30)]
    assert not target.ask("SHOW TABLES LIKE 'penstock_stage%'")


def test_a_row_without_key_is_refused(target: Target) -> None:
    target.ask(f"CREATE TABLE {target.table} (ID BIGINT UNIQUE, name TEXT)")
    given = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array(["a", "b"])], names=["id", "name"])
    assert "'id' is null" in target.refused(DataError, given, mode="upsert", key=["Id"])


def test_whole_numbers_that_a_double_cannot_hold_are_refused(target: Target) -> None:
    target.ask(f"CREATE TABLE {target.table} (whole DOUBLE)")
    assert "2^53" in target.refused(SchemaMismatch, rows(whole=[2**53 + 1]))


@modes
def test_a_full_disk_is_named_and_goes_on_afterwards(target: Target, mode: Any) -> None:
    """A disk of its own for the table, where this user may mount one."""
    folder = target.server.folder / f"small-{target.table}"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a small disk")
    try:
        target.ask(f"CREATE TABLE {target.table} (id BIGINT, text LONGTEXT) DATA DIRECTORY '{folder}'")
        target.write(target.sink(mode=mode), rows(id=[0], text=["small"]))
        said = target.refused(StorageFull, rows(id=list(range(2000)), text=["x" * 8000] * 2000), mode=mode)
        assert "full" in said
        target.write(target.sink(mode=mode), rows(id=[1], text=["small"]))
        assert target.all("id") == [(0,), (1,)]
        target.ask(f"DROP TABLE {target.table}")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
