"""A task's side: rows into one transaction, and the transaction left prepared, or its staging table committed.

    two_phase   BEGIN · COPY into the table · marker · fence · PREPARE TRANSACTION      payload: the transaction's name
    staged      BEGIN · CREATE staging · COPY into it · fence · COMMIT                  payload: the table's name

A staging table is an ordinary, logged one. An unlogged one would be faster and empty after a crash of the server: a
decided epoch would be lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import DataError, EpochError, PenstockError, TableMissing
from penstock.sinks.postgres import catalog
from penstock.sinks.postgres.connection import SETTINGS, client
from penstock.sinks.postgres.dialect import PostgresDialect, application
from penstock.sinks.postgres.faults import SYSTEM, is_on_a_key, same_key
from penstock.sinks.postgres.loader import ArrowSession, Session, TextSession
from penstock.sinks.postgres.types import Route, Unstorable, route
from penstock.sinks.sql.dialect import NOTHING, payload_of
from penstock.sinks.sql.faults import Fault
from penstock.sinks.sql.names import literal, numbers_in, quoted, staging_name, writer_name
from penstock.sinks.sql.rows import require_values

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sinks.postgres.sink import PostgresSink

#: Rows and bytes that are gathered into one COPY: each costs about a millisecond of its own.
_ROWS, _BYTES = 100_000, 32 << 20
_UNDO_SECONDS = 10.0


class PostgresWriter(Writer):
    """Opening begins the transaction; the table is looked at with the first rows."""

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
        self._table: catalog.Table | None = None
        self._inserted: int | None = None
        self._prepared = False
        self._staged = False
        self._name = ""
        self._begin(text=False)

    def write(self, batch: pa.RecordBatch) -> None:
        self._mine()
        if self._schema is None:
            self._look(batch.schema)
        require_values(batch, self._sink.key, SYSTEM, str(self._place))
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _ROWS or self._bytes >= _BYTES:
            self._load()

    def pre_commit(self) -> Mapping[str, Any]:
        session = self._mine()
        self._load()
        if self._total == 0:
            self.abort()
            return NOTHING
        scope = self._scope
        with self._mapper.mapped("preparing", self._conflict):
            if not self._staged:
                self._count(session)
            if self._staged:
                fences = session.ask(f"SELECT fence FROM {self._place.sinks} WHERE sink = $1", scope.sink.prefix)
            else:
                fences = session.ask(
                    f"INSERT INTO {self._place.markers} (sink, writer, epoch, generation, at) "
                    f"VALUES ($1, $2, $3, $4, $5) RETURNING (SELECT fence FROM {self._place.sinks} WHERE sink = $1)",
                    scope.sink.prefix,
                    self._name,
                    scope.epoch,
                    scope.sink.generation,
                    self._at,
                )
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
            line = self._sink.line("penstock", _UNDO_SECONDS)
            with contextlib.suppress(client().psycopg.Error):  # gone already, or left for the driver's sweep
                line.ask(undo)
            line.close()

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
        """Compare the rows with the table, find a way for every column, and make the staging table."""
        session = self._mine()
        with self._mapper.mapped("reading the table"):
            table = catalog.find(session.ask, self._place)
            if table is None:
                raise self._mapper.error(TableMissing, to_do=self._sink.missing_to_do())
            catalog.fits(schema, [str(field.type) for field in schema], table, self._place)
            columns = {column.name: column for column in table.columns}
            self._routes = {field.name: route(field.type, columns[field.name]) for field in schema}
            if any(way.text_only for way in self._routes.values()):
                catalog.refuse_arrays(table, self._routes, self._place)
                self.abort()
                self._begin(text=True)
                session = self._mine()
            mode = self._scope.hints.get("mode") or self._sink.settled_mode(session.ask)
            if not catalog.is_known(session.ask, self._place, self._scope.sink.prefix):
                self._settle()
            self._staged = mode != "two_phase"
            self._table = table
            self._inserted = None if self._staged else catalog.inserted(session.ask, table)
        self._schema = schema
        self._name = staging_name(self._scope) if self._staged else writer_name(self._scope)
        if self._staged:
            made = ", ".join(f"{quoted(name)} {columns[name].definition}" for name in schema.names)
            with self._mapper.mapped("making a staging table"):
                session.run(f"CREATE TABLE {self._place.own(self._name)} ({made}) WITH (autovacuum_enabled = false)")

    def _count(self, session: Session) -> None:
        """The client counts what it sent; a trigger may have left some of that out, without a word."""
        assert self._table is not None
        if self._inserted is None:
            return
        there = (catalog.inserted(session.ask, self._table) or 0) - self._inserted
        if there != self._total:
            raise self._mapper.not_all(self._total, there)

    def _settle(self) -> None:
        """Where no driver came before us: the sink's own tables, seen by our transaction as soon as they are there."""
        line = self._sink.line("penstock", _UNDO_SECONDS)
        try:
            self._sink.settle(self._scope.sink.prefix, line, since=self._at)
        finally:
            line.close()

    def _load(self) -> None:
        if not self._waiting:
            return
        import pyarrow as pa

        session = self._mine()
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

    def _mine(self) -> Session:
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
        """Whether another writer of this epoch is in the way. An earlier attempt of the same task, which died after it
        had prepared, may be too: then the epoch replays, which ends that one."""
        if not is_on_a_key(fault):
            return None
        line = self._sink.line("penstock", _UNDO_SECONDS)
        scope = self._scope
        try:
            transactions = self._dialect.transactions(line)
            live = line.ask(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state LIKE 'idle in%'",
                application(scope.sink.prefix, scope.sink.generation, "writer"),
            )
        except client().psycopg.Error:
            return None
        finally:
            line.close()
        others = [numbers_in(name, scope.sink.prefix) for name, _ in transactions]
        partitions = {numbers["partition"] for numbers in others if numbers and numbers["epoch"] == scope.epoch}
        # Our own session is among the live ones: its transaction has failed, but not yet ended.
        if partitions - {scope.partition} or (not partitions and live[0][0] > 1):
            return same_key(self._mapper, fault)
        return None


def _changed(column: pa.ChunkedArray, change: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([change(chunk) for chunk in column.chunks])
