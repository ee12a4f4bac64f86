"""Moving staging tables into the target, all of an epoch in one transaction, with their markers.

| marker | staging table | means |
|---|---|---|
| there | any | committed; the table may go |
| no | there | prepared: move it now |
| no | gone | lost, unless the marker may have been pruned |

The move is tried before the decision, and the transaction left open across it: rows that break a rule of the target
are found while the epoch can still fail, and the commit is one COMMIT. Should the driver die in between, the server
rolls back, and the tables are still there to be moved again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.sinks.mysql import faults
from penstock.sinks.mysql.faults import SYSTEM, ServerError
from penstock.sinks.mysql.markers import Markers, kill
from penstock.sinks.mysql.names import Names
from penstock.sinks.mysql.session import Session
from penstock.sinks.sql.faults import failed
from penstock.sinks.sql.names import quoted

if TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable

#: Seconds for a DROP that waits for a writer to notice that it is fenced; then its connection is ended.
_DROP_SECONDS = 2


def there(session: Session, names: Names) -> set[str]:
    """The staging tables of this sink, of every generation."""
    found = session.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
        [names.database, names.staging_prefix.replace("_", "\\_") + "%"],
    )
    return {str(name) for (name,) in found}


def move(session: Session, names: Names, markers: Markers, epoch: int, committables: Sequence[Committable]) -> None:
    """Begin a transaction and put all rows and markers into it; left open. On an error it is rolled back."""
    session.execute("START TRANSACTION")
    try:
        for one in committables:  # the markers first: whoever else moves one of these meets us here
            markers.insert(session, _name(one), epoch, names.generation, one.payload["at"])
        for one in committables:
            taken = session.execute(_statement(names, one))
            if not one.payload["key"] and taken != one.payload["rows"]:
                raise failed(
                    SYSTEM, names.table, "moving rows",
                    f"the staging table {_name(one)} has {taken} rows, {one.payload['rows']} were loaded",
                )  # fmt: skip
    except BaseException:
        rollback(session)
        raise


def rollback(session: Session) -> None:
    if session.open:
        try:
            session.execute("ROLLBACK")
        except ServerError:
            session.close()  # which rolls back as well


def drop(session: Session, names: Names, tables: Collection[str]) -> None:
    """Remove staging tables. A connection that still writes into one of them is ended."""
    if not tables:
        return
    statement = f"DROP TABLE IF EXISTS {', '.join(names.quoted(table) for table in sorted(tables))}"
    session.execute(f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}")
    try:
        session.execute(statement)
    except ServerError as error:
        if error.code != faults.LOCK_TIMEOUT:
            raise
        for connection, running in session.query(
            "SELECT id, info FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND info IS NOT NULL"
        ):
            if any(table in str(running) for table in tables):
                kill(session, int(connection))
        session.execute(statement)


def _statement(names: Names, one: Committable) -> str:
    columns = [quoted(name, "`") for name in one.payload["columns"]]
    listed = ", ".join(columns)
    key = {name.lower() for name in one.payload["key"]}
    # Read in the order of loading, so of several rows with one key the last one stays.
    source = ", ".join(f"s.{column}" for column in columns)
    text = f"INSERT INTO {names.quoted(names.table)} ({listed}) SELECT {source} FROM {names.quoted(_name(one))} AS s"
    if not key:
        return text
    rest = [column for column, name in zip(columns, one.payload["columns"], strict=True) if name.lower() not in key]
    target = names.quoted(names.table)
    changes = ", ".join(f"{target}.{column} = s.{column}" for column in rest or columns[:1])
    return f"{text} ON DUPLICATE KEY UPDATE {changes}"


def _name(one: Committable) -> str:
    return str(one.payload["writer"])
