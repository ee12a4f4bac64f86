"""The ledger's storage on any Hadoop file system, through the driver's JVM.

`hdfs`: written aside, flushed to disk on the data nodes, then renamed without overwriting, which the name node does in
one step.

`s3a`, `s3`: S3 has no rename; the object is put under its name on the condition that there is none (`If-None-Match`).
The option is one that a connector must refuse where it does not send the condition.

Any other scheme is written as on HDFS, and nobody answers for it: a file system that does not say otherwise inherits
Hadoop's own rename, which looks for the target first and renames then. So it is refused unless the user vouches for it,
see `checkpoint.open`. Whatever a storage says of itself, `Ledger.prove_atomic` lets several creates race at every
start.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import LedgerError, StorageFull
from penstock.failpoints import failpoint
from penstock.naming import safe_name
from penstock.storage.storage import AlreadyExists, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

_CONDITIONAL = "fs.option.create.conditional.overwrite"
_BUFFER = 1 << 20
_OBJECT_STORES = frozenset({"s3a", "s3"})


def sync_closed(jvm: Any, conf: Any, path: Any) -> None:
    """The last block of a closed file on HDFS is on the disks of its data nodes when this returns. Raises Java's
    errors."""
    # An append asks for as many data nodes as the file should have, and fails where the cluster has fewer; a client
    # that is content with those there are reads that from its configuration when it is made.
    content = jvm.org.apache.hadoop.conf.Configuration(conf)
    content.setBoolean("dfs.client.block.write.replace-datanode-on-failure.best-effort", True)
    system = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), content)
    try:
        stream = system.append(path)
        try:
            stream.hsync()
        finally:
            stream.close()
    finally:
        system.close()


class HadoopStorage(Storage):
    """A folder on a Hadoop file system."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._conf = spark._jsc.hadoopConfiguration()
        self._root = jvm.org.apache.hadoop.fs.Path(location)
        self._fs = self._root.getFileSystem(self._conf)
        self.location = str(self._fs.makeQualified(self._root).toString())
        self.scheme = str(self._fs.getScheme())
        self._object_store = self.scheme in _OBJECT_STORES

    def create(self, name: str, data: bytes) -> None:
        target = self._path(name)
        what = f"writing {self.location}/{name}"
        with self.errors(what):
            self._fs.mkdirs(target.getParent())
        with self.errors(what, creating=name):
            if self._object_store:
                self._put(target, data)
            else:
                self._write_and_rename(target, data)

    def read(self, name: str) -> bytes | None:
        with self.errors(f"reading {self.location}/{name}"):
            path = self._path(name)
            if not self._fs.exists(path):
                return None
            stream = self._fs.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def list(self, folder: str) -> list[str]:
        with self.errors(f"listing {self.location}/{folder}"):
            path = self._path(folder)
            if not self._fs.exists(path):
                return []
            names = [str(status.getPath().getName()) for status in self._fs.listStatus(path)]
            return sorted(name for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        with self.errors(f"deleting {self.location}/{name}"):
            self._fs.delete(self._path(name), False)

    def delete_tree(self, folder: str) -> None:
        """Gone with all that is in it when this returns; no error if it was gone before."""
        with self.errors(f"deleting {self.location}/{folder}"):
            self._fs.delete(self._path(folder), True)

    def _put(self, target: Any, data: bytes) -> None:
        stream = self._fs.createFile(target).overwrite(False).must(_CONDITIONAL, True).build()
        stream.write(data)
        failpoint("ledger.aside")
        stream.close()

    def write_synced(self, path: Any, fill: Callable[[Any], object], *, overwrite: bool) -> None:
        """Fill a file and close it when its bytes are on the disks of the data nodes. Without SYNC_BLOCK a block that
        is full goes unsynced, and closing a file leaves its last block to the operating systems over there."""
        flags = self._jvm.org.apache.hadoop.fs.CreateFlag
        chosen = [flags.CREATE, flags.SYNC_BLOCK, *([flags.OVERWRITE] if overwrite else [])]
        stream = self._fs.create(
            path,
            self._jvm.org.apache.hadoop.fs.permission.FsPermission.getFileDefault(),
            self._jvm.java.util.EnumSet.of(*chosen),
            _BUFFER,
            self._fs.getDefaultReplication(path),
            self._fs.getDefaultBlockSize(path),
            None,
        )
        try:
            fill(stream)
            if not self._object_store:
                stream.hsync()
        finally:
            stream.close()

    def settle_file(self, name: str) -> None:
        """See that a file which somebody else wrote is on the disks. HDFS alone needs it, and its last block is what
        an append can still reach."""
        if self.scheme != "hdfs":
            return
        with self.errors(f"syncing {self.location}/{name}"):
            sync_closed(self._jvm, self._conf, self._path(name))

    def _write_and_rename(self, target: Any, data: bytes) -> None:
        aside = self._jvm.org.apache.hadoop.fs.Path(
            target.getParent(), f".{target.getName()}.{secrets.token_hex(8)}.tmp"
        )
        try:
            self.write_synced(aside, lambda stream: stream.write(data), overwrite=False)
            failpoint("ledger.aside")
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self._conf)
            options = self._jvm.java.lang.reflect.Array.newInstance(
                self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
            )
            context.rename(aside, target, options)
        finally:
            self._fs.delete(aside, False)

    def _path(self, name: str) -> Any:
        safe_name(name, self.location)
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root  # Hadoop refuses ""

    @contextmanager
    def errors(self, what: str, creating: str | None = None) -> Iterator[None]:
        """Hadoop's refusals as the ledger's. `AlreadyExists` only of the name being created: a file in the place of
        its folder is refused with the same exception, and is no sign that somebody else was first."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getName())
            said = str(error.java_exception.getMessage())
            if creating is not None and ("FileAlreadyExists" in kind or "PathExists" in kind):
                raise AlreadyExists(creating) from None
            if "No space left" in said or "QuotaExceeded" in kind:
                raise StorageFull(
                    f"No space left while {what}: {said}.",
                    safe="no decision was lost: an epoch whose decision could not be written is replayed.",
                    to_do="free space where the checkpoints are; the job then goes on if its strategy retries.",
                ) from error
            raise LedgerError(
                f"The storage refused while {what}: {kind}: {said}.",
                safe="nothing was decided by this attempt that a restart would not find.",
                to_do="see that the location exists, is reachable and may be written by this user.",
            ) from error
