"""PostgreSQL as a `Dialect`: prepared transactions, staging tables dropped in the move's own transaction.

What its answers prove, beside the table in `penstock.sinks.sql.dialect`:

| answer | proves |
|---|---|
| COMMIT PREPARED succeeds | committed |
| COMMIT PREPARED: 42704, no such transaction | it has ended for good: the marker decides |
| COMMIT PREPARED: 55006, in use | another session is ending it: retry |
| LOCK TABLE of a staging table: 42P01, no such table | moved, with its marker, or dropped: the marker decides |
| LOCK TABLE succeeds | not moved, and no other session can move it now |

A sink is its job and its uid (`SinkScope.prefix`), so a committable for another table is ended here too. `at` and
`pruned` are microseconds since 1970."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import SystemUnavailable
from penstock.sinks.postgres.connection import OBJECT_IN_USE, UNDEFINED_OBJECT, Line, client, mapper
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.sql.dialect import Dialect, Proof, leftovers, name_of
from penstock.sinks.sql.tables import digest, label, literal, numbers_in, quoted, staging_prefix

_POLL = 0.02
_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND CASE WHEN application_name ~ ('^penstock ' || $1 || ' g[0-9]+ ' || $2 || '$')
      THEN ltrim(split_part(application_name, ' ', 3), 'g')::bigint <= $3 ELSE false END
"""


def application(prefix: str, generation: int, role: str) -> str:
    """The name of a session while it can still change something; sweeps identify it by this."""
    return f"penstock {digest(prefix)} g{generation} {role}"


