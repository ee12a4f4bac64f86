"""Small files and trees on a disk of this machine, or on anything mounted like one; folders and files there that only
this user can read, and locks between this user's processes. `storage_at` and `tree_at` lead to any storage.

A small file is written aside, synced, then hard-linked, which fails if the name exists.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import posixpath
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlparse

from penstock.errors import AccessDenied, ConfigurationError, StorageFull
from penstock.failpoints import failpoint
from penstock.naming import refuse_link, safe_name
from penstock.progress import Counter, Progress, silent
from penstock.storage.durable import ensure_folder, sync, sync_below, sync_file_system, syncs_as_one
from penstock.storage.storage import AlreadyExists, Storage, local_path, storage_errors
from penstock.storage.tree import StagedFile, Tree, checksum_file, side_by_side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMMUTABLE = (".sst", ".zip", ".delta", ".snapshot", ".changelog", ".parquet")  # never rewritten under their name

_LITTLE_SPACE = 1 << 30  # below this a check warns: an epoch of a busy job writes more
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class LocalStorage(Storage):
    forgetful = True

    def __init__(self, root: Path) -> None:
        self.root, self.location, self.scheme = root, f"file://{root}", "file"
        self._synced: dict[str, object] = {}

    def create(self, name: str, data: bytes) -> None:
        target = self._at(name)
        # By chance and not by process: containers of one mount have the same process ids. What a run that dies here
        # leaves behind is hidden, small, and never looked at again.
        aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        with storage_errors(f"writing {target}"):
            ensure_folder(target.parent)
            try:
                with open(aside, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                failpoint("ledger.aside")
                try:
                    os.link(aside, target)
                except FileExistsError:
                    sync(target.parent)  # the process that was first may have died before it did this
                    raise AlreadyExists(name) from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(aside)
            sync(target.parent)

    def read(self, name: str) -> bytes | None:
        with storage_errors(f"reading {self.root / name}"):
            try:
                return self._at(name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str) -> list[str]:
        with storage_errors(f"listing {self.root / folder}"):
            try:
                return sorted(name for name in os.listdir(self._at(folder)) if not name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def sizes(self, folder: str = "") -> dict[str, int]:
        sizes = {}
        with storage_errors(f"listing {self.root / folder}"):
            for where, folders, names in os.walk(self._at(folder)):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    path = Path(where) / name
                    if not name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                            sizes[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return dict(sorted(sizes.items()))

    def delete(self, name: str) -> None:
        with storage_errors(f"deleting {self.root / name}"), contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def delete_folder(self, folder: str) -> bool:
        with storage_errors(f"deleting {self.root / folder}"):
            try:
                shutil.rmtree(self._at(folder))
            except FileNotFoundError:
                return False
        return True

    def link(self, name: str, other: str) -> None:
        target = self._at(other)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._at(name), aside)
            os.replace(aside, target)
            aside.unlink(missing_ok=True)  # both names of one file stay

    def settle(self, folder: str) -> None:
        with storage_errors(f"syncing {self.root / folder}"), contextlib.suppress(FileNotFoundError):
            sync(self._at(folder))

    def sync(self) -> bool:
        """One call for the whole file system, where it reaches the disk: cheaper than a call for each of many state
        files, and none is missed. Elsewhere a call for each that has changed since the last time."""
        with storage_errors(f"syncing {self.root}"):
            if syncs_as_one(self.root):
                sync_file_system(self.root)
            else:
                self._synced = sync_below(self.root, self._synced)
                ensure_folder(self.root)
        return True

    def _at(self, name: str) -> Path:
        return self.root / safe_name(name, self.location)


class _LocalFile(StagedFile):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        # The encoder closes its stream and we still have to sync: two descriptors of one file.
        self.stream: IO[bytes] = os.fdopen(os.dup(self._fd), "wb", buffering=1 << 20)

    def finish(self) -> int:
        os.fsync(self._fd)
        status = os.fstat(self._fd)
        self._close()
        if status.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        ensure_folder(self._path.parent)
        sync(self._path.parent)
        return status.st_size

    def discard(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalTree(Tree):
    """A folder reached by system calls, with POSIX rename and links."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.storage = LocalStorage(self.root)
        self.location = self.storage.location

    # Single files

    def create_folder(self, name: str) -> None:
        ensure_folder(self._at(name))

    def stage(self, name: str) -> StagedFile:
        path = self._at(name)
        try:
            return _LocalFile(path)
        except FileNotFoundError:
            self.create_folder(posixpath.dirname(name))
            return _LocalFile(path)

    def size(self, name: str) -> int | None:
        try:
            return self._at(name).stat().st_size
        except FileNotFoundError:
            return None

    def rename(self, source: str, target: str) -> None:
        # POSIX rename would replace an existing file. Names carry a random token and only this sink makes them, so
        # the look before cannot race; it turns a tampered folder into an error instead of a loss.
        try:
            existing = self._at(target).stat()
        except FileNotFoundError:
            os.rename(self._at(source), self._at(target))
            return
        if not os.path.samestat(existing, self._at(source).stat()):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        # One file under both names: a rename of which a power cut has kept only the first half.
        os.unlink(self._at(source))

    def sync(self, folder: str) -> None:
        sync(self._at(folder))

    def write_durably(self, name: str, content: bytes) -> None:
        path = self._at(name)
        self.create_folder(posixpath.dirname(name))
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)

    def read(self, name: str) -> bytes:
        return self._at(name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        return self._at(name).open("rb")

    def remove(self, name: str) -> bool:
        try:
            self._at(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def file_names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._at(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    # Whole folders

    def at(self, name: str) -> LocalTree:
        return LocalTree(self._at(name))

    def take(self, source: Tree, names: Mapping[str, str], progress: Progress = silent) -> None:
        counter = Counter(progress, "copying", len(names), "files")
        with storage_errors(f"writing {self.root}"):
            folders = {self._at(name).parent for name in names.values()}
            for folder in folders:
                ensure_folder(folder)
            for old, new in names.items():
                source.fetch(old, self._at(new))
                counter.add()
            for folder in folders:
                sync(folder)

    def fetch(self, name: str, path: Path) -> None:
        old = self._at(name)
        refuse_link(old)
        if old.name.endswith(_IMMUTABLE):
            try:
                os.link(old, path)
                return
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
        shutil.copyfile(old, path)
        sync(path)

    def sync_all(self, progress: Progress = silent) -> None:
        with storage_errors(f"syncing {self.root}"):
            paths = [self._at(name) for name in self.files()]
            # Hadoop's checksums count as well: it refuses a file whose checksum is cut.
            paths += [crc for path in paths if (crc := path.with_name(checksum_file(path.name))).exists()]
            folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(self.root)}
            side_by_side(sync, paths, "syncing", progress)
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

    def is_link(self, name: str) -> bool:
        parts = name.split("/")
        return any(self.root.joinpath(*parts[:length]).is_symlink() for length in range(1, len(parts) + 1))

    def delete_if_empty(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / name).rmdir()

    def _at(self, name: str) -> Path:
        return self.root / safe_name(name, self.location)


def folder_warnings(folder: Path, what: str) -> list[str]:
    """For a check before a start: raises for a folder that cannot be written or created; `what` describes it."""
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigurationError(
            f"{nearest} is a file, so {folder} cannot be {what}.", to_do="give the path of a folder."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise AccessDenied(
            f"This user may not write in {nearest}.", to_do="grant the right to write, or choose another folder."
        )
    space = os.statvfs(nearest)
    if space.f_blocks == 0:
        return []  # it does not report its size, as many FUSE file systems
    free = space.f_bavail * space.f_frsize
    if free == 0:
        raise StorageFull(f"No space is left in {nearest}.", safe="nothing was started.", to_do="free some space.")
    return [f"only {free >> 20} MiB are free in {nearest}"] if free < _LITTLE_SPACE else []


def storage_at(location: str, spark: SparkSession | None) -> Storage:
    """Storage for any location: this machine's disk directly, everything else through Hadoop. Without a session only a
    local disk can be reached."""
    path = local_path(location) if spark is None or is_own_disk(location, spark) else None
    if path is not None:
        return LocalStorage(path)
    if spark is None:
        raise ConfigurationError(
            f"{location} can be reached through Spark only, and there is no session.",
            safe="nothing was changed.",
            to_do="give a path of this machine, or a mounted folder. Or run this where a Spark session is running:"
            " penstock transactions starts one with --job JOB.py, and a Job or penstock.exactly_once has one.",
        )
    from penstock.storage.hadoop import HadoopStorage

    return HadoopStorage(spark, location)


def is_own_disk(location: str, spark: SparkSession) -> bool:
    """Whether a location is a path of the machine that looks at it, so that others see other files there. A path
    without a scheme belongs to `fs.defaultFS`."""
    if urlparse(location).scheme:
        return local_path(location) is not None
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return urlparse(str(default)).scheme in ("", "file")


def tree_at(location: str, spark: SparkSession | None) -> Tree:
    """The tree at any location, for work on whole folders. Without a session only a local disk can be reached."""
    return tree_of(storage_at(location, spark))


def tree_of(storage: Storage) -> Tree:
    """The tree at the location of a storage that `storage_at` returned."""
    if isinstance(storage, LocalStorage):
        return LocalTree(storage.root)
    from penstock.storage.hadoop import HadoopStorage, HadoopTree

    assert isinstance(storage, HadoopStorage)
    return HadoopTree(storage)


def task_tree(location: str) -> Tree:
    """The tree at a location as tasks reach it, for single files: this machine's disk, or what pyarrow can open."""
    path = local_path(location)
    if path is not None:
        return LocalTree(path)
    from pyarrow.fs import FileSystem

    from penstock.storage.hadoop import ArrowTree

    scheme, _, rest = location.partition("://")
    address = f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
    return ArrowTree(*FileSystem.from_uri(address), address=location)


def own_folder(path: Path) -> Path:
    """Make `path` a folder that only this user can look into, and missing folders above it in the same way. Raises
    `PermissionError` for a folder of another user or a link to one: its owner could exchange our files."""
    if not path.parent.exists():
        own_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user") from None
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{path} is not a folder") from None
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            path.chmod(0o700)
    return path


def create_own(path: Path, flags: int = os.O_EXCL) -> int:
    """A descriptor for writing a file that only this user can read; never one behind a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def read_own(path: Path, errors: str = "strict") -> str:
    """The text of this user's file; root may read any user's. Raises `PermissionError` for a file of another user,
    `OSError` for a link; `errors` is for bytes that are not UTF-8."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8", errors=errors) as file:
        if os.geteuid() not in (0, os.fstat(file.fileno()).st_uid):
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def read_trusted(path: Path) -> str:
    """The text of a file that only this user can have written, for what is executed; root is no exception. Raises
    `PermissionError` otherwise, `OSError` for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by another user")
        return file.read()


def require_own(folder: Path) -> None:
    """Raises `AccessDenied` for a folder of another user, who can read and exchange what is in it."""
    if folder.exists() and (owner := folder.stat().st_uid) != os.geteuid():
        raise AccessDenied(
            f"The folder {folder} belongs to user {owner}, and this process runs as user {os.geteuid()}.",
            safe="nothing was written; the folder is as it was.",
            to_do="name a folder that does not exist yet or belongs to the user who runs the job, or give it to them.",
        )


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds the lock file `path` alone among all processes of this machine; waits for the process that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by closing, also when this process dies
        yield
