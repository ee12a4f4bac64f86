"""`PostgresSink`: rows into a PostgreSQL table, visible once and only once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline, seconds
from penstock.errors import AccessDenied, SystemUnavailable, TableMissing
from penstock.sinks.postgres.connection import NOW, Line, Place, Server, client, mapper
from penstock.sinks.sql.tables import MODES, SqlMode, check_mode, require_key, split_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


log = logging.getLogger(__name__)

_CONNECT_SECONDS = 30.0
_MAKING = 0x50454E53  # the advisory lock under which tables are created: IF NOT EXISTS alone still races

#: Targets that this process has compared with a schema, and whether in this run; writers notice later changes.
_met: dict[tuple[str, str, str], bool] = {}


class PostgresSink(TwoPhaseSink):
    """Exactly once into a PostgreSQL table.

        PostgresSink("postgresql://app@db/shop", table="public.orders", password=…)
        PostgresSink(host="db", dbname="shop", user="app", table="orders", mode="upsert", key=["id"])

    The server is a URL, libpq's `key=value` string, or keywords; passwords may also come from `PGPASSWORD` or libpq's
    password file, on the driver and on every machine that runs tasks. They never appear in a message, a log or the
    ledger.

    `mode` says how an epoch becomes visible:

    - `two_phase`: one prepared transaction per writer. Needs `max_prepared_transactions` of at least the number of
      partitions that have rows. The fastest. Writers appear one after the other, within milliseconds.
    - `staged`: writers load staging tables; the driver moves all of them and writes the markers in one transaction. For
      servers without prepared transactions. Rows are written twice; an epoch appears at one instant.
    - `upsert`: staged, and the move inserts or updates by `key`, for which the table must have a unique index. Of
      several rows with one key in one epoch, the last of its partition counts.
    - `auto` (default): `two_phase` where the server allows it, else `staged`.

    With `create` a missing table is created from the DataFrame's schema in the first epoch. Columns are matched by
    name, and a difference is an error before the first row. Structs, maps and nested arrays become `jsonb`.

    The sink keeps two small tables and, in the staged modes, staging tables in `own_schema`, by default that of
    the table. A writer waits at most `lock_timeout` for a lock that another session holds.
    """

    def __init__(
        self,
        conninfo: str = "",
        *,
        table: str,
        mode: SqlMode = "auto",
        key: str | Sequence[str] = (),
        create: bool = True,
        own_schema: str | None = None,
        lock_timeout: str | float = "10s",
        **options: Any,
    ) -> None:
        self.server = Server(conninfo, {name: str(value) for name, value in options.items() if value is not None})
        schema, name = split_table(table, "PostgresSink")
        self.key: tuple[str, ...] = (key,) if isinstance(key, str) else tuple(key)
        check_mode("PostgresSink", mode, self.key)
        self.place = Place(schema or "public", name, own_schema or schema or "public")
        self.mode: SqlMode = mode
        self.create = create
        self.lock_seconds = seconds(lock_timeout, "lock_timeout")
        self._planned: StructType | None = None

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"PostgresSink({self.server!r}, table={str(self.place)!r}, mode={self.mode!r}{key})"

    def describe(self) -> str:
        return f"PostgreSQL table {self.place} at {self.server}"

    def link(self, uid: str) -> Link:
        return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"{MODES[self.mode]}; {self.describe()}")

    def redirected(self, suffix: str) -> PostgresSink:
        redirected = copy.copy(self)
        redirected.place = replace(self.place, table=f"{self.place.table}{suffix}")
        return redirected

    def shape(self, frame: DataFrame) -> DataFrame:
        """Nested columns become JSON. In an epoch the table is created if need be, and compared with the frame."""
        from penstock.sinks.postgres.types import column_type, goes_as_json
        from penstock.sinks.sql.tables import with_json

        for field in frame.schema.fields:
            column_type(field.dataType)
        require_key(str(self.place), [name for name in self.key if name not in frame.columns], frame.columns)
        self._planned = frame.schema
        shaped = with_json(frame, goes_as_json)
        if not frame.isStreaming:
            self._meet(frame.schema, shaped.schema)
        return shaped

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.postgres import tables

        return [Finding(uid, text) for text in tables.check(self, context, self._planned)]

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.postgres.writer import PostgresWriter

        return PostgresWriter(self, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.postgres.dialect import PostgresDialect
        from penstock.sinks.sql.committer import SqlCommitter

        _met.update({known: False for known in _met if known[:2] == self._identity})
        return SqlCommitter(PostgresDialect(self, scope))

    # For the writer and the committer

    def settled_mode(self, ask: Callable[..., list[tuple[Any, ...]]]) -> str:
        """`two_phase` or `staged`; `auto` is settled by what the server allows."""
        if self.mode != "auto":
            return "two_phase" if self.mode == "two_phase" else "staged"
        [(most,)] = ask("SELECT current_setting('max_prepared_transactions')::int")
        return "two_phase" if most > 0 else "staged"

    def missing_to_do(self) -> str:
        if self.create:
            return "start the job again, which creates it, or create it yourself."
        return "create it, or say create=True."

    def settle(self, prefix: str, line: Line, since: int | None = None) -> None:
        """Create the sink's own tables, and its row in them, if they are missing. Nothing can be proven then about
        writers that began before `since` (default: now). Raises psycopg's errors."""
        from penstock.sinks.postgres import tables

        if not tables.has_own_tables(line.ask, self.place):
            self._make(tables.own_tables(self.place), self.place.own_schema, line)
        if not tables.is_known(line.ask, self.place, prefix):
            new = f"INSERT INTO {self.place.sinks} (sink, generation, fence, pruned)"
            values = f"VALUES ($1, 0, 0, COALESCE($2::bigint, {NOW}) - 1)"
            line.ask(f"{new} {values} ON CONFLICT DO NOTHING", prefix, since)

    def _meet(self, schema: StructType, shaped: StructType) -> None:
        from penstock.sinks.postgres import tables

        identity = (*self._identity, schema.json())
        if _met.get(identity):
            return
        errors = mapper(self.server, str(self.place))
        try:
            with self.line("penstock", _CONNECT_SECONDS) as line, errors.mapped("reading the table"):
                table = tables.find(line.ask, self.place)
                if table is None:
                    if not self.create:
                        raise errors.error(TableMissing, to_do=self.missing_to_do())
                    new = tables.new_table(self.place, schema, self.key)
                    self._make((new,), self.place.schema, line)
                    log.info("created the PostgreSQL table %s: %s", self.place, new)
                else:
                    tables.fits(*tables.arrow_schema(schema, shaped), table, self.place)
        except SystemUnavailable:
            if identity not in _met:
                raise
            return  # it fitted before; an in-flight log may still take these rows
        _met[identity] = True

    def _make(self, statements: Sequence[str], schema: str, line: Line) -> None:
        try:
            line.begin(self.lock_seconds)
            line.ask("SELECT pg_advisory_xact_lock($1)", _MAKING)
            for statement in statements:
                line.ask(statement)
            line.ask("COMMIT")
        except client().psycopg.errors.InsufficientPrivilege as error:
            line.close()
            raise AccessDenied(
                f"This user may not create tables in the schema {schema!r} of {self.server}.",
                to_do=f"grant CREATE on the schema, or have an administrator run: {'; '.join(statements)}",
            ) from error
        except BaseException:
            line.close()
            raise

    def line(self, name: str, seconds: float) -> closing[Line]:
        """A connection with a deadline for all its statements, closed at the end of a `with` block."""
        return closing(Line(self.server, name, Deadline(seconds)))

    @property
    def _identity(self) -> tuple[str, str]:
        return f"{self.server!r}", str(self.place)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_planned": None}  # only the driver compares
