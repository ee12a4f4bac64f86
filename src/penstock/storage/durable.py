"""Names that survive a power cut, on this machine's disks.

A file's bytes are synced through the file, its name through the folder that holds it, and that folder's own name
through the folder above. Whoever finds a folder cannot know whether its name was ever synced: the process that made it
may have died in between. So `ensure_folder` syncs the whole way up, once for every folder and process.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_settled: set[tuple[str, int, int]] = set()


def sync(path: Path | str) -> None:
    """What the file or folder holds is on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(path: Path | str) -> None:
    """Everything that was written to the file system of `path`, by whomever, is on the disk when this returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # not on Linux
        os.sync()
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(handle)


def ensure_folder(folder: Path) -> None:
    """`folder` is there, and a power cut does not take its name or those above it, whoever made them."""
    folder = folder.absolute()
    fresh: set[Path] = set()
    if not folder.is_dir():
        fresh = {one for one in (folder, *folder.parents) if not one.exists()}
        folder.mkdir(parents=True, exist_ok=True)
    found = []
    for one in (folder, *folder.parents):
        status = one.stat()
        mark = (str(one), status.st_dev, status.st_ino)
        if one not in fresh and mark in _settled:
            break
        try:
            sync(one.parent)
        except OSError:
            # A folder above that this user may not read was there before the job, and is not ours to sync.
            if one in fresh:
                raise
        found.append(mark)
    _settled.update(found)
