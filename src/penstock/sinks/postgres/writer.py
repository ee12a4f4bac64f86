"""A task's side: rows into one transaction, and the transaction left prepared, or its staging table committed.

    two_phase   BEGIN · COPY into the table · marker · fence · PREPARE TRANSACTION      payload: the transaction's name
    staged      BEGIN · CREATE staging · COPY into it · fence · COMMIT                  payload: the table's name

A staging table is an ordinary, logged one: an unlogged one is empty after a crash of the server. Rows travel as binary
COPY made from Arrow by ADBC. Columns that only have a text form (inet, ranges, geometry, …) make the whole table go as
COPY's CSV instead, which takes about three times as long.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts.sink import Writer, WriterScope, first_reasons
from penstock.errors import DataError, EpochError, PenstockError, SchemaMismatch, TableMissing
from penstock.sinks.postgres import tables
from penstock.sinks.postgres.connection import SETTINGS, SYSTEM, Server, client, is_on_a_key, same_key
from penstock.sinks.postgres.dialect import PostgresDialect, application
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.postgres.types import Route, Unstorable, route
from penstock.sinks.sql.dialect import NOTHING, Fault, payload_of
from penstock.sinks.sql.tables import literal, numbers_in, quoted, require_values, staging_name, writer_name

#: A writer's last read of its fence must see the newest value, whatever the server's default is.
_ISOLATION = "ISOLATION LEVEL READ COMMITTED"


class ArrowSession:
    """A connection inside a transaction, over ADBC. It is slow to make, so it is kept after an orderly end."""

    def __init__(self, server: Server) -> None:
        self._where = server.libpq()
        self._connection = _POOL.take(self._where)
        self._cursor = self._connection.cursor()
        _POOL.lent(self)

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement with `$1` parameters; its rows."""
        self._cursor.execute(statement, parameters or None)
        return list(self._cursor.fetchall())

    def run(self, statement: str) -> None:
        self._cursor.execute(statement)

    def load(self, schema: str, table: str, rows: pa.Table) -> None:
        self._cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)

    def park(self) -> None:
        """Keep the connection for the next writer; only after the transaction was ended in order."""
        self._cursor.close()
        _POOL.give(self._where, self._connection)

    def close(self) -> None:
        """Free the connection; what is not committed or prepared is rolled back."""
        _close(self._cursor)
        _close(self._connection)


class TextSession:
    """As `ArrowSession`, over psycopg, with COPY in CSV."""

    def __init__(self, server: Server) -> None:
        psycopg = client().psycopg
        self._connection = psycopg.connect(
            server.libpq(), autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor
        )
        self.run(f"BEGIN {_ISOLATION}")

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description is not None else []

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def load(self, schema: str, table: str, rows: pa.Table) -> None:
        columns = ", ".join(map(quoted, rows.column_names))
        statement = f"COPY {quoted(schema)}.{quoted(table)} ({columns}) FROM STDIN WITH (FORMAT csv)"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(csv_of(rows))

    def close(self) -> None:
        _close(self._connection)


