"""The target table and the server: read, compared with the rows, created, checked; and the names of a sink's writers.

The table is a part of a sink here, because one server may hold the same job twice: a fork that writes into tables of
its own, a copy for testing. XA ids are known to the whole server, so the database is part of theirs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.errors import ConfigurationError, SchemaMismatch, TableMissing
from penstock.sinks.mysql.session import ALLOW_LOADING, SYSTEM, ServerError, Session
from penstock.sinks.mysql.types import column_type, refusal
from penstock.sinks.sql.dialect import NOTHING_VISIBLE
from penstock.sinks.sql.tables import Column, compare, digest, label, numbers_in, quoted, staging_prefix

if TYPE_CHECKING:
    from penstock.sinks.mysql.dialect import MySqlDialect
    from penstock.sinks.mysql.sink import MySqlSink

#: Marks our XA ids; any number will do.
FORMAT = 20563
#: Collations that compare bytes and do not pad, of MariaDB and of MySQL.
_UNPADDED = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
_BRANCH = re.compile(r"g(?P<generation>\d+)-e(?P<epoch>\d+)-a\d+-p(?P<partition>\d+)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Names:
    prefix: str
    database: str
    table: str
    generation: int

    @classmethod
    def of(cls, scope: SinkScope, database: str, table: str) -> Names:
        return cls(scope.prefix, database, table, scope.generation)

    @property
    def target(self) -> list[str]:
        """Database and table, as a committable carries them."""
        return [self.database, self.table]

    @property
    def identity(self) -> str:
        return f"{self.prefix}@{self.table}"

    @property
    def sink(self) -> str:
        """In the marker tables; at most 100 characters."""
        return label(self.identity)

    @property
    def global_id(self) -> str:
        """The first half of every XA id of this sink."""
        return f"penstock-{digest(f'{self.database}/{self.identity}', 32)}"

    def branch(self, scope: WriterScope) -> str:
        """A unique second half, at most 64 bytes for all possible numbers."""
        return f"g{scope.sink.generation}-e{scope.epoch}-a{scope.attempt}-p{scope.partition}-{secrets.token_hex(8)}"

    def xid(self, branch: str) -> str:
        return f"'{self.global_id}','{branch}',{FORMAT}"

    def staging(self) -> str:
        return f"{self.staging_prefix}{self.generation}_{secrets.token_hex(6)}"

    @property
    def staging_prefix(self) -> str:
        return staging_prefix(self.identity)

    def numbers_in(self, writer: str) -> dict[str, Any] | None:
        """Generation and, of an XA branch, epoch and partition in a writer's name; None if it is not of this sink."""
        match = _BRANCH.fullmatch(writer)
        if match is not None:
            return {key: int(value) for key, value in match.groupdict().items()}
        return numbers_in(writer, self.identity)

    def quoted(self, table: str) -> str:
        return f"{quoted(self.database, '`')}.{quoted(table, '`')}"


RowColumns = Sequence[tuple[str, str]]  # name and kind of each


@dataclass(frozen=True, slots=True)
class Table:
    engine: str
    columns: tuple[Column, ...]
    definitions: tuple[str, ...]  # each column again, as a staging table needs it
    numbered: frozenset[str] = frozenset()  # AUTO_INCREMENT, in small letters
    collations: Mapping[str, str] = field(default_factory=dict)  # of columns with text, in small letters

    def spelt(self, name: str) -> str:
        """The server's spelling of a column: it does not distinguish `Id` and `id`."""
        return next((column.name for column in self.columns if column.name.lower() == name.lower()), name)


def read(session: Session, names: Names) -> Table | None:
    kinds = session.query(
        "SELECT engine, table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        [names.database, names.table],
    )
    if not kinds:
        return None
    rows = session.query(
        "SELECT column_name, column_type, is_nullable, column_default, extra, character_set_name, collation_name"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        [names.database, names.table],
    )
    columns, definitions, numbered, collations = [], [], set(), {}
    for name, kind, nullable, default, extra, charset, collation in rows:
        extra = str(extra).lower()
        generated = ("generated" in extra and "default_generated" not in extra) or str(default).upper() == "ROW START"
        # MariaDB reports the default of a nullable column as the word NULL.
        filled = (default is not None and str(default) != "NULL") or "auto_increment" in extra
        if "auto_increment" in extra:
            numbered.add(str(name).lower())
        columns.append(Column(str(name), _text(kind), nullable == "YES", filled, generated))
        if collation:
            collations[str(name).lower()] = str(collation)
        text = f" CHARACTER SET {charset} COLLATE {collation}" if charset else ""
        null = "" if nullable == "YES" else " NOT NULL"
        definitions.append(f"{quoted(str(name), '`')} {_text(kind)}{text}{null}")
    engine = _text(kinds[0][0] or kinds[0][1])
    return Table(engine, tuple(columns), tuple(definitions), frozenset(numbered), collations)


