"""Trees behind pyarrow, which tasks can use: HDFS and object stores."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

from penstock.naming import safe_name
from penstock.storage.hadoop import hsync
from penstock.storage.tree import StagedFile, Tree

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class _ArrowFile(StagedFile):
    def __init__(self, tree: ArrowTree, name: str, stream: Any) -> None:
        self._tree = tree
        self._name = name
        self.stream = stream

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
    """Objects with long names. It has no folders, and nobody may ask it for a rename, which such storage does not have:
    the step from unseen to seen is a table's log."""

    def create_folder(self, name: str) -> None:
        return None  # pyarrow would put an empty object there
