"""A disk that loses, when the power fails, everything that nobody has synced.

While `Disk` watches a folder, it remembers what is durable there: a file's content from its last `fsync`, a folder's
entries from that folder's last `fsync`, everything from a sync of the whole file system. `cut` puts the folder back to
that. A file whose entry is durable and whose content is not is there and empty, as after a real power cut. What a
process only wrote, renamed, linked or deleted is as if it had not happened.

A file is known by its inode, so a rename or a link needs no attention of its own: what counts is what the folder's
entries are when the folder is synced. Inodes are kept from being used again by a link to each.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.storage import durable, local


class PowerCut(BaseException):
    """Raised where the machine stops: nobody may catch it and go on."""


class Disk:
    """What is durable below `root`. What was there before counts as durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held = root.with_name(f".{root.name}-inodes")
        self._content: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._kinds: dict[int, bool] = {}  # inode: is it a folder?
        root.mkdir(parents=True, exist_ok=True)
        self._held.mkdir()
        self.sync_all()

    @contextmanager
    def watched(self, *, as_one: bool = True) -> Iterator[Disk]:
        """While this lasts, this process's syncs count; those of the whole file system only where it hears of them,
        `as_one`. FUSE does not."""
        fsync, sync_file_system = os.fsync, durable.sync_file_system
        with pytest.MonkeyPatch.context() as patch:

            def sync(file: Any) -> None:
                fsync(file)
                self.sync(file if isinstance(file, int) else file.fileno())

            def sync_everything(path: Path) -> None:
                sync_file_system(path)
                if as_one:
                    self.sync_all()

            patch.setattr(os, "fsync", sync)
            patch.setattr(os, "fdatasync", sync)
            patch.setattr(local, "sync_file_system", sync_everything)
            patch.setattr(local, "syncs_as_one", lambda _: as_one)
            yield self

    def sync(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}").removesuffix(" (deleted)"))
        if path != self.root and self.root not in path.parents:
            return
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            self._sync_folder(path)
        else:
            again = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY)  # the handle may be for writing only
            with os.fdopen(again, "rb") as file:
                self._content[self._hold(path, about.st_ino)] = file.read()

    def sync_all(self) -> None:
        for folder, _, files in os.walk(self.root):
            self._sync_folder(Path(folder))
            for name in files:
                file = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):  # another thread has just removed it
                    self._content[self._hold(file, file.stat().st_ino)] = file.read_bytes()

    def cut(self) -> None:
        """The power fails, and comes back."""
        before = self._restored(os.stat(self.root).st_ino)
        for entry in self.root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._rebuild(self.root, before)
        self._content.clear()
        self._entries.clear()
        self.sync_all()

    def copy_durable(self, where: Path) -> None:
        """Write to `where` what a power cut would leave now; this disk goes on."""
        where.mkdir()
        self._rebuild(where, self._restored(os.stat(self.root).st_ino))

    def forget(self, folder: Path) -> None:
        """As if the process had died before it synced that folder."""
        self._entries.pop(os.stat(folder).st_ino, None)

    def _sync_folder(self, folder: Path) -> None:
        entries = {}
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                inode = entry.inode()
                self._kinds[inode] = entry.is_dir(follow_symlinks=False)
                entries[entry.name] = inode if self._kinds[inode] else self._hold(Path(entry.path), inode)
        self._entries[os.stat(folder).st_ino] = entries

    def _hold(self, path: Path, inode: int) -> int:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(path, self._held / str(inode))
        return inode

    def _restored(self, folder: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, inode in self._entries.get(folder, {}).items():
            found[name] = self._restored(inode) if self._kinds[inode] else self._content.get(inode, b"")
        return found

    def _rebuild(self, folder: Path, entries: dict[str, Any]) -> None:
        for name, content in entries.items():
            path = folder / name
            if isinstance(content, dict):
                path.mkdir()
                self._rebuild(path, content)
            else:
                path.write_bytes(content)


def fails() -> None:
    """For a failpoint: the power fails here."""
    raise PowerCut


class Steps:
    """Every sync, and every name taken away, in order, by its path from `root`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.did = root, list[tuple[str, str]]()
        fsync, unlink = os.fsync, os.unlink

        def sync(handle: int) -> None:
            self._note("sync", Path(os.readlink(f"/proc/self/fd/{handle}")))
            fsync(handle)

        def remove(path: Path, missing_ok: bool = False) -> None:
            self._note("unlink", path)
            unlink(path)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "unlink", remove)

    def _note(self, what: str, path: Path) -> None:
        self.did.append((what, os.path.relpath(path, self.root)))

    @property
    def synced(self) -> set[str]:
        return {name for what, name in self.did if what == "sync"}
