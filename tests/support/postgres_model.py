"""A PostgreSQL of a few lines, behind the driver's connection: prepared transactions, staging tables, markers.

It answers the statements the driver sends as the server does: COMMIT PREPARED of a name that is not there is 42704, a
table that is not there 42P01, and what an open transaction has done is seen by nobody else before its COMMIT.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg

from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.sinks.postgres.connection import Place, Server
from penstock.sinks.sql.tables import label

SCOPE = SinkScope("job", "out", 3)
PLACE = Place("public", "orders", "own")
_NAME = re.compile(r"'([^']+)'|\"own\"\.\"([^\"]+)\"")


@dataclass
class Contents:
    """What a transaction can change: prepared name → rows, staging table → rows, rows that are visible, markers."""

    prepared: dict[str, list[int]] = field(default_factory=dict)
    staged: dict[str, list[int]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    markers: dict[str, tuple[int, int]] = field(default_factory=dict)  # writer → epoch, at
    known: bool = False
    fence: int = 0
    swept_by: int = 0
    pruned: int | None = None


class Database:
    """`before` and `after` are called around each statement: a test may look, interfere, or cut the line."""

    def __init__(self) -> None:
        self.now = Contents()
        self.sessions: dict[tuple[str, int], int] = {}  # role and generation → how many
        self.lines: list[Line] = []
        self.said: list[str] = []
        self.most_prepared = 10
        self.epoch = 7  # of the writers that prepare
        self.before: Callable[[str], None] = lambda statement: None
        self.after: Callable[[str], None] = lambda statement: None
        self.sink = SimpleNamespace(
            server=Server("postgresql://alice:s3cret@db.example:5433/shop"),
            place=PLACE,
            lock_seconds=5.0,
            settled_mode=lambda ask: "two_phase" if ask("SHOW max_prepared_transactions")[0][0] else "staged",
            settle=self._settle,
        )

    def line(self, server: Server, name: str, deadline: Deadline) -> Line:
        assert (server, isinstance(deadline, Deadline)) == (self.sink.server, True)
        assert re.fullmatch(r"penstock [0-9a-f]{16} g3 driver", name)
        self.lines.append(Line(self, deadline))
        return self.lines[-1]

    def _settle(self, prefix: str, line: Line) -> None:
        assert prefix == SCOPE.prefix
        line.ask("SETTLE")


class Line:
    """Stands in for `penstock.sinks.postgres.connection.Line`."""

    def __init__(self, database: Database, deadline: Deadline) -> None:
        self.database, self.deadline = database, deadline
        self.open, self.limited, self.dropped = True, False, 0
        self._own: Contents | None = None
        self._look: Contents | None = None

    def begin(self, lock_seconds: float) -> None:
        assert 0 < lock_seconds <= 60
        self.ask("BEGIN")

    def connect(self) -> None:
        pass

    def limit(self, deadline: Deadline) -> None:
        self.deadline, self.limited = deadline, True

    def close(self) -> None:
        self.dropped += 1
        self.open, self._own = False, None

    def count(self, statement: str) -> int:
        [(changed,)] = self.ask(statement)
        return int(changed)

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        assert self.limited, "every statement ends with the step it belongs to"
        database = self.database
        self.open = True
        database.said.append(statement)
        try:
            database.before(statement)
            answer = self._answer(statement, parameters)
            database.after(statement)
        except psycopg.OperationalError:
            self.close()  # the server has closed the connection
            raise
        return answer

    def _answer(self, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        database = self.database
        now = self._own if self._own is not None else database.now
        word = statement.split()
        named = next((one or other for one, other in _NAME.findall(statement)), "")
        if statement == "BEGIN":
            self._own = copy.deepcopy(database.now)
        elif statement == "COMMIT":
            assert self._own is not None, "COMMIT without a transaction"
            database.now, self._own = self._own, None
        elif statement == "SAVEPOINT look":
            self._look = copy.deepcopy(self._own)
        elif statement == "ROLLBACK TO SAVEPOINT look":
            self._own = self._look
        elif statement == "SET CONSTRAINTS ALL IMMEDIATE":
            assert self._own is not None, "outside of a transaction it does nothing"
        elif statement == "SHOW max_prepared_transactions":
            return [(database.most_prepared,)]
        elif statement == "SETTLE":
            now.known, now.pruned = True, now.pruned or 1_000
        elif word[:2] == ["COMMIT", "PREPARED"] or word[:2] == ["ROLLBACK", "PREPARED"]:
            if named not in now.prepared:
                raise psycopg.errors.UndefinedObject(f'prepared transaction with identifier "{named}" does not exist')
            rows = now.prepared.pop(named)
            if word[0] == "COMMIT":
                now.rows += rows
                now.markers[named] = (database.epoch, 2_000)
        elif word[:2] == ["LOCK", "TABLE"]:
            if named not in now.staged:
                raise psycopg.errors.UndefinedTable(f'relation "{named}" does not exist')
        elif word[:2] == ["DROP", "TABLE"]:
            assert "IF EXISTS" in statement or named in now.staged
            now.staged.pop(named, None)
        elif statement.startswith('INSERT INTO "public"."orders"'):
            now.rows += now.staged[named]
            return [(len(now.staged[named]),)]
        elif statement.startswith(f"INSERT INTO {PLACE.markers}"):
            sink, writer, epoch, generation, at = parameters
            assert (sink, generation) == (SCOPE.prefix, SCOPE.generation)
            assert writer not in now.markers
            now.markers[writer] = (epoch, at)
        elif statement.startswith("SELECT gid, extract"):
            return [(gid, 12.5) for gid in sorted(now.prepared) if gid.startswith(parameters[0])]
        elif statement.startswith("SELECT c.relname"):
            assert parameters[0] == "own"
            return [(name,) for name in now.staged if name.startswith(parameters[1])]
        elif "pg_terminate_backend" in statement:
            _, role, generation = parameters
            ended = [key for key in database.sessions if key[0] == role and key[1] <= generation]
            return [(sum(database.sessions.pop(key) for key in ended),)]
        elif statement.startswith(f"UPDATE {PLACE.sinks} SET fence"):
            if now.swept_by <= parameters[1]:
                now.fence, now.swept_by = now.fence + 1, parameters[1]
        elif statement.startswith(f"SELECT fence FROM {PLACE.sinks}"):
            return [(now.fence,)] if now.known else []
        elif statement.startswith("SELECT ARRAY"):
            sink, writers = parameters
            assert sink == SCOPE.prefix
            return [([writer for writer in writers if writer in now.markers], now.pruned, bool(now.markers))]
        elif statement.startswith("WITH gone AS"):
            sink, epoch, generation = parameters
            assert (sink, generation) == (SCOPE.prefix, SCOPE.generation)
            assert statement.endswith(" WHERE sink = $1 AND EXISTS (SELECT FROM gone)")
            gone = [writer for writer, (number, _) in now.markers.items() if number < epoch]
            now.pruned = max([now.pruned or 0, *(now.markers.pop(writer)[1] for writer in gone)])
        else:
            raise AssertionError(f"the model does not know {statement}")
        return []


def gid(writer: int, generation: int = 3) -> str:
    return f"{label(SCOPE.prefix)}:g{generation}:e7:a1:p{writer}:t0:{writer:012x}"


def cut(database: Database, times: int, beginning: str) -> Callable[[str], None]:
    """The line is cut at a statement that begins so, so many times."""
    left: Iterator[int] = iter(range(times))

    def fail(statement: str) -> None:
        if statement.startswith(beginning) and next(left, None) is not None:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    return fail
