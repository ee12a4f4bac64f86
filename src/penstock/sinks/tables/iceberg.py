"""`IcebergSink`: rows into an Iceberg table, one snapshot per epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError
from penstock.sinks.tables.delta import check_compression, partitioned_otherwise, table_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.sinks.tables.iceberg_table import IcebergTarget

_SQLITE = "sqlite:///"


@dataclass(frozen=True, repr=False)
class IcebergSink(TwoPhaseSink):
    """Rows appended to the Iceberg table `table` ("namespace.name"), an epoch in one snapshot or not at all.

    Tasks write Parquet files into the table's data folder, which no reader sees; the commit adds them in one
    transaction of the catalog. Other programs may write to the table at the same time: whoever comes second tries
    again.

    `catalog` is a name from pyiceberg's configuration, or `properties` say all there is to know (`type`, `uri`,
    `warehouse`, keys, …); they are never shown. No Iceberg jars are needed: Spark does not take part in the commit.

    A table that is missing is made from the DataFrame's columns, partitioned by the values of `partition_by` (text,
    whole numbers, dates, booleans), unless `create` is False; an existing one keeps its own columns and partitions,
    and rows go in by name. Tables partitioned by a transform (bucket, day, …) are refused.
    """

    shapes_once: ClassVar[bool] = True

    table: str
    catalog: str = field(default="default", kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    compression: str = field(default="zstd", kw_only=True)
    create: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not all(self.table.split(".")) or "." not in self.table:
            raise ConfigurationError(
                f"IcebergSink needs a namespace and a name, not {self.table!r}.",
                to_do='write the table like "shop.orders".',
            )
        by = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "partition_by", by)
        check_compression("IcebergSink", self.compression)

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r}, catalog={self.catalog!r}, partition_by={self.partition_by!r})"

    def describe(self) -> str:
        return f"Iceberg table {self.table} of catalog {self.catalog}"

    def redirected(self, suffix: str) -> IcebergSink:
        return replace(self, table=f"{self.table}{suffix}")

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.tables.columns import check_partitions, of_frame

        check_partitions(self.partition_by, of_frame(frame, ".", self.describe()), self.describe())
        return frame

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.tables.places import check_folder

        database = self.properties.get("uri", "")
        if database.startswith(_SQLITE) and not os.path.exists(database[len(_SQLITE) :]):
            # Connecting would make the file, and a check writes nothing.
            known, findings = None, [Finding(uid, "the catalog's database does not exist yet and will be made")]
        else:
            target = self._target(None, asking=True)
            known, findings = target.look(), []
        if known is None and not self.create:
            raise table_missing(self.describe())
        if known is not None:
            if self.partition_by and known.partition_by != self.partition_by:
                raise partitioned_otherwise(self.describe(), known.partition_by, self.partition_by)
            root = known.extra["root"].removeprefix("file://")
            findings.extend(check_folder(root, uid))
        return findings

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.tables.writer import TableWriter

        return TableWriter(self._target(scope.sink), scope, self.compression, self.create)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.tables.committer import TableCommitter

        return TableCommitter(self._target(scope), scope)

    def _target(self, scope: SinkScope | None, *, asking: bool = False) -> IcebergTarget:
        from penstock.sinks.tables.iceberg_table import IcebergTarget, library

        library()
        # A catalog in a database makes its own tables when it is opened, unless told not to.
        properties = {**self.properties, "init_catalog_tables": "false"} if asking else self.properties
        return IcebergTarget(self.table, self.catalog, properties, self.partition_by, scope)
