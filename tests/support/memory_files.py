"""A folder of files in memory, for committers that rename, note and remove: it remembers what was done, in order."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from penstock.storage.tree import StagedFile, Tree


class MemoryStaged(StagedFile):
    """A file of `MemoryFiles` being written."""

    def __init__(self, files: MemoryFiles, name: str) -> None:
        self._files, self._name, self.stream = files, name, io.BytesIO()
        files.contents[name] = b""

    def finish(self) -> int:
        if self._name not in self._files.contents:
            raise FileNotFoundError(self._name)
        self._files.contents[self._name] = self.stream.getvalue()
        return len(self._files.contents[self._name])

    def discard(self) -> None:
        self._files.contents.pop(self._name, None)


class MemoryFiles(Tree):
    """`did` lists every change, `before` is called ahead of each: a test may look, or raise, or interfere."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.folders: list[str] = []
        self.did: list[tuple[str, ...]] = []
        self.secured: list[str] = []
        self.before: Callable[[str, str], None] = lambda what, name: None

    def create_folder(self, name: str) -> None:
        self.before("create_folder", name)
        self.folders.append(name)

    def stage(self, name: str) -> StagedFile:
        return MemoryStaged(self, name)

    def size(self, name: str) -> int | None:
        return len(self.contents[name]) if name in self.contents else None

    def rename(self, source: str, target: str) -> None:
        self.before("rename", source)
        if source not in self.contents:
            raise FileNotFoundError(source)
        if target in self.contents:
            raise FileExistsError(target)
        self.contents[target] = self.contents.pop(source)
        self.did.append(("rename", source, target))

    def sync(self, folder: str) -> None:
        self.did.append(("sync", folder))

    def write_durably(self, name: str, content: bytes) -> None:
        self.before("write", name)
        self.contents[name] = content
        self.did.append(("write", name, content.decode()))

    def read(self, name: str) -> bytes:
        if name not in self.contents:
            raise FileNotFoundError(name)
        return self.contents[name]

    def secure(self, name: str) -> None:
        self.secured.append(name)

    def open(self, name: str) -> Any:
        return io.BytesIO(self.read(name))

    def remove(self, name: str) -> bool:
        self.before("remove", name)
        self.did.append(("remove", name))
        return self.contents.pop(name, None) is not None

    def file_names(self, folder: str) -> list[str]:
        found = (name.removeprefix(f"{folder}/") for name in self.contents if name.startswith(f"{folder}/"))
        return sorted(name for name in found if "/" not in name)
