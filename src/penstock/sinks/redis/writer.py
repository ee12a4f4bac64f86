"""A task's side of Redis: `StagingWriter` prepares rows beside the user's keys, `DirectWriter` writes the keys.

Rows become the byte strings that Redis holds column by column, without a Python loop over values; the text of each type
is in docs/how-to/redis.md.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import DataError, PreCommitFailed, SchemaMismatch, ValueTooLarge
from penstock.sinks.files.commit import attempt_name
from penstock.sinks.files.text import LOSSLESS, digits_of, is_nested, keys_as_text, refuse_keys
from penstock.sinks.redis import client
from penstock.sinks.redis.sink import RedisSink
from penstock.sinks.sql.tables import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


#: Limits of one script and one command: some ten milliseconds in which Redis serves no other client.
ELEMENTS_AT_ONCE = 16_000
BYTES_AT_ONCE = 8 << 20

#: The default of proto-max-bulk-len.
LARGEST_VALUE = 512 << 20

_WHOLE = ("tinyint", "smallint", "int", "bigint")


def shape(frame: DataFrame, mode: str, key: str) -> DataFrame:
    """The key and then the values, with types that `lay_out` renders."""
    from pyspark.sql import functions as f

    fields = frame.schema.fields
    names = [field.name for field in fields]
    if names.count(key) != 1:
        raise SchemaMismatch(
            f"The Redis sink takes its keys from the column {key!r}, and the columns are {names}.",
            to_do="name the column with RedisSink(key=…), once.",
        )
    if len(names) == 1:
        raise SchemaMismatch(
            f"There is no column besides the key {key!r}, so there is nothing to write.",
            to_do="add a column with the value.",
        )
    if len({*names}) < len(names):
        raise SchemaMismatch(
            f"Two columns have the same name in {names}.", to_do="give every column a name of its own."
        )
    key_type = next(field.dataType for field in fields if field.name == key)
    values = [field for field in fields if field.name != key]
    if is_nested(key_type):
        raise SchemaMismatch(f"The key {key!r} is a {key_type.simpleString()}.", to_do="make it a string first.")
    if mode == "counter":
        for field in values:
            if field.dataType.simpleString() not in _WHOLE:
                raise SchemaMismatch(
                    f"The column {field.name!r} is a {field.dataType.simpleString()}, and counters are whole numbers.",
                    to_do=f"cast it to bigint, or leave it out: .select({key!r}, …).",
                )
    refuse_keys(values, "The Redis sink")
    select = frame.select  # first: a frame that is out of reach refuses here, see `Columns`
    if mode == "string" and len(values) > 1:
        parts = [keys_as_text(f.col(quoted(field.name, "`")), field.dataType).alias(field.name) for field in values]
        columns = [f.to_json(f.struct(*parts), dict(LOSSLESS["json"])).alias("value")]
    else:
        columns = [_plain(f.col(quoted(field.name, "`")), field.dataType).alias(field.name) for field in values]
    return select(_plain(f.col(quoted(key, "`")), key_type).alias(key), *columns)


def _plain(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f

    if is_nested(kind):
        # Inside a struct, because to_json does not take every plain array; the wrapping is cut off again.
        text = f.to_json(
            f.struct(keys_as_text(column, kind).alias("v")), {**LOSSLESS["json"], "ignoreNullFields": "false"}
        )
        return f.when(column.isNotNull(), f.substring(text, f.lit(6), f.length(text) - f.lit(6)))
    return column.cast("string") if kind.simpleString().startswith("interval") else column


class Rows(NamedTuple):
    """Rows in the scripts' layout: nulls (`""`, or a `1` or `0` for each value), key, values; row after row."""

    elements: list[Any]
    width: int


def lay_out(batch: pa.RecordBatch, key: str, prefix: str) -> Rows:
    """`batch` for Redis. `DataError` for a row without key or with a sink's own."""
    if batch.column(key).null_count:
        raise DataError(
            f"A row has no key: the column {key!r} is null.", to_do="leave such rows out before they are written."
        )
    names = [name for name in batch.schema.names if name != key]
    values = [batch.column(name) for name in names]
    width = client.AHEAD + len(names)
    elements: list[Any] = [b""] * (width * batch.num_rows)
    elements[1::width] = _keys(batch.column(key), prefix)
    for number, (name, column) in enumerate(zip(names, values, strict=True)):
        elements[client.AHEAD + number :: width] = _rendered(column, name)
    if any(column.null_count for column in values):
        elements[0::width] = _nulls(values)
    return Rows(elements, width)


def _keys(column: pa.Array, prefix: str) -> list[Any]:
    plain = _text(column, "key").cast(pa.large_binary())
    ahead, between = (pa.scalar(part, pa.large_binary()) for part in (prefix.encode(), b""))
    whole = pc.binary_join_element_wise(ahead, plain, between)
    if pc.any(pc.match_substring_regex(whole, client.RESERVED)).as_py():
        raise DataError(
            "A row has a key that begins with 'penstock:', like the keys that sinks keep for themselves.",
            to_do="leave such rows out, or give the sink a prefix.",
        )
    joined: list[Any] = whole.to_numpy(zero_copy_only=False).tolist()
    return joined


def _rendered(column: pa.Array, name: str) -> list[Any]:
    text = _text(column, name)
    if text.null_count:
        text = text.fill_null(b"" if str(text.type).endswith("binary") else "")
    values: list[Any] = text.to_numpy(zero_copy_only=False).tolist()
    return values


def has_lengths(kind: pa.DataType) -> bool:
    fits = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(fit(kind) for fit in fits)


def _text(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    is_a = pa.types
    if has_lengths(kind):
        return column
    if is_a.is_timestamp(kind):
        text = column.cast(pa.timestamp("us", "UTC" if kind.tz else None)).cast(pa.string())
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    if is_a.is_decimal(kind):
        return digits_of(column)
    if is_a.is_nested(kind) or is_a.is_dictionary(kind):
        raise SchemaMismatch(
            f"The column {name!r} is {kind}, which Redis has no text for.", to_do="make it a string first."
        )
    return column.cast(pa.string())


def _nulls(values: list[pa.Array]) -> list[bytes]:
    valid = np.column_stack([column.is_valid().to_numpy(zero_copy_only=False) for column in values])
    complete: list[bool] = np.logical_and.reduce(valid, axis=1).tolist()
    digits, width = (valid + ord("0")).astype(np.uint8).tobytes(), len(values)
    return [b"" if whole else digits[at * width : (at + 1) * width] for at, whole in enumerate(complete)]


def portions(batch: pa.RecordBatch, sink: RedisSink) -> Iterator[tuple[Rows, int]]:
    """`batch` in parts for one command each, with their size in bytes."""
    _fits(batch)
    average = max(1, batch.nbytes // max(1, batch.num_rows))
    most = max(1, min(ELEMENTS_AT_ONCE // (client.AHEAD + batch.num_columns - 1), BYTES_AT_ONCE // average))
    for start in range(0, batch.num_rows, most):
        part = batch.slice(start, most)
        yield lay_out(part, sink.key, sink.prefix), part.nbytes


def _fits(batch: pa.RecordBatch) -> None:
    """Redis would drop the connection in the middle of a value that is too large, and appear unavailable."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        longest = (pc.max(pc.binary_length(column)).as_py() or 0) if has_lengths(column.type) else 0
        if longest > LARGEST_VALUE:
            raise ValueTooLarge(
                f"A value of column {name!r} has {longest:,} bytes, and Redis takes up to {LARGEST_VALUE:,}.",
                to_do="leave such rows out, or put the value elsewhere and its address into Redis.",
            )


class StagingWriter(Writer):
    """Appends rows to a list of its own. Once that list is removed, it can append nothing more."""

    def __init__(self, sink: RedisSink, scope: WriterScope) -> None:
        self._sink = sink
        self._keys = client.Layout.of(scope.sink, sink.prefix)
        self._name = attempt_name(scope, secrets.token_hex(6))
        self._client = sink.connect()
        self._head = ""
        self._elements = self._width = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        with client.translate_errors(self._sink.url):
            if not self._head:
                self._open(batch)
            for rows, size in portions(batch, self._sink):
                length = self._client.execute_command("RPUSHX", self._keys.rows(self._name), *rows.elements)
                self._elements += len(rows.elements)
                self._bytes += size
                self._expect(length)

    def pre_commit(self) -> Mapping[str, Any]:
        with contextlib.closing(self._client):
            if not self._elements:
                self._undo()
                return {}
            with client.translate_errors(self._sink.url):
                self._expect(self._client.llen(self._keys.rows(self._name)))
                average = max(1, self._bytes * self._width // self._elements)
                at_once = self._width * max(1, min(ELEMENTS_AT_ONCE // self._width, BYTES_AT_ONCE // average))
                self._validate(at_once)
        return {"base": self._keys.base, "name": self._name, "elements": self._elements, "at_once": at_once}

    def abort(self) -> None:
        with contextlib.closing(self._client), client.translate_errors(self._sink.url):
            self._undo()

    def _open(self, batch: pa.RecordBatch) -> None:
        fields = [name for name in batch.schema.names if name != self._sink.key]
        self._width = client.AHEAD + len(fields)
        head: dict[str, Any] = {"mode": self._sink.mode, "fields": fields}
        if self._sink.ttl_milliseconds is not None:
            head["ttl"] = str(self._sink.ttl_milliseconds)  # as text: Lua would write a large number with an exponent
        self._head = json.dumps(head)
        client.OPEN(self._client, [self._keys.open, self._keys.rows(self._name)], [self._name, self._head])

    def _expect(self, length: int) -> None:
        if length != self._elements + 1:
            raise PreCommitFailed(
                f"The rows prepared in Redis as {self._name} were {'removed' if length == 0 else 'changed'} while they "
                "were written: a newer run has taken over, or another program cleaned the keys.",
                to_do="nothing if the job was restarted; otherwise keep other programs off the keys 'penstock:*', and "
                "see that Redis evicts none (maxmemory-policy).",
            )

    def _validate(self, at_once: int) -> None:
        """Check every key before the decision, while a refusal costs nothing."""
        for first in range(1, self._elements + 1, at_once):
            why = client.VALIDATE(self._client, [self._keys.rows(self._name)], [self._head, first, first + at_once - 1])
            if why:
                where = client.public_address(self._sink.url)
                raise DataError(
                    f"Redis at {where} cannot take a row: {why.decode(errors='replace')}.",
                    to_do="remove the key that is in the way, or give the sink another prefix.",
                )

    def _undo(self) -> None:
        if self._head:
            keys = [self._keys.open, self._keys.begun, self._keys.rows(self._name)]
            client.ABORT(self._client, keys, [self._name])


class DirectWriter(Writer):
    """Writes the keys themselves, pipelined, on any Redis: at least once for counters, convergent otherwise."""

    def __init__(self, sink: RedisSink) -> None:
        self._sink = sink
        self._client = sink.connect()

    def write(self, batch: pa.RecordBatch) -> None:
        fields = [name for name in batch.schema.names if name != self._sink.key]
        with client.translate_errors(self._sink.url):
            for rows, _ in portions(batch, self._sink):
                with self._client.pipeline(transaction=False) as pipeline:
                    for command in commands(rows, fields, self._sink):
                        pipeline.execute_command(*command)
                    pipeline.execute()

    def pre_commit(self) -> Mapping[str, Any]:
        self._client.close()
        return {}

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()


def commands(rows: Rows, fields: list[str], sink: RedisSink) -> Iterator[tuple[Any, ...]]:
    """The commands that write `rows`, in their order."""
    elements, width = rows.elements, rows.width
    for at in range(0, len(elements), width):
        nulls, key, values = elements[at], elements[at + 1], elements[at + client.AHEAD : at + width]
        if sink.mode == "string":
            ttl = () if sink.ttl_milliseconds is None else ("PX", sink.ttl_milliseconds)
            yield ("DEL", key) if nulls else ("SET", key, values[0], *ttl)
            continue
        flags = nulls or b"1" * len(fields)
        if sink.mode == "counter":
            numbers = [n for n in range(len(fields)) if flags[n] == ord("1")]
            if not numbers:
                continue
            for n in numbers:
                yield ("HINCRBY", key, fields[n], values[n]) if len(fields) > 1 else ("INCRBY", key, values[n])
        else:
            pairs = [part for n, name in enumerate(fields) if flags[n] == ord("1") for part in (name, values[n])]
            nulled = [name for n, name in enumerate(fields) if flags[n] == ord("0")]
            if pairs:
                yield ("HSET", key, *pairs)
            if nulled:
                yield ("HDEL", key, *nulled)
        if sink.ttl_milliseconds is not None:
            yield ("PEXPIRE", key, sink.ttl_milliseconds)
