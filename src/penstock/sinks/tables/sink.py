"""`DeltaSink` and `IcebergSink`: rows into a table, one commit of the table per epoch."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit, urlunsplit

from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError, MissingExtra, TableMissing
from penstock.sinks.files import is_local, output_path
from penstock.storage.local import folder_warnings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.sinks.tables.target import Known, Target

COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")

_SQLITE = "sqlite:///"


@dataclass(frozen=True, repr=False)
class TableSink(TwoPhaseSink):
    shapes_once: ClassVar[bool] = True
    forbidden: ClassVar[str]
    """Characters that column names may not have."""

    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    compression: str = field(default="snappy", kw_only=True)
    create: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        by = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "partition_by", by)
        if self.compression not in COMPRESSIONS:
            raise ConfigurationError(
                f"{type(self).__name__} cannot compress with {self.compression!r}.",
                to_do=f"use one of {', '.join(COMPRESSIONS)}.",
            )

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.tables.target import check_partitions, of_frame

        check_partitions(self.partition_by, of_frame(frame, self.forbidden, self.describe()), self.describe())
        return frame

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.tables.writer import TableWriter

        return TableWriter(self._target(scope.sink), scope, self.compression, self.create)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.tables.committer import TableCommitter

        return TableCommitter(self._target(scope), scope)

    @abstractmethod
    def _target(self, scope: SinkScope | None) -> Target: ...

    def _check_table(self, known: Known | None, folder: str | None, uid: str) -> Sequence[Finding]:
        """Raises for a table, or a local `folder`, that cannot be written; other storage fails at the first write."""
        if known is None and not self.create:
            raise TableMissing(
                f"{self.describe()} does not exist, and the sink may not create it.",
                to_do="create the table, or leave create=True.",
            )
        if known is not None and self.partition_by and known.partition_by != self.partition_by:
            raise ConfigurationError(
                f"{self.describe()} is partitioned by {', '.join(known.partition_by) or 'nothing'}, the sink asks for "
                f"{', '.join(self.partition_by)}.",
                to_do="leave partition_by out: an existing table keeps its partitions.",
            )
        local = folder is not None and is_local(folder)
        return [Finding(uid, text) for text in (folder_warnings(Path(folder or ""), "a table") if local else ())]


@dataclass(frozen=True, repr=False)
class DeltaSink(TableSink):
    """Rows appended to the Delta table at `path`, an epoch in one commit of the table or not at all.

    Tasks write Parquet files into the table's folder, which no reader sees; the commit adds them all to the table's
    log. Other programs may write to the table at the same time: the later commit is retried.

    `path` is a local or mounted folder (plain or `file:`) or an `s3://` address; `storage_options` are those of the
    `deltalake` package (keys, endpoint, region) and are never shown. All tasks, on any machine, must reach the same
    storage.

    A missing table is created from the DataFrame's columns, partitioned by `partition_by` (text, whole numbers, dates,
    booleans), unless `create` is False; an existing one keeps its columns and partitions, and rows go in by name.
    Tables whose features ask more of a writer (column mapping, constraints, generated columns, row tracking, …) are
    refused.
    """

    forbidden: ClassVar[str] = " ,;{}()\n\t="

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        remote = urlsplit(self.path).scheme in ("s3", "s3a") and "://" in self.path
        if not remote and "://" in self.path and not self.path.startswith("file:"):
            raise ConfigurationError(
                f"DeltaSink cannot write to {urlsplit(self.path).scheme}://.",
                to_do="give a local or mounted folder (a plain path or file:) or an s3:// address.",
            )
        object.__setattr__(self, "path", self.path.rstrip("/") if remote else output_path(self.path))
        super().__post_init__()

    def __repr__(self) -> str:
        return f"DeltaSink({public_address(self.path)!r}, partition_by={self.partition_by!r})"

    def describe(self) -> str:
        return f"Delta table {public_address(self.path)}"

    def redirected(self, suffix: str) -> DeltaSink:
        return replace(self, path=f"{self.path}{suffix}")

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        return self._check_table(self._target(None).look(), self.path, uid)

    def _target(self, scope: SinkScope | None) -> Target:
        with MissingExtra.named("The Delta sink", "delta"):
            from penstock.sinks.tables.delta import DeltaTarget
        return DeltaTarget(self.path, self.storage_options, self.partition_by, scope)


@dataclass(frozen=True, repr=False)
class IcebergSink(TableSink):
    """Rows appended to the Iceberg table `table` ("namespace.name"), an epoch in one snapshot or not at all.

    Tasks write Parquet files into the table's data folder, which no reader sees; the commit adds them in one
    transaction of the catalog. Other programs may write to the table at the same time: the later commit is retried.

    `catalog` is a name from pyiceberg's configuration, or `properties` define it completely (`type`, `uri`,
    `warehouse`, keys, …); they are never shown. No Iceberg jars are needed: Spark takes no part in the commit.

    A missing table is created from the DataFrame's columns, partitioned by the values of `partition_by` (text, whole
    numbers, dates, booleans), unless `create` is False; an existing one keeps its columns and partitions, and rows go
    in by name. Tables partitioned by a transform (bucket, day, …) are refused.
    """

    forbidden: ClassVar[str] = "."

    table: str
    catalog: str = field(default="default", kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    compression: str = field(default="zstd", kw_only=True)

    def __post_init__(self) -> None:
        if not all(self.table.split(".")) or "." not in self.table:
            raise ConfigurationError(
                f"IcebergSink needs a namespace and a name, not {self.table!r}.",
                to_do='write the table like "shop.orders".',
            )
        super().__post_init__()

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r}, catalog={self.catalog!r}, partition_by={self.partition_by!r})"

    def describe(self) -> str:
        return f"Iceberg table {self.table} of catalog {self.catalog}"

    def redirected(self, suffix: str) -> IcebergSink:
        return replace(self, table=f"{self.table}{suffix}")

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        database = self.properties.get("uri", "")
        findings: list[Finding] = []
        known = None
        if database.startswith(_SQLITE) and not os.path.exists(database[len(_SQLITE) :]):
            # Connecting would create the file, and a check writes nothing.
            findings.append(Finding(uid, "the catalog's database does not exist yet and will be created"))
        else:
            # A catalog in a database creates its own tables when it is opened, unless configured not to.
            properties = {**self.properties, "init_catalog_tables": "false"}
            known = replace(self, properties=properties)._target(None).look()
        root = known.extra["root"].removeprefix("file://") if known is not None else None
        return [*findings, *self._check_table(known, root, uid)]

    def _target(self, scope: SinkScope | None) -> Target:
        with MissingExtra.named("The Iceberg sink", "iceberg"):
            from penstock.sinks.tables.iceberg import IcebergTarget
        return IcebergTarget(self.table, self.catalog, self.properties, self.partition_by, scope)


def public_address(address: str) -> str:
    """An address without user, password and query, for messages."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
