"""Files in a folder, exactly once: Parquet, JSON lines or CSV. `commit` writes to file systems, `s3` to S3."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote, urlparse

from penstock.checkpoint.layout import PRIVATE
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError
from penstock.sinks.files.commit import FileCommitter, FileWriter, names_of
from penstock.sinks.files.encode import COMPRESSIONS, Encoder, LinesEncoder, ParquetEncoder, shape
from penstock.sinks.files.s3 import UploadCommitter, UploadWriter
from penstock.sinks.files.text import named_options
from penstock.storage.local import folder_warnings, task_tree
from penstock.storage.s3 import S3Folder, s3_address
from penstock.storage.tree import full_disk_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FileSink(TwoPhaseSink):
    """One file for every writer and epoch in the folder `path`, visible completely or not at all.

    `path` is a local or mounted folder (plain or `file:`), an `hdfs://` address or an `s3://` (`s3a://`) one. On S3 a
    file is a multipart upload that the commit completes; other storage without an atomic rename is refused. All tasks,
    on any machine, must reach the same folder.

    `endpoint` and `region` configure S3 where the environment does not. Keys are not arguments: driver and workers find
    them where the AWS libraries look.

    `options` are Spark's options for JSON or CSV (`timestampFormat`, `sep`, `header`, `lineSep`, …), their case ignored
    as in Spark; others are refused. Unlike Spark's writers, text keeps the microseconds of timestamps, which are in
    UTC, and the blanks around words. `compression` defaults to snappy for Parquet and none for text.

    Readers (Spark, Hive, pyarrow) may list the folder at any time: a file becomes visible once its whole epoch is
    decided, and never changes afterwards. Readers may also move files away as soon as they see them. The folder
    `_penstock` inside belongs to the sink.
    """

    shapes_once: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        format: Literal["parquet", "json", "csv"] = "parquet",
        options: Mapping[str, str] | None = None,
        compression: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
    ) -> None:
        if format not in COMPRESSIONS:
            raise ConfigurationError(f"FileSink has no format {format!r}.", to_do="use parquet, json or csv.")
        address = s3_address(path)
        self.path = address or output_path(path)
        self.on_s3 = address is not None
        self.endpoint, self.region = endpoint, region
        self.format = format
        self.options = named_options(format, options or {})
        self.compression = (compression or ("snappy" if format == "parquet" else "none")).lower()
        if self.compression not in COMPRESSIONS[format]:
            raise ConfigurationError(
                f"FileSink cannot compress {format} with {compression!r}.",
                to_do=f"use one of {', '.join(COMPRESSIONS[format])}.",
            )

    def shape(self, frame: DataFrame) -> DataFrame:
        return shape(self.format, frame, self.options)

    def take_records(self) -> None:
        if self.format != "json":  # whose writer takes lines of JSON as they are
            super().take_records()

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        if self.on_s3:
            return check_bucket(self._bucket(), uid)
        if not is_local(self.path):
            task_tree(self.path).file_names("")
            return ()
        return [Finding(uid, text) for text in folder_warnings(Path(self.path), "a folder of files")]

    def redirected(self, suffix: str) -> FileSink:
        redirected = copy.copy(self)
        redirected.path = f"{self.path.rstrip('/')}{suffix}"
        return redirected

    def open_writer(self, scope: WriterScope) -> Writer:
        ending = f".{self.format}{COMPRESSIONS[self.format][self.compression]}"
        if self.on_s3:
            return UploadWriter(self._bucket(), scope, ending, self._encoder)
        staged, final = names_of(scope, ending)
        with full_disk_named(self.path, "nothing of this epoch is visible"):
            file = task_tree(self.path).stage(staged)
        return FileWriter(staged, final, file, self._encoder(file.stream))

    def _encoder(self, stream: Any) -> Encoder:
        if self.format == "parquet":
            return ParquetEncoder(stream, self.compression)
        header = self.format == "csv" and self.options.get("header", "false").lower() == "true"
        return LinesEncoder(stream, self.compression, header=header, separator=self.options.get("lineSep", "\n"))

    def open_committer(self, scope: SinkScope) -> Committer:
        if self.on_s3:
            return UploadCommitter(self._bucket(), scope)
        return FileCommitter(task_tree(self.path), scope)

    def describe(self) -> str:
        return f"{self.format} files in {self.path}"

    def _bucket(self) -> S3Folder:
        return S3Folder(self.path, endpoint=self.endpoint, region=self.region)


def check_bucket(bucket: S3Folder, uid: str) -> Sequence[Finding]:
    """Raises for a missing bucket, or one in which this user may not begin, list and abort uploads."""
    bucket.uploads("", most=1)
    findings = []
    if (days := bucket.days_until_aborted()) is not None:
        findings.append(
            f"a rule of the bucket {bucket.bucket} aborts uploads after {days} days: after a longer stop an epoch "
            "that was decided but not committed is written again from its sources"
        )
    if not _shows_uploads(bucket):
        findings.append(
            f"the store of {bucket.location} lists open uploads by their whole name only, as MinIO does: uploads of "
            "dead tasks are not found, and stay until a rule of the bucket aborts them (AbortIncompleteMultipartUpload,"
            " of a few days); a ledger that was replaced by an older one is not noticed either"
        )
    return [Finding(uid, finding) for finding in findings]


def _shows_uploads(bucket: S3Folder) -> bool:
    """Whether a listing finds uploads by the beginning of their name, as sweeps need; tried with an aborted one."""
    name = f"{PRIVATE}/probe-{secrets.token_hex(6)}"
    upload = bucket.begin(name, "")
    try:
        return any(listed.id == upload for listed in bucket.uploads(name[:-1]))
    finally:
        bucket.abort(name, upload)


def is_local(path: str) -> bool:
    return "://" not in path


def output_path(path: str) -> str:
    """An absolute local path, or the address of a storage with an atomic rename; refuses all others."""
    scheme = urlparse(path).scheme
    if scheme in ("hdfs", "viewfs"):
        return path
    if scheme == "file":
        return os.path.abspath(unquote(urlparse(path).path))
    if not is_local(path):
        raise ConfigurationError(
            f"FileSink cannot write to {scheme}://: the storage has no atomic rename, so a crash in a commit could "
            "show half an epoch or lose one.",
            to_do="write to a local or mounted folder (a plain path or file:), to hdfs:// or to s3://; for another "
            "object store use a table format, whose log gives the atomic step.",
        )
    return os.path.abspath(path)
