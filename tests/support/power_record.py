"""A power cut under a job that runs in processes of its own: driver, JVM and Python workers.

Each Python process of the job records its syncs in one log: a file's content, a folder's entries or, for a sync of the
file system, all of them. Spark's JVM syncs nothing, so what it writes is durable once Penstock has synced it. When all
processes are dead, `Machine.cut` compares the folder with the log, and loses by a seed what was not synced in its
present form:

| since the last sync | the seed decides |
|---|---|
| a name was made, moved or removed | whether that is undone; a moved file may have both names, but never none |
| a file was written for the first time | whether it is empty, shortened, full of zeros, or whole |
| a file was changed | whether it has its synced content, some of what came after, or all of it |

What was synced is never lost. The record knows a file or folder by its inode and the moment it was made, so a rename
or a link needs no attention of its own: what counts is what a folder's entries are when the folder is synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = "PENSTOCK_TEST_POWER"  # the folder that loses what is not synced
FORGETS = "PENSTOCK_TEST_POWER_FORGETS"  # a planted bug: a sync of a path that this expression finds does nothing
APART = "PENSTOCK_TEST_POWER_APART"  # set: the file system is never synced as one, as with FUSE
HOOK = Path(__file__).with_name("power_hook")
_CHECKOUT = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "src")]

Place = tuple[str, str]  # a folder's identity, and a name in it
Event = dict[str, Any]

_AT_EMPTY_PATH, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, _BORN = 0x1000, 0x100, 0x800, slice(80, 92)
_libc = ctypes.CDLL(None, use_errno=True)


def identity(path: Path | str = "", handle: int = -100) -> str:
    """Of a file or folder, given by its path or by a handle: its inode, which may be used again, and its birth."""
    about = ctypes.create_string_buffer(256)
    flags = _AT_SYMLINK_NOFOLLOW | (0 if path else _AT_EMPTY_PATH)
    if _libc.statx(handle, os.fsencode(path), flags, _STATX_BTIME, about):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return f"{int.from_bytes(about.raw[32:40], sys.byteorder)}-{about.raw[_BORN].hex()}"


# In the processes of the job


class Recorder:
    """One process's syncs below `root`. A sync is recorded after it has returned, with what was there before it. A lock
    keeps the syncs of all processes in order: an older one never hides a newer one."""

    def __init__(self, root: Path, forgets: str = "") -> None:
        self.root = root
        self._record = Record(root)
        self._forgets = re.compile(forgets) if forgets else None
        self._fsync = os.fsync

    def fsync(self, file: Any) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{handle}").removesuffix(" (deleted)"))
        if path != self.root and self.root not in path.parents:
            self._fsync(handle)
        elif self._forgets is None or not self._forgets.search(str(path)):
            with self._record.locked() as write:
                event = self._event(handle, path)
                self._fsync(handle)
                write([event])

    def sync_file_system(self, path: Path, sync: Callable[[Path], None]) -> None:
        with self._record.locked() as write:
            events = self._record.everything()
            sync(path)
            write(events)

    def _event(self, handle: int, path: Path) -> Event:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            return self._record.folder(path)
        again = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY)  # the handle may be for writing only
        with os.fdopen(again, "rb") as file:
            return self._record.file(identity(handle=handle), file.read())


def install() -> None:
    """From now on this process records its syncs, as the environment asks."""
    from penstock.storage import durable, local

    recorder = Recorder(Path(os.environ[ROOT]), os.environ.get(FORGETS, ""))
    sync_file_system = durable.sync_file_system
    for name in ("fsync", "fdatasync"):
        setattr(os, name, recorder.fsync)
    functions: dict[str, Any] = {"sync_file_system": lambda path: recorder.sync_file_system(path, sync_file_system)}
    if APART in os.environ:
        functions["syncs_as_one"] = lambda _: False
    for name, function in functions.items():
        setattr(local, name, function)


class Record:
    """The log of all syncs below `root`, beside that folder; and the contents that were synced, each once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root.with_name(f".{root.name}-synced")
        self._known: dict[tuple[str, int, int], Event] = {}

    def begin(self) -> None:
        """All that is there is durable, and nothing is recorded but that."""
        shutil.rmtree(self.path, ignore_errors=True)
        (self.path / "contents").mkdir(parents=True)
        self._known.clear()
        with self.locked() as write:
            write(self.everything())

    @contextmanager
    def locked(self) -> Iterator[Callable[[list[Event]], None]]:
        with (self.path / "log").open("a") as log:
            fcntl.flock(log, fcntl.LOCK_EX)

            def write(events: list[Event]) -> None:
                log.write(json.dumps(events) + "\n")
                log.flush()

            yield write

    def folder(self, path: Path) -> Event:
        entries = {}
        for entry in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                entries[entry.name] = [identity(entry.path), entry.is_dir(follow_symlinks=False)]
        return {"node": identity(path), "entries": entries}

    def file(self, node: str, content: bytes) -> Event:
        name = hashlib.sha256(content).hexdigest()
        place = self.path / "contents" / name
        if not place.exists():
            aside = place.with_name(f"{name}.{os.getpid()}")
            aside.write_bytes(content)
            aside.rename(place)
        return {"node": node, "content": name}

    def everything(self) -> list[Event]:
        events = []
        for where, _, names in os.walk(self.root):
            with contextlib.suppress(FileNotFoundError):
                events.append(self.folder(Path(where)))
            for path in (Path(where, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    status, node = path.stat(), identity(path)
                    version = (node, status.st_size, status.st_mtime_ns)
                    if version not in self._known:
                        self._known[version] = self.file(node, path.read_bytes())
                    events.append(self._known[version])
        return events

    def content(self, name: str) -> bytes:
        return (self.path / "contents" / name).read_bytes()

    def events(self) -> Iterator[Event]:
        for line in (self.path / "log").read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else its process was killed before the sync was known
                yield from json.loads(line)


# In the test

CUTS: list[Cut] = []
"""All of this process."""


@dataclass
class Cut:
    """What a power cut has done to names below the root."""

    seed: int
    lost: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @classmethod
    def between(cls, seed: int, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Cut:
        """From the files that were there to those that are."""
        return cls(
            seed,
            sorted(before.keys() - after.keys()),
            sorted(after.keys() - before.keys()),
            sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        )

    @property
    def count(self) -> int:
        return len(self.lost) + len(self.returned) + len(self.damaged)

    def __str__(self) -> str:
        kinds = {"lost": self.lost, "returned": self.returned, "damaged": self.damaged}
        return f"cut {self.seed}: " + "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)


def noted(cut: Cut, cuts: list[Cut]) -> Cut:
    cuts.append(cut)
    CUTS.append(cut)
    return cut


class Machine:
    """The disk at `root`, and its record. What is there when this is made is durable."""

    def __init__(self, root: Path, *, forgets: str = "", apart: bool = False) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.cuts: list[Cut] = []
        self._flags = {FORGETS: forgets, APART: "1" if apart else ""}
        self._record = Record(self.root)
        self._record.begin()

    @property
    def environment(self) -> dict[str, str]:
        """For a process of the job, so that it and all that it starts record their syncs."""
        path = os.pathsep.join([str(HOOK), *_CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])])
        flags = {name: value for name, value in self._flags.items() if value}
        return {ROOT: str(self.root), "PYTHONPATH": path, **flags}

    def close(self) -> None:
        """Nothing has to be undone."""

    def cut(self, seed: int) -> Cut:
        """The power fails and comes back; no process of the job may live. Seed 0 undoes all that can be undone. Seed 1
        keeps every name, and of files that were never synced nothing else. Other seeds decide for each by chance."""
        chance = _Chance(seed)
        durable, present = self._durable(), _Tree.walk(self.root)
        tree = _merge(durable, present, chance)
        for _, node in sorted(tree.paths().items()):
            if node not in tree.folders and node not in tree.content:
                tree.content[node] = chance.content(durable.content.get(node), present.content.get(node))
        cut = Cut.between(seed, present.files(), tree.files())
        for entry in self.root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        tree.write(self.root)
        self._record.begin()
        return noted(cut, self.cuts)

    def _durable(self) -> _Tree:
        tree = _Tree(identity(self.root))
        for event in self._record.events():
            if "entries" in event:
                tree.entries[event["node"]] = {name: node for name, (node, _) in event["entries"].items()}
                tree.folders |= {node for node, is_folder in event["entries"].values() if is_folder}
            else:
                tree.content[event["node"]] = self._record.content(event["content"])
        return tree


class RealDisk:
    """The same of a real file system: an ext4 in a file. What was not synced is not in that file yet, so the power
    fails by a copy of it. The seed decides nothing, Linux does."""

    def __init__(self, folder: Path, megabytes: int = 200) -> None:
        self.root = folder / "disk"
        self.cuts: list[Cut] = []
        self.environment: dict[str, str] = {}
        self._image = folder / "disk.img"
        self.root.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        _command("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    @staticmethod
    def works(folder: Path) -> bool:
        """Whether this user may mount such a disk."""
        try:
            RealDisk(folder, 20).close()
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def cut(self, seed: int) -> Cut:
        copy = self._image.with_suffix(".copy")
        _command("cp", "--sparse=always", str(self._image), str(copy))
        before = _Tree.walk(self.root).files()
        self.close()
        copy.replace(self._image)
        self._mount()
        return noted(Cut.between(seed, before, _Tree.walk(self.root).files()), self.cuts)

    def close(self) -> None:
        _command("umount", str(self.root))

    def _mount(self) -> None:
        # Linux commits its journal by itself after so many seconds, by default 5.
        _command("mount", "-o", "loop,commit=3600", str(self._image), str(self.root))


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class _Tree:
    """Folders and files by their identities."""

    root: str
    entries: dict[str, dict[str, str]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    content: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def walk(cls, root: Path) -> _Tree:
        tree = cls(identity(root))
        for where, _, _ in os.walk(root):
            entries = tree.entries[identity(where)] = {}
            for entry in os.scandir(where):
                node = entries[entry.name] = identity(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    tree.folders.add(node)
                else:
                    tree.content[node] = Path(entry.path).read_bytes()
        return tree

    def places(self) -> dict[str, set[Place]]:
        """Where each file and folder is, whether or not a path leads there from the root."""
        places: dict[str, set[Place]] = {}
        for folder, entries in self.entries.items():
            for name, node in entries.items():
                places.setdefault(node, set()).add((folder, name))
        return places

    def paths(self) -> dict[str, str]:
        """Every path from the root, in no order."""
        paths: dict[str, str] = {}
        folders = [(self.root, "")]
        while folders:
            folder, prefix = folders.pop()
            for name, node in self.entries.get(folder, {}).items():
                paths[prefix + name] = node
                if node in self.folders:
                    folders.append((node, f"{prefix}{name}/"))
        return paths

    def files(self) -> dict[str, bytes]:
        return {path: self.content[node] for path, node in self.paths().items() if node not in self.folders}

    def write(self, root: Path) -> None:
        for path, node in sorted(self.paths().items()):
            if node in self.folders:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(self.content[node])


class _Chance:
    """What a seed decides."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._whole = seed > 1
        self._names = float(seed) if seed < 2 else self._random.choice((0.3, 0.6, 0.9))

    def reached(self) -> bool:
        """Whether a change of names has reached the disk."""
        return self._random.random() < self._names

    def both(self) -> bool:
        """Whether a file that was moved has both names."""
        return self._whole and self._random.random() < 0.2

    def content(self, old: bytes | None, new: bytes | None) -> bytes:
        """Of a file with the synced content `old` and the present one `new`."""
        if new is None or old == new:
            return old or b""
        if not self._whole:
            return old or b""
        kept = new[: self._random.randrange(len(new) + 1)]
        if old is not None:
            return self._random.choice((old, new, max(old, kept, key=len) if new.startswith(old) else old))
        return self._random.choice((b"", kept, bytes(len(new)), new))


def _merge(durable: _Tree, present: _Tree, chance: _Chance) -> _Tree:
    """Names as the disk may have them: between those that were synced last and those that are there now."""
    old, new = durable.places(), present.places()
    synced, paths = durable.paths(), present.paths()
    tree = _Tree(present.root, folders=present.folders | durable.folders)

    def put(node: str, places: set[Place]) -> None:
        for folder, name in places:
            tree.entries.setdefault(folder, {})[name] = node

    for node in dict.fromkeys(node for _, node in sorted([*synced.items(), *paths.items()])):
        before, after = old.get(node, set()), new.get(node, set())
        places = before
        if before != after and chance.reached():
            moved = before and after and node not in tree.folders
            places = before | after if moved and chance.both() else after
        put(node, {place for place in places if place[1] not in tree.entries.get(place[0], {}) or chance.reached()})
    for folder, entries in durable.entries.items():  # a name that was replaced is the old file's or the new one's
        for name in entries.keys() & present.entries.get(folder, {}).keys():
            tree.entries.setdefault(folder, {}).setdefault(name, entries[name])
    # A move that could not be carried out, as its target was not made or is taken, is undone, with the way there.
    parents = {node: place for node, places in old.items() for place in places}
    while lost := (set(synced.values()) & set(paths.values())) - set(tree.paths().values()):
        for node in sorted(lost):
            put(node, old[node])
            while node != tree.root:
                put(node, {parents[node]})
                node = parents[node][0]
    return tree
