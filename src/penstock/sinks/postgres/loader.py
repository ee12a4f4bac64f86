"""A task's connection: one transaction, into which rows are loaded column by column.

Rows travel as binary COPY made from Arrow by ADBC. Columns that only have a text form (inet, ranges, geometry, …) make
the whole table go as COPY's CSV instead, which takes about three times as long.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from penstock.sinks.postgres.connection import Server, client
from penstock.sinks.sql.names import quoted

if TYPE_CHECKING:
    import pyarrow as pa


#: A writer's last look at its fence must show what is there now, whatever the server's default is.
_ISOLATION = "ISOLATION LEVEL READ COMMITTED"


class Session(ABC):
    """A connection inside a transaction. Used by one thread."""

    @abstractmethod
    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement with `$1` parameters; its rows."""

    @abstractmethod
    def run(self, statement: str) -> None:
        """Run one statement without parameters or rows."""

    @abstractmethod
    def load(self, schema: str, table: str, rows: pa.Table) -> None:
        """COPY `rows` into a table, by column name."""

    @abstractmethod
    def close(self) -> None:
        """Free the connection; what is not committed or prepared is gone."""


class ArrowSession(Session):
    """Over ADBC. Its connections are slow to make (the driver reads the server's types first), so one that ended its
    transaction in order is kept for the next writer of this process."""

    def __init__(self, server: Server) -> None:
        self._where = server.libpq()
        self._connection = _POOL.take(self._where)
        self._cursor = self._connection.cursor()
        _POOL.lent(self)

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
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
        _close(self._cursor)
        _close(self._connection)


class TextSession(Session):
    """Over psycopg, with COPY in CSV."""

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
    import pyarrow as pa
    from pyarrow import csv

    for number, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            # Row by row, because Arrow has no such function; only tables with both kinds of columns come here.
            values = [None if value is None else "\\x" + value.hex() for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.name, pa.array(values, pa.string()))
    out = io.BytesIO()
    csv.write_csv(rows, out, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return out.getbuffer()


class _Pool:
    """Connections between two tasks of this process; a forked child forgets what it inherited."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[str, list[Any]] = {}
        self._lent: weakref.WeakSet[ArrowSession] = weakref.WeakSet()
        # Not left to the garbage collector: at the end of the process it may close a connection before its cursor, or
        # after the client's modules are gone, and the client tells that to the terminal.
        atexit.register(self.close)

    def lent(self, session: ArrowSession) -> None:
        with self._lock:
            self._lent.add(session)

    def close(self) -> None:
        """Close whatever this process has opened; what is not committed or prepared is rolled back by the server."""
        with self._lock:
            ours = self._pid == os.getpid()
            idle, self._idle = self._idle, {}
            lent, self._lent = list(self._lent), weakref.WeakSet()
        if ours:  # what was inherited is the parent's: closing it would end the parent's transactions
            for session in lent:
                session.close()
            for connection in [each for group in idle.values() for each in group]:
                _close(connection)

    def take(self, where: str) -> Any:
        """A connection inside a new transaction."""
        while (connection := self._next(where)) is not None:
            try:
                connection.rollback()  # the driver does not know that its last transaction has ended
                return _begun(connection)
            except client().dbapi.Error:  # the server has gone meanwhile, and perhaps come back
                _close(connection)
        return _begun(client().adbc.connect(where, autocommit=False))

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
        cursor.execute(f"SET TRANSACTION {_ISOLATION}")
    return connection


def _close(thing: Any) -> None:
    with contextlib.suppress(Exception):
        thing.close()


_POOL = _Pool()
