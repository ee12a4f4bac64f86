"""A disk in memory that forgets, when the power fails, what was not synced.

A file has names and bytes. Its bytes are safe once they were synced through the file, a name (and that a name is gone)
once the folder was. `cut` puts back what is safe; of the rest each change survives or not, by chance, and bytes that
were not synced may be gone from under a name that survived: the file is there, and empty.

`DiskStorage` and `DiskTree` are to it what `LocalStorage` and `LocalTree` are to a real one, sync by sync.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from penstock.errors import LedgerError
from penstock.storage.storage import AlreadyExists, Storage
from penstock.storage.tree import StagedFile, Tree
from tests.support.simulation.schedule import Scheduler

_NOTHING = -1


class _Names(dict[str, int]):
    """Files by name, and what each folder holds: folders are listed and synced all the time."""

    def __init__(self, names: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.folders: dict[str, dict[str, int]] = {}  # folder: entry: how many files there or below
        for name, number in (names or {}).items():
            self[name] = number

    def __setitem__(self, name: str, number: int) -> None:
        if name not in self:
            for folder, entry in _way(name):
                entries = self.folders.setdefault(folder, {})
                entries[entry] = entries.get(entry, 0) + 1
        super().__setitem__(name, number)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        for folder, entry in _way(name):
            entries = self.folders[folder]
            entries[entry] -= 1
            if not entries[entry]:
                del entries[entry]

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self:
            return super().pop(name, *default)
        number = self[name]
        del self[name]
        return number

    def files(self, folder: str) -> list[str]:
        """Their names, of those in the folder itself."""
        paths = [f"{folder}/{entry}" for entry in self.folders.get(folder, ())]
        return [path for path in paths if path in self]


@lru_cache(20_000)
def _way(name: str) -> tuple[tuple[str, str], ...]:
    """The folders that lead to a file, each with its entry."""
    parts = name.split("/")
    return tuple(("/".join(parts[:depth]), part) for depth, part in enumerate(parts))


class Disk:
    def __init__(self) -> None:
        self.names, self.safe = _Names(), _Names()
        self.content: dict[int, bytes] = {}
        self.synced: dict[int, bytes] = {}
        self.next = 0

    # As a process sees it

    def read(self, name: str) -> bytes | None:
        number = self.names.get(name, _NOTHING)
        return None if number == _NOTHING else self.content[number]

    def write(self, name: str, data: bytes) -> int:
        """Under this name, over what was there; nothing is synced."""
        self.next += 1
        self.content[self.next], self.names[name] = data, self.next
        return self.next

    def remove(self, name: str) -> bool:
        return self.names.pop(name, None) is not None

    def below(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        return [name for name in self.names if name.startswith(start)]

    def entries(self, folder: str) -> list[str]:
        return sorted(self.names.folders.get(folder, ()))

    # What is safe

    def sync_file(self, name: str) -> None:
        number = self.names[name]
        self.synced[number] = self.content[number]

    def sync_folder(self, folder: str) -> None:
        names, safe = self.names, self.safe
        for name in names.files(folder):
            if safe.get(name) != (number := names[name]):
                safe[name] = number
        for name in safe.files(folder):
            if name not in names:
                del safe[name]

    def sync_below(self, folder: str) -> None:
        start = f"{folder}/"
        for name in [name for name in {*self.names, *self.safe} if name.startswith(start)]:
            if name in self.names:
                self.sync_file(name)
            self._settle(name)

    def _settle(self, name: str) -> None:
        if name in self.names:
            self.safe[name] = self.names[name]
        else:
            self.safe.pop(name, None)

    def cut(self, random: Random) -> list[str]:
        """The power fails; what became of each change that was not safe, for a story."""
        told = []
        after = dict(self.safe)
        for name in sorted({*self.names, *self.safe}):
            now, before = self.names.get(name), self.safe.get(name)
            if now == before:
                continue
            if random.random() < 0.5:
                told.append(f"{name} is {'gone' if before is None else 'what it was' if now else 'back'}")
            elif now is None:
                del after[name]
            else:
                after[name] = now
        # A rename is one entry of a file system's journal: the old name does not go without the new one coming.
        for name, number in self.safe.items():
            if name not in after and number in self.names.values() and number not in after.values():
                after[name] = number
                told.append(f"{name} is back")
        self.names = _Names(after)
        for name, number in sorted(after.items()):
            if number not in self.synced:
                if random.random() < 0.5:
                    self.content[number] = b""
                    told.append(f"{name} is empty")
                self.synced[number] = self.content[number]
            else:
                self.content[number] = self.synced[number]
        self.safe = _Names(after)
        return told


def _lost() -> LedgerError:
    return LedgerError("The storage did not answer.", safe="nothing was decided.", to_do="wait.")


@lru_cache(20_000)
def _label(verb: str, path: str) -> str:
    folder = path if verb == "list" else path.rpartition("/")[0]
    return f"{verb}-{folder.rpartition('/')[2]} {path}"


class DiskStorage(Storage):
    """Each call is one or two places: a name is given, then its folder synced."""

    forgetful = True

    def __init__(
        self, disk: Disk, schedule: Scheduler, root: str, lose: Callable[[], Exception] | None = _lost
    ) -> None:
        self.disk, self._schedule, self._root, self._lose = disk, schedule, root, lose
        self.location, self.scheme = f"sim://{root}", "sim"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _call(self, verb: str, path: str, work: Callable[[], Any]) -> Any:
        """A class of its own for each folder: decisions, claims and generations are looked for by it."""
        return self._schedule.call(_label(verb, path), work, self._lose)

    def create(self, name: str, data: bytes) -> None:
        path, disk = self._at(name), self.disk

        def link() -> bool:
            if path in disk.names:
                return False
            disk.write(path, data)
            disk.sync_file(path)
            return True

        made = self._call("create", path, link)
        self._schedule.call(f"sync {path}", lambda: disk.sync_folder(posixpath.dirname(path)))
        if not made:
            raise AlreadyExists(name)

    def read(self, name: str) -> bytes | None:
        path = self._at(name)
        data: bytes | None = self._call("read", path, lambda: self.disk.read(path))
        return data

    def list(self, folder: str) -> list[str]:
        path = self._at(folder)
        names = self._call("list", path, lambda: self.disk.entries(path))
        return [name for name in names if not name.startswith(".")]

    def sizes(self, folder: str = "") -> dict[str, int]:
        path, disk, cut = self._at(folder), self.disk, len(self._root) + 1
        return self._schedule.call(
            f"list {path}", lambda: {n[cut:]: len(disk.content[disk.names[n]]) for n in sorted(disk.below(path))}
        )

    def delete(self, name: str) -> None:
        path = self._at(name)
        self._call("delete", path, lambda: self.disk.remove(path))

    def delete_folder(self, folder: str) -> bool:
        """A name that is deleted is whatever it stands for by then. No fence helps a process that stands still between
        its look and the deletion, so here it does not."""
        names = self.disk.below(self._at(folder))
        for name in names:
            self._schedule.call(f"wipe {name}", lambda name=name: self.disk.remove(name), steady=True)  # type: ignore[misc]
        return bool(names)

    def link(self, name: str, other: str) -> None:
        """A name that is given is that of whatever is there by then: no fence helps, as with a deletion."""
        old, new, names = self._at(name), self._at(other), self.disk.names

        def link() -> None:
            if old in names:
                names[new] = names[old]

        self._schedule.call(f"link {old}", link, steady=True)

    def settle(self, folder: str) -> None:
        path = self._at(folder)
        self._schedule.call(f"sync {path}", lambda: self.disk.sync_folder(path))

    def sync(self) -> bool:
        self._schedule.call(f"sync {self._root}", lambda: self.disk.sync_below(self._root))
        return True


class _Kept(io.BytesIO):
    """An encoder closes its stream, and what it wrote is read after that."""

    def close(self) -> None:
        pass


class _File(StagedFile):
    def __init__(self, tree: DiskTree, path: str) -> None:
        self._tree, self._path = tree, path
        self.stream = _Kept()
        self._number = tree.disk.write(path, b"")

    def finish(self) -> int:
        disk, path = self._tree.disk, self._path
        data = self.stream.getvalue()

        def sync_bytes() -> bool:
            disk.content[self._number] = disk.synced[self._number] = data
            return disk.names.get(path) == self._number

        if not self._tree.schedule.call(f"write {path}", sync_bytes):
            raise FileNotFoundError(path)
        self._tree.schedule.call(f"sync {path}", lambda: disk.sync_folder(posixpath.dirname(path)))
        return len(data)

    def discard(self) -> None:
        self._tree.schedule.call(f"delete {self._path}", lambda: self._tree.disk.remove(self._path))


class DiskTree(Tree):
    def __init__(self, disk: Disk, schedule: Scheduler, root: str) -> None:
        self.disk, self.schedule, self._root, self.location = disk, schedule, root, f"sim://{root}"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def create_folder(self, name: str) -> None:
        pass

    def stage(self, name: str) -> StagedFile:
        path = self._at(name)
        return self.schedule.call(f"stage {path}", lambda: _File(self, path))

    def size(self, name: str) -> int | None:
        path = self._at(name)
        data = self.schedule.call(f"read {path}", lambda: self.disk.read(path))
        return None if data is None else len(data)

    def rename(self, source: str, target: str) -> None:
        old, new, names = self._at(source), self._at(target), self.disk.names

        def rename() -> None:
            if old not in names:
                raise FileNotFoundError(old)
            if new in names and names[new] != names[old]:
                raise FileExistsError(new)
            names[new] = names.pop(old)

        self.schedule.call(f"rename {old}", rename)

    def sync(self, folder: str) -> None:
        path = self._at(folder)
        self.schedule.call(f"sync {path}", lambda: self.disk.sync_folder(path))

    def write_durably(self, name: str, content: bytes) -> None:
        path = self._at(name)

        def write() -> None:
            self.disk.write(path, content)
            self.disk.sync_file(path)

        self.schedule.call(f"write {path}", write)
        self.schedule.call(f"sync {path}", lambda: self.disk.sync_folder(posixpath.dirname(path)))

    def read(self, name: str) -> bytes:
        path = self._at(name)
        data = self.schedule.call(f"read {path}", lambda: self.disk.read(path))
        if data is None:
            raise FileNotFoundError(path)
        return data

    def open(self, name: str) -> Any:
        return io.BytesIO(self.read(name))

    def remove(self, name: str) -> bool:
        path = self._at(name)
        return self.schedule.call(f"delete {path}", lambda: self.disk.remove(path))

    def file_names(self, folder: str) -> list[str]:
        path = self._at(folder)
        names = self.schedule.call(f"list {path}", lambda: self.disk.entries(path))
        return [name for name in names if f"{path}/{name}" in self.disk.names]
