"""One connection to the server with the settings that exactness needs, and the rules for its errors."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.deadline import Deadline
from penstock.sinks.sql.dialect import ErrorMapper, Fault, Rule

if TYPE_CHECKING:
    from penstock.sinks.mysql.sink import MySqlSink

SYSTEM = "MySQL"
DUPLICATE, NO_TABLE, NO_SUCH_THREAD, XA_UNKNOWN, LOCK_TIMEOUT, DEADLOCK = 1062, 1146, 1094, 1397, 1205, 1213

#: What to do on a server without `local_infile`.
ALLOW_LOADING = (
    "SET GLOBAL local_infile = 1, and set it in the server's configuration as well so that a restart keeps it; MySQL 8 "
    "has it off by default."
)

#: Errors after which the connection is unusable.
_AWAY = {1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1792, 1836, 1927, 2002, 2003, 2006}
_AWAY |= {2013, 2014, 2055, 3572}


class ServerError(Exception):
    """An error of server or network with its code. `lost`: unusable connection, unknown outcome of the statement."""

    def __init__(self, code: int, text: str, *, lost: bool = False) -> None:
        super().__init__(code, text)
        self.code, self.text, self.lost = code, text, lost or code in _AWAY


def _codes(*numbers: int) -> tuple[str, ...]:
    return tuple(map(str, numbers))


_BROKEN_RULE = _codes(DUPLICATE, 1022, 1048, 1216, 1217, 1263, 1364, 1451, 1452, 1526, 1557, 1586, 1748, 3819, 4025)
_BROKEN_RULE += _codes(1442, 1643, 1644, 1761, 1762, 1859)  # also what a trigger raises
#: By the server's error codes.
RULES = (
    Rule(errors.AccessDenied, _codes(1044, 1045, 1129, 1130, 1142, 1143, 1227, 1370, 1396, 1401, 1698, 1820, 3118)),
    Rule(errors.StorageFull, match="No space left|Errcode: 28|error code: 28"),
    Rule(errors.StorageFull, _codes(1021, 1041, 1114, 1037, 1038)),
    Rule(errors.SystemUnavailable, lost=True),
    Rule(errors.SystemUnavailable, _codes(*_AWAY)),
    Rule(errors.TableMissing, _codes(1049), to_do="create the database ({text}), or name another."),
    Rule(errors.TableMissing, _codes(NO_TABLE), to_do="create it, or say create=True ({text})."),
    Rule(errors.SchemaMismatch, _codes(1054, 1109, 1110, 1136, 1166, 1305, 1425, 1426, 1906, 3105)),
    Rule(errors.ConstraintViolated, _BROKEN_RULE),
    Rule(
        errors.ValueTooLarge, _codes(1074, 1118, 1153, 1162, 1301, 1406, 3150, 3157), say="{text}.",
        to_do="widen the column, raise the server's max_allowed_packet, or shorten such values in the query.",
    ),
    Rule(errors.DataError, _codes(1264, 1265, 1292, 1300, 1365, 1366, 1367, 1411, 1416, 1441, 1690, 1977)),
    Rule(errors.DataError, _codes(3140, 3156, 3643, 3854, 3902, 3988)),
    Rule(
        errors.ConfigurationError, _codes(1665), happened="{system} at {where} cannot write its binary log: {text}.",
        to_do="set binlog_format to ROW or MIXED on the server.",
    ),
    Rule(
        errors.ConfigurationError, _codes(1148, 3948, 4166),
        happened="{system} at {where} does not allow LOAD DATA LOCAL INFILE, the way rows are written: {text}.",
        to_do=ALLOW_LOADING,
    ),
    Rule(
        errors.PreCommitFailed, _codes(LOCK_TIMEOUT),
        to_do="look for two rows of one epoch with the same unique key, or for another program that holds locks on the "
        "table; mode='staged' lets the driver write alone.",
    ),
)  # fmt: skip


def fault_of(error: Exception) -> Fault:
    assert isinstance(error, ServerError)
    return fault(error.code, error.text, lost=error.lost)


def fault(code: int, text: str, *, lost: bool = False) -> Fault:
    return Fault(str(code) if code else "", f"{text} (error {code})" if code else text, lost=lost)


def mapper(where: str, table: str) -> ErrorMapper:
    return ErrorMapper(SYSTEM, where, table, RULES, (ServerError,), fault_of)


def refused_rows(
    mapped: ErrorMapper, warnings: Sequence[tuple[str, int, str]], sent: int, taken: int
) -> errors.PenstockError:
    """The server loads what it can and only warns about the rest; here every warning is an error and rolls back."""
    if not warnings:
        return mapped.error(errors.PreCommitFailed, f"{sent} rows were sent and {taken} arrived", doing="loading rows")
    # A violated constraint explains more than the values that were changed on the way to it.
    _, code, text = next((warning for warning in warnings if str(warning[1]) in _BROKEN_RULE), warnings[0])
    more = f"; {len(warnings) - 1} more such warnings" if len(warnings) > 1 else ""
    error = mapped.explain(fault(code, text + more), "loading rows")
    return mapped.error(errors.DataError, f"{text}{more} (warning {code})") if error.retryable else error


#: Seconds to connect; the client's default.
_CONNECT_SECONDS = 10.0
#: Bytes of rows in one packet: far below the smallest max_allowed_packet in use, large enough to cost nothing.
_PACKET = 256 << 10

# Whatever the server's defaults are: bad values are errors, times are UTC, zero stays zero, and a session that waits
# for Spark's next rows is not closed. No setting here needs an administrator's right.
_SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00',"
    " wait_timeout = 28800, innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
)


class Session:
    """Used by one thread. Every method raises `ServerError`; statements commit by themselves unless begun otherwise.

    `seconds` bounds every reply, until `limit` changes it: a paused server counts as lost.
    """

    def __init__(self, sink: MySqlSink, *, seconds: float = 120.0) -> None:
        self.where, self.deadline = sink.where, Deadline(seconds)
        with errors.MissingExtra.named("Writing to MySQL or MariaDB", "mysql"):
            import pymysql
        self._errors: Any = pymysql.err
        # The server's wait for a lock ends well before our wait for the server.
        locks = max(1, min(math.ceil(sink.lock_seconds), math.floor(seconds / 2)))
        options: dict[str, Any] = {
            "connect_timeout": max(1, min(_CONNECT_SECONDS, math.ceil(seconds))),
            "charset": "utf8mb4",
            **sink.options,
        }
        try:
            self._connection: Any = pymysql.connections.Connection(
                host=sink.host,
                port=sink.port,
                user=sink.user,
                password=sink.password.encode(),  # the library would take it for Latin-1
                database=sink.target[0],
                autocommit=True,
                local_infile=True,
                read_timeout=max(1.0, seconds),
                write_timeout=max(1.0, seconds),
                **options,
            )
        except (self._errors.Error, OSError, RuntimeError) as error:
            raise self._error(error) from None  # the chain would show the connection's arguments to a debugger
        # Rows are sent by `load` alone: a server must not be able to ask for a file in answer to anything else.
        self._connection._local_infile = False
        try:
            self.execute(_SETTINGS.format(seconds=locks))
            self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except ServerError:
            self.close()
            raise

    @property
    def open(self) -> bool:
        return bool(self._connection.open)

    def limit(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self._connection._read_timeout = self._connection._write_timeout = max(0.5, deadline.remaining())

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._mapped(), self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall() or ())

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows were changed."""
        with self._mapped(), self._connection.cursor() as cursor:
            return int(cursor.execute(statement, tuple(values) or None))

    def load(self, statement: str, rows: Iterable[memoryview]) -> tuple[int, int]:
        """`LOAD DATA LOCAL INFILE` with `rows` as the file; how many rows arrived, and how many warnings."""
        from pymysql.protocol import OKPacketWrapper

        with self._mapped():
            connection = self._connection
            connection._execute_command(0x03, statement)  # COM_QUERY
            if not connection._read_packet().is_load_local_packet():
                raise ServerError(0, "the server did not ask for the rows of a LOAD DATA LOCAL INFILE")
            for piece in rows:
                for start in range(0, len(piece), _PACKET):
                    connection.write_packet(bytes(piece[start : start + _PACKET]))
            connection.write_packet(b"")
            answer = OKPacketWrapper(connection._read_packet())
            return int(answer.affected_rows), int(answer.warning_count)

    def warnings(self) -> list[tuple[str, int, str]]:
        return [(str(level), int(code), str(text)) for level, code, text in self.query("SHOW WARNINGS")]

    def close(self) -> None:
        with contextlib.suppress(self._errors.Error, OSError):
            self._connection.close()

    @contextlib.contextmanager
    def _mapped(self) -> Any:
        try:
            yield
        except (self._errors.Error, OSError, struct.error, AttributeError) as error:
            # After a lost connection the library's socket is None: struct and attribute errors mean just that.
            raise self._error(error) from error
        except BaseException:
            # In the middle of a statement or of its rows: the server would take the next statement for a part of it.
            self._connection._force_close()
            raise

    def _error(self, error: Exception) -> ServerError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if code and len(error.args) > 1 else str(error)
        lost = isinstance(error, (self._errors.InterfaceError, OSError, struct.error, AttributeError))
        server_error = ServerError(code, text or type(error).__name__, lost=lost)
        if server_error.lost and hasattr(self, "_connection"):
            with contextlib.suppress(Exception):
                self._connection._force_close()
        return server_error
