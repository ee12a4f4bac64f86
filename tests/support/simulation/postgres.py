"""A PostgreSQL server in memory, as the sink's sessions see it: the statements that driver and writers send.

What a transaction does is a list that COMMIT or PREPARE TRANSACTION appends to the log as one entry, and the contents
are what the log says. A replica that is behind is the same log without its end, so a failover takes back what was
committed, and gives back what was prepared.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import psycopg

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.sinks.postgres.dialect import PostgresDialect
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.postgres.writer import PostgresWriter
from penstock.sinks.sql.committer import SqlCommitter
from penstock.sinks.sql.tables import staging_name, writer_name
from tests.support.simulation.schedule import Process, Scheduler

Rows = list[tuple[Any, ...]]
_NAMED = re.compile(r"'([^']+)'|\"public\"\.\"(penstock_stage[^\"]+)\"")
_SESSION = re.compile(r"penstock (\S+) g(\d+) (\S+)")


class Contents:
    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.markers: dict[tuple[str, str], tuple[int, int, int]] = {}  # sink, writer → epoch, generation, at
        self.sinks: dict[str, list[int]] = {}  # generation, fence, pruned
        self.prepared: dict[str, list[tuple[Any, ...]]] = {}
        self.staged: dict[str, list[Any]] = {}

    def apply(self, change: tuple[Any, ...]) -> None:
        match change:
            case ("rows", rows):
                self.rows += rows
            case ("marker", sink, writer, *about):
                if (sink, writer) in self.markers:
                    raise psycopg.errors.UniqueViolation("duplicate key value violates unique constraint")
                self.markers[sink, writer] = tuple(about)
            case ("sink", sink, pruned):
                self.sinks.setdefault(sink, [0, 0, pruned])
            case ("fence", sink, generation):
                if sink in self.sinks and self.sinks[sink][0] <= generation:
                    self.sinks[sink][:2] = [generation, self.sinks[sink][1] + 1]
            case ("prune", sink, epoch, generation):
                gone = [
                    key for key, (n, g, _) in self.markers.items() if key[0] == sink and n < epoch and g <= generation
                ]
                if gone:
                    self.sinks[sink][2] = max(self.sinks[sink][2], *(self.markers.pop(key)[2] for key in gone))
            case ("prepare", gid, changes):
                self.prepared[gid] = changes
            case ("end", gid, commit):
                changes = self.prepared.pop(gid)
                for each in changes if commit else ():
                    self.apply(each)
            case ("stage", name):
                self.staged[name] = []
            case ("load", name, rows):
                self.staged[name] = [*self.staged[name], *rows]
            case ("drop", name):
                self.staged.pop(name, None)


class Server:
    def __init__(self, schedule: Scheduler) -> None:
        self.schedule, self.now, self.log = schedule, Contents(), list[list[tuple[Any, ...]]]()
        self.sessions: list[Session] = []
        self.locks: dict[str, Session] = {}
        self.away_until = 0.0
        self.lost = 0  # commits that a failover has taken back
        self.begun_anew = False  # one has taken back the sink's own row, without which nothing is proven of older names

    def write(self, changes: list[tuple[Any, ...]]) -> None:
        """One entry of the log: all of it, or nothing."""
        if any(change[0] == "marker" for change in changes):
            trial = copy.copy(self.now)
            trial.markers = dict(self.now.markers)
            for change in changes:
                if change[0] == "marker":
                    trial.apply(change)
        self.log.append(changes)
        for change in changes:
            self.now.apply(change)

    def restart(self, seconds: float = 1.0) -> None:
        """Every session ends; what is prepared stays."""
        for session in list(self.sessions):
            session.end()
        self.away_until = self.schedule.now + seconds

    def fail_over(self, behind: int) -> int:
        """To a replica that lacks the last entries of the log."""
        self.restart()
        behind = min(behind, len(self.log))
        gone = self.log[len(self.log) - behind :]
        rows = self.now.sinks.keys()
        self.log, self.now = self.log[: len(self.log) - behind], Contents()
        for changes in self.log:
            for change in changes:
                self.now.apply(change)
        ends = sum(change[0] == "marker" or (change[0] == "end" and change[2]) for part in gone for change in part)
        self.lost += ends
        self.begun_anew |= bool(rows - self.now.sinks.keys())
        return ends

    def roll_back(self, spared: Callable[[], bool]) -> None:
        """What is prepared or staged is ended by hand."""
        for gid in [gid for gid in self.now.prepared if not spared()]:
            self.write([("end", gid, False)])
        for table in [table for table in self.now.staged if table not in self.locks and not spared()]:
            self.write([("drop", table)])

    def left(self, process: Process) -> None:
        for session in [session for session in self.sessions if session.process is process]:
            session.end()


class Session:
    """One connection. `ask` runs a statement as the server does. TCP delivers what is sent once and in order, and
    psycopg sends nothing a second time: a request can be late, or lost with its connection, but never arrives twice."""

    def __init__(self, server: Server) -> None:
        self.server, self.process = server, server.schedule.process
        self.closed, self.name = False, "penstock"
        self._own: list[tuple[Any, ...]] | None = None
        self._look = 0
        try:
            server.schedule.call("connect postgres", self._connect, self._cut, once=True)
        except psycopg.OperationalError:
            server.schedule.sleep(1.0)  # until the client gives up
            raise

    def _connect(self) -> None:
        if self.server.away_until > self.server.schedule.now:
            raise psycopg.OperationalError("connection refused")
        if self.closed or self.process.dead:
            return  # it comes too late
        self.server.sessions.append(self)

    def end(self) -> None:
        self.closed, self._own = True, None
        self.server.locks = {name: session for name, session in self.server.locks.items() if session is not self}
        if self in self.server.sessions:
            self.server.sessions.remove(self)

    def _cut(self) -> Exception:
        self.end()
        return psycopg.OperationalError("server closed the connection unexpectedly")

    def ask(self, statement: str, *parameters: Any) -> Rows:
        statement, named, label = _understood(statement)

        def work() -> Rows:
            # A request that comes late may find its session gone; one that needs none is carried out all the same.
            if self.closed and label.partition(" ")[0] not in ("commit", "rollback"):
                raise psycopg.OperationalError("terminating connection due to administrator command")
            if self.closed and statement == "COMMIT":
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return self._answer(statement, named, parameters)

        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if statement.startswith(("LOCK TABLE", "DROP TABLE")):
            self._await(named)
        return self.server.schedule.call(label, work, self._cut, once=True)

    def load(self, schema: str, table: str, rows: list[Any]) -> None:
        def work() -> None:
            if self.closed:
                raise psycopg.OperationalError("terminating connection due to administrator command")
            self._change(("load", table, rows) if table.startswith("penstock_stage") else ("rows", rows))

        self.server.schedule.call("copy rows", work, self._cut, once=True)

    def _await(self, table: str) -> None:
        """The lock that LOCK TABLE and DROP TABLE need."""
        free = lambda: self.server.locks.get(table) in (None, self)  # noqa: E731
        if not free() and not self.server.schedule.wait(free, 2.0):
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    def _change(self, change: tuple[Any, ...]) -> None:
        if self._own is None:
            self.server.write([change])
        else:
            self._own.append(change)

    def _answer(self, statement: str, named: str, parameters: tuple[Any, ...]) -> Rows:
        server, now = self.server, self.server.now
        begins = statement.startswith
        if begins("BEGIN") or begins("SET TRANSACTION"):
            self._own = []
        elif begins("SELECT set_config"):
            self.name = parameters[0]
            return [(int(server.schedule.now * 1e6),)]
        elif statement == "COMMIT":
            own, self._own, self.name = self._own or [], None, "penstock"
            try:
                server.write(own)
            finally:
                server.locks = {name: session for name, session in server.locks.items() if session is not self}
        elif statement == "ROLLBACK":
            self._own, self.name = None, "penstock"
            server.locks = {name: session for name, session in server.locks.items() if session is not self}
        elif begins("PREPARE TRANSACTION"):
            own, self._own, self.name = self._own or [], None, "penstock"
            server.write([("prepare", named, own)])
        elif begins(("COMMIT PREPARED", "ROLLBACK PREPARED")):
            if named not in now.prepared:
                raise psycopg.errors.UndefinedObject(f'prepared transaction with identifier "{named}" does not exist')
            server.write([("end", named, begins("COMMIT"))])
        elif begins("SAVEPOINT"):
            self._look = len(self._own or [])
        elif begins("ROLLBACK TO"):
            del (self._own or [])[self._look :]
        elif begins("LOCK TABLE"):
            if named not in now.staged:
                raise psycopg.errors.UndefinedTable(f'relation "{named}" does not exist')
            server.locks[named] = self
        elif begins("DROP TABLE"):
            server.locks[named] = self
            self._change(("drop", named))
        elif begins("CREATE TABLE") and named:
            self._change(("stage", named))
        elif begins('INSERT INTO "public"."t"'):
            self._change(("rows", now.staged[named]))
            return [(len(now.staged[named]),)]
        elif begins('INSERT INTO "public"."penstock_markers"'):
            sink, writer, epoch, generation, at = parameters
            self._change(("marker", sink, writer, epoch, generation, at))
            return [(now.sinks[sink][1] if sink in now.sinks else None,)]
        elif begins('INSERT INTO "public"."penstock_sinks"'):
            self._change(("sink", parameters[0], (parameters[1] or int(server.schedule.now * 1e6)) - 1))
        elif begins("UPDATE"):
            self._change(("fence", *parameters))
        elif begins("SELECT fence"):
            return [(now.sinks[parameters[0]][1],)] if parameters[0] in now.sinks else []
        elif begins("SELECT FROM"):
            return [()] if parameters[0] in now.sinks else []
        elif begins("SELECT gid"):
            return [(gid, 12.5) for gid in sorted(now.prepared) if gid.startswith(parameters[0])]
        elif begins("SELECT c.relname"):
            return [(name,) for name in sorted(now.staged) if name.startswith(parameters[1])]
        elif begins("SELECT count(pg_terminate_backend"):
            return [(self._terminate(*parameters),)]
        elif begins("SELECT ARRAY"):
            sink, writers = parameters
            pruned = now.sinks[sink][2] if sink in now.sinks else None
            marked = [writer for writer in writers if (sink, writer) in now.markers]
            return [(marked, pruned, any(of == sink for of, _ in now.markers))]
        elif begins("WITH gone AS"):
            self._change(("prune", *parameters))
        elif begins("SELECT count(*)"):
            return [(len(now.staged[named]),)]
        elif begins("SELECT to_regclass"):
            return [(True,)]
        elif not begins("SET CONSTRAINTS"):
            raise AssertionError(f"the simulated server does not know {statement}")
        return []

    def _terminate(self, digest: str, role: str, generation: int) -> int:
        ended = 0
        for session in list(self.server.sessions):
            match = _SESSION.fullmatch(session.name)
            if (
                session is not self
                and match
                and match[1] == digest
                and match[3] == role
                and int(match[2]) <= generation
            ):
                session.end()
                ended += 1
        return ended


@lru_cache(5_000)
def _understood(statement: str) -> tuple[str, str, str]:
    """A statement in one line, what it names, and its label."""
    statement = " ".join(statement.split())
    named = next((one or other for one, other in _NAMED.findall(statement)), "")
    return statement, named, _label(statement, named)


def _label(statement: str, named: str) -> str:
    verb = statement.partition(" ")[0].lower()
    if statement.startswith(("COMMIT", "ROLLBACK PREPARED", "PREPARE")):
        return f"{verb} {named or 'staged rows'}"
    if statement.startswith("UPDATE"):
        return "fence writers"
    return f"sql {statement[:60]}"


class SimulatedLine:
    """Stands in for `penstock.sinks.postgres.connection.Line`."""

    def __init__(self, server: Server, name: str, deadline: Deadline) -> None:
        self._server, self._name, self.deadline = server, name, deadline
        self._session: Session | None = None

    def ask(self, statement: str, *parameters: Any) -> Rows:
        return self._connected().ask(statement, *parameters)

    def count(self, statement: str, *parameters: Any) -> int:
        return int(self.ask(statement, *parameters)[0][0])

    def begin(self, lock_seconds: float) -> None:
        self.ask("BEGIN")
        self.ask("SELECT set_config", self._name, "")

    def limit(self, deadline: Deadline) -> None:
        self.deadline = deadline

    @property
    def open(self) -> bool:
        return self._session is not None and not self._session.closed

    def connect(self) -> None:
        self._connected()

    def close(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None

    def _connected(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = Session(self._server)
        return self._session


class _WriterSession(Session):
    """Stands in for `ArrowSession`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._own = []

    def run(self, statement: str) -> None:
        self.ask(statement)

    def park(self) -> None:
        self.end()

    def close(self) -> None:
        self.end()


