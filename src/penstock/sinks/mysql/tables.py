"""The target table: read, compared with the rows, created; and the names of what a sink's writers leave beside it.

A sink is its job, its uid and its table. The table is part of it because one server may hold the same job twice: a
fork that writes into tables of its own, a copy for testing. XA ids are known to the whole server, so the database is
part of theirs.

    XA id     penstock-<digest of sink and database>,  g<generation>-e<epoch>-a<attempt>-p<partition>-<random>
    staging   penstock_stage_<digest of sink>_g<generation>_<random>

The second half of an XA id, or the name of the staging table, is the writer's name: in its committable and its marker.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.errors import ConfigurationError, SchemaMismatch, TableMissing
from penstock.sinks.mysql.faults import SYSTEM
from penstock.sinks.mysql.session import Session
from penstock.sinks.mysql.types import column_type, refusal
from penstock.sinks.sql.faults import NOTHING_VISIBLE
from penstock.sinks.sql.names import digest, label, quoted, staging_generation, staging_prefix
from penstock.sinks.sql.rows import Column, UniqueIndex, compare

#: What tells our XA ids from those of other programs at a glance; any number will do.
FORMAT = 20563
#: Collations that compare bytes and do not pad, of MariaDB and of MySQL.
_UNPADDED = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
_BRANCH = re.compile(r"g(?P<generation>\d+)-e(?P<epoch>\d+)-a\d+-p(?P<partition>\d+)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Names:
    """Of one sink in one database."""

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
        """A second half, never given twice; at most 64 bytes for all numbers that can come up."""
        return f"g{scope.sink.generation}-e{scope.epoch}-a{scope.attempt}-p{scope.partition}-{secrets.token_hex(8)}"

    def xid(self, branch: str) -> str:
        """As it stands in a statement."""
        return f"'{self.global_id}','{branch}',{FORMAT}"

    def staging(self) -> str:
        return f"{self.staging_prefix}{self.generation}_{secrets.token_hex(6)}"

    @property
    def staging_prefix(self) -> str:
        return staging_prefix(self.identity)

    def numbers_in(self, writer: str) -> dict[str, int] | None:
        """Generation and, of an XA branch, epoch and partition in a writer's name; None if it is not of this sink."""
        match = _BRANCH.fullmatch(writer)
        if match is not None:
            return {key: int(value) for key, value in match.groupdict().items()}
        generation = staging_generation(writer, self.identity)
        return None if generation is None else {"generation": generation}

    def quoted(self, table: str) -> str:
        """A table of the same database in a statement."""
        return f"{quoted(self.database, '`')}.{quoted(table, '`')}"


