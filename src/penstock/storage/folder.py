"""A tree of files that is copied, checked and deleted as a whole: a savepoint, a checkpoint.

| | on one local file system | anywhere else |
|---|---|---|
| a file that never changes (state) | hard link: no bytes are moved | copied |
| a small file (positions, metadata) | copied, so that rewriting one never reaches the other | copied |

Copies are synced before they are counted as there. Hadoop's `.crc` files are left behind: a savepoint has checksums of
its own over everything, and Spark reads a file that has none without complaint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.naming import refuse_link, safe_name
from penstock.storage.durable import ensure_folder, sync
from penstock.storage.storage import LocalStorage, Storage, local_path, storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from penstock.storage.hadoop import HadoopStorage

IMMUTABLE = (".sst", ".zip", ".delta", ".snapshot", ".changelog", ".parquet")
"""Endings of files that nobody ever rewrites under their name."""

_AT_ONCE = 8  # copies and checksums in parallel
_BUFFER = 1 << 20
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


class Folder(ABC):
    """Files by their names below a root, with `/` between. Hidden files are not seen."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def location(self) -> str:
        return self.storage.location

    @abstractmethod
    def at(self, name: str) -> Folder:
        """The folder `name` below this one."""

    @abstractmethod
    def files(self, folder: str = "") -> dict[str, int]:
        """Every file below `folder`, by its name from the root, and its size."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Files and folders directly below `folder`."""

    @abstractmethod
    def take(self, source: Folder, names: Mapping[str, str]) -> None:
        """Copy or link `source`'s files to here: from its names to ours. All are durable when this returns. A file
        that is not there any more is a `FileNotFoundError`."""

    @abstractmethod
    def settle(self) -> None:
        """Every file in here, and every folder up to one that survives it, survives a power cut, whoever wrote it:
        Spark syncs nothing that it writes."""

    @abstractmethod
    def digest(self, name: str) -> str:
        """SHA-256 of a file, in hexadecimal."""

    @abstractmethod
    def delete(self, name: str = "") -> None:
        """The file or folder `name` and all that is in it; no error if it is gone already."""

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        ordered = list(names)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-digest") as pool:
            return dict(zip(ordered, pool.map(self.digest, ordered), strict=True))

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, replacing one of that name, and the `.crc` beside it that would condemn the new one."""
        folder, _, last = name.rpartition("/")
        self.storage.delete(f"{folder}/.{last}.crc" if folder else f".{last}.crc")
        self.storage.delete(name)
        self.storage.create(name, data)


class LocalFolder(Folder):
    def __init__(self, root: Path) -> None:
        super().__init__(LocalStorage(root))
        self.root = root

    def at(self, name: str) -> LocalFolder:
        return LocalFolder(self._at(name))

    def files(self, folder: str = "") -> dict[str, int]:
        found = {}
        with storage_errors(f"listing {self.root / folder}"):
            for where, folders, names in os.walk(self._at(folder)):
                folders[:] = [one for one in folders if not one.startswith(".")]
                for name in names:
                    if not name.startswith("."):
                        path = Path(where) / name
                        found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def names(self, folder: str = "") -> list[str]:
        return self.storage.list(folder)

    def take(self, source: Folder, names: Mapping[str, str]) -> None:
        with storage_errors(f"writing {self.root}"):
            folders = {self._at(name).parent for name in names.values()}
            for folder in folders:
                ensure_folder(folder)
            if isinstance(source, LocalFolder):
                for old, new in names.items():
                    self._take_local(source._at(old), self._at(new))
            else:
                assert isinstance(source, HadoopFolder)
                for old, new in names.items():
                    source.fetch(old, self._at(new))
                    sync(self._at(new))
            for folder in folders:
                sync(folder)

    def settle(self) -> None:
        with storage_errors(f"syncing {self.root}"):
            names = self.files()
            above = {parent for name in names for parent in self._at(name).parents}
            folders = [one for one in above if one.is_relative_to(self.root)]
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-sync") as pool:
                list(pool.map(lambda name: sync(self._at(name)), names))
            for folder in sorted(folders, reverse=True):
                sync(folder)
            ensure_folder(self.root)

    def digest(self, name: str) -> str:
        with storage_errors(f"reading {self.root / name}"), open(self._at(name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def delete(self, name: str = "") -> None:
        path = self._at(name)
        with storage_errors(f"deleting {path}"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _at(self, name: str) -> Path:
        return self.root / safe_name(name, self.location)

    @staticmethod
    def _take_local(old: Path, new: Path) -> None:
        refuse_link(old)
        if old.name.endswith(IMMUTABLE):
            try:
                os.link(old, new)
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
            else:
                return
        shutil.copyfile(old, new)
        sync(new)


class HadoopFolder(Folder):
    """Through the driver's JVM. Bytes pass through it once for a copy and once for a checksum, never through Python."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        from penstock.storage.hadoop import HadoopStorage

        self._hadoop: HadoopStorage = HadoopStorage(spark, location)
        super().__init__(self._hadoop)
        self._spark = spark
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._conf = spark._jsc.hadoopConfiguration()
        self._root = self._jvm.org.apache.hadoop.fs.Path(self.location)
        self._fs = self._root.getFileSystem(self._conf)

    def at(self, name: str) -> HadoopFolder:
        return HadoopFolder(self._spark, f"{self.location}/{safe_name(name, self.location)}")

    def files(self, folder: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        with self._hadoop.errors(f"listing {self.location}/{folder}"):
            start = self._path(folder)
            if not self._fs.exists(start):
                return {}
            root = str(self._fs.makeQualified(self._root).toString()).rstrip("/") + "/"
            listing = self._fs.listFiles(start, True)
            while listing.hasNext():
                status = listing.next()
                name = str(status.getPath().toString()).removeprefix(root)
                if not any(part.startswith(".") for part in name.split("/")):
                    found[name] = int(status.getLen())
        return dict(sorted(found.items()))

    def names(self, folder: str = "") -> list[str]:
        return self.storage.list(folder)

    def take(self, source: Folder, names: Mapping[str, str]) -> None:
        whence: Any
        if isinstance(source, LocalFolder):
            whence = self._jvm.org.apache.hadoop.fs.Path(f"file://{source.root}")
            other = whence.getFileSystem(self._conf)
        else:
            assert isinstance(source, HadoopFolder)
            whence, other = source._root, source._fs
        for name in {name.rpartition("/")[0] for name in names.values()}:
            with self._hadoop.errors(f"writing {self.location}/{name}"):
                self._fs.mkdirs(self._path(name))

        def copy(pair: tuple[str, str]) -> None:
            path = self._jvm.org.apache.hadoop.fs.Path(whence, safe_name(pair[0], source.location))
            with self._hadoop.errors(f"copying {pair[0]} to {self.location}"):
                if not other.exists(path):
                    raise FileNotFoundError(pair[0])
                given = other.open(path)
                try:
                    self._hadoop.write_synced(
                        self._path(pair[1]),
                        lambda out: self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(given, out, _BUFFER, False),
                        overwrite=True,
                    )
                finally:
                    given.close()

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-copy") as pool:
            list(pool.map(copy, names.items()))

    def fetch(self, name: str, path: Path) -> None:
        """Copy one of these files to a local disk."""
        with self._hadoop.errors(f"reading {self.location}/{name}"):
            local = self._jvm.org.apache.hadoop.fs.Path(f"file://{path}")
            raw = self._jvm.org.apache.hadoop.fs.LocalFileSystem().getRawFileSystem()
            raw.initialize(local.toUri(), self._conf)
            self._jvm.org.apache.hadoop.fs.FileUtil.copy(
                self._fs, self._path(name), raw, local, False, True, self._conf
            )

    def settle(self) -> None:
        names = self.files()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-sync") as pool:
            list(pool.map(lambda name: self._hadoop.settle_file(name), names))

    def digest(self, name: str) -> str:
        with self._hadoop.errors(f"reading {self.location}/{name}"):
            stream = self._fs.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
            finally:
                stream.close()

    def delete(self, name: str = "") -> None:
        self._hadoop.delete_tree(name)

    def _path(self, name: str) -> Any:
        safe_name(name, self.location)
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root


def folder_at(location: str, spark: SparkSession | None) -> Folder:
    """The folder at any location. Without a session only a local disk can be reached."""
    from penstock.errors import ConfigurationError
    from penstock.storage.open import storage_at

    path = local_path(location)
    if spark is None:
        if path is None:
            raise ConfigurationError(
                f"{location} can be reached through Spark only, and there is no session.",
                safe="nothing was changed.",
                to_do="run this where a Spark session is running, or give a path on this machine.",
            )
        return LocalFolder(path)
    if path is not None and isinstance(storage_at(location, spark), LocalStorage):
        return LocalFolder(path)
    return HadoopFolder(spark, location)
