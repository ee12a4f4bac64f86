"""The file sink's storage on local disks and everything mounted like one."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from pathlib import Path
from typing import IO

from penstock.naming import safe_name
from penstock.storage.durable import ensure_folder, sync
from penstock.storage.files import StagedFile, Storage


class _LocalFile(StagedFile):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        # The encoder closes its stream and we still have to sync: two descriptors of one file.
        self.stream: IO[bytes] = os.fdopen(os.dup(self._fd), "wb", buffering=1 << 20)

    def settle(self) -> int:
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


class LocalStorage(Storage):
    """A folder reached by system calls: a local disk, or anything mounted with POSIX rename."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def _at(self, name: str) -> Path:
        return self._root / safe_name(name, str(self._root))

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
            there = self._at(target).stat()
        except FileNotFoundError:
            os.rename(self._at(source), self._at(target))
            return
        if not os.path.samestat(there, self._at(source).stat()):
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

    def names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._at(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []
