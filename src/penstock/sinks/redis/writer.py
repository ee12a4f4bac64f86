"""A task's hand on Redis: `StagingWriter` prepares rows beside the user's keys, `DirectWriter` writes the keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import DataError, PreCommitFailed, ValueTooLarge
from penstock.sinks.redis import scripts
from penstock.sinks.redis.client import Script, connect, public_address, translate_errors
from penstock.sinks.redis.rows import Rows, has_lengths, lay_out
from penstock.sinks.redis.scripts import Layout, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

#: What one script applies, and one command carries. Some ten milliseconds in which Redis serves nobody else.
ELEMENTS_AT_ONCE = 16_000
BYTES_AT_ONCE = 8 << 20

#: proto-max-bulk-len, which hardly anybody changes.
LARGEST_VALUE = 512 << 20

_OPEN = Script(scripts.OPEN)
_ABORT = Script(scripts.ABORT)
_VALIDATE = Script(scripts.VALIDATE)


@dataclass(frozen=True)
class RedisTarget:
    """Where and how a sink writes; small, picklable. The address may hold a password."""

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    cluster: bool
    mode: str
    key: str
    prefix: str
    ttl: int | None  # milliseconds
    sentinels: tuple[str, ...] = ()
    replicas: int = 0

    def connect(self) -> Any:
        return connect(self.url, self.options, cluster=self.cluster, sentinels=self.sentinels)


def portions(batch: pa.RecordBatch, target: RedisTarget) -> Iterator[tuple[Rows, int]]:
    """`batch` in parts that one command can carry, each with its size in bytes."""
    _fits(batch)
    average = max(1, batch.nbytes // max(1, batch.num_rows))
    most = max(1, min(ELEMENTS_AT_ONCE // (scripts.AHEAD + batch.num_columns - 1), BYTES_AT_ONCE // average))
    for start in range(0, batch.num_rows, most):
        part = batch.slice(start, most)
        yield lay_out(part, target.mode, target.key, target.prefix), part.nbytes


def _fits(batch: pa.RecordBatch) -> None:
    """Redis would cut the connection in the middle of a value that is too large, and look as if it were away."""
    import pyarrow.compute as pc

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        longest = (pc.max(pc.binary_length(column)).as_py() or 0) if has_lengths(column.type) else 0
        if longest > LARGEST_VALUE:
            raise ValueTooLarge(
                f"A value of column {name!r} has {longest:,} bytes, and Redis takes up to {LARGEST_VALUE:,}.",
                safe="nothing of this epoch is visible.",
                to_do="leave such rows out, or put the value elsewhere and its address into Redis.",
            )


class StagingWriter(Writer):
    """Appends rows to a list of its own. Once somebody has removed that list, it can append nothing more."""

    def __init__(self, target: RedisTarget, scope: WriterScope) -> None:
        self._target = target
        self._keys = Layout.of(scope.sink, target.prefix)
        self._name = name_of(scope)
        self._client = target.connect()
        self._head = ""
        self._elements = self._width = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        with translate_errors(self._target.url):
            if not self._head:
                self._open(batch)
            for rows, size in portions(batch, self._target):
                length = self._client.execute_command("RPUSHX", self._keys.rows(self._name), *rows.elements)
                self._elements += len(rows.elements)
                self._bytes += size
                self._expect(length)

    def pre_commit(self) -> Mapping[str, Any]:
        try:
            if not self._elements:
                self._undo()
                return {}
            with translate_errors(self._target.url):
                self._expect(self._client.llen(self._keys.rows(self._name)))
                at_once = self._at_once()
                self._validate(at_once)
        finally:
            self._client.close()
        return {"base": self._keys.base, "name": self._name, "elements": self._elements, "at_once": at_once}

    def abort(self) -> None:
        try:
            with translate_errors(self._target.url):
                self._undo()
        finally:
            self._client.close()

    def _open(self, batch: pa.RecordBatch) -> None:
        fields = [name for name in batch.schema.names if name != self._target.key]
        self._width = scripts.AHEAD + len(fields)
        head = {"mode": self._target.mode, "fields": fields}
        if self._target.ttl is not None:
            head["ttl"] = str(self._target.ttl)  # as text: Lua would write a large number with an exponent
        self._head = json.dumps(head)
        _OPEN(self._client, [self._keys.open, self._keys.rows(self._name)], [self._name, self._head])

    def _expect(self, length: int) -> None:
        if length != self._elements + 1:
            raise PreCommitFailed(
                f"The rows prepared in Redis as {self._name} were {'removed' if length == 0 else 'changed'} while they "
                "were written: a newer run has taken over, or somebody cleaned the keys.",
                safe="nothing of this epoch is visible; it replays from the same positions.",
                to_do="nothing if the job was restarted; otherwise keep other programs off the keys 'penstock:*', and "
                "see that Redis evicts none (maxmemory-policy).",
            )

    def _at_once(self) -> int:
        rows = self._elements // self._width
        average = max(1, self._bytes // rows)
        return self._width * max(1, min(ELEMENTS_AT_ONCE // self._width, BYTES_AT_ONCE // average))

    def _validate(self, at_once: int) -> None:
        """Look at every key before the decision, while a refusal still costs nothing."""
        for first in range(1, self._elements + 1, at_once):
            why = _VALIDATE(self._client, [self._keys.rows(self._name)], [self._head, first, first + at_once - 1])
            if why:
                raise DataError(
                    f"Redis at {public_address(self._target.url)} cannot take a row: {why.decode(errors='replace')}.",
                    safe="nothing of this epoch is visible.",
                    to_do="remove the key that is in the way, or give the sink another prefix.",
                )

    def _undo(self) -> None:
        if self._head:
            keys = [self._keys.open, self._keys.begun, self._keys.rows(self._name)]
            _ABORT(self._client, keys, [self._name])


class DirectWriter(Writer):
    """Writes the keys themselves, pipelined: at least once for counters, convergent for everything else. Works on any
    Redis, a cluster too."""

    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._client = target.connect()

    def write(self, batch: pa.RecordBatch) -> None:
        fields = [name for name in batch.schema.names if name != self._target.key]
        with translate_errors(self._target.url):
            for rows, _ in portions(batch, self._target):
                with self._client.pipeline(transaction=False) as pipeline:
                    for command in commands(rows, fields, self._target):
                        pipeline.execute_command(*command)
                    pipeline.execute()

    def pre_commit(self) -> Mapping[str, Any]:
        self._client.close()
        return {}

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()


def commands(rows: Rows, fields: list[str], target: RedisTarget) -> Iterator[tuple[Any, ...]]:
    """The commands that write `rows`, in their order."""
    elements, width = rows.elements, rows.width
    for at in range(0, len(elements), width):
        nulls, key, values = elements[at], elements[at + 1], elements[at + scripts.AHEAD : at + width]
        if target.mode == "string":
            ttl = () if target.ttl is None else ("PX", target.ttl)
            yield ("DEL", key) if nulls else ("SET", key, values[0], *ttl)
            continue
        flags = nulls or b"1" * len(fields)
        if target.mode == "counter":
            some = [n for n in range(len(fields)) if flags[n] == ord("1")]
            if not some:
                continue
            for n in some:
                yield ("HINCRBY", key, fields[n], values[n]) if len(fields) > 1 else ("INCRBY", key, values[n])
        else:
            there = [part for n, name in enumerate(fields) if flags[n] == ord("1") for part in (name, values[n])]
            gone = [name for n, name in enumerate(fields) if flags[n] == ord("0")]
            if there:
                yield ("HSET", key, *there)
            if gone:
                yield ("HDEL", key, *gone)
        if target.ttl is not None:
            yield ("PEXPIRE", key, target.ttl)
