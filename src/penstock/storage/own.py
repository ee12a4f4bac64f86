"""Folders and files that are for this user's eyes only, in places that others may have been to before."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def own_folder(path: Path) -> Path:
    """Have `path` as a folder of this user's that nobody else can look into. Folders above it that are missing are made
    the same way. Raises `PermissionError` for one that is somebody else's or a link to one: its owner could put other
    files in the place of ours."""
    if not path.parent.exists():
        own_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user") from None
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is not a folder") from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    return path


def create_own(path: Path, flags: int = os.O_EXCL) -> int:
    """A descriptor for writing a file that only this user can read; never one behind a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def read_own(path: Path) -> str:
    """What this user wrote there; root may read what anybody wrote. Raises `PermissionError` for what somebody else has
    put there, `OSError` for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        owner, me = os.fstat(file.fileno()).st_uid, os.geteuid()
        if owner != me and me != 0:
            raise PermissionError(f"{path} belongs to another user")
        return file.read()
