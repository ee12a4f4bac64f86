"""An Iceberg table as `Target`, through pyiceberg: data files and the sink's mark in one commit of the catalog.

The mark is a table property, see `iceberg_mark`: snapshots expire, properties stay.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import FileMetaData
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import pyarrow as parquet
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION
from pyiceberg.typedef import Record

from penstock.contracts.sink import SinkScope
from penstock.errors import ConfigurationError
from penstock.sinks.tables import target as targets
from penstock.sinks.tables.iceberg_mark import Pages, mark_in
from penstock.sinks.tables.target import Change, History, Known, Target, Written
from penstock.storage.durable import ensure_folder, sync
from penstock.storage.hadoop import ArrowTree, ObjectTree
from penstock.storage.local import LocalTree
from penstock.storage.tree import Tree

_ATTEMPTS = 4
_RETRIES = "commit.retry.num-retries"
_EPOCH_DAY = date(1970, 1, 1)


class IcebergTarget(Target):
    """Loads the table's metadata at every look."""

    errors = (Exception,)  # pyiceberg's have no common root, and its catalogs bring their own

    def __init__(
        self,
        table: str,
        catalog: str,
        properties: Mapping[str, str],
        partition_by: tuple[str, ...],
        scope: SinkScope | None,
    ) -> None:
        self._name, self._catalog_name, self._partition_by = table, catalog, partition_by
        self.options = dict(properties)
        self._mark = f"penstock.{scope.prefix}" if scope is not None else "penstock"
        self._pages = Pages(self._tree, targets.private_folder(scope, "taken") if scope is not None else "")
        self.where = f"Iceberg table {table} of catalog {catalog}"
        self._table: Any = None
        self._trees: dict[str, Tree] = {}

    def look(self) -> Known | None:
        with self.translate_errors():
            try:
                self._table = self._catalog.load_table(self._name)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table = None
                return None
            return self._known()

    def _known(self) -> Known:
        table, metadata = self._table, self._table.metadata
        schema = parquet.schema_to_pyarrow(table.schema())
        by = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
        reasons = [f"it is partitioned by {f}" for f in table.spec().fields if str(f.transform) != "identity"]
        if metadata.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
            reasons.append(f"it is of format {metadata.format_version}, which this pyiceberg cannot write")
        reasons += [f"its column {name!r} has parts that may not be null" for name in targets.strict_inside(schema)]
        if reasons:
            raise ConfigurationError(
                f"{self.where} needs more than appended data files: {'; '.join(reasons)}.",
                safe="nothing was written to it.",
                to_do="write to a table of format 2 that is partitioned by plain columns, or by none.",
            )
        position = {"table": str(metadata.table_uuid), "commits": self._marked()["commits"]}
        return Known(schema, tuple(by), position, {"root": self._root()})

    def _root(self) -> str:
        metadata = self._table.metadata
        root: str = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")
        return root.rstrip("/")

    def _marked(self) -> Mapping[str, Any]:
        return mark_in(self._table.metadata.properties, self._mark)

    def create(self, schema: pa.Schema) -> None:
        targets.check_partitions(self._partition_by, schema, self.where)
        space = self._name.rpartition(".")[0]
        with self.translate_errors():
            catalog = self._catalog
            # Several tasks may create it at once, and each catalog has its own error for the late ones.
            _patiently(lambda: catalog.create_namespace_if_not_exists(space), lambda: catalog.namespace_exists(space))
            _patiently(lambda: self._create(catalog, schema), lambda: catalog.table_exists(self._name))

    def _create(self, catalog: Any, schema: pa.Schema) -> None:
        with catalog.create_table_transaction(self._name, schema) as transaction:
            if self._partition_by:
                with transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_identity(name)

    def storage(self, known: Known) -> Tree:
        return self._tree(known.extra["root"])

    def _tree(self, root: str) -> Tree:
        if root not in self._trees:
            self._trees[root] = self._open_tree(root)
        return self._trees[root]

    def _open_tree(self, root: str) -> Tree:
        scheme, host, path = PyArrowFileIO.parse_location(root)
        if scheme == "file":
            return LocalTree(path)
        kind = ArrowTree if scheme in ("hdfs", "viewfs") else ObjectTree
        with self.translate_errors():
            if self._table is None:
                # Not from the driver's hints: a catalog may hand out credentials, which must not travel.
                self._table = self._catalog.load_table(self._name)
            return kind(PyArrowFileIO(self._table.io.properties).fs_by_scheme(scheme, host), path, address=root)

    def describe(self, known: Known, file: Written) -> DataFile:
        schema, metadata = self._table.schema(), self._table.metadata
        ids, plan = (
            parquet.parquet_path_to_id_mapping(schema),
            parquet.compute_statistics_plan(schema, metadata.properties),
        )
        for path in _without_bounds(file.metadata) & ids.keys():
            plan[ids[path]] = replace(plan[ids[path]], mode=parquet.MetricsMode(parquet.MetricModeTypes.COUNTS))
        values = ((value - _EPOCH_DAY).days if isinstance(value, date) else value for value in file.values)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{known.extra['root']}/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **parquet.data_file_statistics_from_parquet_metadata(file.metadata, plan, ids).to_serialized_dict(),
        )

    def history(self, since: Mapping[str, Any]) -> History:
        # A table that was dropped and created again has another history.
        before = since.get("commits", 0) if since.get("table") == str(self._table.metadata.table_uuid) else 0
        with self.translate_errors():
            return self._pages.history(self._marked(), before)

    def holds(self, names: Collection[str]) -> bool:
        with self.translate_errors():
            paths = {task.file.file_path for task in self._table.scan().plan_files()}
            return {path.rpartition("/")[2] for path in paths} >= set(names)

    def append(self, change: Change) -> bool:
        with self.translate_errors():
            table = self._table
            # In this process only. A retry by the library would commit without a new proof.
            properties = {**table.metadata.properties, _RETRIES: "0"}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            mark = self._pages.add(self._marked(), self._root(), change)
            transaction = table.transaction()
            try:
                transaction.set_properties({self._mark: json.dumps(mark, separators=(",", ":"))})
                update = transaction.update_snapshot(snapshot_properties={"penstock": change.note}).fast_append()
                with update as files:
                    for file in change.files:
                        files.append_data_file(file)
                transaction.commit_transaction()
            except CommitFailedException:
                self._pages.drop(mark)
                return False
            self._pages.prune(mark)
        return True

    @cached_property
    def _catalog(self) -> Any:
        # A catalog in a database creates its own tables when it is opened, and several tasks may do that at once.
        catalog = _patiently(lambda: load_catalog(self._catalog_name, **self.options), lambda: False)
        warehouse = catalog.properties.get("warehouse", "")
        if warehouse and ("://" not in warehouse or warehouse.startswith("file:")):
            catalog.properties.setdefault("py-io-impl", f"{__name__}.{SyncedFileIO.__name__}")
        return catalog


def _patiently(action: Callable[[], Any], done: Callable[[], bool]) -> Any:
    """The result of `action`, retried while other tasks do the same; None once `done` reports that one of them did."""
    pause = 0.05
    for _ in range(_ATTEMPTS - 1):
        try:
            return action()
        except Exception:
            if done():
                return None
        time.sleep(pause)
        pause *= 2
    return action()


def _without_bounds(metadata: FileMetaData) -> set[str]:
    """Columns whose bounds Python cannot hold; without bounds their files are only read more often."""
    chunks = (
        metadata.row_group(group).column(number)
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
    )
    return {chunk.path_in_schema for chunk in chunks if chunk.is_stats_set and not targets.has_bounds(chunk.statistics)}


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, which leaves local files to the cache; here they are on the disk when closed."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location=location, path=path, fs=self.fs_by_scheme(scheme, host))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        ensure_folder(Path(self._path).parent)
        return io.BufferedWriter(_SyncedStream(self._path, "wb" if overwrite else "xb"))


class _SyncedStream(io.FileIO):
    def close(self) -> None:
        if self.closed:
            return
        os.fsync(self.fileno())
        super().close()
        sync(Path(os.fsdecode(self.name)).parent)
