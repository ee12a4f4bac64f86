"""Small files and trees on any Hadoop file system, through the driver's JVM; and single files there through pyarrow,
which tasks can use.

`hdfs`: written aside, flushed to disk on the data nodes, then renamed without overwriting, which the name node does in
one step.

`s3a`, `s3`: S3 has no rename; the object is put under its name on the condition that there is none (`If-None-Match`).
The option is one that a connector must refuse where it does not send the condition.

Any other scheme is written as on HDFS, without a promise: a file system that does not override it inherits
Hadoop's own rename, which looks for the target first and renames then. So it is refused unless the user vouches for it,
see `checkpoint.open`. Whatever a storage says of itself, `Ledger.prove_atomic` lets several creates race at every
start.

Closing a file on HDFS leaves its bytes to the operating systems of the data nodes. What is written here is synced
before it is closed. What others wrote, through pyarrow, which cannot ask for that, is opened again for an append of
nothing and synced then. That reaches a file's last block; blocks that were full before are synced when they are full
where `dfs.datanode.synconclose` is on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

from penstock.errors import SystemUnavailable
from penstock.failpoints import failpoint
from penstock.naming import safe_name
from penstock.progress import Progress, silent
from penstock.storage.durable import sync
from penstock.storage.storage import AlreadyExists, Storage, refused
from penstock.storage.tree import StagedFile, Tree, side_by_side

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

_CONDITIONAL = "fs.option.create.conditional.overwrite"
_BUFFER = 1 << 20
_OBJECT_STORES = frozenset({"s3a", "s3"})


def sync_closed(jvm: Any, conf: Any, path: Any) -> None:
    """The last block of a closed file on HDFS is on the disks of its data nodes on return. Raises Java's errors."""
    # An append asks for as many data nodes as the file should have, and fails where the cluster has fewer; a client
    # that is content with those there are reads that from its configuration when it is made.
    content = jvm.org.apache.hadoop.conf.Configuration(conf)
    content.setBoolean("dfs.client.block.write.replace-datanode-on-failure.best-effort", True)
    fresh = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), content)
    with contextlib.closing(fresh) as system, contextlib.closing(system.append(path)) as stream:
        stream.hsync()


