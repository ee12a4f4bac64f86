"""Deleting whole folders below one root, on a local disk or through Hadoop. Links are never followed."""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.storage.hadoop import HadoopStorage
from penstock.storage.storage import LocalStorage, local_path, storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.storage import Storage


class Trees(ABC):
    """Folders by their names below a root, with `/` between."""

    @abstractmethod
    def is_link(self, name: str) -> bool:
        """Whether `name`, or a folder between it and the root, is a link to somewhere else."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete the folder and all that is in it; no error if it is not there. A link inside is deleted, what it
        leads to is not."""

    @abstractmethod
    def delete_if_empty(self, name: str) -> None:
        """Delete the folder unless something is in it."""


class LocalTrees(Trees):
    def __init__(self, root: Path) -> None:
        self._root = root

    def is_link(self, name: str) -> bool:
        parts = name.split("/")
        return any(self._root.joinpath(*parts[:length]).is_symlink() for length in range(1, len(parts) + 1))

    def delete(self, name: str) -> None:
        with storage_errors(f"deleting {self._root / name}"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / name)

    def delete_if_empty(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._root / name).rmdir()


class HadoopTrees(Trees):
    def __init__(self, storage: HadoopStorage) -> None:
        self._storage = storage

    def is_link(self, name: str) -> bool:
        return False  # HDFS and object stores have none

    def delete(self, name: str) -> None:
        self._storage.delete_tree(name)

    def delete_if_empty(self, name: str) -> None:
        if not self._storage.list(name):
            self._storage.delete_tree(name)


def trees_at(storage: Storage) -> Trees:
    """The folders of a storage, see `storage_at`."""
    if isinstance(storage, HadoopStorage):
        return HadoopTrees(storage)
    assert isinstance(storage, LocalStorage)
    path = local_path(storage.location)
    assert path is not None
    return LocalTrees(path)
