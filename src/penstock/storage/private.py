"""Folders and files that only this user can read, and locks between this user's processes."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import AccessDenied

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def own_folder(path: Path) -> Path:
    """Make `path` a folder that only this user can look into, and missing folders above it in the same way. Raises
    `PermissionError` for a folder of another user or a link to one: its owner could exchange our files."""
    if not path.parent.exists():
        own_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user") from None
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{path} is not a folder") from None
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            path.chmod(0o700)
    return path


def create_own(path: Path, flags: int = os.O_EXCL) -> int:
    """A descriptor for writing a file that only this user can read; never one behind a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def read_own(path: Path, errors: str = "strict") -> str:
    """The text of this user's file; root may read any user's. Raises `PermissionError` for a file of another user,
    `OSError` for a link; `errors` is for bytes that are not UTF-8."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8", errors=errors) as file:
        if os.geteuid() not in (0, os.fstat(file.fileno()).st_uid):
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def read_trusted(path: Path) -> str:
    """The text of a file that only this user can have written, for what is executed; root is no exception. Raises
    `PermissionError` otherwise, `OSError` for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by another user")
        return file.read()


def require_own(folder: Path) -> None:
    """Raises `AccessDenied` for a folder of another user, who can read and exchange what is in it."""
    if folder.exists() and (owner := folder.stat().st_uid) != os.geteuid():
        raise AccessDenied(
            f"The folder {folder} belongs to user {owner}, and this process runs as user {os.geteuid()}.",
            safe="nothing was written; the folder is as it was.",
            to_do="name a folder that does not exist yet or belongs to the user who runs the job, or give it to them.",
        )


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds the lock file `path` alone among all processes of this machine; waits for the process that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by closing, also when this process dies
        yield
