"""MySQL and MariaDB as a `Dialect`: XA transactions, staging tables dropped after the move's COMMIT.

A writer inserts its marker as the first thing in its transaction. InnoDB shows a row that is not committed yet to READ
UNCOMMITTED, so one table answers everything (docs/how-to/mysql.md has the answers), for live and for prepared
transactions and after a crash of the server. That asks no right but SELECT, and leaves no gap: InnoDB takes the marker
away only with everything else that the transaction wrote.

A successful `XA COMMIT` is proof. Anything else is not: error 1397 means finished, or unknown, or still owned by a
connection, so the marker decides, and while it is open the commit is sent again. A transaction that was rolled back
can reappear after a crash of the server; it is never committed, and the next sweep rolls it back again.

A DROP ends a transaction here, so a staging table goes after the COMMIT, and one that is still there may be committed:
its marker is read before it is moved. `at` and `pruned` are the server's time as text, in UTC, which sorts like
time."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import Leftover
from penstock.deadline import Deadline
from penstock.errors import SystemUnavailable
from penstock.sinks.mysql import session as server
from penstock.sinks.mysql.session import ServerError, Session
from penstock.sinks.mysql.sink import MySqlSink
from penstock.sinks.mysql.tables import Names, two_phase_refusal
from penstock.sinks.sql.dialect import MARKERS, SINKS, Dialect, Proof, leftovers, name_of
from penstock.sinks.sql.tables import quoted

log = logging.getLogger(__name__)

_POLL = 0.005
#: Seconds for a DROP that waits for a writer to notice that it is fenced; then its connection is ended.
_DROP_SECONDS = 2
_TABLES = {
    MARKERS: "(sink VARCHAR(100) NOT NULL, writer VARCHAR(64) NOT NULL, epoch BIGINT NOT NULL,"
    " generation BIGINT NOT NULL, connection BIGINT UNSIGNED NOT NULL, at DATETIME(6) NOT NULL,"
    " since DATETIME(6) NOT NULL, PRIMARY KEY (sink, writer)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    SINKS: "(sink VARCHAR(100) NOT NULL, generation BIGINT NOT NULL, fence BIGINT NOT NULL,"
    " pruned DATETIME(6) NOT NULL, PRIMARY KEY (sink)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that is neither committed nor rolled back, begun in `connection` at `since`."""

    connection: int
    since: str


