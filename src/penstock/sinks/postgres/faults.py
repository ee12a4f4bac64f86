"""What PostgreSQL's answers are called: the rules by which errors of its clients become ours."""

from __future__ import annotations

import re
from functools import partial

from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    ConstraintViolated,
    DataError,
    PenstockError,
    PreCommitFailed,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TableMissing,
    ValueTooLarge,
)
from penstock.sinks.postgres.connection import Server, client
from penstock.sinks.sql.faults import NO_CODE, ErrorMapper, Fault, Rule

SYSTEM = "PostgreSQL"
UNDEFINED_OBJECT, OBJECT_IN_USE, LOCKED, DEADLOCK = "42704", "55006", "55P03", "40P01"

_STAGED = "say mode='staged', which needs no prepared transactions."
_ON_A_KEY = "inserting index tuple"  # it waited for another transaction that has the same value of a unique index
#: By SQLSTATE, which no server's language changes.
RULES = (
    Rule(
        SchemaMismatch,
        (NO_CODE,),
        match=r'does not exist in target table|relation "[^"]*" does not exist',  # ADBC
        say="the table, or a column, went away while rows were written.",
    ),
    Rule(
        AccessDenied,
        (NO_CODE,),
        match="authentication failed|no password|pg_hba|does not exist|not permitted|permission denied",
    ),
    Rule(SystemUnavailable, (NO_CODE,)),
    # Binary rows that are not as the column wants them. A pooler has the first code for all that it says itself.
    Rule(
        SchemaMismatch,
        ("08P01",),
        match="in message|message format",
        say="a column was changed while rows were written: {text}",
    ),
    Rule(SchemaMismatch, ("22P03",), say="a column was changed while rows were written: {text}"),
    Rule(
        ConfigurationError,
        ("08P01",),
        match="statement pooling",
        happened="The pooler at {where} has pool_mode=statement, in which there are no transactions: {text}",
        to_do="have it pool by transaction or by session, or connect to PostgreSQL itself.",
    ),
    Rule(SystemUnavailable, ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006", "58")),
    Rule(
        PreCommitFailed,
        (LOCKED, DEADLOCK),
        context=_ON_A_KEY,
        say="another open transaction holds a row with the same unique key: {text}",
        to_do="end that transaction; the epoch replays.",
    ),
    Rule(
        PreCommitFailed,
        (LOCKED, DEADLOCK),
        say="another open transaction holds a lock: {text}",
        to_do="end that transaction; the epoch replays.",
    ),
    Rule(AccessDenied, ("28", "42501", "3D")),
    Rule(TableMissing, ("42P01", "3F"), to_do="create it, or start the job with create=True, which does it."),
    Rule(PreCommitFailed, ("42P07", "42710"), say="{text} (SQLSTATE {code})"),  # another was faster
    Rule(SchemaMismatch, ("42",)),
    # Also what a trigger raises, or a function that it calls.
    Rule(ConstraintViolated, ("23", "44", "P0", "09", "21", "27", "38", "39")),
    Rule(ValueTooLarge, ("54",), to_do="filter or shorten such rows, or drop the index that has the limit."),
    Rule(
        DataError,
        ("22021",),
        match="0x00",
        to_do="PostgreSQL cannot store the character NUL in text: remove it with translate(column, '\\0', '').",
    ),
    Rule(DataError, ("22",)),
    Rule(StorageFull, ("53100",)),
    Rule(
        PreCommitFailed,
        ("53200",),
        match="prepared",
        to_do="raise max_prepared_transactions above the number of writers.",
    ),
    Rule(
        ConfigurationError,
        ("55000",),
        doing="preparing",
        happened="The PostgreSQL server at {where} allows no prepared transactions (max_prepared_transactions is 0).",
        to_do=f"set max_prepared_transactions and restart the server, or {_STAGED}",
    ),
    Rule(
        ConfigurationError,
        ("0A000",),
        doing="preparing",
        happened="PostgreSQL cannot prepare a transaction on {table}: {text}",
        to_do=_STAGED,
    ),
    Rule(
        ConfigurationError,
        ("0A", "55000"),
        happened="PostgreSQL cannot do this with {table}: {text}",
        to_do="change the table or its settings, such as row security or a publication without replica identity.",
    ),
    Rule(PreCommitFailed, say="{text} (SQLSTATE {code})"),
)


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
    """The errors of either client."""
    drivers = (client().psycopg.Error, client().dbapi.Error)
    return ErrorMapper(SYSTEM, str(server), table, RULES, drivers, partial(fault_of, server))


def is_on_a_key(fault: Fault) -> bool:
    return fault.code in (LOCKED, DEADLOCK) and _ON_A_KEY in fault.context


def same_key(errors: ErrorMapper, fault: Fault) -> PenstockError:
    """Two writers of one epoch have a row with the same key. They would wait for each other for ever."""
    return errors.error(
        ConstraintViolated,
        f"two writers of one epoch have rows with the same unique key ({fault.context.splitlines()[0]}).",
        to_do="make the key unique in the query, or bring rows with one key into one partition with "
        "df.repartition('key'), or say mode='upsert'.",
    )
