"""Rows into a table: a prepared INSERT in bulk where the server is MariaDB; else `LOAD DATA LOCAL INFILE`, or multi-row
INSERTs where the server does not allow that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.sinks.mysql import faults
from penstock.sinks.mysql.bulk import packed
from penstock.sinks.mysql.encode import CHUNK, Statement, chunks, lines, tuples
from penstock.sinks.mysql.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

_ROOM = 64 << 10  # left free in a packet for what is not rows
_BULK_CHUNK = 4 << 20  # bytes of Arrow in one packet of bulk execution, which is a little smaller


class Loader:
    """Collects small batches and sends them in statements of some megabytes. What the server does not take exactly as
    it was given is an error, and the caller rolls back."""

    def __init__(self, session: Session, statement: Statement, table: str) -> None:
        self._session, self._statement, self._table = session, statement, table
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
        self._settle(sum(batch.num_rows for batch in batches), loaded.rows, loaded.warnings)

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
        self._settle(batch.num_rows, loaded.rows, loaded.warnings)

    def _insert(self, batch: pa.RecordBatch) -> None:
        text = tuples(batch)
        if len(text) > self._packet and batch.num_rows > 1:
            for half in _halves(batch):
                self._insert(half)
            return
        loaded = self._session.run(self._statement.insert() + bytes(text[:-1]))
        self._settle(batch.num_rows, loaded.rows, loaded.warnings)

    def _settle(self, sent: int, taken: int, warnings: int) -> None:
        if warnings or taken != sent:
            faults.refused_rows(
                self._session.warnings(), sent, taken, where=self._session.login.where, table=self._table
            )
        self.rows += sent


def _halves(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    half = batch.num_rows // 2
    return batch.slice(0, half), batch.slice(half)