class MySqlDialect(Dialect[Session]):
    """One sink on its server. Its writers use it too."""

    raises_what_stays = False  # a decided epoch waits for a dropped table to come back

    def __init__(self, sink: MySqlSink, names: Names) -> None:
        self.sink, self.names = sink, names
        self.generation = names.generation
        self.mapper = server.mapper(sink.where, names.table)
        self._markers, self._sinks = names.quoted(MARKERS), names.quoted(SINKS)
        self._others: dict[tuple[str, str], MySqlDialect] = {}

    def connect(self, deadline: Deadline) -> Session:
        return Session(self.sink, seconds=deadline.remaining())

    def elsewhere(self, payload: Mapping[str, Any]) -> MySqlDialect | None:
        database, table = payload.get("target") or self.names.target
        if [database, table] == self.names.target:
            return None
        if (database, table) not in self._others:
            names = replace(self.names, database=database, table=table)
            self._others[database, table] = MySqlDialect(self.sink, names)
        return self._others[database, table]

    # The sink's own tables

    def mode(self, connection: Session) -> str:
        if self.sink.mode != "auto":
            return self.sink.mode
        return "staged" if two_phase_refusal(connection) else "two_phase"

    def set_up(self, connection: Session, since: str | None = None) -> None:
        """Nothing can be proven then about writers that began before `since` (default: now)."""
        there = connection.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)",
            [self.names.database, *_TABLES],
        )
        if len(there) < len(_TABLES):
            for table, columns in _TABLES.items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {self.names.quoted(table)} {columns}")
        if not connection.query(f"SELECT 1 FROM {self._sinks} WHERE sink = %s", [self.names.sink]):
            connection.execute(
                f"INSERT IGNORE INTO {self._sinks} VALUES (%s, 0, 0, %s - INTERVAL 1 MICROSECOND)",
                [self.names.sink, since or self.now(connection)],
            )

    def now(self, session: Session) -> str:
        """The server's time, by which writers are compared with pruned markers."""
        return str(session.query("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")[0][0])

    def insert(self, session: Session, writer: str, epoch: int, at: str) -> None:
        session.execute(
            f"INSERT INTO {self._markers} VALUES (%s, %s, %s, %s, CONNECTION_ID(), %s, UTC_TIMESTAMP(6))",
            [self.names.sink, writer, epoch, self.generation, at],
        )

    def read_fence(self, connection: Session) -> int | None:
        found = connection.query(f"SELECT fence FROM {self._sinks} WHERE sink = %s", [self.names.sink])
        return int(found[0][0]) if found else None

    def fence(self, connection: Session) -> int:
        """Sessions are ended by `rollback`, which identifies live writers by their markers."""
        connection.execute(
            f"UPDATE {self._sinks} SET fence = fence + 1, generation = %s WHERE sink = %s AND generation <= %s",
            [self.generation, self.names.sink, self.generation],
        )
        return 0

    def prove(self, connection: Session, writers: Collection[str]) -> Proof:
        is_open, marked = self._look(connection, writers)
        found = connection.query(f"SELECT CAST(pruned AS CHAR) FROM {self._sinks} WHERE sink = %s", [self.names.sink])
        return Proof(marked, str(found[0][0]) if found else None, is_open.keys())

    def prune(self, connection: Session, before: int) -> None:
        old = connection.query(
            f"SELECT writer, CAST(at AS CHAR) FROM {self._markers} WHERE sink = %s AND epoch < %s AND generation <= %s",
            [self.names.sink, before, self.generation],
        )
        if not old:
            return
        connection.execute("START TRANSACTION")
        connection.execute(
            f"UPDATE {self._sinks} SET pruned = GREATEST(pruned, %s) WHERE sink = %s",
            [max(str(at) for _, at in old), self.names.sink],
        )
        # By their keys: a range would wait for the transactions that are open now.
        connection.execute(
            f"DELETE FROM {self._markers} WHERE sink = %s AND writer IN ({_places(old)})",
            [self.names.sink, *(str(writer) for writer, _ in old)],
        )
        connection.execute("COMMIT")

    def _look(self, session: Session, writers: Collection[str] | None = None) -> tuple[dict[str, Open], set[str]]:
        """The open transactions of this sink, or of `writers`, and the committed writers."""
        if writers is not None and not writers:
            return {}, set()
        some = "" if writers is None else f" AND writer IN ({_places(writers)})"
        values = [self.names.sink, *(writers or ())]
        asked = f"SELECT writer, connection, CAST(since AS CHAR) FROM {self._markers} WHERE sink = %s{some}"
        session.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        seen = session.query(asked, values)
        # Second, so that a transaction committed in between counts as committed.
        visible = {str(row[0]) for row in session.query(asked, values)}
        return {
            str(writer): Open(int(at), str(since)) for writer, at, since in seen if str(writer) not in visible
        }, visible

    # XA transactions

    def prepare(self, writer: str) -> Sequence[str]:
        return f"XA END {self.names.xid(writer)}", f"XA PREPARE {self.names.xid(writer)}"

    def prepared(self, connection: Session, writers: Collection[str]) -> set[str]:
        return set(self._look(connection, writers)[0])

    def commit(self, connection: Session, writer: str) -> bool:
        try:
            connection.execute(f"XA COMMIT {self.names.xid(writer)}")
        except ServerError as error:
            if error.lost:
                raise
            return False
        return True

    def rollback(self, connection: Session, prepared: Collection[str], staged: Collection[str]) -> None:
        """Also rolls back a move of `staged` that a driver holds open."""
        refused: set[str] = set()
        while still := self._look(connection, {*prepared, *staged})[0]:
            if connection.deadline.passed():
                raise SystemUnavailable(
                    f"{len(still)} open transactions on {self.names.table} could not be rolled back in time, among "
                    f"them {min(still)}.",
                    safe="their rows stay invisible; the locks they hold keep others waiting.",
                    to_do="see XA RECOVER and the server's process list; the next start of the job retries.",
                )
            # A move is never prepared, and its user may lack the right to list prepared transactions.
            in_xa = self._recovered(connection) if any(name not in staged for name in still) else set()
            for name, transaction in still.items():
                if name not in in_xa or (not self._roll_back(connection, name) and name in refused):
                    _cut(connection, transaction)  # live, or prepared and its connection does not close
                refused |= {name} & in_xa
            time.sleep(_POLL)
        self._drop(connection, staged)

    def recover(self, connection: Session) -> Sequence[Leftover]:
        is_open = self._look(connection)[0]
        began = {
            name: datetime.fromisoformat(transaction.since).replace(tzinfo=UTC).timestamp()
            for name, transaction in is_open.items()
        }
        return leftovers({**dict.fromkeys(self._staging_tables(connection)), **began}, self.names.numbers_in)

    def _recovered(self, session: Session) -> set[str]:
        """The writers of this sink whose transactions are prepared, of every generation."""
        found = set()
        for _, first, second, data in session.query("XA RECOVER"):
            text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
            if text[: int(first)] == self.names.global_id:
                found.add(text[int(first) : int(first) + int(second)])
        return found

    def _roll_back(self, session: Session, writer: str) -> bool:
        try:
            session.execute(f"XA ROLLBACK {self.names.xid(writer)}")
        except ServerError as error:
            if error.code != server.XA_UNKNOWN:
                raise
            return False
        return True

    # Staging tables

    def begin(self, connection: Session, writers: Collection[str], *, decided: bool) -> set[str]:
        there = self._staging_tables(connection) & set(writers)  # first: a table goes only after its marker came
        if decided:
            is_open, marked = self._look(connection, writers)
            self._drop_moved(connection, there & marked)
            there -= marked
            for transaction in is_open.values():
                _cut(connection, transaction)  # a driver that tried the move and was cut off, or was replaced
        connection.execute("START TRANSACTION")
        return there

    def mark(self, connection: Session, committable: Committable, epoch: int) -> None:
        try:
            self.insert(connection, name_of(committable), epoch, committable.payload["at"])
        except ServerError as error:
            if error.code != server.DUPLICATE:
                raise
            # Not a constraint violation: another driver has just committed the move; the next try finds that out.
            raise ServerError(0, f"{name_of(committable)} was moved meanwhile") from error

    def move(self, connection: Session, committable: Committable) -> int:
        payload, target = committable.payload, self.names.quoted(self.names.table)
        columns = [quoted(name, "`") for name in payload["columns"]]
        key = {name.lower() for name in payload["key"]}
        # Read in the order of loading, so of several rows with one key the last one stays.
        source = ", ".join(f"s.{column}" for column in columns)
        text = f"INSERT INTO {target} ({', '.join(columns)}) SELECT {source}"
        text += f" FROM {self.names.quoted(name_of(committable))} AS s"
        if key:
            rest = [column for column, name in zip(columns, payload["columns"], strict=True) if name.lower() not in key]
            changes = ", ".join(f"{target}.{column} = s.{column}" for column in rest or columns[:1])
            text += f" ON DUPLICATE KEY UPDATE {changes}"
        return connection.execute(text)

    def count(self, connection: Session, writer: str) -> int:
        return int(connection.query(f"SELECT COUNT(*) FROM {self.names.quoted(writer)}")[0][0])

    def finish(self, connection: Session, writers: Collection[str]) -> None:
        connection.execute("COMMIT")
        self._drop_moved(connection, writers)

    def _staging_tables(self, session: Session) -> set[str]:
        found = session.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
            [self.names.database, self.names.staging_prefix.replace("_", "\\_") + "%"],
        )
        return {str(name) for (name,) in found}

    def _drop_moved(self, session: Session, tables: Collection[str]) -> None:
        try:
            self._drop(session, tables)
        except ServerError as error:
            log.warning("the next sweep drops staging tables of %s: %s", self.names.table, error.text)

    def _drop(self, session: Session, tables: Collection[str]) -> None:
        if not tables:
            return
        statement = f"DROP TABLE IF EXISTS {', '.join(self.names.quoted(table) for table in sorted(tables))}"
        session.execute(f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}")
        try:
            session.execute(statement)
        except ServerError as error:
            if error.code != server.LOCK_TIMEOUT:
                raise
            for connection, running in session.query(
                "SELECT id, info FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND info IS NOT NULL"
            ):
                if any(table in str(running) for table in tables):
                    _kill(session, int(connection))
            session.execute(statement)


def _cut(session: Session, transaction: Open) -> None:
    """End its connection, unless its number is of an earlier start of the server and may be in use again."""
    [(_, uptime)] = session.query("SHOW GLOBAL STATUS LIKE 'Uptime'")
    [(younger,)] = session.query("SELECT UTC_TIMESTAMP(6) - INTERVAL %s SECOND < %s", [int(uptime), transaction.since])
    if younger:
        _kill(session, transaction.connection)


def _kill(session: Session, connection: int) -> None:
    """End another connection of this user; it may be gone already."""
    try:
        session.execute(f"KILL CONNECTION {int(connection)}")
    except ServerError as error:
        if error.code != server.NO_SUCH_THREAD:
            raise


def _places(values: Iterable[object]) -> str:
    return ", ".join("%s" for _ in values)
