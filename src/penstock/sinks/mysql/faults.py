"""Errors of the server and the client library as ours.

Inside this package a `ServerError` carries the server's own number, because some are part of the protocol (an XA that
is not known, a marker that is there already). `named` turns what is left of them into errors for people.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NoReturn

from penstock.errors import ConfigurationError, PenstockError, ValueTooLarge
from penstock.sinks.sql import faults

SYSTEM = "MySQL"

DUPLICATE, NO_TABLE, NO_SUCH_THREAD, NOT_YOUR_THREAD, XA_UNKNOWN = 1062, 1146, 1094, 1095, 1397
LOCK_TIMEOUT, DEADLOCK = 1205, 1213
#: The epoch can be tried again: another transaction was in the way, or the server ended ours.
_AGAIN = {LOCK_TIMEOUT, DEADLOCK, XA_UNKNOWN, 1402, 1613, 1614, 3058}
_DENIED = {1044, 1045, 1129, 1130, 1142, 1143, 1227, 1370, 1396, 1401, 1698, 1820, 3118}
_AWAY = {1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1792, 1836, 1927, 2002, 2003, 2006}
_AWAY |= {2013, 2014, 2055, 3572}
_FULL = {1021, 1041, 1114, 1037, 1038}
_BROKEN_RULE = {DUPLICATE, 1022, 1048, 1216, 1217, 1263, 1364, 1451, 1452, 1526, 1557, 1586, 1748, 3819, 4025}
_TOO_LARGE = {1074, 1118, 1153, 1162, 1301, 1406}
_BAD_VALUE = {1264, 1265, 1292, 1366, 1367, 1411, 1416, 1441, 3140, 3156, 3902}
_OTHER_COLUMNS = {1054, 1109, 1110, 1136, 1166, 1425, 1426, 1906, 3105}


class ServerError(Exception):
    """What the server, or the way to it, answered. `lost`: the connection is of no more use, and whether the last
    statement was carried out is not known."""

    def __init__(self, code: int, text: str, *, lost: bool = False) -> None:
        super().__init__(code, text)
        self.code, self.text, self.lost = code, text, lost or code in _AWAY


def error_for(code: int, text: str, *, where: str, table: str, doing: str, lost: bool = False) -> PenstockError:
    """The error for a number met while `doing` something for `table` at `where`."""
    said = f"{text} (error {code})" if code else text
    if code in _DENIED:
        return faults.denied(SYSTEM, where, said)
    if "No space left" in text or "Errcode: 28" in text or "error code: 28" in text or code in _FULL:
        return faults.full(SYSTEM, where, said)
    if lost or code in _AWAY:
        return faults.unavailable(SYSTEM, where, said)
    if code == 1049:
        return faults.table_missing(SYSTEM, table, f"create the database ({said}), or name another.")
    if code == NO_TABLE:
        return faults.table_missing(SYSTEM, table, f"create it, or say create=True ({said}).")
    if code in _OTHER_COLUMNS:
        return faults.mismatch(SYSTEM, table, said)
    if code in _BROKEN_RULE:
        return faults.violated(SYSTEM, table, said)
    if code in _TOO_LARGE:
        return ValueTooLarge(
            f"A row is too large for the {SYSTEM} table {table}: {said}.",
            safe=faults.NOTHING_VISIBLE,
            to_do="widen the column, raise the server's max_allowed_packet, or shorten such values in the query.",
        )
    if code in _BAD_VALUE:
        return faults.bad_value(SYSTEM, table, said)
    if code == 1665:
        return ConfigurationError(
            f"{SYSTEM} at {where} cannot write its binary log: {said}.",
            safe=faults.NOTHING_VISIBLE,
            to_do="set binlog_format to ROW or MIXED on the server.",
        )
    if code == LOCK_TIMEOUT:
        return faults.failed(
            SYSTEM, table, doing, said,
            "look for two rows of one epoch with the same unique key, or for another program that holds locks on the "
            "table; mode='staged' lets the driver write alone.",
        )  # fmt: skip
    return faults.failed(SYSTEM, table, doing, said)


@contextlib.contextmanager
def named(where: str, table: str, doing: str) -> Iterator[None]:
    """Turns a `ServerError` inside the block into one for people."""
    try:
        yield
    except ServerError as error:
        raise error_for(error.code, error.text, where=where, table=table, doing=doing, lost=error.lost) from error


def refused_rows(
    warnings: Sequence[tuple[str, int, str]], sent: int, taken: int, *, where: str, table: str
) -> NoReturn:
    """The server loads what it can and only warns of the rest; here every warning is an error, and rolls back."""
    if warnings:
        # A broken rule says more than the values that were bent on the way to it.
        _, code, text = next((one for one in warnings if one[1] in _BROKEN_RULE), warnings[0])
        more = f"; {len(warnings) - 1} more such warnings" if len(warnings) > 1 else ""
        error = error_for(code, text + more, where=where, table=table, doing="loading rows")
        if error.retryable:
            error = faults.bad_value(SYSTEM, table, f"{text}{more} (warning {code})")
        raise error
    raise faults.failed(SYSTEM, table, "loading rows", f"{sent} rows were sent and {taken} arrived")
