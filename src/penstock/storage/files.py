"""The few things the file sink asks of a file system, for local disks and for HDFS.

All names are relative to the output folder. What counts is `rename`: one step, all or nothing, never over an existing
file. Storage that cannot do that (object stores copy instead) is refused when the sink is described.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlparse

from penstock.errors import ConfigurationError, StorageFull

_ARROW_SCHEMES = ("hdfs", "viewfs")


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_disk_named(path: str, safe: str) -> Iterator[None]:
    """Turns the errors of a full disk or an exhausted quota into `StorageFull`; all others pass."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise StorageFull(
            f"No space is left where {path} is: {error.strerror}.",
            safe=safe,
            to_do="free space or raise the quota; the job goes on from the same positions.",
        ) from error


class StagedFile(ABC):
    """A file being written under its hidden name."""

    stream: Any  # what an encoder writes to; the encoder closes it

    @abstractmethod
    def settle(self) -> int:
        """After the stream is closed: make bytes and name durable and return the size. `FileNotFoundError` if
        somebody removed the file meanwhile."""

    @abstractmethod
    def discard(self) -> None:
        """Close and remove, whatever state it is in."""


class Storage(ABC):
    """One output folder."""

    @abstractmethod
    def create_folder(self, name: str) -> None: ...

    @abstractmethod
    def stage(self, name: str) -> StagedFile:
        """A new file; its folder is created where it is missing."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of the file, or None where there is none."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Atomic. `FileNotFoundError` if the source is gone, `FileExistsError` if the target is there."""

    @abstractmethod
    def sync(self, folder: str) -> None:
        """Make the names in a folder durable."""

    @abstractmethod
    def write_durably(self, name: str, content: bytes) -> None:
        """A small new file, durable on return."""

    def secure(self, name: str) -> None:
        """In the driver: a complete file that a task has left survives a power cut. Nothing to do where `settle` has
        seen to that in the task."""
        return

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def open(self, name: str) -> Any:
        """The file for reading from any place in it; whoever opens it closes it."""

    @abstractmethod
    def remove(self, name: str) -> bool:
        """Whether the file was there."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The files directly in a folder; none where it does not exist."""


def normalise(path: str) -> str:
    """An absolute local path, or the address of a storage with an atomic rename; anything else is refused."""
    scheme = urlparse(path).scheme
    if scheme in _ARROW_SCHEMES:
        return path
    if scheme == "file":
        return os.path.abspath(unquote(urlparse(path).path))
    if "://" in path:
        raise ConfigurationError(
            f"FileSink cannot write to {scheme}://: the storage has no atomic rename, so a crash in a commit could "
            "show half an epoch or lose one.",
            safe="nothing was started.",
            to_do="write to a local or mounted folder (a plain path or file:) or to hdfs://; for an object store use a "
            "table format, whose log gives the atomic step.",
        )
    return os.path.abspath(path)


def is_local(path: str) -> bool:
    return "://" not in path


def open_storage(path: str) -> Storage:
    """Storage for a path that `normalise` returned."""
    if is_local(path):
        from penstock.storage.files_local import LocalStorage

        return LocalStorage(path)
    from pyarrow.fs import FileSystem

    from penstock.storage.files_hadoop import ArrowStorage

    return ArrowStorage(*FileSystem.from_uri(path), address=path)
