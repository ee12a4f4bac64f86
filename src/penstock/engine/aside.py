"""Rows that a sink refuses: found one by one in its task, and written into the aside sink by the same task.

The writer says which rows of a batch it can never take (`Writer.unfit`); what only the other system knows is found by
halving: a writer that can take a piece back (`Writer.try_write`) gets smaller pieces, until a piece is one row.

The decision holds what was refused: the hash of each row, and its place among rows of the same hash. A replay goes by
this alone: a sink that holds the other rows by now might refuse others.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.contracts.sink import REFUSED, TRACE, Aside, TwoPhaseSink, Writer, WriterScope
from penstock.engine.checksum import FLAT, HASH_COLUMN, MODULO, checksum_of
from penstock.engine.hashing import finish, hash_rows, values_of
from penstock.errors import DataError, ReplayDiffers
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from penstock.engine.task import Assignment

VERSION = 1  # of a record's format, see docs/how-to/bad-rows.md
AT, FROM = TRACE  # before the hash, where the plan carries them
_ROWS, _BYTES = 100_000, 32 << 20  # of a piece that a writer may have to take back
_LONGEST = 300  # characters of a reason: the decision holds it

Refused = Mapping[str, Sequence[Sequence[int]]]
Into = tuple[TwoPhaseSink | None, WriterScope]


def sifting(sink: Any, scope: WriterScope, assignment: Assignment, to: Assignment, rule: int) -> Callable[[], Sifter]:
    """For a sink `WithAside`; `to` is what its aside sink is assigned."""
    main = (sink.sink if assignment.writing.route.value == "sink" else None), scope
    other = (sink.other if to.writing.route.value == "sink" else None), replace(scope, sink=to.scope, hints=to.hints)
    return lambda: Sifter(main, sink.aside, other, assignment.refused, rule)


class Sifter:
    """A task's rows on their way into two sinks; one is None if its rows are only summed. `decided`: by a replay."""

    def __init__(self, main: Into, aside: Aside, other: Into, decided: Refused | None, rule: int) -> None:
        (sink, self._scope), (self._aside_sink, self._aside_scope) = main, other
        self._aside, self._rule, self._decided = aside, rule, decided
        self._reasons = {tuple(row): why for why, rows in (decided or {}).items() for row in rows}
        self._known = np.array([row[0] for row in self._reasons], np.uint64)
        self._seen = Counter[int]()  # of hashes that the decision names
        self._hashes: list[Any] = []
        self._refused: list[tuple[int, int, str]] = []  # the row's number in the task, its hash, and why
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._total = self._sum = 0
        self._out: Writer | None = None
        self._writer = None if sink is None else sink.open_writer(self._scope)

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows with their hashes and, where the plan carries them, the columns of their sources."""
        column = batch.column(HASH_COLUMN)
        hashes = np.frombuffer(column.buffers()[1], np.uint64)[column.offset : column.offset + len(column)].copy()
        numbers = np.arange(self._rows, self._rows + len(hashes))
        self._hashes.append(hashes)
        self._rows, self._total = self._rows + len(hashes), self._total + int(np.sum(hashes, dtype=np.uint64))
        if self._decided is not None:
            unfit: Mapping[int, str] = self._as_decided(hashes)
        else:
            unfit = self._writer.unfit(plain(batch)) if self._writer is not None else {}
        if unfit:
            self._set_aside(batch, numbers, unfit)
            fit = np.ones(len(hashes), np.bool_)
            fit[list(unfit)] = False
            batch, numbers = batch.filter(pa.array(fit)), numbers[fit]
        if self._writer is None or not batch.num_rows:
            return
        if self._decided is None and type(self._writer).try_write is not Writer.try_write:
            # From its bytes: of an object of numpy's, Arrow would make an array by importing pandas.
            places = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            self._waiting.append(batch.append_column("", places))
            if sum(each.num_rows for each in self._waiting) >= _ROWS or sum(e.nbytes for e in self._waiting) >= _BYTES:
                self._settle()
            return
        try:
            self._writer.write(plain(batch))
        except DataError as error:
            if self._decided is None:
                raise
            happened = f"Sink {self._scope.sink.uid!r} refuses rows now that were decided for it: {error.happened}"
            safe, to_do = "what is visible stays; nothing more was written.", "undo what was changed at the sink."
            raise ReplayDiffers(happened, safe=safe, to_do=to_do) from error

    def finish(self) -> Mapping[str, Any]:
        """No more rows come: both writers prepare. What is returned becomes part of the task's answer."""
        self._settle()
        failpoint("task.written")
        rows, payload = self._rows - len(self._refused), {}
        if self._writer is not None and rows:
            payload = dict(self._writer.pre_commit())
        elif self._writer is not None:
            self._writer.abort()
        failpoint("task.sifted")
        aside = {REFUSED: self._places(), **({} if self._out is None else self._out.pre_commit())}
        failpoint("task.prepared")
        total = self._total - sum(hash_ for _, hash_, _ in self._refused)
        return {
            "payload": payload,
            "rows": rows,
            "checksum": checksum_of(total, self._rule),
            "aside": {"rows": len(self._refused), "checksum": checksum_of(self._sum, FLAT), "payload": aside},
        }

    def abort(self) -> None:
        for writer in filter(None, (self._out, self._writer)):
            writer.abort()

    def _as_decided(self, hashes: Any) -> dict[int, str]:
        unfit: dict[int, str] = {}
        for index in np.flatnonzero(np.isin(hashes, self._known)) if len(self._known) else ():
            value = int(hashes[index])
            if (why := self._reasons.get((value, self._seen[value]))) is not None:
                unfit[int(index)] = why
            self._seen[value] += 1
        return unfit

    def _settle(self) -> None:
        """Have the writer take what waits, in its order, except for the rows that it refuses."""
        pieces = [pa.Table.from_batches(self._waiting)] if self._waiting else []
        self._waiting = []
        while pieces:
            piece = pieces.pop()
            assert self._writer is not None
            why = self._writer.try_write([plain(batch) for batch in piece.to_batches()])
            if why is not None and piece.num_rows == 1:
                [batch] = piece.to_batches()
                self._set_aside(batch, batch.column(batch.num_columns - 1).to_numpy(), {0: why})
            elif why is not None:
                half = piece.num_rows // 2
                pieces += [piece.slice(half), piece.slice(0, half)]

    def _set_aside(self, batch: pa.RecordBatch, numbers: Any, unfit: Mapping[int, str]) -> None:
        indices, texts = sorted(unfit), list[str]()
        taken = batch.take(pa.array(indices, pa.int64()))
        schema = plain(taken).schema
        for number, field in enumerate(schema):
            if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):  # Python knows the years 1 to 9999
                schema = schema.set(number, field.with_type(pa.string()))
        rows, hashes = plain(taken).cast(schema).to_pylist(), taken.column(HASH_COLUMN).to_pylist()
        for index, row, hash_, source in zip(indices, rows, hashes, source_of(taken, self._aside.topic), strict=True):
            why = " ".join(unfit[index].split())[:_LONGEST]
            self._refused.append((int(numbers[index]), hash_ % MODULO, why))
            texts.append(record_of(why, self._scope, source, row))
        self._aside.check(self._scope.epoch, len(self._refused))
        records = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["value"])
        columns = [values_of(records.column(0))]  # hashed as by Spark in a frame of this one column, never null
        self._sum += int(np.sum(finish(hash_rows(columns, len(texts)), columns, (False,)), dtype=np.uint64))
        if self._aside_sink is not None:
            self._out = self._out or self._aside_sink.open_writer(self._aside_scope)
            self._out.write(records)

    def _places(self) -> Refused:
        places: dict[str, list[list[int]]] = {}
        whys, seen = {number: why for number, _, why in self._refused}, Counter[int]()
        hashes = np.concatenate(self._hashes) if whys else np.empty(0, np.uint64)
        known = np.array([row[1] for row in self._refused], np.uint64)
        for number in np.flatnonzero(np.isin(hashes, known)).tolist():
            hash_ = int(hashes[number])
            if number in whys:
                places.setdefault(whys[number], []).append([hash_, seen[hash_]])
            seen[hash_] += 1
        return places


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as the sink takes them."""
    first = AT if AT in batch.schema.names else HASH_COLUMN
    return batch.select(batch.schema.names[: batch.schema.get_field_index(first)])


def source_of(batch: pa.RecordBatch, topic: str | None) -> list[dict[str, Any] | None]:
    """Where each row comes from: topic, partition and offset, or a file; None where the plan does not carry it."""
    if AT not in batch.schema.names:
        return [None] * batch.num_rows
    sources = list[dict[str, Any] | None]()
    for at, name in zip(batch.column(AT).to_pylist(), batch.column(FROM).to_pylist(), strict=True):
        kafka = at is not None and {"topic": name or topic, "partition": at >> 48, "offset": at & ((1 << 48) - 1)}
        sources.append(kafka or ({"file": name} if name else None))
    return sources


def record_of(why: str, scope: WriterScope, source: Mapping[str, Any] | None, row: Mapping[str, Any]) -> str:
    """One JSON text on one line. The row is as Spark's `from_json` reads it: bytes in base64, times in ISO 8601."""
    about = {"version": VERSION, "reason": why, "sink": scope.sink.uid, "epoch": scope.epoch, "source": source}
    return json.dumps({**about, "row": row}, ensure_ascii=False, separators=(",", ":"), default=_text)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else getattr(value, "isoformat", value.__str__)()