class _Dialect(PostgresDialect):
    _sink: SimulatedPostgresSink

    def connect(self, deadline: Deadline) -> Any:
        line = self._sink.line_to(f"penstock {self._name()} g{self.generation} driver", deadline)
        line.connect()
        return line

    def _name(self) -> str:
        from penstock.sinks.sql.tables import digest

        return digest(self._prefix)


class _Writer(PostgresWriter):
    """Its own look at the table is left out: the simulated server has one table."""

    _sink: SimulatedPostgresSink

    def _begin(self, *, text: bool) -> None:
        from penstock.sinks.postgres.connection import SETTINGS
        from penstock.sinks.postgres.dialect import application

        with self._mapper.mapped("connecting"):
            self._session = _WriterSession(self._sink.database)  # type: ignore[assignment]
            name = application(self._scope.sink.prefix, self._scope.sink.generation, "writer")
            self._at = int(self._session.ask(SETTINGS, name, "")[0][-1])  # type: ignore[union-attr]

    def _look(self, schema: Any) -> None:
        self._staged, self._schema = self._sink.mode != "two_phase", schema
        self._name = staging_name(self._scope) if self._staged else writer_name(self._scope)
        if self._staged:
            with self._mapper.mapped("making a staging table"):
                self._open_session().run(f"CREATE TABLE {self._place.own(self._name)}")

    def _count(self, session: Any) -> None:
        pass

    def _load(self) -> None:
        rows = [tuple(row.values()) for batch in self._waiting for row in batch.to_pylist()]
        if rows:
            table = self._name if self._staged else self._place.table
            with self._mapper.mapped("loading rows", self._conflict):
                self._open_session().load("public", table, rows)
        self._total += len(rows)
        self._waiting = []


class SimulatedPostgresSink(PostgresSink):
    def __init__(self, database: Server, mode: Any) -> None:
        super().__init__("postgresql://simulated/shop", table="public.t", mode=mode)
        self.database = database

    def open_writer(self, scope: WriterScope) -> PostgresWriter:
        return _Writer(self, scope)

    def open_committer(self, scope: SinkScope) -> SqlCommitter[Any]:
        return SqlCommitter(_Dialect(self, scope))

    def line(self, name: str, seconds: float) -> Any:
        return self.line_to(name, Deadline(seconds))

    def line_to(self, name: str, deadline: Deadline) -> SimulatedLine:
        return SimulatedLine(self.database, name, deadline)


Ask = Callable[..., Rows]
