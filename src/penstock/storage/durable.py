"""Names that survive a power cut, on this machine's disks.

A file's bytes are synced through the file, its name through the folder that holds it, and that folder's own name
through the folder above. A process that finds a folder cannot know whether its name was ever synced: the one that made
it may have died in between. So `ensure_folder` syncs the whole way up, once for every folder and process.

`mount_of` says whether a folder shows at once what other machines have created in it. A run learns by a listing that a
newer one has taken over, and what was decided. A client of a network file system may answer from its cache, by default
for up to a minute. One machine cannot try that, so the mount's own options tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

#: What `statfs` calls file systems of this machine: ext2 to ext4, XFS, Btrfs, F2FS, ZFS, tmpfs, ramfs, and overlayfs,
#: which hands a sync on to the one it writes to.
_LOCAL = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x01021994, 0x858458F6, 0x794C7630})
_AT_ONCE = 8
_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_CACHING = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")
_FRESH = frozenset({"noac", "actimeo=0", "acdirmax=0"})  # each makes a client ask the server for every listing

_settled: set[tuple[str, int, int]] = set()


def sync(path: Path | str) -> None:
    """What the file or folder holds is on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def syncs_as_one(path: Path | str) -> bool:
    """Whether `sync_file_system` reaches the disk behind `path`. The kernel does not hand that call on to FUSE, and a
    network file system does with it what it likes: only those count that are known to carry it out."""
    libc = ctypes.CDLL(None)
    about = ctypes.create_string_buffer(512)
    if not hasattr(libc, "syncfs") or libc.statfs(os.fsencode(path), about):
        return False
    return int.from_bytes(about.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) in _LOCAL


def sync_file_system(path: Path | str) -> None:
    """All that any process wrote to the file system of `path` is on the disk when this returns, if `syncs_as_one`."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(handle)


def sync_below(root: Path | str, known: Mapping[str, object]) -> dict[str, object]:
    """Every file and folder below `root` is on the disk when this returns. `known` is what the call before returned:
    a file that is the same since then, and a folder that holds the same ones, are not synced again."""
    seen: dict[str, object] = {}
    files, folders = list[str](), list[str]()
    for where, below, names in os.walk(root):
        changed = False
        for path in (os.path.join(where, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                seen[path] = status.st_ino, status.st_size, status.st_mtime_ns
                if stat.S_ISREG(status.st_mode) and seen[path] != known.get(path):
                    files.append(path)
                    changed = True
        seen[where] = frozenset((*below, *names))
        if changed or seen[where] != known.get(where):
            folders.append(where)

    def sync_file(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # Spark wrote it aside, and has renamed or removed it since
            sync(path)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-sync") as pool:
        list(pool.map(sync_file, files))
    for folder in reversed(folders):
        sync_file(folder)
    return seen


def ensure_folder(folder: Path) -> None:
    """`folder` is there, and a power cut does not take its name or those above it, whichever process made them."""
    folder = folder.absolute()
    fresh: set[Path] = set()
    if not folder.is_dir():
        fresh = {place for place in (folder, *folder.parents) if not place.exists()}
        folder.mkdir(parents=True, exist_ok=True)
    marks = []
    for place in (folder, *folder.parents):
        status = place.stat()
        mark = (str(place), status.st_dev, status.st_ino)
        if place not in fresh and mark in _settled:
            break
        try:
            sync(place.parent)
        except OSError:
            # A folder above that this user may not read was there before the job, and is not ours to sync.
            if place in fresh:
                raise
        marks.append(mark)
    _settled.update(marks)


@dataclass(frozen=True, slots=True)
class Mount:
    """What is mounted at `point`: the kind of file system, and its options."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def keeps_listings(self) -> bool:
        """Whether what it lists may be old. Of sshfs no option tells: its cache is in the program that serves it."""
        return self.kind in _CACHING and not self.options & _FRESH


def mount_of(folder: Path) -> Mount | None:
    """The mount that `folder`, which need not exist yet, is on; None where this system does not tell."""
    try:
        lines = _TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = folder.resolve()
    innermost: Mount | None = None
    for line in lines:
        mount = _parse(line)
        if mount is not None and path.is_relative_to(mount.point):
            # Of mounts over each other the last one is seen.
            innermost = mount if innermost is None or len(mount.point) >= len(innermost.point) else innermost
    return innermost


def _parse(line: str) -> Mount | None:
    """`36 35 98:0 / /mnt rw,noatime shared:1 - nfs4 server:/export rw,vers=4.2,acdirmax=60`"""
    mounted, _, rest = line.partition(" - ")
    fields, more = mounted.split(), rest.split()
    if len(fields) < 6 or len(more) < 3:
        return None
    point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(point, more[0], frozenset(more[2].split(",")))