def fitting(session: Session, names: Names, columns: RowColumns, *, create: bool, key: Sequence[str] = ()) -> Table:
    """The table for rows of `columns`, created now if allowed; otherwise an error that names every difference."""
    table = read(session, names)
    if table is None and create:
        session.execute(creation(names, columns, key, collation(session, columns, key)))
        table = read(session, names)
    if table is None:
        raise missing(names)
    require(table, names, columns)
    return table


def require(table: Table, names: Names, columns: RowColumns | None) -> None:
    """Raises where rows of `columns`, if known, cannot go into `table` in one transaction."""
    where = f"the {SYSTEM} table {names.database}.{names.table}"
    if table.engine.lower() != "innodb":
        raise ConfigurationError(
            f"{where[0].upper()}{where[1:]} uses the engine {table.engine}, which cannot roll back.",
            safe="nothing was written.",
            to_do="use an InnoDB table: ALTER TABLE … ENGINE=InnoDB.",
        )
    if columns is None:
        return
    twice = {name.lower() for name, _ in columns}
    if len(twice) < len(columns):
        raise SchemaMismatch(
            f"Rows do not fit into {where}: two columns differ only by upper and lower case.",
            to_do="rename one of them in the query.",
        )
    compare([(table.spelt(name), kind) for name, kind in columns], table.columns, where, refusal)


def collation(session: Session, columns: RowColumns, key: Sequence[str]) -> str:
    """A new table's collation, byte by byte; `ConfigurationError` where a key needs one that the server lacks."""
    there = session.query("SHOW COLLATION WHERE Collation IN (%s, %s)", [*_UNPADDED])
    if there:
        return str(there[0][0])
    keys = {name.lower() for name in key}
    if any(name.lower() in keys and kind in ("string", "json") for name, kind in columns):
        raise ConfigurationError(
            f"The {SYSTEM} server has no collation that distinguishes keys by trailing blanks.",
            safe="nothing was written.",
            to_do="create the table yourself, with VARBINARY in its key or as you want keys to be compared.",
        )
    return "utf8mb4_bin"


def creation(names: Names, columns: RowColumns, key: Sequence[str], collation: str) -> str:
    keys = {name.lower() for name in key}
    lines = [
        f"{quoted(name, '`')} {column_type(kind, in_key=name.lower() in keys)}"
        + (" NOT NULL" if name.lower() in keys else "")
        for name, kind in columns
    ]
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(quoted(name, '`') for name in key)})")
    return (
        f"CREATE TABLE IF NOT EXISTS {names.quoted(names.table)} ({', '.join(lines)})"
        f" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {collation}"
    )


def ambiguous_keys(table: Table, key: Sequence[str]) -> list[str]:
    """Keys that are equal in the table, though not in Spark."""
    findings = []
    for name in key:
        collation = table.collations.get(name.lower(), "binary")
        same = [] if "_bin" in collation or "_cs" in collation or collation == "binary" else ["case or accents"]
        if not any(part in collation for part in ("nopad", "_0900_", "binary")):
            same.append("trailing blanks")
        if same:
            findings.append(
                f"key column {name!r} is compared by {collation}: keys that differ by {' or '.join(same)} are one"
            )
    return findings


def unique_keys(session: Session, names: Names) -> dict[str, set[str | None]]:
    """The columns of each unique index; None where it compares an expression or the beginning of a column."""
    rows = session.query(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        " WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
        [names.database, names.table],
    )
    indexes: dict[str, set[str | None]] = {}
    for index, column, part in rows:
        indexes.setdefault(str(index), set()).add(None if column is None or part is not None else str(column).lower())
    return indexes


def require_key(
    there: Mapping[str, set[str | None]], names: Names, key: Sequence[str], table: Table, columns: RowColumns
) -> None:
    """`ON DUPLICATE KEY UPDATE` cannot name an index, so the one on the key must be the only one to choose a row."""
    keys = {name.lower() for name in key}
    where = f"The {SYSTEM} table {names.database}.{names.table}"
    if keys not in there.values():
        raise ConfigurationError(
            f"{where} has no unique index on {', '.join(key)}.",
            safe="nothing was written.",
            to_do=f"add one: ALTER TABLE {names.table} ADD UNIQUE ({', '.join(key)}); "
            "or name the columns of an existing index.",
        )
    never_equal = table.numbered - {name.lower() for name, _ in columns}
    # Any other index can match a row with another key, unless it has all columns of the key, or one that never repeats.
    others = [name for name, columns in there.items() if not (columns >= keys or columns & never_equal)]
    if others:
        raise ConfigurationError(
            f"{where} has another unique index beside that on {', '.join(key)}: {', '.join(others)}. {SYSTEM} would "
            "update the row that either of them matches, perhaps one with another key.",
            safe="nothing was written.",
            to_do="drop it or make it an ordinary index (an AUTO_INCREMENT column that the rows do not have may stay), "
            "or upsert into a table of its own.",
        )