def hsync(address: str) -> None:
    """In the driver: the file is on the disks of its data nodes when this returns. In a task, which has no JVM, this
    does nothing: what tasks leave is synced by the driver before it decides."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None:
        return
    from py4j.protocol import Py4JJavaError

    try:
        path = context._jvm.org.apache.hadoop.fs.Path(address)
        sync_closed(context._jvm, context._jsc.hadoopConfiguration(), path)
    except Py4JJavaError as error:
        message = f"{error.java_exception.getClass().getName()}: {error.java_exception.getMessage()}"
        raise SystemUnavailable(
            f"{address} could not be synced: {message}.",
            safe="nothing was decided that relies on it.",
            to_do="see that HDFS is reachable and allows appends; the job tries again by its restart strategy.",
        ) from error


class HadoopStorage(Storage):
    def __init__(self, spark: SparkSession, location: str) -> None:
        self.spark = spark
        jvm: Any = spark._jvm
        self.jvm, self.conf = jvm, spark._jsc.hadoopConfiguration()
        self.root = jvm.org.apache.hadoop.fs.Path(location)
        self.system = self.root.getFileSystem(self.conf)
        self.location = str(self.system.makeQualified(self.root).toString())
        self.scheme = str(self.system.getScheme())
        self._object_store = self.scheme in _OBJECT_STORES

    def create(self, name: str, data: bytes) -> None:
        target, write = self.path(name), self._put if self._object_store else self._write_and_rename
        what = f"writing {self.location}/{name}"
        with self.errors(what):
            self.system.mkdirs(target.getParent())
        with self.errors(what, creating=name):
            write(target, data)

    def read(self, name: str) -> bytes | None:
        with self.errors(f"reading {self.location}/{name}"):
            path = self.path(name)
            if not self.system.exists(path):
                return None
            with contextlib.closing(self.system.open(path)) as stream:
                return bytes(stream.readAllBytes())

    def list(self, folder: str) -> list[str]:
        with self.errors(f"listing {self.location}/{folder}"):
            path = self.path(folder)
            if not self.system.exists(path):
                return []
            names = [str(status.getPath().getName()) for status in self.system.listStatus(path)]
            return sorted(name for name in names if not name.startswith("."))

    def sizes(self, folder: str = "") -> dict[str, int]:
        sizes: dict[str, int] = {}
        with self.errors(f"listing {self.location}/{folder}"):
            start = self.path(folder)
            if not self.system.exists(start):
                return {}
            root = str(self.system.makeQualified(self.root).toString()).rstrip("/") + "/"
            listing = self.system.listFiles(start, True)
            while listing.hasNext():
                status = listing.next()
                name = str(status.getPath().toString()).removeprefix(root)
                if not any(part.startswith(".") for part in name.split("/")):
                    sizes[name] = int(status.getLen())
        return dict(sorted(sizes.items()))

    def delete(self, name: str) -> None:
        with self.errors(f"deleting {self.location}/{name}"):
            self.system.delete(self.path(name), False)

    def delete_folder(self, folder: str) -> bool:
        with self.errors(f"deleting {self.location}/{folder}"):
            return bool(self.system.delete(self.path(folder), True))

    def _put(self, target: Any, data: bytes) -> None:
        stream = self.system.createFile(target).overwrite(False).must(_CONDITIONAL, True).build()
        stream.write(data)
        failpoint("ledger.aside")
        stream.close()

    def write_synced(self, path: Any, fill: Callable[[Any], object], *, overwrite: bool) -> None:
        """Fill a file and close it when its bytes are on the disks of the data nodes. Without SYNC_BLOCK a block that
        is full goes unsynced, and closing a file leaves its last block to the operating systems over there."""
        flags = self.jvm.org.apache.hadoop.fs.CreateFlag
        chosen = [flags.CREATE, flags.SYNC_BLOCK, *([flags.OVERWRITE] if overwrite else [])]
        stream = self.system.create(
            path,
            self.jvm.org.apache.hadoop.fs.permission.FsPermission.getFileDefault(),
            self.jvm.java.util.EnumSet.of(*chosen),
            _BUFFER,
            self.system.getDefaultReplication(path),
            self.system.getDefaultBlockSize(path),
            None,
        )
        with contextlib.closing(stream):
            fill(stream)
            if not self._object_store:
                stream.hsync()

    def _write_and_rename(self, target: Any, data: bytes) -> None:
        hidden = f".{target.getName()}.{secrets.token_hex(8)}.tmp"
        aside = self.jvm.org.apache.hadoop.fs.Path(target.getParent(), hidden)
        try:
            self.write_synced(aside, lambda stream: stream.write(data), overwrite=False)
            failpoint("ledger.aside")
            context = self.jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self.conf)
            option = self.jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
            context.rename(aside, target, self.jvm.java.lang.reflect.Array.newInstance(option, 0))
        finally:
            self.system.delete(aside, False)

    def path(self, name: str) -> Any:
        safe_name(name, self.location)
        return self.jvm.org.apache.hadoop.fs.Path(self.root, name) if name else self.root  # Hadoop refuses ""

    @contextmanager
    def errors(self, what: str, creating: str | None = None) -> Iterator[None]:
        """Hadoop's refusals as the ledger's. `AlreadyExists` only of the name being created: a file in the place of
        its folder is refused with the same exception, and is no sign that another process was first."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getName())
            message = str(error.java_exception.getMessage())
            if creating is not None and _was_first(kind, message):
                raise AlreadyExists(creating) from None
            full = "No space left" in message or "QuotaExceeded" in kind
            raise refused(what, f"{kind}: {message}", full=full) from error


def _was_first(kind: str, message: str) -> bool:
    """Whether this refusal of a create says that the name was taken. `s3a` calls a put whose condition does not hold
    a file that has changed under its feet."""
    if "RemoteFileChanged" in kind:
        return "412" in message or "PreconditionFailed" in message
    return "FileAlreadyExists" in kind or "PathExists" in kind


