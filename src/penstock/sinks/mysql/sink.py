"""`MySqlSink`: rows into a table of MySQL or MariaDB, exactly once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import seconds
from penstock.errors import ConfigurationError
from penstock.sinks.mysql.session import Session
from penstock.sinks.sql.tables import MODES, SqlMode, check_length, check_mode, quoted, require_key, split_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.sinks.mysql.dialect import MySqlDialect
    from penstock.sinks.mysql.tables import Names, RowColumns, Table


@dataclass(frozen=True, repr=False, kw_only=True)
class MySqlSink(TwoPhaseSink):
    """Exactly once into one InnoDB table of MySQL (8.0 or later) or MariaDB (10.5 or later).

    * `mode="two_phase"`: each task loads into the table inside an XA transaction and leaves it prepared; the driver
      commits. The rows of one epoch become visible transaction by transaction, within milliseconds.
    * `mode="staged"`: each task loads a table of its own; the driver moves all of them in one transaction, so an epoch
      becomes visible at once. For servers without XA, and for rows of one epoch that lock each other out.
    * `mode="upsert"`: staged, and a row whose `key` is there already is updated. Needs a unique index on `key`. Of
      several rows with one key in one epoch, the last of its partition counts.
    * `mode="auto"` (default): two_phase where the server can, else staged.

    `table` is a name, or `database.table`. With `create` a missing one is made from the DataFrame's schema before the
    first row; nested columns become JSON. Columns are matched by name, and a difference is an error. Times are stored
    in UTC. A statement waits at most `lock_timeout` for a lock that another transaction holds.

    `options` are keyword arguments of pymysql (`ssl_ca`, `unix_socket`, …); they and the password never appear in a
    message, a log or the ledger.

    Two small tables, `penstock_markers` and `penstock_sinks`, are made in the same database: they prove commits.
    """

    shapes_once: ClassVar[bool] = True

    table: str
    host: str = "localhost"
    port: int = 3306
    user: str
    password: str = ""
    database: str = ""
    mode: SqlMode = "auto"
    key: str | Sequence[str] = ()
    create: bool = True
    lock_timeout: str | float = "10s"
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Name and kind of each column of the last DataFrame that was shaped.
    columns: RowColumns | None = field(default=None, init=False, compare=False)
    target: tuple[str, str] = field(init=False, compare=False)  # database and table

    def __post_init__(self) -> None:
        check_mode("MySqlSink", self.mode, self.keys)
        schema, table = split_table(self.table, "MySqlSink")
        if not (schema or self.database):
            raise ConfigurationError(
                "MySqlSink does not know the database of its table.",
                to_do="say database='shop', or table='shop.orders'.",
            )
        check_length("MySQL", table, len(table), 64, "characters")
        if self.lock_seconds < 1:
            raise ConfigurationError(
                f"lock_timeout is {self.lock_timeout}, but the server counts in whole seconds from 1.",
                to_do="give one second or more.",
            )
        object.__setattr__(self, "target", (schema or self.database, table))

    def __repr__(self) -> str:
        return f"MySqlSink(table={self.table!r}, host={self.host!r}, user={self.user!r}, mode={self.mode!r})"

    def describe(self) -> str:
        database, table = self.target
        return f"MySQL table {database}.{table} at {self.options.get('unix_socket') or f'{self.host}:{self.port}'}"

    def link(self, uid: str) -> Link:
        why = f"{MODES[self.mode]}, {self.describe()}; tested on MariaDB, on MySQL itself by hand only"
        return Link("sink", uid, Guarantee.EXACTLY_ONCE, why)

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.files.text import is_nested
        from penstock.sinks.mysql.types import of_spark
        from penstock.sinks.sql.tables import with_json

        # Remembered, because JSON is plain text by the time a writer sees it, and for `check`.
        columns = tuple((field.name, of_spark(field.name, field.dataType)) for field in frame.schema.fields)
        self._require_key_in(columns)
        object.__setattr__(self, "columns", columns)
        return with_json(frame, is_nested, decimals_as_text=True)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.mysql import tables

        dialect = self._dialect(SinkScope(context.job, uid, 0))
        with self._connected(dialect) as session:
            return [Finding(uid, text) for text in tables.findings(session, dialect, self, self.columns)]

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.mysql.writer import MySqlWriter

        dialect, mode = self._dialect(scope.sink), scope.hints.get("mode") or self.mode
        if mode == "auto":
            with self._connected(dialect) as session:
                mode = dialect.mode(session)
        return MySqlWriter(dialect, scope, self._ready, staged=mode != "two_phase", key=self.keys)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.sql.committer import SqlCommitter

        dialect = self._dialect(scope)
        with dialect.mapper.mapped("making its marker tables"):
            session = Session(self)
            try:
                dialect.set_up(session)
                return SqlCommitter(dialect, dialect.mode(session), session)
            except BaseException:
                session.close()
                raise

    def redirected(self, suffix: str) -> MySqlSink:
        """The same sink on another table, whose name has `suffix` behind it."""
        database, table = self.target
        return replace(self, table=f"{quoted(database, '`')}.{quoted(table + suffix, '`')}")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def where(self) -> str:
        """For messages; without secrets."""
        return f"{self.options.get('unix_socket') or f'{self.host}:{self.port}'}/{self.target[0]}"

    @property
    def lock_seconds(self) -> float:
        return seconds(self.lock_timeout, "lock_timeout")

    def _dialect(self, scope: SinkScope) -> MySqlDialect:
        from penstock.sinks.mysql.dialect import MySqlDialect
        from penstock.sinks.mysql.tables import Names

        return MySqlDialect(self, Names.of(scope, *self.target))

    @contextlib.contextmanager
    def _connected(self, dialect: MySqlDialect) -> Iterator[Session]:
        with dialect.mapper.mapped("connecting"), contextlib.closing(Session(self)) as session:
            yield session

    def _ready(self, session: Session, names: Names, columns: RowColumns) -> Table:
        """In a task, before its first row: the table, compared with the rows."""
        from penstock.sinks.mysql import tables

        if self.columns is not None and [name for name, _ in self.columns] == [name for name, _ in columns]:
            columns = self.columns  # knows JSON from text
        table = tables.fitting(session, names, columns, create=self.create, key=self.keys)
        if self.keys:
            self._require_key_in(columns)
            tables.require_key(tables.unique_keys(session, names), names, self.keys, table, columns)
        return table

    def _require_key_in(self, columns: RowColumns) -> None:
        missing = {name.lower() for name in self.keys} - {name.lower() for name, _ in columns}
        require_key(self.describe(), sorted(missing), [name for name, _ in columns])
