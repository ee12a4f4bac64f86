"""Small durable files with one strong promise: of two creates of one name, exactly one succeeds.

Everything the ledger writes goes through `Storage`. Names are relative, with `/` between folders.

| implementation | where | how a create is atomic |
|---|---|---|
| `LocalStorage` | `file:` and plain paths | written aside, synced, then hard-linked, which fails if the name exists |
| `MemoryStorage` | nowhere | a dictionary behind a lock; for tests |
| `HadoopStorage` | any other scheme | see `penstock.storage.hadoop` |
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.errors import LedgerError, StorageFull
from penstock.failpoints import failpoint
from penstock.naming import safe_name
from penstock.storage.durable import ensure_folder, sync, sync_file_system

if TYPE_CHECKING:
    from collections.abc import Iterator


class AlreadyExists(Exception):
    """Somebody else created that name first. Not an error by itself: the caller decides."""


class Storage(ABC):
    """A folder of small files."""

    location: str
    scheme: str
    """Of the location: `file`, `hdfs`, `s3a`, …"""

    def sync(self) -> bool:
        """Make durable what others have written below this folder; False where there is no way to ask for it."""
        return False

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Durable and whole under `name` when this returns; `AlreadyExists` if the name was taken. After any other
        error the file may or may not be there: only reading it tells."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file's bytes, or None where there is no such file."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Names (without the folder) directly below `folder`, sorted; empty where there is no such folder."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Gone when this returns; no error if it was gone before."""

    def settle(self, folder: str) -> None:
        """The names found in `folder` survive a power cut, whoever created them. Only a disk of this machine shows
        names before they are durable."""
        return


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turns the operating system's refusals into the ledger's."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"No space left while {what}.",
                safe="no decision was lost: an epoch whose decision could not be written is replayed.",
                to_do="free space where the checkpoints are; the job then goes on if its restart strategy retries.",
            ) from error
        raise LedgerError(
            f"The storage refused while {what}: {error}.",
            safe="nothing was decided by this attempt that a restart would not find.",
            to_do="see that the folder exists, is reachable and may be written by this user.",
        ) from error


class LocalStorage(Storage):
    """A folder on a POSIX file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.location = f"file://{root}"
        self.scheme = "file"

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
                    sync(target.parent)  # whoever was first may have died before it did this
                    raise AlreadyExists(name) from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(aside)
            sync(target.parent)

    def read(self, name: str) -> bytes | None:
        with storage_errors(f"reading {self._root / name}"):
            try:
                return self._at(name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str) -> list[str]:
        with storage_errors(f"listing {self._root / folder}"):
            try:
                return sorted(name for name in os.listdir(self._at(folder)) if not name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, name: str) -> None:
        with storage_errors(f"deleting {self._root / name}"), contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def settle(self, folder: str) -> None:
        with storage_errors(f"syncing {self._root / folder}"), contextlib.suppress(FileNotFoundError):
            sync(self._at(folder))

    def sync(self) -> bool:
        """One call for the whole file system: cheaper than a call for each of many state files, and none is missed."""
        with storage_errors(f"syncing {self._root}"):
            sync_file_system(self._root)
        return True

    def _at(self, name: str) -> Path:
        return self._root / safe_name(name, self.location)


class MemoryStorage(Storage):
    """A dictionary, for tests."""

    def __init__(self, location: str = "memory:") -> None:
        self.location = location
        self.scheme = "memory"
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        with self._lock:
            if name in self._files:
                raise AlreadyExists(name)
            self._files[name] = data

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def list(self, folder: str) -> list[str]:
        start = f"{folder.rstrip('/')}/" if folder else ""
        with self._lock:
            return sorted({name[len(start) :].partition("/")[0] for name in self._files if name.startswith(start)})

    def delete(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)


def local_path(location: str) -> Path | None:
    """The path behind a plain or `file:` location, None for any other scheme.

    Read as Hadoop reads it, character by character: `%20`, `#` and `?` are part of the name. Another reading would put
    the ledger beside a checkpoint that is not the query's."""
    scheme = urlparse(location).scheme
    if scheme == "file":
        rest = location.partition(":")[2]
        return Path("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest).absolute()
    return Path(location).absolute() if scheme == "" else None
