"""A Delta table as `Target`, through the `deltalake` library: data files and the sink's mark in one entry of the log.

Each commit carries an application transaction, `txn` of `penstock:<job>:<uid>`, whose version counts this sink's
commits to the table. It is neither an epoch nor a generation: those start over after a restore or with a new ledger,
and a table that compared them would drop rows. If it is unchanged since a writer began, nothing of the sink was added
since; otherwise the entries of the log tell which tokens were.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import posixpath
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, CommitProperties
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import FileMetaData

from penstock.contracts.sink import SinkScope
from penstock.errors import ConfigurationError
from penstock.sinks.files import is_local
from penstock.sinks.files.encode import leaves
from penstock.sinks.tables import target as targets
from penstock.sinks.tables.sink import public_address
from penstock.sinks.tables.target import Change, History, Known, Target, Written
from penstock.storage.durable import ensure_folder, sync
from penstock.storage.hadoop import ObjectTree
from penstock.storage.local import LocalTree
from penstock.storage.tree import Tree

_LOG = "_delta_log"
_SWEPT = "penstock.swept"
_RULES = ("delta.generation", "delta.identity", "delta.invariants")
#: Characters of a text in the log's statistics; as many as Spark's writer keeps.
PREFIX = 32
#: Columns with statistics, counted from the first, unless the table's settings differ.
INDEXED = 32
_LAST = "\U0010ffff"
#: Versions without a list of features. Not 6, which means identity columns: deltalake lacks them.
_LEGACY = (1, 2, 3, 4, 5)
#: Features that ask nothing of an append, or only that no column uses them, which is checked.
_HARMLESS = frozenset((
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "timestampNtz", "deletionVectors", "v2Checkpoint",
))  # fmt: skip


class DeltaTarget(Target):
    """Keeps the table's state between looks and reads only what came since."""

    errors = (deltalake.exceptions.DeltaError,)

    def __init__(
        self, path: str, options: Mapping[str, str], partition_by: tuple[str, ...], scope: SinkScope | None
    ) -> None:
        self._path, self.options, self._partition_by = path, dict(options), partition_by
        self._app = f"penstock:{scope.prefix}" if scope is not None else "penstock"
        self.where = f"Delta table {public_address(path)}"
        self._table: Any = None
        self._entry = ""  # digest of the log's entry that the state ends with
        self._settled = -1  # all entries up to this one are known to be on the disk

    def look(self) -> Known | None:
        with self.translate_errors():
            if not self._updated():
                return None
            table = self._table
            schema = pa.schema(table.schema().to_arrow())
            self._refuse(schema)
            position = {"version": table.version(), "txn": table.transaction_version(self._app)}
            return Known(schema, tuple(table.metadata().partition_columns), position, {"partitions_in_files": False})

    def _updated(self) -> bool:
        """Whether there is a table; then its state is the newest."""
        # The library would apply the entries of a table that was created again to the state of the dropped one.
        if self._table is not None and self._digest(self._table.version()) == self._entry:
            self._table.update_incremental()
        else:
            try:
                self._table = deltalake.DeltaTable(self._path, storage_options=self.options or None)
            except deltalake.exceptions.TableNotFoundError:
                self._table = None
                return False
            self._settled = -1
        self._entry = self._digest(self._table.version())
        return True

    def _digest(self, version: int) -> str:
        try:
            return sha256(self._tree.read(_entry(version))).hexdigest()
        except FileNotFoundError:
            return ""  # cleaned up or dropped: load the table again

    def _refuse(self, schema: pa.Schema) -> None:
        table = self._table
        protocol, settings = table.protocol(), table.metadata().configuration
        problems = unsupported(protocol.min_writer_version, protocol.writer_features or ())
        if settings.get("delta.columnMapping.mode", "none") != "none":
            problems.append("it maps its columns to other names (delta.columnMapping.mode)")
        problems += [f"it has the constraint {key}" for key in settings if key.startswith("delta.constraints.")]
        for name, key, value in _notes(json.loads(table.schema().to_json()), ()):
            if key.startswith(_RULES):
                problems.append(f"its column {'.'.join(name)!r} has the rule {key}")
            elif key == targets.VARCHAR and not (len(name) == 1 and targets.varchar_length(value)):
                problems.append(f"its column {'.'.join(name)!r} is {value}, a length that only Spark enforces")
        problems += [f"its column {name!r} has parts that may not be null" for name in targets.strict_inside(schema)]
        if problems:
            raise ConfigurationError(
                f"{self.where} needs more than appended data files: {'; '.join(problems)}.",
                safe="nothing was written to it.",
                to_do="write to a table without that, and merge from there; or turn it off for this table.",
            )

    def create(self, schema: pa.Schema) -> None:
        targets.check_partitions(self._partition_by, schema, self.where)
        with self.translate_errors():
            try:
                deltalake.DeltaTable.create(
                    self._path,
                    schema=schema,
                    mode="ignore",
                    partition_by=list(self._partition_by),
                    storage_options=self.options or None,
                )
            except deltalake.exceptions.CommitFailedError:
                if self._tree.size(_entry(0)) is None:
                    raise  # not because another task was faster
            self._sync([0])

    def storage(self, known: Known) -> Tree:
        return self._tree

    @cached_property
    def _tree(self) -> Tree:
        return open_folder(self._path, self.options)

    def describe(self, known: Known, file: Written) -> AddAction:
        indexed = self._table.metadata().configuration.get("delta.dataSkippingNumIndexedCols", INDEXED)
        values = dict(partition_values(file.values, known.partition_by))
        stats = statistics(file, known.schema, int(indexed))
        return AddAction(file.name, file.size, values, int(time.time() * 1000), data_change=True, stats=stats)

    def history(self, since: Mapping[str, Any]) -> History:
        now = self._table.transaction_version(self._app)
        if now is not None and now == since.get("txn"):
            return History()
        newest, start = self._table.version(), since.get("version", -1) + 1
        added: set[str] = set()
        swept: set[str] = set()
        with self.translate_errors():
            for version in range(start if start <= newest + 1 else 0, newest + 1):
                try:
                    entry = self._tree.read(_entry(version))
                except FileNotFoundError:
                    return History(frozenset(added), frozenset(swept), complete=False)
                for action in map(json.loads, filter(bytes.strip, entry.splitlines())):
                    token = targets.token_of(action["add"]["path"]) if "add" in action else None
                    if token:
                        added.add(token)
                    swept.update(action.get("commitInfo", {}).get(_SWEPT, ()))
        return History(frozenset(added), frozenset(swept))

    def holds(self, names: Collection[str]) -> bool:
        with self.translate_errors():
            paths = pa.table(self._table.get_add_actions(flatten=True)).column("path").to_pylist()
            return set(names) <= {posixpath.basename(path) for path in paths}

    def append(self, change: Change) -> bool:
        table = self._table
        counted = (table.transaction_version(self._app) or 0) + 1
        notes: dict[str, Any] = {"userMetadata": change.note, "isBlindAppend": True}
        if change.swept:
            notes[_SWEPT] = list(change.swept)
        with self.translate_errors():
            try:
                table.create_write_transaction(
                    list(change.files),
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(table.metadata().partition_columns),
                    commit_properties=CommitProperties(
                        custom_metadata=notes,
                        max_commit_retries=0,  # a retry would commit without a new proof
                        app_transactions=[deltalake.Transaction(self._app, counted)],
                    ),
                )
            except deltalake.exceptions.CommitFailedError:
                if self._tree.size(_entry(table.version() + 1)) is None:
                    raise  # not because another writer was faster
                return False
            self._sync([table.version() + 1])
        return True

    def make_durable(self, since: Mapping[str, Any]) -> None:
        newest, start = self._table.version(), max(since.get("version", -1), self._settled) + 1
        self._sync(range(start, newest + 1))
        self._settled = max(self._settled, newest)

    def _sync(self, versions: Iterable[int]) -> None:
        """The library leaves a local entry to the operating system's cache; a commit must survive a power cut."""
        if not is_local(self._path):
            return
        table = Path(self._path)
        for version in versions:
            with contextlib.suppress(FileNotFoundError):  # replaced by a checkpoint of the table
                sync(table / _entry(version))
        ensure_folder(table / _LOG)
        sync(table / _LOG)


