"""Files by their names below one root, with `/` between: a sink's data, the in-flight log, checkpoints, savepoints.

Two kinds of work are done on a tree, and not every place can do both:

| | `LocalTree` | `ArrowTree` | `HadoopTree` |
|---|---|---|---|
| where | a disk of this machine, or mounted | HDFS and object stores, from any process | the same, from the driver |
| single files: written, synced, renamed, removed | yes | yes | no |
| whole folders: listed, copied, checked, deleted | yes | no | yes |

Tasks have no JVM, so their files go through pyarrow; copies and checksums of whole checkpoints stay in the driver's
JVM, which can ask HDFS for more. What a place cannot do raises `io.UnsupportedOperation`.

Work on single files raises the operating system's errors, and the caller says what they mean (see `full_disk_named`);
work on whole folders raises the ledger's, as `Storage` does.
"""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import StorageFull
from penstock.progress import Counter, Progress, silent
from penstock.storage.storage import Storage, is_full

_T = TypeVar("_T")

AT_ONCE = 8  # copies, checksums and syncs of one tree that run in parallel


class StagedFile(ABC):
    """A file being written under its hidden name."""

    stream: Any  # what an encoder writes to; the encoder closes it

    @abstractmethod
    def finish(self) -> int:
        """After the stream is closed: make bytes and name durable; the size. `FileNotFoundError` if it was removed."""

    @abstractmethod
    def discard(self) -> None:
        """Close and remove, whatever state it is in."""


class Tree:
    location: str
    storage: Storage
    """The same folder, for small sealed files; not of an `ArrowTree`."""

    # Single files

    def create_folder(self, name: str) -> None:
        """The folder is there, and so are those above it."""
        raise self._refusal("create_folder")

    def stage(self, name: str) -> StagedFile:
        """A new file; its folder is created where it is missing."""
        raise self._refusal("stage")

    def size(self, name: str) -> int | None:
        raise self._refusal("size")

    def rename(self, source: str, target: str) -> None:
        """One step, all or nothing. `FileNotFoundError` if the source is gone, `FileExistsError` if the target is
        there."""
        raise self._refusal("rename")

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable."""
        raise self._refusal("sync")

    def secure(self, name: str) -> None:
        """In the driver: a complete file that a task has left survives a power cut, where `finish` leaves that open."""

    def write_durably(self, name: str, content: bytes) -> None:
        """A small new file, durable on return."""
        raise self._refusal("write_durably")

    def read(self, name: str) -> bytes:
        raise self._refusal("read")

    def open(self, name: str) -> Any:
        """The file for reading from any place in it; the caller closes it."""
        raise self._refusal("open")

    def remove(self, name: str) -> bool:
        """Whether the file was there."""
        raise self._refusal("remove")

    def file_names(self, folder: str) -> list[str]:
        """The files directly in a folder, hidden ones too; none where it does not exist."""
        raise self._refusal("file_names")

    # Whole folders. Hidden files are not seen.

    def at(self, name: str) -> Tree:
        raise self._refusal("at")

    def files(self, folder: str = "") -> dict[str, int]:
        """Every file below `folder`, by its name from the root, and its size."""
        return self.storage.sizes(folder)

    def names(self, folder: str = "") -> list[str]:
        """Files and folders directly below `folder`."""
        return self.storage.list(folder)

    def take(self, source: Tree, names: Mapping[str, str], progress: Progress = silent) -> None:
        """Copy or link `source`'s files to here: from its names to ours. All are durable when this returns. A file
        that is not there any more is a `FileNotFoundError`.

        On one local file system a file that never changes (state) is linked, so that no bytes are moved; everything
        else is copied, so that rewriting one never reaches the other. Hadoop's `.crc` files are left behind: a
        savepoint has checksums of its own over everything, and Spark reads a file that has none without complaint."""
        raise self._refusal("take")

    def fetch(self, name: str, path: Path) -> None:
        """Copy or link one of these files to a local disk, as `take` does."""
        raise self._refusal("fetch")

    def sync_all(self, progress: Progress = silent) -> None:
        """Every file in here, and every folder up to one that survives it, survives a power cut, whichever process
        wrote it: Spark syncs nothing that it writes."""
        raise self._refusal("sync_all")

    def digest(self, name: str) -> str:
        """SHA-256 of a file, in hexadecimal."""
        raise self._refusal("digest")

    def digests(self, sizes: Mapping[str, int], progress: Progress = silent) -> dict[str, str]:
        counter, digests = Counter(progress, "checking", sum(sizes.values()), "bytes"), {}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-digest") as pool:
            for name, digest in zip(sizes, pool.map(self.digest, sizes), strict=True):
                digests[name] = digest
                counter.add(sizes[name])
        return digests

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, replacing one of that name, and the `.crc` beside it that would condemn the new one."""
        self.storage.delete(checksum_file(name))
        self.storage.delete(name)
        self.storage.create(name, data)

    def is_link(self, name: str) -> bool:
        """Whether `name`, or a folder between it and the root, is a link to somewhere else. HDFS and object stores
        have none."""
        return False

    def delete(self, name: str = "") -> None:
        """The file or folder `name` and all that is in it; no error if it is gone already. A link is deleted, what it
        leads to is not."""
        raise self._refusal("delete")

    def delete_if_empty(self, name: str) -> None:
        if not self.names(name):
            self.delete(name)

    def _refusal(self, what: str) -> io.UnsupportedOperation:
        return io.UnsupportedOperation(f"{type(self).__name__}.{what}")


def side_by_side(work: Callable[[_T], object], items: Collection[_T], what: str, progress: Progress) -> None:
    """`work` on each of these files, in parallel; `what` is being done, for the progress."""
    counter = Counter(progress, what, len(items), "files")
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"penstock-{what}") as pool:
        for _ in pool.map(work, items):
            counter.add()


def checksum_file(name: str) -> str:
    """The hidden file in which Hadoop keeps a checksum of the file `name`, beside it."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/.{last}.crc" if folder else f".{last}.crc"


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
