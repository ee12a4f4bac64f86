"""A Delta table as `Target`, through the `deltalake` library: data files and the sink's mark in one entry of the log.

Each commit carries an application transaction, `txn` of `penstock:<job>:<uid>`, whose version counts this sink's
commits to the table. It is neither an epoch nor a generation: those start over where a job is restored or its ledger is
new, and a table that compared them would drop rows. Unchanged since a writer began, it proves that nothing of the
sink was added since; otherwise the entries of the log tell which tokens were.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigurationError, MissingExtra
from penstock.sinks.files import is_local
from penstock.sinks.tables.columns import VARCHAR, strict_inside, varchar_length
from penstock.sinks.tables.delta_stats import INDEXED, partition_values, statistics, unsupported
from penstock.sinks.tables.faults import public_address, translate_errors
from penstock.sinks.tables.places import open_folder
from penstock.sinks.tables.target import Change, History, Known, Target, Written, token_of
from penstock.storage.durable import ensure_folder, sync
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from penstock.contracts.sink import SinkScope

_LOG = "_delta_log"
_SWEPT = "penstock.swept"
_RULES = ("delta.generation", "delta.identity", "delta.invariants")


def library() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise MissingExtra(
            "The Delta sink needs the package deltalake, which is not installed.",
            to_do="pip install 'penstock[delta]'",
        ) from error
    return deltalake


class DeltaTarget(Target):
    """Keeps the table's state between looks and reads only what came since."""

    def __init__(
        self, path: str, options: Mapping[str, str], partition_by: tuple[str, ...], scope: SinkScope | None
    ) -> None:
        self._path, self._options, self._partition_by = path, dict(options), partition_by
        self._app = f"penstock:{scope.prefix}" if scope is not None else "penstock"
        self.where = f"Delta table {public_address(path)}"
        self._table: Any = None
        self._entry = ""  # digest of the log's entry that the state ends with
        self._settled = -1  # all entries up to this one are known to be on the disk
        self._opened: Tree | None = None

    def look(self) -> Known | None:
        with self.translate_errors():
            if not self._updated():
                return None
            table = self._table
            schema = pa.schema(table.schema().to_arrow())
            meta = table.metadata()
            self._refuse(schema)
            position = {"version": table.version(), "txn": table.transaction_version(self._app)}
            indexed = meta.configuration.get("delta.dataSkippingNumIndexedCols", str(INDEXED))
            extra = {"partitions_in_files": False, "indexed": int(indexed)}
            return Known(schema, tuple(meta.partition_columns), position, extra)

    def _updated(self) -> bool:
        """Whether there is a table; then its state is the newest."""
        deltalake = library()
        # A table that was dropped and made again has other entries under the same numbers, and the library would put
        # the new ones on top of the old state.
        if self._table is not None and self._digest(self._table.version()) == self._entry:
            self._table.update_incremental()
        else:
            try:
                self._table = deltalake.DeltaTable(self._path, storage_options=self._options or None)
            except deltalake.exceptions.TableNotFoundError:
                self._table = None
                return False
            self._settled = -1
        self._entry = self._digest(self._table.version())
        return True

    def _digest(self, version: int) -> str:
        try:
            return sha256(self._storage().read(_entry(version))).hexdigest()
        except FileNotFoundError:
            return ""  # cleaned up or dropped: load the table anew

    def _refuse(self, schema: pa.Schema) -> None:
        """Raise for what an append of plain Parquet files would break."""
        table = self._table
        protocol, settings = table.protocol(), table.metadata().configuration
        problems = unsupported(protocol.min_writer_version, protocol.writer_features or ())
        if settings.get("delta.columnMapping.mode", "none") != "none":
            problems.append("it maps its columns to other names (delta.columnMapping.mode)")
        problems += [f"it has the constraint {key}" for key in settings if key.startswith("delta.constraints.")]
        for name, key, value in _notes(json.loads(table.schema().to_json()), ()):
            if key.startswith(_RULES):
                problems.append(f"its column {'.'.join(name)!r} has the rule {key}")
            elif key == VARCHAR and not (len(name) == 1 and varchar_length(value)):
                problems.append(f"its column {'.'.join(name)!r} is {value}, a length that Spark alone watches")
        problems += [f"its column {name!r} has parts that may not be null" for name in strict_inside(schema)]
        if problems:
            raise ConfigurationError(
                f"{self.where} asks for more than data files that are added to it: {'; '.join(problems)}.",
                safe="nothing was written to it.",
                to_do="write to a table without that, and merge from there; or turn it off for this table.",
            )

    def create(self, schema: pa.Schema) -> None:
        from penstock.sinks.tables.columns import check_partitions

        check_partitions(self._partition_by, schema, self.where)
        deltalake = library()
        with self.translate_errors():
            try:
                deltalake.DeltaTable.create(
                    self._path,
                    schema=schema,
                    mode="ignore",
                    partition_by=list(self._partition_by),
                    storage_options=self._options or None,
                )
            except deltalake.exceptions.CommitFailedError:
                if self._storage().size(_entry(0)) is None:
                    raise  # no other task was faster: it is something else
            self._sync([0])

    def storage(self, known: Known) -> Tree:
        return self._storage()

    def _storage(self) -> Tree:
        if self._opened is None:
            self._opened = open_folder(self._path, self._options)
        return self._opened

    def describe(self, known: Known, file: Written) -> Mapping[str, Any]:
        return {
            "stats": statistics(file, known.schema, known.extra["indexed"]),
            "partition": dict(partition_values(file.values, known.partition_by)),
            "modified": int(time.time() * 1000),
        }

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
                    entry = self._storage().read(_entry(version))
                except FileNotFoundError:
                    return History(frozenset(added), frozenset(swept), complete=False)
                for action in _actions(entry):
                    token = token_of(action["add"]["path"]) if "add" in action else None
                    if token:
                        added.add(token)
                    swept.update(action.get("commitInfo", {}).get(_SWEPT, ()))
        return History(frozenset(added), frozenset(swept))

    def holds(self, names: Collection[str]) -> bool:
        with self.translate_errors():
            paths = pa.table(self._table.get_add_actions(flatten=True)).column("path").to_pylist()
            return set(names) <= {posixpath.basename(path) for path in paths}

    def append(self, change: Change) -> bool:
        deltalake = library()
        from deltalake.transaction import AddAction, CommitProperties

        table = self._table
        counted = (table.transaction_version(self._app) or 0) + 1
        notes: dict[str, Any] = {"userMetadata": change.note, "isBlindAppend": True}
        if change.swept:
            notes[_SWEPT] = list(change.swept)
        with self.translate_errors():
            try:
                table.create_write_transaction(
                    [
                        AddAction(
                            path=file["name"],
                            size=file["bytes"],
                            partition_values=file["about"]["partition"],
                            modification_time=file["about"]["modified"],
                            data_change=True,
                            stats=file["about"]["stats"],
                        )
                        for file in change.files
                    ],
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(table.metadata().partition_columns),
                    commit_properties=CommitProperties(
                        custom_metadata=notes,
                        max_commit_retries=0,  # a retry would commit without asking again whether it may
                        app_transactions=[deltalake.Transaction(self._app, counted)],
                    ),
                )
            except deltalake.exceptions.CommitFailedError:
                if self._storage().size(_entry(table.version() + 1)) is None:
                    raise  # nobody was faster: it is something else
                return False
            self._sync([table.version() + 1])
        return True

    def make_durable(self, since: Mapping[str, Any]) -> None:
        newest, start = self._table.version(), max(since.get("version", -1), self._settled) + 1
        self._sync(range(start, newest + 1))
        self._settled = max(self._settled, newest)

    def _sync(self, versions: Iterable[int]) -> None:
        """The library leaves a local entry to the operating system, and we promise that what is committed stays."""
        if not is_local(self._path):
            return
        table = Path(self._path)
        for version in versions:
            with contextlib.suppress(FileNotFoundError):  # entries that a checkpoint of the table has replaced
                sync(table / _entry(version))
        ensure_folder(table / _LOG)
        sync(table / _LOG)

    def translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self.where, self._options, (library().exceptions.DeltaError,))


def _notes(kind: Any, inside: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """What a schema, as JSON, notes on its columns and on the parts inside them: path, key, value."""
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


def _actions(entry: bytes) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in entry.splitlines() if line.strip())
