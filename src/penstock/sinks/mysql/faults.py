"""What the server's numbers are called: the rules by which errors of MySQL and MariaDB become ours."""

from __future__ import annotations

from collections.abc import Sequence

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
from penstock.sinks.sql.faults import ErrorMapper, Fault, Rule

SYSTEM = "MySQL"
DUPLICATE, NO_TABLE, NO_SUCH_THREAD, XA_UNKNOWN, LOCK_TIMEOUT, DEADLOCK = 1062, 1146, 1094, 1397, 1205, 1213

#: What to do on a server without `local_infile`.
ALLOW_LOADING = (
    "SET GLOBAL local_infile = 1, and set it in the server's configuration as well so that a restart keeps it; MySQL 8 "
    "has it off by default."
)

#: Numbers of errors after which the connection is of no more use.
_AWAY = {1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1792, 1836, 1927, 2002, 2003, 2006}
_AWAY |= {2013, 2014, 2055, 3572}


class ServerError(Exception):
    """What the server, or the way to it, answered, with the server's own number, because some are part of the protocol
    (an XA that is not known, a marker that is there already). `lost`: the connection is of no more use, and whether the
    last statement was carried out is not known."""

    def __init__(self, code: int, text: str, *, lost: bool = False) -> None:
        super().__init__(code, text)
        self.code, self.text, self.lost = code, text, lost or code in _AWAY


def _codes(*numbers: int) -> tuple[str, ...]:
    return tuple(map(str, numbers))


_BROKEN_RULE = _codes(DUPLICATE, 1022, 1048, 1216, 1217, 1263, 1364, 1451, 1452, 1526, 1557, 1586, 1748, 3819, 4025)
_BROKEN_RULE += _codes(1442, 1643, 1644, 1761, 1762, 1859)  # also what a trigger raises
#: By the server's own numbers.
RULES = (
    Rule(AccessDenied, _codes(1044, 1045, 1129, 1130, 1142, 1143, 1227, 1370, 1396, 1401, 1698, 1820, 3118)),
    Rule(StorageFull, match="No space left|Errcode: 28|error code: 28"),
    Rule(StorageFull, _codes(1021, 1041, 1114, 1037, 1038)),
    Rule(SystemUnavailable, lost=True),
    Rule(SystemUnavailable, _codes(*_AWAY)),
    Rule(TableMissing, _codes(1049), to_do="create the database ({text}), or name another."),
    Rule(TableMissing, _codes(NO_TABLE), to_do="create it, or say create=True ({text})."),
    Rule(SchemaMismatch, _codes(1054, 1109, 1110, 1136, 1166, 1305, 1425, 1426, 1906, 3105)),
    Rule(ConstraintViolated, _BROKEN_RULE),
    Rule(
        ValueTooLarge,
        _codes(1074, 1118, 1153, 1162, 1301, 1406, 3150, 3157),
        say="{text}.",
        to_do="widen the column, raise the server's max_allowed_packet, or shorten such values in the query.",
    ),
    Rule(DataError, _codes(1264, 1265, 1292, 1300, 1365, 1366, 1367, 1411, 1416, 1441, 1690, 1977)),
    Rule(DataError, _codes(3140, 3156, 3643, 3854, 3902, 3988)),
    Rule(
        ConfigurationError,
        _codes(1665),
        happened="{system} at {where} cannot write its binary log: {text}.",
        to_do="set binlog_format to ROW or MIXED on the server.",
    ),
    Rule(
        ConfigurationError,
        _codes(1148, 3948, 4166),
        happened="{system} at {where} does not allow LOAD DATA LOCAL INFILE, the way rows are written: {text}.",
        to_do=ALLOW_LOADING,
    ),
    Rule(
        PreCommitFailed,
        _codes(LOCK_TIMEOUT),
        to_do="look for two rows of one epoch with the same unique key, or for another program that holds locks on the "
        "table; mode='staged' lets the driver write alone.",
    ),
)


def fault_of(error: Exception) -> Fault:
    assert isinstance(error, ServerError)
    return fault(error.code, error.text, lost=error.lost)


def fault(code: int, text: str, *, lost: bool = False) -> Fault:
    return Fault(str(code) if code else "", f"{text} (error {code})" if code else text, lost=lost)


def mapper(where: str, table: str) -> ErrorMapper:
    return ErrorMapper(SYSTEM, where, table, RULES, (ServerError,), fault_of)


def refused_rows(errors: ErrorMapper, warnings: Sequence[tuple[str, int, str]], sent: int, taken: int) -> PenstockError:
    """The server loads what it can and only warns of the rest; here every warning is an error, and rolls back."""
    if not warnings:
        return errors.error(PreCommitFailed, f"{sent} rows were sent and {taken} arrived", doing="loading rows")
    # A broken rule says more than the values that were bent on the way to it.
    _, code, text = next((warning for warning in warnings if str(warning[1]) in _BROKEN_RULE), warnings[0])
    more = f"; {len(warnings) - 1} more such warnings" if len(warnings) > 1 else ""
    error = errors.explain(fault(code, text + more), "loading rows")
    return errors.error(DataError, f"{text}{more} (warning {code})") if error.retryable else error
