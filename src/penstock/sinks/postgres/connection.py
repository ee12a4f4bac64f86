"""The server's address without its secrets, the driver's connection to it, and the rules for its errors."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock import errors
from penstock.deadline import Deadline
from penstock.secrets import hide, is_secret
from penstock.sinks.sql.dialect import MARKERS, NO_CODE, SINKS, ErrorMapper, Fault, Rule
from penstock.sinks.sql.tables import check_length, quoted

#: The server's time in microseconds, at which the transaction began.
NOW = "(extract(epoch FROM now()) * 1000000)::bigint"
#: Settings of every transaction, whatever the server's defaults are. Returns the server's time in microseconds.
SETTINGS = f"""
SELECT set_config('application_name', $1, true), set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', '0', true), set_config('TimeZone', 'UTC', true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true),
       {NOW}
"""

#: An unreachable server is noticed after about a minute, in a task as in the driver.
_PATIENCE = {
    "connect_timeout": "10", "keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "4",
    "tcp_user_timeout": "60000",
}  # fmt: skip
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']+)")
# A password that is not percent-encoded is read up to the last @: rather hide too much than too little.
_URL = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?]*)(?::(?P<password>[^?]*))?@)?(?P<hosts>[^/?]*)"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)


@functools.cache
def client() -> SimpleNamespace:
    """psycopg for statements, ADBC for rows; `MissingExtra` where one is not installed."""
    with errors.MissingExtra.named("Writing to PostgreSQL", "postgres"):
        import adbc_driver_manager.dbapi as dbapi
        import adbc_driver_postgresql.dbapi as adbc
        import psycopg
        from psycopg.conninfo import make_conninfo
    return SimpleNamespace(adbc=adbc, dbapi=dbapi, psycopg=psycopg, make_conninfo=make_conninfo)


@dataclass(frozen=True, slots=True)
class Place:
    """The target table, and the schema of the sink's own tables."""

    schema: str
    table: str
    own_schema: str

    def __post_init__(self) -> None:
        check_length(SYSTEM, self.table, len(self.table.encode()), 63, "bytes")  # it would cut the rest off

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def target(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def own(self, name: str) -> str:
        return f"{quoted(self.own_schema)}.{quoted(name)}"

    @property
    def markers(self) -> str:
        return self.own(MARKERS)

    @property
    def sinks(self) -> str:
        return self.own(SINKS)


@dataclass(frozen=True, repr=False)
class Server:
    """Connection parameters. `str()` and `repr()` show host, port, database and user only."""

    conninfo: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        known = self._known()
        host = known.get("host") or known.get("hostaddr") or "localhost"
        ports, database = known.get("port"), known.get("dbname")
        return f"{host}{f':{ports}' if ports else ''}{f'/{database}' if database else ''}"

    def __repr__(self) -> str:
        user = self._known().get("user")
        return f"{user}@{self}" if user else str(self)

    def libpq(self) -> str:
        """A connection string for libpq, secrets included."""
        try:
            conninfo = client().make_conninfo(self.conninfo)
            # The user's timeouts override these.
            timeouts = {name: value for name, value in _PATIENCE.items() if f"{name}=" not in conninfo}
            # Rows are sent as UTF-8 whatever the database's encoding is; the server converts.
            return str(client().make_conninfo(conninfo, **{**timeouts, **self.options, "client_encoding": "UTF8"}))
        except client().psycopg.Error:
            # libpq's message repeats what it could not parse, which may be a password.
            raise errors.ConfigurationError(
                f"PostgreSQL's client cannot parse the connection parameters ({self}).",
                to_do="write postgresql://user@host:5432/database or libpq's keywords, with special characters of a "
                "password percent-encoded, or pass the password as a keyword.",
            ) from None

    def scrubbed(self, text: str) -> str:
        secrets = {str(value) for name, value in self._known().items() if value and is_secret(name)}
        if self._is_url:
            secrets.add(_URL.match(self.conninfo)["password"] or "")  # type: ignore[index]
        return " ".join(hide(text, secrets).split())

    @property
    def _is_url(self) -> bool:
        return self.conninfo.startswith(("postgresql://", "postgres://"))

    def _known(self) -> dict[str, Any]:
        """The parameters, as far as they can be parsed without libpq."""
        known: dict[str, Any] = {}
        if self._is_url:
            parts = _URL.match(self.conninfo)
            assert parts is not None  # it matches whatever begins like one
            hosts = [re.fullmatch(r"(.*?)(?::(\d*))?", host) for host in parts["hosts"].split(",")]
            known = {
                "user": unquote(parts["user"] or ""),
                "password": unquote(parts["password"] or ""),
                "host": ",".join(unquote(host[1]) for host in hosts if host),
                "port": ",".join(host[2] for host in hosts if host and host[2]),
                "dbname": unquote(parts["database"] or ""),
                **dict(parse_qsl(parts["query"] or "")),
            }
        else:
            for name, value in _PAIR.findall(self.conninfo):
                known[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith("'") else value
        return {**known, **self.options}


class Line:
    """The driver's psycopg connection, reopened after a loss, for one thread. Raises psycopg's errors, which prove."""

    def __init__(self, server: Server, name: str, deadline: Deadline) -> None:
        self._server, self._name, self.deadline = server, name, deadline
        self._connection: Any = None

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, in its own transaction unless `begin` opened one; its rows."""
        with self._within() as connection:
            cursor = connection.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def count(self, statement: str, *parameters: Any) -> int:
        with self._within() as connection:
            return int(connection.execute(statement, parameters).rowcount)

    def begin(self, lock_seconds: float) -> None:
        """Open a transaction; ended by `ask` with COMMIT or ROLLBACK, or by `close`."""
        seconds = min(lock_seconds, max(0.05, self.deadline.remaining()))
        self.ask("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.ask(SETTINGS, self._name, f"{max(1, int(seconds * 1000))}ms")

    def limit(self, deadline: Deadline) -> None:
        self.deadline = deadline

    @property
    def open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def _within(self) -> Iterator[Any]:
        connection = self.connect()
        # libpq cannot end a wait for a reply; shutting its socket down does.
        cut = threading.Timer(max(0.05, self.deadline.remaining()), _cut, (connection.fileno(),))
        cut.daemon = True
        cut.start()
        try:
            yield connection
        except client().psycopg.Error:
            if connection.closed or connection.broken:
                self.close()
            raise
        finally:
            cut.cancel()
            cut.join()  # or it might cut a later connection with the same file number

    def connect(self) -> Any:
        if not self.open:
            psycopg = client().psycopg
            seconds = max(2, min(10, int(self.deadline.remaining())))  # libpq treats less than two as no limit
            self._connection = psycopg.connect(
                self._server.libpq(),
                autocommit=True,
                prepare_threshold=None,  # a pooler may switch sessions between transactions
                cursor_factory=psycopg.RawCursor,
                connect_timeout=seconds,
                # Not the name by which sweeps identify and end sessions: a pooler may lend this session to another
                # client, which would then bear it. Each transaction sets it for itself.
                application_name="penstock",
            )
        return self._connection


def _cut(number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


SYSTEM = "PostgreSQL"
UNDEFINED_OBJECT, OBJECT_IN_USE, LOCKED, DEADLOCK = "42704", "55006", "55P03", "40P01"

_STAGED = "say mode='staged', which needs no prepared transactions."
_ON_A_KEY = "inserting index tuple"  # it waited for another transaction that has the same value of a unique index
#: By SQLSTATE, which no server's language changes.
RULES = (
    Rule(
        errors.SchemaMismatch, (NO_CODE,),
        match=r'does not exist in target table|relation "[^"]*" does not exist',  # ADBC
        say="the table, or a column, was dropped while rows were written.",
    ),
    Rule(
        errors.AccessDenied, (NO_CODE,),
        match="authentication failed|no password|pg_hba|does not exist|not permitted|permission denied",
    ),
    Rule(errors.SystemUnavailable, (NO_CODE,)),
    # Binary rows that do not match the column. A pooler uses the first code for all its own errors.
    Rule(
        errors.SchemaMismatch, ("08P01",), match="in message|message format",
        say="a column was changed while rows were written: {text}",
    ),
    Rule(errors.SchemaMismatch, ("22P03",), say="a column was changed while rows were written: {text}"),
    Rule(
        errors.ConfigurationError, ("08P01",), match="statement pooling",
        happened="The pooler at {where} has pool_mode=statement, in which there are no transactions: {text}",
        to_do="have it pool by transaction or by session, or connect to PostgreSQL itself.",
    ),
    Rule(errors.SystemUnavailable, ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006", "58")),
    Rule(
        errors.PreCommitFailed, (LOCKED, DEADLOCK), context=_ON_A_KEY,
        say="another open transaction holds a row with the same unique key: {text}",
        to_do="end that transaction; the epoch replays.",
    ),
    Rule(
        errors.PreCommitFailed, (LOCKED, DEADLOCK), say="another open transaction holds a lock: {text}",
        to_do="end that transaction; the epoch replays.",
    ),
    Rule(errors.AccessDenied, ("28", "42501", "3D")),
    Rule(errors.TableMissing, ("42P01", "3F"), to_do="create it, or start the job with create=True, which does it."),
    Rule(errors.PreCommitFailed, ("42P07", "42710"), say="{text} (SQLSTATE {code})"),  # another process was faster
    Rule(errors.SchemaMismatch, ("42",)),
    # Also raised by triggers and the functions that they call.
    Rule(errors.ConstraintViolated, ("23", "44", "P0", "09", "21", "27", "38", "39")),
    Rule(errors.ValueTooLarge, ("54",), to_do="filter or shorten such rows, or drop the index that has the limit."),
    Rule(
        errors.DataError, ("22021",), match="0x00",
        to_do="PostgreSQL cannot store the character NUL in text: remove it with translate(column, '\\0', '').",
    ),
    Rule(errors.DataError, ("22",)),
    Rule(errors.StorageFull, ("53100",)),
    Rule(
        errors.PreCommitFailed, ("53200",), match="prepared",
        to_do="raise max_prepared_transactions above the number of writers.",
    ),
    Rule(
        errors.ConfigurationError, ("55000",), doing="preparing",
        happened="The PostgreSQL server at {where} allows no prepared transactions (max_prepared_transactions is 0).",
        to_do=f"set max_prepared_transactions and restart the server, or {_STAGED}",
    ),
    Rule(
        errors.ConfigurationError, ("0A000",), doing="preparing",
        happened="PostgreSQL cannot prepare a transaction on {table}: {text}", to_do=_STAGED,
    ),
    Rule(
        errors.ConfigurationError, ("0A", "55000"), happened="PostgreSQL cannot do this with {table}: {text}",
        to_do="change the table or its settings, such as row security or a publication without replica identity.",
    ),
    Rule(errors.PreCommitFailed, say="{text} (SQLSTATE {code})"),
)  # fmt: skip


def fault_of(server: Server, error: Exception) -> Fault:
    """An error of psycopg or of ADBC, without secrets."""
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None:  # psycopg
        parts, context = (diagnosis.message_primary, diagnosis.message_detail), diagnosis.context or ""
    else:
        details = {_text(key): _text(value) for key, value in getattr(error, "details", None) or ()}
        parts = (details.get("PG_DIAG_MESSAGE_PRIMARY"), details.get("PG_DIAG_MESSAGE_DETAIL"))
        context = details.get("PG_DIAG_CONTEXT", "")
    text = server.scrubbed(" ".join(filter(None, parts)) or str(error))
    column = re.search(r"column (\S+)", context)
    text = f"{text} (column {column[1].rstrip(':')!r})." if column else f"{text.rstrip('.')}."
    return Fault(getattr(error, "sqlstate", None) or "", text, context)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def mapper(server: Server, table: str) -> ErrorMapper:
    drivers = (client().psycopg.Error, client().dbapi.Error)
    return ErrorMapper(SYSTEM, str(server), table, RULES, drivers, partial(fault_of, server))


def is_on_a_key(fault: Fault) -> bool:
    return fault.code in (LOCKED, DEADLOCK) and _ON_A_KEY in fault.context


def same_key(mapped: ErrorMapper, fault: Fault) -> errors.PenstockError:
    """Two writers of one epoch have a row with the same key. They would wait for each other forever."""
    return mapped.error(
        errors.ConstraintViolated,
        f"two writers of one epoch have rows with the same unique key ({fault.context.splitlines()[0]}).",
        to_do="make the key unique in the query, or bring rows with one key into one partition with "
        "df.repartition('key'), or say mode='upsert'.",
    )