Given = Sequence[tuple[str, str]]
"""Name and kind of each column of the rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """As the server has it."""

    engine: str
    columns: tuple[Column, ...]
    definitions: tuple[str, ...]  # each column again, as a staging table needs it
    numbered: frozenset[str] = frozenset()  # AUTO_INCREMENT, in small letters
    collations: Mapping[str, str] = field(default_factory=dict)  # of columns with text, in small letters

    def spelt(self, name: str) -> str:
        """The server does not tell `Id` from `id`; its own spelling is used."""
        return next((column.name for column in self.columns if column.name.lower() == name.lower()), name)


def read(session: Session, names: Names) -> Table | None:
    """None if there is no such table."""
    found = session.query(
        "SELECT engine, table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        [names.database, names.table],
    )
    if not found:
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
        # MariaDB tells the default of a column that may be null as the word NULL.
        filled = (default is not None and str(default) != "NULL") or "auto_increment" in extra
        if "auto_increment" in extra:
            numbered.add(str(name).lower())
        columns.append(Column(str(name), _text(kind), nullable == "YES", filled, generated))
        if collation:
            collations[str(name).lower()] = str(collation)
        text = f" CHARACTER SET {charset} COLLATE {collation}" if charset else ""
        null = "" if nullable == "YES" else " NOT NULL"
        definitions.append(f"{quoted(str(name), '`')} {_text(kind)}{text}{null}")
    engine = _text(found[0][0] or found[0][1])
    return Table(engine, tuple(columns), tuple(definitions), frozenset(numbered), collations)


def fitting(session: Session, names: Names, given: Given, *, create: bool, key: Sequence[str] = ()) -> Table:
    """The table that takes rows of `given`, made now if it may be; otherwise an error that names every difference."""
    table = read(session, names)
    if table is None:
        if not create:
            raise missing(names)
        session.execute(creation(names, given, key, collation(session, given, key)))
        table = read(session, names)
        if table is None:
            raise missing(names)
    require(table, names, given)
    return table


def require(table: Table, names: Names, given: Given | None) -> None:
    """Raises where rows of `given`, if they are known, cannot go into `table` in one transaction."""
    where = f"the {SYSTEM} table {names.database}.{names.table}"
    if table.engine.lower() != "innodb":
        raise ConfigurationError(
            f"{where[0].upper()}{where[1:]} is of the kind {table.engine}, which cannot take rows back.",
            safe="nothing was written.",
            to_do="give the sink a table of the engine InnoDB: ALTER TABLE … ENGINE=InnoDB.",
        )
    if given is None:
        return
    twice = {name.lower() for name, _ in given}
    if len(twice) < len(given):
        raise SchemaMismatch(
            f"Rows do not fit into {where}: two columns differ only by upper and lower case.",
            safe=NOTHING_VISIBLE,
            to_do="rename one of them in the query.",
        )
    compare([(table.spelt(name), kind) for name, kind in given], table.columns, where, refusal)


def collation(session: Session, given: Given, key: Sequence[str]) -> str:
    """That of a new table: it compares byte by byte, and takes blanks at the end for what they are.
    `ConfigurationError` where a key needs that, and the server has no such collation (MySQL before 8.0.17)."""
    there = session.query("SHOW COLLATION WHERE Collation IN (%s, %s)", [*_UNPADDED])
    if there:
        return str(there[0][0])
    keys = {name.lower() for name in key}
    if any(name.lower() in keys and kind in ("string", "json") for name, kind in given):
        raise ConfigurationError(
            f"The {SYSTEM} server has no collation that tells keys apart which differ by blanks at their end.",
            safe="nothing was written.",
            to_do="make the table yourself, with VARBINARY in its key or as you want keys to be compared.",
        )
    return "utf8mb4_bin"


def creation(names: Names, given: Given, key: Sequence[str], collation: str) -> str:
    """The statement that makes the table."""
    keys = {name.lower() for name in key}
    lines = [
        f"{quoted(name, '`')} {column_type(kind, in_key=name.lower() in keys)}"
        + (" NOT NULL" if name.lower() in keys else "")
        for name, kind in given
    ]
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(quoted(name, '`') for name in key)})")
    return (
        f"CREATE TABLE IF NOT EXISTS {names.quoted(names.table)} ({', '.join(lines)})"
        f" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {collation}"
    )


def blurred(table: Table, key: Sequence[str]) -> list[str]:
    """What the table takes for one key, though Spark does not."""
    found = []
    for name in key:
        collation = table.collations.get(name.lower(), "binary")
        same = [] if "_bin" in collation or "_cs" in collation or collation == "binary" else ["case or accents"]
        if not any(part in collation for part in ("nopad", "_0900_", "binary")):
            same.append("blanks at the end")
        if same:
            found.append(
                f"key column {name!r} is compared by {collation}: keys that differ by {' or '.join(same)} are one"
            )
    return found


def unique_keys(session: Session, names: Names) -> list[UniqueIndex]:
    """Every unique index; columns in small letters."""
    rows = session.query(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        " WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
        [names.database, names.table],
    )
    found: dict[str, list[str | None]] = {}
    for index, column, part in rows:
        # An index on an expression has no column there, and one on the beginning of a column does not compare it.
        found.setdefault(str(index), []).append(None if column is None or part is not None else str(column).lower())
    return [
        UniqueIndex(index, frozenset(column for column in columns if column is not None), None in columns)
        for index, columns in found.items()
    ]


def require_key(there: Sequence[UniqueIndex], names: Names, key: Sequence[str], table: Table, given: Given) -> None:
    """An upsert needs a unique index on exactly its key, and no other one that could pick the row to change:
    `ON DUPLICATE KEY UPDATE` cannot be told which index counts."""
    own = {name.lower() for name in key}
    where = f"The {SYSTEM} table {names.database}.{names.table}"
    if not any(index.is_on(own) for index in there):
        raise ConfigurationError(
            f"{where} has no unique index on {', '.join(key)}.",
            safe="nothing was written.",
            to_do=f"add one: ALTER TABLE {names.table} ADD UNIQUE ({', '.join(key)}); "
            "or name the columns of an index there is.",
        )
    never_equal = table.numbered - {name.lower() for name, _ in given}
    others = [index.name for index in there if index.may_disagree_with(own, never_equal)]
    if others:
        raise ConfigurationError(
            f"{where} has another unique index beside that on {', '.join(key)}: {', '.join(others)}. {SYSTEM} would "
            "update the row that either of them finds, and so perhaps one with another key.",
            safe="nothing was written.",
            to_do="drop it or make it an ordinary index (an AUTO_INCREMENT column that the rows do not have may stay), "
            "or upsert into a table of its own.",
        )


def missing(names: Names) -> Exception:
    return TableMissing(
        f"The {SYSTEM} table {names.database}.{names.table} does not exist.",
        safe=NOTHING_VISIBLE,
        to_do="create it, or say create=True to have it made from the rows.",
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
