"""The proof: `penstock_markers` and `penstock_sinks` in the target's database, as `penstock.sinks.sql.markers` says.

A writer inserts its marker as the first thing in its transaction, with the number of its connection. InnoDB shows a row
that is not committed yet to a reader who asks for READ UNCOMMITTED, so one table tells everything:

| read uncommitted | read committed | the transaction is |
|---|---|---|
| there | there | committed |
| there | no | still open: live in that connection, or prepared |
| no | no | rolled back, or its marker was pruned |

That holds for live and for prepared transactions and after a crash of the server, asks no right but SELECT, and leaves
no gap: InnoDB takes the marker away only with everything else that the transaction wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.sinks.mysql import faults
from penstock.sinks.mysql.faults import ServerError
from penstock.sinks.mysql.names import Names
from penstock.sinks.mysql.session import Session
from penstock.sinks.sql.markers import KEPT_EPOCHS, MARKERS, SINKS

_TABLES = {
    MARKERS: "(sink VARCHAR(100) NOT NULL, writer VARCHAR(64) NOT NULL, epoch BIGINT NOT NULL,"
    " generation BIGINT NOT NULL, connection BIGINT UNSIGNED NOT NULL, at DATETIME(6) NOT NULL,"
    " since DATETIME(6) NOT NULL, PRIMARY KEY (sink, writer)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    SINKS: "(sink VARCHAR(100) NOT NULL, generation BIGINT NOT NULL, fence BIGINT NOT NULL,"
    " pruned DATETIME(6) NOT NULL, PRIMARY KEY (sink)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
_NOTHING_PROVEN = "9999-12-31 23:59:59.999999"  # later than any writer


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that is neither committed nor rolled back, begun in `connection` at `since`."""

    writer: str
    generation: int
    connection: int
    since: str


class Markers:
    """The marker tables of one sink. Each call uses the session it is given; `ServerError` goes through."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._markers, self._sinks = names.quoted(MARKERS), names.quoted(SINKS)

    def create(self, session: Session, since: str | None = None) -> None:
        """Make the tables and this sink's row, where they are missing. Of writers that began before `since` (now, if it
        is None) nothing can be proven then: the tables may have been dropped, and their markers with them."""
        if self.missing(session):
            for table, columns in _TABLES.items():
                session.execute(f"CREATE TABLE IF NOT EXISTS {self._names.quoted(table)} {columns}")
        if not session.query(f"SELECT 1 FROM {self._sinks} WHERE sink = %s", [self._names.sink]):
            session.execute(
                f"INSERT IGNORE INTO {self._sinks} VALUES (%s, 0, 0, %s - INTERVAL 1 MICROSECOND)",
                [self._names.sink, since or self.now(session)],
            )

    def missing(self, session: Session) -> list[str]:
        there = session.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)",
            [self._names.database, *_TABLES],
        )
        return sorted(_TABLES.keys() - {str(name) for (name,) in there})

    def now(self, session: Session) -> str:
        """The server's time: writers are told apart from pruned markers by it."""
        return str(session.query("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")[0][0])

    def insert(self, session: Session, writer: str, epoch: int, generation: int, at: str) -> None:
        session.execute(
            f"INSERT INTO {self._markers} VALUES (%s, %s, %s, %s, CONNECTION_ID(), %s, UTC_TIMESTAMP(6))",
            [self._names.sink, writer, epoch, generation, at],
        )

    def committed(self, session: Session, writers: Collection[str]) -> set[str]:
        """Those of `writers` whose rows are visible."""
        if not writers:
            return set()
        found = session.query(
            f"SELECT writer FROM {self._markers} WHERE sink = %s AND writer IN ({_places(writers)})",
            [self._names.sink, *writers],
        )
        return {str(writer) for (writer,) in found}

    def open(self, session: Session, writers: Collection[str] | None = None) -> dict[str, Open]:
        """Transactions that are open now, by writer; of this sink, or only those of `writers`."""
        if writers is not None and not writers:
            return {}
        some = "" if writers is None else f" AND writer IN ({_places(writers)})"
        values = [self._names.sink, *(writers or ())]
        asked = f"SELECT writer, generation, connection, CAST(since AS CHAR) FROM {self._markers} WHERE sink = %s{some}"
        session.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        seen = session.query(asked, values)
        # Second, so that what is committed in between counts as committed.
        visible = {str(row[0]) for row in session.query(asked, values)}
        return {
            str(writer): Open(str(writer), int(generation), int(connection), str(since))
            for writer, generation, connection, since in seen
            if str(writer) not in visible
        }

    def pruned(self, session: Session) -> str:
        """No marker of a writer that began later was ever pruned, or dropped with its table."""
        found = session.query(f"SELECT CAST(pruned AS CHAR) FROM {self._sinks} WHERE sink = %s", [self._names.sink])
        return str(found[0][0]) if found else _NOTHING_PROVEN

    def prune(self, session: Session, epoch: int) -> None:
        """Forget the markers of epochs long before `epoch`, of this and older generations."""
        old = session.query(
            f"SELECT writer, CAST(at AS CHAR) FROM {self._markers} WHERE sink = %s AND epoch < %s AND generation <= %s",
            [self._names.sink, epoch - KEPT_EPOCHS, self._names.generation],
        )
        if not old:
            return
        session.execute("START TRANSACTION")
        session.execute(
            f"UPDATE {self._sinks} SET pruned = GREATEST(pruned, %s) WHERE sink = %s",
            [max(str(at) for _, at in old), self._names.sink],
        )
        # By their keys: a range would wait for the transactions that are open now.
        session.execute(
            f"DELETE FROM {self._markers} WHERE sink = %s AND writer IN ({_places(old)})",
            [self._names.sink, *(str(writer) for writer, _ in old)],
        )
        session.execute("COMMIT")

    def fence(self, session: Session) -> int:
        found = session.query(f"SELECT fence FROM {self._sinks} WHERE sink = %s", [self._names.sink])
        return int(found[0][0]) if found else 0

    def raise_fence(self, session: Session) -> None:
        """Writers that saw the fence before will refuse to prepare; a run that is not the newest changes nothing."""
        session.execute(
            f"UPDATE {self._sinks} SET fence = fence + 1, generation = %s WHERE sink = %s AND generation <= %s",
            [self._names.generation, self._names.sink, self._names.generation],
        )


def cut(session: Session, one: Open) -> None:
    """End its connection, unless that is of an earlier start of the server: then the server is still rolling back what
    a crash cut off, and the number may be somebody else's by now."""
    [(_, uptime)] = session.query("SHOW GLOBAL STATUS LIKE 'Uptime'")
    [(younger,)] = session.query("SELECT UTC_TIMESTAMP(6) - INTERVAL %s SECOND < %s", [int(uptime), one.since])
    if younger:
        kill(session, one.connection)


def kill(session: Session, connection: int) -> None:
    """End another connection of ours. That it is gone already is fine."""
    try:
        session.execute(f"KILL CONNECTION {int(connection)}")
    except ServerError as error:
        if error.code != faults.NO_SUCH_THREAD:
            raise


def _places(values: Iterable[object]) -> str:
    return ", ".join("%s" for _ in values)