class HadoopTree(Tree):
    """Through the driver's JVM. Bytes pass through it once for a copy and once for a checksum, never through Python."""

    def __init__(self, storage: HadoopStorage) -> None:
        self.storage: HadoopStorage = storage
        self.location = storage.location

    def at(self, name: str) -> HadoopTree:
        return HadoopTree(HadoopStorage(self.storage.spark, f"{self.location}/{safe_name(name, self.location)}"))

    def take(self, source: Tree, names: Mapping[str, str], progress: Progress = silent) -> None:
        origin = self.storage.jvm.org.apache.hadoop.fs.Path(source.location)
        system = origin.getFileSystem(self.storage.conf)
        for name in {name.rpartition("/")[0] for name in names.values()}:
            with self.storage.errors(f"writing {self.location}/{name}"):
                self.storage.system.mkdirs(self.storage.path(name))

        def copy(pair: tuple[str, str]) -> None:
            path = self.storage.jvm.org.apache.hadoop.fs.Path(origin, safe_name(pair[0], source.location))
            with self.storage.errors(f"copying {pair[0]} to {self.location}"):
                if not system.exists(path):
                    raise FileNotFoundError(pair[0])
                target, copy_bytes = self.storage.path(pair[1]), self.storage.jvm.org.apache.hadoop.io.IOUtils.copyBytes
                with contextlib.closing(system.open(path)) as stream:
                    self.storage.write_synced(
                        target, lambda out: copy_bytes(stream, out, _BUFFER, False), overwrite=True
                    )

        side_by_side(copy, names.items(), "copying", progress)

    def fetch(self, name: str, path: Path) -> None:
        with self.storage.errors(f"reading {self.location}/{name}"):
            local = self.storage.jvm.org.apache.hadoop.fs.Path(f"file://{path}")
            # The raw file system: no `.crc` beside it.
            self.storage.system.copyToLocalFile(False, self.storage.path(name), local, True)
        sync(path)

    def secure(self, name: str) -> None:
        """HDFS alone needs it, and a file's last block is what an append can still reach."""
        if self.storage.scheme != "hdfs":
            return
        with self.storage.errors(f"syncing {self.location}/{name}"):
            sync_closed(self.storage.jvm, self.storage.conf, self.storage.path(name))

    def sync_all(self, progress: Progress = silent) -> None:
        side_by_side(self.secure, self.files(), "syncing", progress)

    def digest(self, name: str) -> str:
        system, path = self.storage.system, self.storage.path(name)
        with self.storage.errors(f"reading {self.location}/{name}"), contextlib.closing(system.open(path)) as stream:
            return str(self.storage.jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))

    def delete(self, name: str = "") -> None:
        self.storage.delete_folder(name)


class _ArrowFile(StagedFile):
    def __init__(self, tree: ArrowTree, name: str, stream: Any) -> None:
        self._tree, self._name, self.stream = tree, name, stream

    def finish(self) -> int:
        size = self._tree.size(self._name)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._name)
        return size

    def discard(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()
        self._tree.remove(self._name)


class ArrowTree(Tree):
    """A folder behind `pyarrow.fs`: HDFS, whose name node renames atomically and never over an existing file, and
    whose names are durable at once. Its closed files are not, see `secure`. `address` is the folder's, for Hadoop."""

    def __init__(self, system: FileSystem, root: str, *, address: str = "") -> None:
        self._system = system
        self._root = root.rstrip("/")
        self.location = address.rstrip("/") or self._root
        self._address = address.rstrip("/") if urlparse(address).scheme in ("hdfs", "viewfs") else ""

    def _at(self, name: str) -> str:
        return posixpath.join(self._root, safe_name(name, self._root))

    def create_folder(self, name: str) -> None:
        self._system.create_dir(self._at(name), recursive=True)

    def stage(self, name: str) -> StagedFile:
        self.create_folder(posixpath.dirname(name))
        return _ArrowFile(self, name, self._system.open_output_stream(self._at(name), compression=None))

    def size(self, name: str) -> int | None:
        info = self._system.get_file_info(self._at(name))
        return cast("int", info.size) if info.is_file else None

    def rename(self, source: str, target: str) -> None:
        for name, expected, error in ((source, True, FileNotFoundError), (target, False, FileExistsError)):
            if (self.size(name) is not None) is not expected:
                raise error(name)
        self._system.move(self._at(source), self._at(target))

    def sync(self, folder: str) -> None:
        return None

    def write_durably(self, name: str, content: bytes) -> None:
        self.create_folder(posixpath.dirname(name))
        with self._system.open_output_stream(self._at(name), compression=None) as stream:
            stream.write(content)
        self.secure(name)

    def secure(self, name: str) -> None:
        if self._address:
            hsync(f"{self._address}/{safe_name(name, self._root)}")

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(self._at(name), compression=None) as stream:
            return cast("bytes", stream.read())

    def open(self, name: str) -> Any:
        return self._system.open_input_file(self._at(name))

    def remove(self, name: str) -> bool:
        try:
            self._system.delete_file(self._at(name))
        except FileNotFoundError:
            return False
        return True

    def file_names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        infos = self._system.get_file_info(FileSelector(self._at(folder), allow_not_found=True))
        return sorted(info.base_name for info in infos if info.is_file)


class ObjectTree(ArrowTree):
    """Objects with long names. It has no folders and no rename, which such storage cannot do in one step:
    the step from unseen to seen is a table's log."""

    def create_folder(self, name: str) -> None:
        return None  # pyarrow would put an empty object there
