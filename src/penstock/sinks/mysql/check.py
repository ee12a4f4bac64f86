"""What must hold before a job may write, and what the server can do, asked from it; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import AccessDenied, ConfigurationError
from penstock.sinks.mysql import tables
from penstock.sinks.mysql.dialect import MySqlDialect
from penstock.sinks.mysql.faults import ALLOW_LOADING, ServerError

if TYPE_CHECKING:
    from penstock.sinks.mysql.session import Session
    from penstock.sinks.mysql.sink import MySqlSink
    from penstock.sinks.mysql.tables import Given, Names

#: Fewer free connections than this make a check warn: each task takes one, the driver up to five.
_FEW_CONNECTIONS = 12

_RECOVER_DENIED = {1227, 1401}
_GRANT = re.compile(r"GRANT (?P<rights>.+?) ON (?:TABLE )?(?P<where>\S+?) TO ", re.IGNORECASE)


def findings(session: Session, dialect: MySqlDialect, sink: MySqlSink, given: Given | None) -> list[str]:
    """What a person should know; raises what cannot work."""
    names = dialect.names
    with dialect.mapper.mapped("checking"):
        table = tables.read(session, names)
        if table is None and not sink.create:
            raise tables.missing(names)
        if table is not None:
            tables.require(table, names, given)
            if sink.keys:
                tables.require_key(tables.unique_keys(session, names), names, sink.keys, table, given or ())
        said = [*_product(session), *_mode(session, sink.mode)]
        said += _rights(session, dialect, sink, exists=table is not None)
        said += _settings(session)
        said += list(_cut_times(table, given))
        if table is None:
            tables.collation(session, given or (), sink.keys)
        else:
            said += tables.blurred(table, sink.keys)
        return said


def _product(session: Session) -> Iterator[str]:
    product, number = version(session)
    if product == "MySQL":
        yield (
            f"the server is MySQL {'.'.join(map(str, number))}: this sink is tested on MariaDB with every change, "
            "on MySQL only its contract was run, by hand, on 9.7"
        )


def _mode(session: Session, mode: str) -> Iterator[str]:
    if mode not in ("auto", "two_phase"):
        return
    refusal = two_phase_refusal(session)
    if refusal is None:
        return
    if mode == "two_phase":
        raise ConfigurationError(
            f"MySqlSink cannot commit in two phases at {session.login.where}: {refusal}.",
            safe="nothing was started.",
            to_do="say mode='staged', which needs no prepared transactions, or change the server.",
        )
    yield f"epochs are staged, not prepared as XA transactions: {refusal}"


def _rights(session: Session, dialect: MySqlDialect, sink: MySqlSink, *, exists: bool) -> list[str]:
    """The rights that the server shows us; a role may hide some, so then it is only a warning."""
    names = dialect.names
    granted, complete = rights(session, names)
    needed = {"SELECT", "INSERT"} | ({"UPDATE"} if sink.keys else set())
    missing = needed - granted["table"]
    on_database = {"SELECT", "INSERT", "UPDATE", "DELETE"}
    if dialect.missing(session) or not exists:
        on_database |= {"CREATE"}
    if sink.mode in ("staged", "upsert"):
        on_database |= {"CREATE", "DROP"}
    missing |= {f"{right} on the database" for right in on_database - granted["database"]}
    if not missing or "ALL PRIVILEGES" in granted["table"] & granted["database"]:
        return []
    text = f"the user lacks rights on {names.database}: {', '.join(sorted(missing))}"
    if not complete:
        return [f"{text}, unless a role grants them"]
    raise AccessDenied(
        f"For {sink.describe()}, {text}.",
        safe="nothing was started.",
        to_do=f"GRANT them ON {names.database}.*, where Penstock keeps its marker and staging tables.",
    )


def rights(session: Session, names: Names) -> tuple[dict[str, set[str]], bool]:
    """What is granted on the table and on the whole database; whether that is all there is to know."""
    granted: dict[str, set[str]] = {"table": set(), "database": set()}
    complete = True
    for (line,) in session.query("SHOW GRANTS"):
        match = _GRANT.match(str(line))
        if match is None:
            complete = False  # a role, whose grants are told elsewhere
            continue
        words = {word.strip().upper() for word in re.sub(r"\([^)]*\)", "", match["rights"]).split(",")}
        database, _, table = match["where"].replace("\\", "").replace("`", "").partition(".")
        if database != "*" and not re.fullmatch(_like(database), names.database):
            continue
        if table == "*":
            granted["database"] |= words
        if table in ("*", names.table):
            granted["table"] |= words
    for words in granted.values():
        if "ALL PRIVILEGES" in words or "ALL" in words:
            words |= {"ALL PRIVILEGES", "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP"}
    return granted, complete


def _like(pattern: str) -> str:
    return re.escape(pattern).replace("%", ".*").replace("_", ".")


def _settings(session: Session) -> Iterator[str]:
    if (variable(session, "log_bin") or "OFF") in ("ON", "1"):
        if variable(session, "binlog_format") == "STATEMENT":
            raise ConfigurationError(
                f"The server at {session.login.where} logs statements (binlog_format=STATEMENT), which cannot repeat "
                "what the sink does.",
                safe="nothing was started.",
                to_do="set binlog_format to ROW or MIXED on the server.",
            )
        if variable(session, "sync_binlog") == "0":
            yield "sync_binlog=0: after a power cut the binary log may lack what is committed"
    flush = variable(session, "innodb_flush_log_at_trx_commit")
    if flush not in (None, "1"):
        yield (
            f"innodb_flush_log_at_trx_commit={flush}: a crash of the server's machine can lose what it called prepared"
            " or committed; exactly-once needs 1"
        )
    if (variable(session, "local_infile") or "OFF") not in ("ON", "1"):
        raise ConfigurationError(
            f"The server at {session.login.where} does not allow LOAD DATA LOCAL INFILE (local_infile is off), the way "
            "rows are written.",
            safe="nothing was started.",
            to_do=ALLOW_LOADING,
        )
    most = int(variable(session, "max_connections") or 0)
    free = most - status(session, "Threads_connected")
    if most and free < _FEW_CONNECTIONS:
        yield f"{free} of {most} connections are free; every task that runs needs one, the driver up to five"


def _cut_times(table: tables.Table | None, given: Given | None) -> Iterator[str]:
    for name, kind in given or () if table is not None else ():
        assert table is not None
        column = next((column for column in table.columns if column.name.lower() == name.lower()), None)
        if kind in ("timestamp", "time") and column is not None and "(6)" not in column.type:
            yield f"column {name!r} is {column.type}: fractions of a second beyond its precision are cut"


def version(session: Session) -> tuple[str, tuple[int, ...]]:
    """Product and version."""
    text = str(session.query("SELECT VERSION()")[0][0])
    product = "MariaDB" if "mariadb" in text.lower() else "MySQL"
    text = text.removeprefix("5.5.5-")  # what MariaDB says to clients that would not understand its own number
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return product, tuple(int(number) for number in numbers.groups()) if numbers else (0,)


def variable(session: Session, name: str) -> str | None:
    """A global setting; None where the server has none of that name."""
    found = session.query("SHOW GLOBAL VARIABLES WHERE variable_name = %s", [name])
    return str(found[0][1]) if found else None


def status(session: Session, name: str) -> int:
    found = session.query("SHOW GLOBAL STATUS WHERE variable_name = %s", [name])
    return int(found[0][1]) if found else 0


def two_phase_refusal(session: Session) -> str | None:
    """Why this server cannot keep prepared transactions for us; None if it can."""
    product, number = version(session)
    least = (10, 5) if product == "MariaDB" else (5, 7, 7)
    if number < least:
        return (
            f"{product} {'.'.join(map(str, number))} forgets a prepared transaction when its connection closes; "
            f"{'.'.join(map(str, least))} and later keep it"
        )
    if (variable(session, "wsrep_on") or "OFF").upper() in ("ON", "1"):
        return "a Galera cluster does not replicate XA transactions"
    try:
        session.query("XA RECOVER")
    except ServerError as error:
        if error.code not in _RECOVER_DENIED:
            raise
        return "the user may not list prepared transactions; GRANT XA_RECOVER_ADMIN ON *.* allows it"
    return None
