"""`DeltaSink`: rows into a Delta table, one commit per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError, TableMissing
from penstock.sinks.files import output_path
from penstock.sinks.tables.faults import public_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.sinks.tables.delta_table import DeltaTarget

COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")

#: Letters that no column name of a Delta table may have, unless the table maps its names.
_FORBIDDEN = " ,;{}()\n\t="


@dataclass(frozen=True, repr=False)
class DeltaSink(TwoPhaseSink):
    """Rows appended to the Delta table at `path`, an epoch in one commit of the table or not at all.

    Tasks write Parquet files into the table's folder, which no reader sees; the commit adds them all to the table's
    log. Other programs may write to the table at the same time: whoever comes second tries again.

    `path` is a local or mounted folder (plain or `file:`) or an `s3://` address; `storage_options` are those of the
    `deltalake` package (keys, endpoint, region) and never shown. When tasks run on several machines all of them must
    reach the same storage.

    A table that is missing is made from the DataFrame's columns, partitioned by `partition_by` (text, whole numbers,
    dates, booleans), unless `create` is False; an existing one keeps its own columns and partitions, and rows go in by
    name. Tables whose features ask more of a writer (column mapping, constraints, generated columns, row tracking, …)
    are refused.
    """

    shapes_once: ClassVar[bool] = True

    path: str
    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    compression: str = field(default="snappy", kw_only=True)
    create: bool = field(default=True, kw_only=True)
    storage_options: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        remote = urlsplit(self.path).scheme in ("s3", "s3a") and "://" in self.path
        if not remote and "://" in self.path and not self.path.startswith("file:"):
            raise ConfigurationError(
                f"DeltaSink cannot write to {urlsplit(self.path).scheme}://.",
                to_do="give a local or mounted folder (a plain path or file:) or an s3:// address.",
            )
        object.__setattr__(self, "path", self.path.rstrip("/") if remote else output_path(self.path))
        by = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "partition_by", by)
        check_compression("DeltaSink", self.compression)

    def __repr__(self) -> str:
        return f"DeltaSink({public_address(self.path)!r}, partition_by={self.partition_by!r})"

    def describe(self) -> str:
        return f"Delta table {public_address(self.path)}"

    def redirected(self, suffix: str) -> DeltaSink:
        return replace(self, path=f"{self.path}{suffix}")

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.tables.columns import check_partitions, of_frame

        check_partitions(self.partition_by, of_frame(frame, _FORBIDDEN, self.describe()), self.describe())
        return frame

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.tables.places import check_folder

        target = self._target(None)
        known = target.look()
        findings = check_folder(self.path, uid)
        if known is None and not self.create:
            raise table_missing(self.describe())
        if known is not None and self.partition_by and known.partition_by != self.partition_by:
            raise partitioned_otherwise(self.describe(), known.partition_by, self.partition_by)
        return findings

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.tables.writer import TableWriter

        return TableWriter(self._target(scope.sink), scope, self.compression, self.create)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.tables.committer import TableCommitter

        return TableCommitter(self._target(scope), scope)

    def _target(self, scope: SinkScope | None) -> DeltaTarget:
        from penstock.sinks.tables.delta_table import DeltaTarget, library

        library()
        return DeltaTarget(self.path, self.storage_options, self.partition_by, scope)


def check_compression(sink: str, compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"{sink} cannot compress with {compression!r}.",
            to_do=f"use one of {', '.join(COMPRESSIONS)}.",
        )


def table_missing(where: str) -> TableMissing:
    return TableMissing(
        f"{where} does not exist, and the sink may not create it.",
        to_do="make the table, or leave create=True.",
    )


def partitioned_otherwise(where: str, found: Sequence[str], asked: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is partitioned by {', '.join(found) or 'nothing'}, the sink asks for {', '.join(asked)}.",
        to_do="leave partition_by out: an existing table keeps its partitions.",
    )