class PostgresDialect(Dialect[Line]):
    looks_back = True

    def __init__(self, sink: PostgresSink, scope: SinkScope) -> None:
        self._sink, self._place, self._prefix = sink, sink.place, scope.prefix
        self.generation = scope.generation
        self.mapper = mapper(sink.server, str(sink.place))

    def connect(self, deadline: Deadline) -> Line:
        line = Line(self._sink.server, application(self._prefix, self.generation, "driver"), deadline)
        line.connect()
        return line

    # The sink's own tables

    def mode(self, connection: Line) -> str:
        return self._sink.settled_mode(connection.ask)

    def set_up(self, connection: Line) -> None:
        self._sink.settle(self._prefix, connection)

    def read_fence(self, connection: Line) -> int | None:
        rows = connection.ask(f"SELECT fence FROM {self._place.sinks} WHERE sink = $1", self._prefix)
        return int(rows[0][0]) if rows else None

    def fence(self, connection: Line) -> int:
        raised = "SET fence = fence + 1, generation = $2 WHERE sink = $1 AND generation <= $2"
        connection.ask(f"UPDATE {self._place.sinks} {raised}", self._prefix, self.generation)
        self._end(connection, "driver", self.generation - 1)
        return self._end(connection, "writer", self.generation)

    def prove(self, connection: Line, writers: Collection[str]) -> Proof:
        statement = (
            f"SELECT ARRAY(SELECT writer FROM {self._place.markers} WHERE sink = $1 AND writer = ANY($2)), "
            f"(SELECT pruned FROM {self._place.sinks} WHERE sink = $1), "
            f"EXISTS (SELECT FROM {self._place.markers} WHERE sink = $1)"
        )
        [(marked, pruned, has_markers)] = connection.ask(statement, self._prefix, list(writers))
        return Proof(frozenset(marked), pruned, has_markers=has_markers)

    def acknowledge(self, committable: Committable, epoch: int) -> str:
        values = f"{literal(self._prefix)}, {literal(name_of(committable))}, {epoch}, {self.generation}"
        return (
            f"INSERT INTO {self._place.markers} (sink, writer, epoch, generation, at) "
            f"VALUES ({values}, {int(committable.payload['at'])})"
        )

    def prune(self, connection: Line, before: int) -> None:
        statement = (
            f"WITH gone AS (DELETE FROM {self._place.markers} WHERE sink = $1 AND epoch < $2 AND generation <= $3 "
            f"RETURNING at) UPDATE {self._place.sinks} SET pruned = GREATEST(pruned, (SELECT max(at) FROM gone)) "
            "WHERE sink = $1 AND EXISTS (SELECT FROM gone)"
        )
        connection.ask(statement, self._prefix, before, self.generation)

    # Prepared transactions

    def prepare(self, writer: str) -> Sequence[str]:
        return (f"PREPARE TRANSACTION {literal(writer)}",)

    def prepared(self, connection: Line, writers: Collection[str]) -> set[str]:
        return {gid for gid, _ in self.transactions(connection)} & set(writers)

    def transactions(self, connection: Line) -> list[tuple[str, float]]:
        """Prepared transactions of this sink, of any generation, and since when."""
        rows = connection.ask(
            "SELECT gid, extract(epoch FROM prepared)::float8 FROM pg_prepared_xacts "
            "WHERE database = current_database() AND starts_with(gid, $1)",
            f"{label(self._prefix)}:g",
        )
        return [(str(gid), float(since)) for gid, since in rows]

    def commit(self, connection: Line, writer: str) -> bool:
        return self._end_prepared(connection, "COMMIT", writer)

    def rollback(self, connection: Line, prepared: Collection[str], staged: Collection[str]) -> None:
        for gid in sorted(prepared):
            self._roll_back(connection, gid)
        if not staged:
            return
        connection.begin(connection.deadline.remaining() / 2)  # a bounded wait for sessions that hold one
        try:
            for name in sorted(staged):
                connection.ask(f"DROP TABLE IF EXISTS {self._place.own(name)}")
            connection.ask("COMMIT")
        except BaseException:
            connection.close()
            raise

    def recover(self, connection: Line) -> Sequence[Leftover]:
        staging = (
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relkind = 'r' AND starts_with(c.relname, $2)"
        )
        began: dict[str, float | None] = dict(self.transactions(connection))
        tables = connection.ask(staging, self._place.own_schema, staging_prefix(self._prefix))
        began.update((str(table), None) for (table,) in tables)
        return leftovers(began, partial(numbers_in, prefix=self._prefix))

    # Staging tables

    def begin(self, connection: Line, writers: Collection[str], *, decided: bool) -> set[str]:
        """Locks the staging tables that exist: no other session can move or drop them now."""
        if decided:
            # A replaced driver may hold locks; its decisions are in the ledger, and this driver commits them.
            self._end(connection, "driver", self.generation - 1)
        connection.begin(self._sink.lock_seconds)
        there = set()
        for name in sorted(writers):
            connection.ask("SAVEPOINT look")
            try:
                connection.ask(f"LOCK TABLE {self._place.own(name)} IN ACCESS EXCLUSIVE MODE")
            except client().psycopg.errors.UndefinedTable:
                connection.ask("ROLLBACK TO SAVEPOINT look")
                continue
            there.add(name)
        return there

    def mark(self, connection: Line, committable: Committable, epoch: int) -> None:
        statement = (
            f"INSERT INTO {self._place.markers} (sink, writer, epoch, generation, at) VALUES ($1, $2, $3, $4, $5)"
        )
        values = name_of(committable), epoch, self.generation, committable.payload["at"]
        connection.ask(statement, self._prefix, *values)

    def move(self, connection: Line, committable: Committable) -> int:
        """Drops the staging table, unless rows are missing."""
        payload, source = committable.payload, self._place.own(name_of(committable))
        moved = connection.count(move_statement(payload, source))
        if payload["key"] or moved == payload["rows"]:
            connection.ask(f"DROP TABLE {source}")
        return moved

    def check_rules(self, connection: Line) -> None:
        """Keys, references and triggers that are DEFERRABLE INITIALLY DEFERRED."""
        connection.ask("SET CONSTRAINTS ALL IMMEDIATE")

    def count(self, connection: Line, writer: str) -> int:
        return int(connection.ask(f"SELECT count(*) FROM {self._place.own(writer)}")[0][0])

    def finish(self, connection: Line, writers: Collection[str]) -> None:
        connection.ask("COMMIT")

    # Ending others

    def _end(self, connection: Line, role: str, generation: int) -> int:
        """Terminate sessions and wait until they are gone: one that is preparing may still succeed."""
        first: int | None = None
        while True:
            [(remaining,)] = connection.ask(_END, digest(self._prefix), role, generation)
            first = remaining if first is None else first
            if not remaining:
                return first
            if connection.deadline.passed():
                raise SystemUnavailable(
                    f"{remaining} sessions of earlier writers for {self._place} did not end in time.",
                    safe="what they wrote is not visible, and will not be.",
                    to_do="nothing: the next start of the job ends them.",
                )
            time.sleep(_POLL)

    def _roll_back(self, connection: Line, gid: str) -> None:
        while True:
            try:
                self._end_prepared(connection, "ROLLBACK", gid)
                return
            except client().psycopg.Error as error:
                if error.sqlstate != OBJECT_IN_USE or connection.deadline.passed():
                    raise
                time.sleep(_POLL)

    def _end_prepared(self, connection: Line, verb: str, gid: str) -> bool:
        """False where the transaction no longer exists."""
        try:
            connection.ask(f"{verb} PREPARED {literal(gid)}")
        except client().psycopg.Error as error:
            if error.sqlstate != UNDEFINED_OBJECT:
                raise
            return False
        return True


def move_statement(payload: Mapping[str, Any], source: str) -> str:
    target = ".".join(map(quoted, payload["target"]))
    columns = ", ".join(map(quoted, payload["columns"]))
    key = ", ".join(map(quoted, payload["key"]))
    if not key:
        return f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}"
    # Of several rows with one key the last one written counts; ctid is the order in which a fresh table was filled.
    rows = f"SELECT DISTINCT ON ({key}) {columns} FROM {source} ORDER BY {key}, ctid DESC"
    rest = [quoted(name) for name in payload["columns"] if name not in payload["key"]]
    update = f"UPDATE SET {', '.join(f'{column} = EXCLUDED.{column}' for column in rest)}" if rest else "NOTHING"
    return f"INSERT INTO {target} ({columns}) {rows} ON CONFLICT ({key}) DO {update}"