def missing(names: Names) -> Exception:
    return TableMissing(
        f"The {SYSTEM} table {names.database}.{names.table} does not exist.",
        safe=NOTHING_VISIBLE,
        to_do="create it, or say create=True to create it from the rows.",
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


#: Fewer free connections than this make a check warn: each task takes one, the driver up to five.
_FEW_CONNECTIONS = 12

_RECOVER_DENIED = {1227, 1401}


def findings(session: Session, dialect: MySqlDialect, sink: MySqlSink, columns: RowColumns | None) -> list[str]:
    """Warnings; raises what cannot work. Writes nothing."""
    names = dialect.names
    with dialect.mapper.mapped("checking"):
        table = read(session, names)
        if table is None and not sink.create:
            raise missing(names)
        if table is not None:
            require(table, names, columns)
            if sink.keys:
                require_key(unique_keys(session, names), names, sink.keys, table, columns or ())
        texts = [*_mode(session, sink.mode), *_settings(session)]
        if table is None:
            collation(session, columns or (), sink.keys)
            return texts
        return [*texts, *_cut_times(table, columns or ()), *ambiguous_keys(table, sink.keys)]


def _mode(session: Session, mode: str) -> Iterator[str]:
    refusal = two_phase_refusal(session) if mode in ("auto", "two_phase") else None
    if refusal is None:
        return
    if mode == "two_phase":
        raise ConfigurationError(
            f"MySqlSink cannot commit in two phases at {session.where}: {refusal}.",
            to_do="say mode='staged', which needs no prepared transactions, or change the server.",
        )
    yield f"epochs are staged, not prepared as XA transactions: {refusal}"


def _settings(session: Session) -> Iterator[str]:
    if (variable(session, "log_bin") or "OFF") in ("ON", "1"):
        if variable(session, "binlog_format") == "STATEMENT":
            raise ConfigurationError(
                f"The server at {session.where} logs statements (binlog_format=STATEMENT), which cannot repeat "
                "what the sink does.",
                to_do="set binlog_format to ROW or MIXED on the server.",
            )
        if variable(session, "sync_binlog") == "0":
            yield "sync_binlog=0: after a power cut the binary log may lack what is committed"
    flush = variable(session, "innodb_flush_log_at_trx_commit")
    if flush not in (None, "1"):
        yield (
            f"innodb_flush_log_at_trx_commit={flush}: a crash of the server's machine can lose prepared and committed "
            "transactions; exactly-once needs 1"
        )
    if (variable(session, "local_infile") or "OFF") not in ("ON", "1"):
        raise ConfigurationError(
            f"The server at {session.where} does not allow LOAD DATA LOCAL INFILE (local_infile is off), the way "
            "rows are written.",
            to_do=ALLOW_LOADING,
        )
    most = int(variable(session, "max_connections") or 0)
    used = session.query("SHOW GLOBAL STATUS WHERE variable_name = 'Threads_connected'")
    free = most - (int(used[0][1]) if used else 0)
    if most and free < _FEW_CONNECTIONS:
        yield f"{free} of {most} connections are free; every task that runs needs one, the driver up to five"


def _cut_times(table: Table, columns: RowColumns) -> Iterator[str]:
    for name, kind in columns:
        column = next((column for column in table.columns if column.name.lower() == name.lower()), None)
        if kind in ("timestamp", "time") and column is not None and "(6)" not in column.type:
            yield f"column {name!r} is {column.type}: fractions of a second beyond its precision are cut"


def version(session: Session) -> tuple[str, tuple[int, ...]]:
    text = str(session.query("SELECT VERSION()")[0][0])
    product = "MariaDB" if "mariadb" in text.lower() else "MySQL"
    text = text.removeprefix("5.5.5-")  # MariaDB's prefix for old clients
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return product, tuple(int(number) for number in numbers.groups()) if numbers else (0,)


def variable(session: Session, name: str) -> str | None:
    """A global setting; None where the server does not have it."""
    rows = session.query("SHOW GLOBAL VARIABLES WHERE variable_name = %s", [name])
    return str(rows[0][1]) if rows else None


def two_phase_refusal(session: Session) -> str | None:
    """Why this server cannot keep prepared transactions; None if it can."""
    product, number = version(session)
    least = (10, 5) if product == "MariaDB" else (5, 7, 7)
    if number < least:
        return (
            f"{product} {'.'.join(map(str, number))} forgets a prepared transaction when its connection closes; "
            f"{'.'.join(map(str, least))} and later keep it"
        )
    if (variable(session, "wsrep_on") or "OFF").upper() in ("ON", "1"):
        return "a Galera cluster does not replicate XA transactions"
    try:
        session.query("XA RECOVER")
    except ServerError as error:
        if error.code not in _RECOVER_DENIED:
            raise
        return "the user may not list prepared transactions; GRANT XA_RECOVER_ADMIN ON *.* allows it"
    return None
