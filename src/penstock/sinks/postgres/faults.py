"""From what PostgreSQL answered to what a person is told. Decided by SQLSTATE, which no server's language changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigurationError, PenstockError, ValueTooLarge
from penstock.sinks.postgres.server import Server, client
from penstock.sinks.sql import faults

SYSTEM = "PostgreSQL"
UNDEFINED_OBJECT, OBJECT_IN_USE, UNDEFINED_TABLE, LOCKED, DEADLOCK = "42704", "55006", "42P01", "55P03", "40P01"

_REFUSED = re.compile(r"authentication failed|no password|pg_hba|does not exist|not permitted|permission denied", re.I)
_ADBC_GONE = re.compile(r'does not exist in target table|relation ".*" does not exist')
_AWAY = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006", "58")
_STAGED = "say mode='staged', which needs no prepared transactions."


@dataclass(frozen=True, slots=True)
class Said:
    """What the server said: SQLSTATE (empty where there was none), first line, and where it was."""

    state: str
    text: str
    context: str = ""

    @property
    def on_a_key(self) -> bool:
        """It waited for another transaction that has the same value of a unique index."""
        return self.state in (LOCKED, DEADLOCK) and "inserting index tuple" in self.context


def said(error: Exception, server: Server) -> Said:
    """`error` of psycopg or of ADBC, without secrets."""
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None:  # psycopg
        text = " ".join(filter(None, (diagnosis.message_primary, diagnosis.message_detail))) or str(error)
        return Said(getattr(error, "sqlstate", None) or "", server.scrubbed(text), diagnosis.context or "")
    details = {_text(key): _text(value) for key, value in getattr(error, "details", None) or ()}
    text = " ".join(filter(None, map(details.get, ("PG_DIAG_MESSAGE_PRIMARY", "PG_DIAG_MESSAGE_DETAIL"))))
    context = details.get("PG_DIAG_CONTEXT", "")
    return Said(getattr(error, "sqlstate", None) or "", server.scrubbed(text or str(error)), context)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def named(heard: Said, server: Server, table: str, doing: str) -> PenstockError:
    """The error for what the server said while `doing` something for `table`."""
    state, where = heard.state, str(server)
    place = re.search(r"column (\S+)", heard.context)
    text = f"{heard.text} (column {place[1].rstrip(':')!r})." if place else f"{heard.text.rstrip('.')}."
    if not state:
        if _ADBC_GONE.search(heard.text):
            return faults.mismatch(SYSTEM, table, "the table, or a column, went away while rows were written.")
        refused = _REFUSED.search(heard.text)
        return faults.denied(SYSTEM, where, text) if refused else faults.unavailable(SYSTEM, where, text)
    if state == "08P01" or state == "22P03":  # binary rows that are not as the column wants them
        return faults.mismatch(SYSTEM, table, f"a column was changed while rows were written: {text}")
    if state.startswith(_AWAY):
        return faults.unavailable(SYSTEM, where, text)
    if state in (LOCKED, DEADLOCK):
        what = "a row with the same unique key" if heard.on_a_key else "a lock"
        reason = f"another open transaction holds {what}: {text}"
        return faults.failed(SYSTEM, table, doing, reason, "end that transaction; the epoch replays.")
    if state.startswith(("28", "42501", "3D")):
        return faults.denied(SYSTEM, where, text)
    if state == UNDEFINED_TABLE or state.startswith("3F"):
        return faults.table_missing(SYSTEM, table, "create it, or start the job with create=True, which does it.")
    if state in ("42703", "42804", "42846", "428C9"):
        return faults.mismatch(SYSTEM, table, text)
    if state.startswith(("23", "P0001", "44")):
        return faults.violated(SYSTEM, table, text)
    if state.startswith("54"):
        return ValueTooLarge(
            f"A row is larger than the PostgreSQL table {table} takes: {text}",
            safe=faults.NOTHING_VISIBLE,
            to_do="filter or shorten such rows, or drop the index that has the limit.",
        )
    if state.startswith("22"):
        return faults.bad_value(SYSTEM, table, text, _about(heard))
    if state == "53100":
        return faults.full(SYSTEM, where, text)
    if state == "53200" and "prepared" in heard.text:
        return faults.failed(SYSTEM, table, doing, text, "raise max_prepared_transactions above the number of writers.")
    if state == "55000" and doing == "preparing":
        return ConfigurationError(
            f"The PostgreSQL server at {where} allows no prepared transactions (max_prepared_transactions is 0).",
            safe=faults.NOTHING_VISIBLE,
            to_do=f"set max_prepared_transactions and restart the server, or {_STAGED}",
        )
    if state == "0A000" and doing == "preparing":
        return ConfigurationError(
            f"PostgreSQL cannot prepare a transaction on {table}: {text}", safe=faults.NOTHING_VISIBLE, to_do=_STAGED
        )
    return faults.failed(SYSTEM, table, doing, f"{text} (SQLSTATE {state})")


def _about(heard: Said) -> str:
    if heard.state == "22021" and "0x00" in heard.text:
        return "PostgreSQL cannot store the character NUL in text: remove it with translate(column, '\\0', '')."
    return ""


@contextmanager
def naming(
    server: Server, table: str, doing: str, known: Callable[[Said], PenstockError | None] | None = None
) -> Iterator[None]:
    """Errors of either client, named; by `known` where it knows better."""
    try:
        yield
    except (client().psycopg.Error, client().dbapi.Error) as error:
        heard = said(error, server)
        raise (known(heard) if known else None) or named(heard, server, table, doing) from error


def same_key(heard: Said, table: str) -> PenstockError:
    """Two writers of one epoch have a row with the same key. They would wait for each other for ever."""
    return faults.violated(
        SYSTEM,
        table,
        f"two writers of one epoch have rows with the same unique key ({heard.context.splitlines()[0]}).",
        "make the key unique in the query, or bring rows with one key into one partition with df.repartition('key'), "
        "or say mode='upsert'.",
    )


def state_of(error: Any) -> str:
    return getattr(error, "sqlstate", None) or ""