def _notes(kind: Any, inside: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """The metadata in a schema's JSON, of columns and the parts inside them: path, key, value."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        path = (*inside, field["name"])
        yield from ((path, key, value) for key, value in field["metadata"].items())
        yield from _notes(field["type"], path)
    for part in ("elementType", "keyType", "valueType"):
        yield from _notes(kind.get(part), (*inside, part))


def _entry(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"


class DeltaFiles(DeltaStorageHandler):
    """`deltalake`'s file system for pyarrow, with streams that take pyarrow's buffers."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_Bytes(self._handler.open_output_stream(path, metadata)), mode="w")


class _Bytes(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._stream.tell())

    def write(self, data: Any) -> int:
        content = bytes(data)  # the library's stream takes nothing else
        self._stream.write(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def open_folder(path: str, options: Mapping[str, str]) -> Tree:
    """The tree of a table at a local path or an `s3://` address, with `deltalake`'s options.

    Objects go through `deltalake`'s own client, which also writes the table's log. It takes each option under several
    names, and others from the environment and AWS's files: a second client could reach another store."""
    if is_local(path):
        return LocalTree(path)
    return ObjectTree(PyFileSystem(DeltaFiles(path, dict(options))), "")


def statistics(file: Written, schema: pa.Schema, indexed: int = INDEXED) -> str:
    """The `stats` of an add action. A wrong one loses rows in every later query, so uncertain ones are left out."""
    names = schema.names if indexed < 0 else schema.names[:indexed]
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, name in _flat(file.metadata.schema.to_arrow_schema()):
        if name not in names:
            continue
        bounds = _column(file.metadata, number)
        if bounds is None:
            continue
        nulls[name], least, most = bounds
        if (shown := least[:PREFIX] if isinstance(least, str) else _shown(least)) is not None:
            low[name] = shown
        if (shown := _high(most)) is not None:
            high[name] = shown
    body = {"numRecords": file.metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(body, ensure_ascii=False)


def _flat(schema: pa.Schema) -> Iterator[tuple[int, str]]:
    """Columns with plain values and their numbers in the footer, whose paths (`a.b`) are ambiguous."""
    number = 0
    for field in schema:
        if not pa.types.is_nested(field.type):
            yield number, field.name
        number += len(list(leaves(field.name, field.type)))


def _column(metadata: FileMetaData, number: int) -> tuple[int, Any, Any] | None:
    """Nulls, least and largest value over all row groups; None if a group has no statistics."""
    nulls = 0
    low: list[Any] = []
    high: list[Any] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        stats = chunk.statistics if chunk.is_stats_set else None
        if stats is None or not stats.has_null_count:
            return None
        nulls += stats.null_count
        if stats.null_count == chunk.num_values:
            continue
        if not targets.has_bounds(stats):
            low, high = [None], [None]
            break
        low.append(stats.min)
        high.append(stats.max)
    if not low or None in low:
        return nulls, None, None
    return nulls, min(low), max(high)


def _high(value: Any) -> Any:
    if not isinstance(value, str):
        return _shown(value)
    if len(value) <= PREFIX:
        return value
    # Larger than every text with this beginning, unless the next character is the last of all.
    return None if value[PREFIX] == _LAST else value[:PREFIX] + _LAST


def _shown(value: Any) -> Any:
    """None for values that readers may read differently: decimals, binaries, booleans, infinite numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if 1 <= value.year <= 9999 else None
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def partition_values(values: Sequence[Any], columns: Sequence[str]) -> Mapping[str, str | None]:
    """The text of partition values as the Delta protocol writes it."""
    return {name: _text(value) for name, value in zip(columns, values, strict=True)}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def unsupported(version: int, features: Collection[str]) -> list[str]:
    """Demands on writers that an append of plain files does not meet, or for which deltalake refuses to commit."""
    if version not in (*_LEGACY, 7):
        return [f"it needs writers of version {version}"]
    return [f"it has the feature {name}" for name in sorted(set(features) - _HARMLESS)]
