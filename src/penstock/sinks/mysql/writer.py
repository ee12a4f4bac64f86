"""One task's hand on the table: rows in, a prepared XA transaction or a full staging table out."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import PenstockError
from penstock.sinks.mysql import faults, tables
from penstock.sinks.mysql.encode import Statement
from penstock.sinks.mysql.faults import SYSTEM, ServerError
from penstock.sinks.mysql.kinds import of_arrow
from penstock.sinks.mysql.loading import Loader
from penstock.sinks.mysql.markers import Markers
from penstock.sinks.mysql.names import Names
from penstock.sinks.mysql.session import Login, Session
from penstock.sinks.mysql.tables import Table
from penstock.sinks.sql.faults import fenced
from penstock.sinks.sql.keys import require_values

if TYPE_CHECKING:
    import pyarrow as pa

_UNDO_SECONDS = 10.0
_LOAD_SECONDS = 120.0  # for an answer to some megabytes of rows

Ready = Callable[[Session, Names, tables.Given], Table]
"""The sink's own: the table for rows of such columns, compared and, where it may be, created."""


class MySqlWriter(Writer):
    """What both ways share. The connection is opened with the first batch, closed by `pre_commit` or `abort`."""

    def __init__(self, login: Login, scope: WriterScope, names: Names, ready: Ready) -> None:
        self._login, self._scope, self._names, self._ready = login, scope, names, ready
        self._markers = Markers(names)
        self._session: Session | None = None
        self._loader: Loader | None = None
        self._at = ""
        self.name = ""
        self._prepared = False

    def write(self, batch: pa.RecordBatch) -> None:
        with self._named("loading rows"):
            if self._loader is None:
                self._loader = self._begin(batch.schema)
            self._loader.add(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        session = self._session
        if session is None or self._loader is None:
            return {"how": None}  # no rows, nothing to commit
        with self._named("preparing"):
            self._loader.flush()
            fence = self._scope.hints.get("fence")
            # Last: what a sweep did not see, because it came first, refuses itself here.
            if fence is not None and self._markers.fence(session) != fence:
                raise fenced(SYSTEM, self.name)
            payload = self._prepare(session)
        # The server lets nobody else end the transaction while its connection is open.
        session.close()
        self._session, self._prepared = None, True
        return payload

    def abort(self) -> None:
        """Also after pre_commit, as long as no driver has seen the committable."""
        session, self._session, self._loader = self._session, None, None
        with contextlib.suppress(ServerError, PenstockError):  # what is left, the driver's sweep finds
            if self._prepared:
                self._prepared = False
                session = Session(self._login, seconds=_UNDO_SECONDS)
            if session is not None and session.open and self.name:
                self._undo(session)
        if session is not None:
            session.close()

    @abstractmethod
    def _undo(self, session: Session) -> None:
        """Give up what was begun, or prepared."""

    def _begin(self, schema: pa.Schema) -> Loader:
        # A whole wait for locks fits into it, twice.
        session = self._session = Session(self._login, seconds=2 * self._login.lock_timeout + _LOAD_SECONDS)
        kinds = tuple(of_arrow(field.name, field.type) for field in schema)
        table = self._ready(session, self._names, list(zip(schema.names, kinds, strict=True)))
        columns = tuple(table.spelt(name) for name in schema.names)
        self._at = self._markers.now(session)
        if self._scope.hints.get("fence") is None:  # no driver came before us
            self._markers.create(session, since=self._at)
        into = self._open(session, table, columns)
        return Loader(session, Statement(into, columns, kinds), self._names.table)

    @abstractmethod
    def _open(self, session: Session, table: Table, columns: tuple[str, ...]) -> str:
        """Begin; the table that rows are loaded into, quoted."""

    @abstractmethod
    def _prepare(self, session: Session) -> Mapping[str, Any]:
        """Leave everything durable and invisible; what a commit needs to know."""

    def _named(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return faults.named(self._login.where, self._names.table, doing)


class XaWriter(MySqlWriter):
    """Loads into the table itself, inside an XA transaction. After `pre_commit` the rows are durable and invisible,
    whether this process, its connection or the server lives or not."""

    def _open(self, session: Session, table: Table, columns: tuple[str, ...]) -> str:
        self.name = self._names.branch(self._scope)
        try:
            self._start(session)
        except ServerError as error:
            if error.code != faults.NO_TABLE:
                raise
            session.execute(f"XA END {self._xid}")
            session.execute(f"XA ROLLBACK {self._xid}")
            self._markers.create(session, since=self._at)
            self._start(session)
        return self._names.quoted(self._names.table)

    def _start(self, session: Session) -> None:
        session.execute(f"XA START {self._xid}")
        scope = self._scope
        self._markers.insert(session, self.name, scope.epoch, scope.sink.generation, self._at)

    def _prepare(self, session: Session) -> Mapping[str, Any]:
        session.execute(f"XA END {self._xid}")
        session.execute(f"XA PREPARE {self._xid}")
        return {"how": "xa", "writer": self.name, "xid": self._xid, "at": self._at, "table": self._names.target}

    @property
    def _xid(self) -> str:
        return self._names.xid(self.name)

    def _undo(self, session: Session) -> None:
        with contextlib.suppress(ServerError):  # it may be past its end already
            session.execute(f"XA END {self._xid}")
        session.execute(f"XA ROLLBACK {self._xid}")


class StagedWriter(MySqlWriter):
    """Loads into a table of its own, an ordinary InnoDB one: it must outlive a crash of the server, since the decision
    to move its rows may have been made by then."""

    def __init__(self, login: Login, scope: WriterScope, names: Names, ready: Ready, key: tuple[str, ...] = ()) -> None:
        super().__init__(login, scope, names, ready)
        self._key = key
        self._columns: tuple[str, ...] = ()

    def write(self, batch: pa.RecordBatch) -> None:
        own = {name.lower() for name in self._key}
        require_values(batch, [name for name in batch.schema.names if name.lower() in own], SYSTEM, self._names.table)
        super().write(batch)

    def _open(self, session: Session, table: Table, columns: tuple[str, ...]) -> str:
        wanted = set(columns)
        definitions = [
            definition
            for column, definition in zip(table.columns, table.definitions, strict=True)
            if column.name in wanted
        ]
        name, self._columns = self._names.staging(), columns
        session.execute(
            f"CREATE TABLE {self._names.quoted(name)} ({', '.join(definitions)}) ENGINE=InnoDB CHARACTER SET utf8mb4"
        )
        self.name = name
        return self._names.quoted(name)

    def _prepare(self, session: Session) -> Mapping[str, Any]:
        assert self._loader is not None
        return {
            "how": "staged",
            "writer": self.name,
            "epoch": self._scope.epoch,
            "columns": list(self._columns),
            "key": list(self._key),
            "rows": self._loader.rows,
            "at": self._at,
            "table": self._names.target,
        }

    def _undo(self, session: Session) -> None:
        session.execute(f"DROP TABLE IF EXISTS {self._names.quoted(self.name)}")