def csv_of(rows: pa.Table) -> memoryview:
    """`rows` as PostgreSQL reads CSV: text in quotes, null as nothing at all, bytes in hexadecimal."""
    from pyarrow import csv

    for number, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            # Row by row, because Arrow has no such function; only tables with both kinds of columns come here.
            values = [None if value is None else "\\x" + value.hex() for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.name, pa.array(values, pa.string()))
    out = io.BytesIO()
    csv.write_csv(rows, out, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return out.getbuffer()


Session: TypeAlias = ArrowSession | TextSession


class _Pool:
    """Connections between two tasks of this process; a forked child forgets what it inherited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[str, list[Any]] = {}
        self._lent: weakref.WeakSet[ArrowSession] = weakref.WeakSet()
        # Closed by the garbage collector, a connection may go before its cursor, which the client prints.
        atexit.register(self.close)

    def lent(self, session: ArrowSession) -> None:
        with self._lock:
            self._lent.add(session)

    def close(self) -> None:
        with self._lock:
            ours = self._pid == os.getpid()
            idle, self._idle = self._idle, {}
            lent, self._lent = list(self._lent), weakref.WeakSet()
        if ours:  # closing an inherited connection would end the parent's transactions
            for session in lent:
                session.close()
            for connection in [each for group in idle.values() for each in group]:
                _close(connection)

    def take(self, where: str) -> Any:
        while (connection := self._next(where)) is not None:
            try:
                return _begun(connection)
            except client().dbapi.Error:  # the server has gone meanwhile, and perhaps come back
                _close(connection)
        # Transactions are begun and ended by statements: after an error, ADBC's own take no ROLLBACK TO SAVEPOINT.
        return _begun(client().adbc.connect(where, autocommit=True))

    def give(self, where: str, connection: Any) -> None:
        with self._lock:
            idle = self._idle.setdefault(where, [])
            if len(idle) < 4:
                idle.append(connection)
                return
        _close(connection)

    def _next(self, where: str) -> Any:
        with self._lock:
            if self._pid != os.getpid():
                self._idle, self._lent, self._pid = {}, weakref.WeakSet(), os.getpid()
            idle = self._idle.get(where)
            return idle.pop() if idle else None


def _begun(connection: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"BEGIN {_ISOLATION}")
    return connection


def _close(thing: Any) -> None:
    with contextlib.suppress(Exception):
        thing.close()


_POOL = _Pool()

#: Rows and bytes that are gathered into one COPY: each costs about a millisecond of its own.
_ROWS, _BYTES = 100_000, 32 << 20
_UNDO_SECONDS = 10.0
_QUOTED = re.compile(r" (?=Failing row contains \(|Key \()")  # the server quotes the row; the ledger is not to hold it


class PostgresWriter(Writer):
    """Opening begins the transaction; the first rows are compared with the table."""

    def __init__(self, sink: PostgresSink, scope: WriterScope) -> None:
        self._sink, self._scope = sink, scope
        self._dialect = PostgresDialect(sink, scope.sink)
        self._mapper = self._dialect.mapper
        self._place = sink.place
        self._session: Session | None = None
        self._routes: dict[str, Route] = {}
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._total = self._at = 0
        self._table: tables.Table | None = None
        self._inserted: int | None = None
        self._prepared = False
        self._staged = False
        self._name = ""
        self._begin(text=False)

    def write(self, batch: pa.RecordBatch) -> None:
        self._open_session()
        if self._schema is None:
            self._look(batch.schema)
        require_values(batch, self._sink.key, SYSTEM, str(self._place))
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _ROWS or self._bytes >= _BYTES:
            self._load()

    def unfit(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        """What columns show. `try_write` would find these rows, too, with up to a hundred statements for each."""
        if self._schema is None:
            self._look(batch.schema)
        assert self._table is not None
        broken = []
        for column in (column for column in self._table.columns if column.name in batch.schema.names):
            values, name = batch.column(column.name), f"column {column.name!r}"
            if not column.nullable or column.name in self._sink.key:
                null = values.is_null().to_numpy(zero_copy_only=False)
                broken.append((null, f"{name} is null, and may not be"))
            if column.width is not None:
                lengths = pc.utf8_length(values).to_numpy(zero_copy_only=False)
                broken.append((lengths > column.width, f"{name} is {column.type}, the value is longer"))
        return first_reasons(broken)

    def try_write(self, batches: Sequence[pa.RecordBatch]) -> str | None:
        total, session = self._total, self._open_session()
        with self._mapper.mapped("loading rows"):
            if not total:
                session.run("SET CONSTRAINTS ALL IMMEDIATE")  # or they would be checked when all rows are in
            session.run("SAVEPOINT penstock_piece")
        try:
            for batch in batches:
                self.write(batch)
            self._load()
        except DataError as error:
            cause = error.__cause__
            faults = [self._mapper.read(cause)] if isinstance(cause, self._mapper.drivers) else []
            if isinstance(error, SchemaMismatch) or any(map(is_on_a_key, faults)):
                raise
            self._waiting, self._rows, self._bytes, self._total = [], 0, 0, total
            with self._mapper.mapped("loading rows"):
                session.run("ROLLBACK TO SAVEPOINT penstock_piece")
                if self._inserted is not None and self._table is not None:  # it counts what was taken back
                    self._inserted = (tables.inserted(session.ask, self._table) or 0) - total
            return _QUOTED.split(error.happened)[0]
        with self._mapper.mapped("loading rows"):
            session.run("RELEASE SAVEPOINT penstock_piece")
        return None

    def pre_commit(self) -> Mapping[str, Any]:
        session = self._open_session()
        self._load()
        if self._total == 0:
            self.abort()
            return NOTHING
        scope = self._scope
        with self._mapper.mapped("preparing", self._conflict):
            if self._staged:
                fences = session.ask(f"SELECT fence FROM {self._place.sinks} WHERE sink = $1", scope.sink.prefix)
            else:
                self._count(session)
                statement = (
                    f"INSERT INTO {self._place.markers} (sink, writer, epoch, generation, at) "
                    f"VALUES ($1, $2, $3, $4, $5) RETURNING (SELECT fence FROM {self._place.sinks} WHERE sink = $1)"
                )
                run = scope.sink.prefix, self._name, scope.epoch, scope.sink.generation
                fences = session.ask(statement, *run, self._at)
            known = scope.hints.get("fence")
            if known is not None and (fences[0][0] if fences else None) != known:
                raise self._mapper.fenced(self._name)
            for statement in ("COMMIT",) if self._staged else self._dialect.prepare(self._name):
                session.run(statement)
        self._prepared = True
        self._free(parked=True)
        assert self._schema is not None
        target = (self._place.schema, self._place.table)
        return payload_of(scope, self._name, self._at, self._total, target, self._schema.names, self._sink.key)

    def abort(self) -> None:
        """Also after pre_commit, as long as no driver has seen the committable."""
        self._waiting = []
        session = self._session
        if session is not None:
            try:
                session.run("ROLLBACK")
            except Exception:  # the connection is gone, and the transaction with it
                self._free(parked=False)
            else:
                self._free(parked=True)
        elif self._prepared:
            self._prepared = False
            undo = (
                f"DROP TABLE IF EXISTS {self._place.own(self._name)}"
                if self._staged
                else f"ROLLBACK PREPARED {literal(self._name)}"
            )
            gone = client().psycopg.Error  # already, or left for the driver's sweep
            with self._sink.line("penstock", _UNDO_SECONDS) as line, contextlib.suppress(gone):
                line.ask(undo)

    def _begin(self, *, text: bool) -> None:
        sink, scope = self._sink, self._scope
        with self._mapper.mapped("connecting"):
            self._session = TextSession(sink.server) if text else ArrowSession(sink.server)
            try:
                name = application(scope.sink.prefix, scope.sink.generation, "writer")
                wait = f"{max(1, int(sink.lock_seconds * 1000))}ms"
                self._at = int(self._session.ask(SETTINGS, name, wait)[0][-1])
            except BaseException:
                self._free(parked=False)
                raise

    def _look(self, schema: pa.Schema) -> None:
        session = self._open_session()
        with self._mapper.mapped("reading the table"):
            table = tables.find(session.ask, self._place)
            if table is None:
                raise self._mapper.error(TableMissing, to_do=self._sink.missing_to_do())
            tables.fits(schema, [str(field.type) for field in schema], table, self._place)
            columns = {column.name: column for column in table.columns}
            self._routes = {field.name: route(field.type, columns[field.name]) for field in schema}
            if any(way.text_only for way in self._routes.values()):
                tables.refuse_arrays(table, self._routes, self._place)
                self.abort()
                self._begin(text=True)
                session = self._open_session()
            mode = self._scope.hints.get("mode") or self._sink.settled_mode(session.ask)
            if not tables.is_known(session.ask, self._place, self._scope.sink.prefix):
                # No driver has created them; this transaction sees them as soon as they exist.
                with self._sink.line("penstock", _UNDO_SECONDS) as line:
                    self._sink.settle(self._scope.sink.prefix, line, since=self._at)
            self._staged = mode != "two_phase"
            self._table = table
            self._inserted = None if self._staged else tables.inserted(session.ask, table)
        self._schema = schema
        self._name = staging_name(self._scope) if self._staged else writer_name(self._scope)
        if self._staged:
            definitions = ", ".join(f"{quoted(name)} {columns[name].definition}" for name in schema.names)
            staging = f"{self._place.own(self._name)} ({definitions})"
            with self._mapper.mapped("making a staging table"):
                session.run(f"CREATE TABLE {staging} WITH (autovacuum_enabled = false)")

    def _count(self, session: Session) -> None:
        """The client counts what it sent; a trigger may have dropped some of it silently."""
        assert self._table is not None
        if self._inserted is None:
            return
        there = (tables.inserted(session.ask, self._table) or 0) - self._inserted
        if there != self._total:
            raise self._mapper.not_all(self._total, there)

    def _load(self) -> None:
        if not self._waiting:
            return
        session = self._open_session()
        rows = pa.Table.from_batches(self._waiting)
        try:
            text = isinstance(session, TextSession)
            columns = [
                _changed(rows.column(name), way.as_text if text else way.as_binary)
                for name, way in self._routes.items()
            ]
        except (Unstorable, pa.ArrowInvalid) as reason:
            raise self._mapper.error(DataError, str(reason)) from reason
        ready = pa.Table.from_arrays(columns, names=list(self._routes))
        place = self._place
        with self._mapper.mapped("loading rows", self._conflict):
            session.load(*((place.own_schema, self._name) if self._staged else (place.schema, place.table)), ready)
        self._total += self._rows
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _open_session(self) -> Session:
        if self._session is None:
            raise EpochError(
                "A PostgreSQL writer was used after it had been prepared or aborted.",
                safe="what it prepared is unchanged.",
                to_do="open a new writer for every task attempt.",
            )
        return self._session

    def _free(self, *, parked: bool) -> None:
        session, self._session = self._session, None
        if parked and isinstance(session, ArrowSession):
            session.park()
        elif session is not None:
            session.close()

    def _conflict(self, fault: Fault) -> PenstockError | None:
        """The error if another writer of this epoch holds the key, not an earlier attempt of the same task."""
        if not is_on_a_key(fault):
            return None
        scope = self._scope
        try:
            with self._sink.line("penstock", _UNDO_SECONDS) as line:
                transactions = self._dialect.transactions(line)
                live = line.ask(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state LIKE 'idle in%'",
                    application(scope.sink.prefix, scope.sink.generation, "writer"),
                )
        except client().psycopg.Error:
            return None
        others = [numbers_in(name, scope.sink.prefix) for name, _ in transactions]
        partitions = {numbers["partition"] for numbers in others if numbers and numbers["epoch"] == scope.epoch}
        # This session is among the live ones: its transaction has failed, but not yet ended.
        if partitions - {scope.partition} or (not partitions and live[0][0] > 1):
            return same_key(self._mapper, fault)
        return None


def _changed(column: pa.ChunkedArray, change: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    return pa.chunked_array([change(chunk) for chunk in column.chunks])
