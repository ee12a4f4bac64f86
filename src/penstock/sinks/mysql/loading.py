"""Rows into a table: a prepared INSERT in bulk where the server is MariaDB; else `LOAD DATA LOCAL INFILE`, or multi-row
INSERTs where the server does not allow that.

MariaDB's bulk execution takes rows in a binary form, made here from Arrow without a Python object per value: one
prepared INSERT takes all rows of a packet. A value is a byte that says whether it is there, and then the value as in
MySQL's binary protocol. The server spends a quarter less on it than on the text of `LOAD DATA`. Offsets of all values
follow from their sizes; each column is then put in its places at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.sinks.mysql.encode import CHUNK, Statement, chunks, lines, plain, tuples
from penstock.sinks.mysql.faults import refused_rows
from penstock.sinks.mysql.session import Session
from penstock.sinks.mysql.types import of_arrow
from penstock.sinks.sql.faults import ErrorMapper

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_ROOM = 64 << 10  # left free in a packet for what is not rows
_BULK_CHUNK = 4 << 20  # bytes of Arrow in one packet of bulk execution, which is a little smaller


class Loader:
    """Collects small batches and sends them in statements of some megabytes. What the server does not take exactly as
    it was given is an error, and the caller rolls back."""

    def __init__(self, session: Session, statement: Statement, mapper: ErrorMapper) -> None:
        self._session, self._statement, self._mapper = session, statement, mapper
        allowed, packet = session.query("SELECT @@GLOBAL.local_infile, @@SESSION.max_allowed_packet")[0]
        self._load = bool(int(allowed))
        self._bulk = session.prepare(statement.prepared()) if session.takes_bulk else None
        # Text may take three times the bytes of Arrow; a statement that does not fit all the same is cut below. Only
        # lines are not bound to packets.
        fitting = max(1 << 16, int(packet) // 4)
        if self._bulk is not None:
            self._most = min(_BULK_CHUNK, fitting)
        else:
            self._most = CHUNK if self._load else min(CHUNK, fitting)
        self._packet = int(packet) - _ROOM
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for piece in chunks(batch, self._most):
            self._waiting.append(piece)
            self._bytes += piece.nbytes
            if self._bytes >= self._most:
                self.flush()

    def flush(self) -> None:
        """Returns when all rows so far are in the table."""
        import pyarrow as pa

        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        if self._bulk is None and self._load:
            self._in_lines(waiting)
            return
        for whole in pa.Table.from_batches(waiting).combine_chunks().to_batches():
            if self._bulk is not None:
                self._in_bulk(self._bulk, whole)
            else:
                self._insert(whole)

    def _in_lines(self, batches: Sequence[pa.RecordBatch]) -> None:
        loaded = self._session.load(self._statement.load(), (lines(batch) for batch in batches))
        self._count(sum(batch.num_rows for batch in batches), loaded.rows, loaded.warnings)

    def _in_bulk(self, number: int, batch: pa.RecordBatch) -> None:
        ready = packed(batch)
        if len(ready.rows) > self._packet:
            if batch.num_rows > 1:
                for half in _halves(batch):
                    self._in_bulk(number, half)
                return
            if self._load:
                self._in_lines([batch])
                return
        loaded = self._session.bulk(number, ready.types, ready.rows)
        self._count(batch.num_rows, loaded.rows, loaded.warnings)

    def _insert(self, batch: pa.RecordBatch) -> None:
        text = tuples(batch)
        if len(text) > self._packet and batch.num_rows > 1:
            for half in _halves(batch):
                self._insert(half)
            return
        loaded = self._session.run(self._statement.insert() + bytes(text[:-1]))
        self._count(batch.num_rows, loaded.rows, loaded.warnings)

    def _count(self, sent: int, taken: int, warnings: int) -> None:
        if warnings or taken != sent:
            raise refused_rows(self._mapper, self._session.warnings(), sent, taken)
        self.rows += sent


def _halves(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    half = batch.num_rows // 2
    return batch.slice(0, half), batch.slice(half)


# Rows in binary form

_NULL = 1  # the indicator of a value that is not there
_UNSIGNED = 0x80
_STRING, _BLOB, _DATETIME = 0xFD, 0xFC, 0x0C
#: The protocol's number of each type that travels as it is in memory.
_NUMBERS = {"boolean": 0x01, "tinyint": 0x01, "smallint": 0x02, "int": 0x03, "bigint": 0x08, "double": 0x05}
_DATETIME_FIELDS = [
    ("length", "u1"), ("year", "<u2"), ("month", "u1"), ("day", "u1"),
    ("hour", "u1"), ("minute", "u1"), ("second", "u1"), ("micros", "<u4"),
]  # fmt: skip
_DAY = 86_400_000_000
_FIRST, _LAST = -719_528 * _DAY, 2_932_897 * _DAY  # years 0 to 9999, in microseconds from 1970


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows, and the types that the packet announces them with."""

    types: bytes
    rows: memoryview


def packed(batch: pa.RecordBatch) -> Packed:
    """`DataError` for a value that no server takes."""
    import numpy as np

    columns = [_column(batch.column(number), name) for number, name in enumerate(batch.schema.names)]
    sizes = [column.sizes() for column in columns]
    whole: Any = sum(sizes)
    ends = np.cumsum(np.broadcast_to(whole, batch.num_rows), dtype=np.int64)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = ends - whole
    for column, size in zip(columns, sizes, strict=True):
        column.put(out, at)
        at += size
    return Packed(b"".join(bytes([column.type, column.flags]) for column in columns), out.data)


