"""A task's side: rows in, a prepared XA transaction or a full staging table out.

    two_phase   XA START · marker · load into the table · fence · XA PREPARE            payload: the branch's name
    staged      CREATE staging · load into it · fence                                   payload: the table's name

A staging table is an ordinary InnoDB one: it must outlive a crash of the server, since the decision to move its rows
may have been made by then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import ConstraintViolated, DataError, PenstockError
from penstock.sinks.mysql.dialect import MySqlDialect
from penstock.sinks.mysql.session import NO_TABLE, SYSTEM, ServerError, Session, refused_rows
from penstock.sinks.mysql.tables import Names, RowColumns, Table
from penstock.sinks.mysql.types import CHUNK, bent, chunks, lines, load_statement, of_arrow
from penstock.sinks.sql.dialect import NOTHING, payload_of
from penstock.sinks.sql.tables import require_values

_UNDO_SECONDS = 10.0
_LOAD_SECONDS = 120.0  # for an answer to some megabytes of rows

Ready = Callable[[Session, Names, RowColumns], Table]
"""Returns the table for rows of these columns, compared and, if allowed, created."""


class MySqlWriter(Writer):
    """The connection is opened with the first batch, closed by `pre_commit` or `abort`. Rows travel in statements of
    some megabytes, and each must be stored exactly as it was sent."""

    def __init__(
        self, dialect: MySqlDialect, scope: WriterScope, ready: Ready, *, staged: bool, key: Sequence[str] = ()
    ) -> None:
        self._dialect, self._scope, self._ready, self._staged, self._key = dialect, scope, ready, staged, key
        self._names, self._mapper = dialect.names, dialect.mapper
        self._session: Session | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        self._columns: tuple[str, ...] = ()
        self._table: Table | None = None
        self._at = self.name = self._load = ""
        self._prepared = False

    def write(self, batch: pa.RecordBatch) -> None:
        keys = {name.lower() for name in self._key}
        require_values(batch, [name for name in batch.schema.names if name.lower() in keys], SYSTEM, self._names.table)
        with self._mapper.mapped("loading rows"):
            if not self._load:
                self._load = self._begin(batch.schema)
            self._require_kept(batch)
            for piece in chunks(batch):
                self._waiting.append(piece)
                self._bytes += piece.nbytes
                if self._bytes >= CHUNK:
                    self._flush()

    def pre_commit(self) -> Mapping[str, Any]:
        session = self._session
        if session is None or not self._load:
            return NOTHING
        with self._mapper.mapped("preparing"):
            self._flush()
            fence = self._scope.hints.get("fence")
            # Last: a writer that a sweep came too early to see fails here.
            if fence is not None and self._dialect.read_fence(session) != fence:
                raise self._mapper.fenced(self.name)
            if not self._staged:
                for statement in self._dialect.prepare(self.name):
                    session.execute(statement)
        # No other session can end the transaction while its connection is open.
        session.close()
        self._session, self._prepared = None, True
        target = self._names.target
        return payload_of(self._scope, self.name, self._at, self._rows, target, self._columns, self._key)

    def abort(self) -> None:
        """Also after pre_commit, as long as no driver has seen the committable."""
        session, self._session, self._load, self._waiting = self._session, None, "", []
        with contextlib.suppress(ServerError, PenstockError):  # the driver's sweep ends what remains
            if self._prepared:
                self._prepared = False
                session = Session(self._dialect.sink, seconds=_UNDO_SECONDS)
            if session is not None and session.open and self.name:
                self._undo(session)
        if session is not None:
            session.close()

    def _undo(self, session: Session) -> None:
        if self._staged:
            session.execute(f"DROP TABLE IF EXISTS {self._names.quoted(self.name)}")
            return
        with contextlib.suppress(ServerError):  # it may be past its end already
            session.execute(f"XA END {self._names.xid(self.name)}")
        session.execute(f"XA ROLLBACK {self._names.xid(self.name)}")

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        assert self._session is not None
        sent = sum(batch.num_rows for batch in waiting)
        arrived, warnings = self._session.load(self._load, (lines(batch) for batch in waiting))
        if warnings or arrived != sent:
            raise refused_rows(self._mapper, self._session.warnings(), sent, arrived)
        self._rows += sent

    def _begin(self, schema: pa.Schema) -> str:
        """Open the connection and what the rows go into; the statement that loads them."""
        # A whole wait for locks fits into it, twice.
        seconds = 2 * self._dialect.sink.lock_seconds + _LOAD_SECONDS
        session = self._session = Session(self._dialect.sink, seconds=seconds)
        kinds = tuple(of_arrow(field.name, field.type) for field in schema)
        table = self._ready(session, self._names, list(zip(schema.names, kinds, strict=True)))
        self._table, self._columns = table, tuple(table.spelt(name) for name in schema.names)
        self._at = self._dialect.now(session)
        if self._scope.hints.get("fence") is None:  # no driver has created the tables
            self._dialect.set_up(session, since=self._at)
        into = self._open_staging(session, table) if self._staged else self._open_transaction(session)
        return load_statement(self._names.quoted(into), self._columns, kinds)

    def _require_kept(self, batch: pa.RecordBatch) -> None:
        """Refuse values that the server would change without a warning."""
        assert self._table is not None
        by_name = {column.name: column for column in self._table.columns}
        for values, name in zip(batch.columns, self._columns, strict=True):
            column = by_name[name]
            null = values.null_count and not column.nullable and name.lower() in self._table.numbered
            what = "null would become a generated number" if null else bent(values, column)
            if what is not None:
                kind = ConstraintViolated if what.startswith("null") else DataError
                raise self._mapper.error(kind, f"column {name!r} is {column.type}: {what}.")

    def _open_staging(self, session: Session, table: Table) -> str:
        columns = zip(table.columns, table.definitions, strict=True)
        definitions = [definition for column, definition in columns if column.name in self._columns]
        name = self._names.staging()
        session.execute(
            f"CREATE TABLE {self._names.quoted(name)} ({', '.join(definitions)}) ENGINE=InnoDB CHARACTER SET utf8mb4"
        )
        self.name = name
        return name

    def _open_transaction(self, session: Session) -> str:
        """Begin an XA transaction that writes into the target itself; its name."""
        self.name = self._names.branch(self._scope)
        try:
            self._start(session)
        except ServerError as error:
            if error.code != NO_TABLE:
                raise
            self._undo(session)
            self._dialect.set_up(session, since=self._at)
            self._start(session)
        return self._names.table

    def _start(self, session: Session) -> None:
        session.execute(f"XA START {self._names.xid(self.name)}")
        self._dialect.insert(session, self.name, self._scope.epoch, self._at)