class _Column(ABC):
    """Values of one column. `there` is None where all of them are."""

    type: int
    flags: int = 0
    there: Any

    @abstractmethod
    def sizes(self) -> Any:
        """Bytes of every row, its indicator among them: a number, or one for each."""

    @abstractmethod
    def put(self, out: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
        """Put every row's bytes into `out`, which is all zero, at its place."""

    def places(self, out: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> Any:
        """Where values begin, of the rows that have one; the others are marked."""
        if self.there is None:
            return at + 1
        out[at[~self.there]] = _NULL
        return at[self.there] + 1


class _Fixed(_Column):
    def __init__(self, kind: int, values: np.ndarray[Any, Any], there: Any, flags: int = 0) -> None:
        self.type, self.flags, self.there = kind, flags, there
        self._values = values if there is None else values[there]

    def sizes(self) -> Any:
        whole = 1 + self._values.dtype.itemsize
        return whole if self.there is None else self.there * (whole - 1) + 1

    def put(self, out: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
        import numpy as np

        places, values = self.places(out, at), self._values
        if len(values):
            # One value at every byte: so one assignment puts whole values at any place.
            anywhere: Any = np.ndarray((len(out) - values.dtype.itemsize + 1,), values.dtype, out.data, strides=(1,))
            anywhere[places] = values


class _Bytes(_Column):
    """Length, then bytes. A length below 251 takes one byte, another one 3, 4 or 9."""

    def __init__(self, kind: int, column: pa.Array, there: Any) -> None:
        import numpy as np

        self.type, self.there = kind, there
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        first, last = (int(bounds[0]), int(bounds[-1])) if len(column) else (0, 0)
        self._data = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
        self._lengths = np.diff(bounds)
        if there is not None:  # bytes behind a null, if any, are nobody's
            if bool(self._lengths[~there].any()):
                self._data = self._data[np.repeat(there, self._lengths)]
            self._lengths = self._lengths[there]
        self._heads = np.ones(len(self._lengths), np.int64)
        for limit, size in ((251, 3), (1 << 16, 4), (1 << 24, 9)):
            self._heads[self._lengths >= limit] = size

    def sizes(self) -> Any:
        import numpy as np

        own = self._heads + self._lengths
        if self.there is None:
            return own + 1
        sizes = np.ones(len(self.there), np.int64)
        sizes[self.there] += own
        return sizes

    def put(self, out: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
        import numpy as np

        places, lengths = self.places(out, at), self._lengths
        if not len(lengths):
            return
        out[places] = lengths.astype(np.uint8)
        for size, mark in ((3, 0xFC), (4, 0xFD), (9, 0xFE)):
            long = self._heads == size
            if long.any():
                out[places[long]] = mark
                for number in range(size - 1):
                    out[places[long] + 1 + number] = (lengths[long] >> (8 * number)) & 0xFF
        began = np.cumsum(lengths) - lengths
        out[np.repeat(places + self._heads - began, lengths) + np.arange(len(self._data))] = self._data


def _column(column: pa.Array, name: str) -> _Column:
    import numpy as np
    import pyarrow as pa

    kind = of_arrow(name, column.type)
    column = plain(column, name)
    there = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if kind in _NUMBERS or kind == "ubigint":
        filled = column.fill_null(0) if column.null_count else column
        wanted = {"tinyint": "<i1", "smallint": "<i2", "int": "<i4", "bigint": "<i8", "double": "<f8", "ubigint": "<u8"}
        values = np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).astype(wanted.get(kind, "<u1"), copy=False)
        unsigned = kind == "ubigint"
        return _Fixed(_NUMBERS["bigint" if unsigned else kind], values, there, _UNSIGNED if unsigned else 0)
    if kind == "timestamp":
        moments = column.cast(pa.int64())
        numbers = (moments.fill_null(0) if moments.null_count else moments).to_numpy(zero_copy_only=False)
        if not len(numbers) or (numbers.min() >= _FIRST and numbers.max() < _LAST):
            return _Fixed(_DATETIME, _datetimes(numbers), there)
    if kind == "binary":
        return _Bytes(_BLOB, column.cast(pa.large_binary()), there)
    return _Bytes(_STRING, column.cast(pa.string()).cast(pa.large_string()), there)


def _datetimes(moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Microseconds from 1970 as dates and times, by the Gregorian calendar of all years."""
    import numpy as np

    days = moments // _DAY
    within = moments - days * _DAY
    seconds = (within // 1_000_000).astype(np.int32)
    made = np.zeros(len(moments), np.dtype(_DATETIME_FIELDS))
    made["length"] = 11
    made["micros"] = within - seconds.astype(np.int64) * 1_000_000
    minutes = seconds // 60
    made["second"] = seconds - minutes * 60
    hours = minutes // 60
    made["minute"] = minutes - hours * 60
    made["hour"] = hours
    # Years that begin in March, in cycles of 400: then the day of a leap year comes last.
    shifted = days.astype(np.int32) + 719_468
    cycle = shifted // 146_097
    day = shifted - cycle * 146_097
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    made["day"] = day - (153 * month + 2) // 5 + 1
    january_or_february = month >= 10
    made["month"] = month + 3 - 12 * january_or_february
    made["year"] = year + cycle * 400 + january_or_february
    return made
