"""Folders and files of this user on this machine, closed to others, in places that others may have been to before; and
locks between this user's processes."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


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


def read_own(path: Path, errors: str = "strict") -> str:
    """What this user wrote there; root may read what anybody wrote. Raises `PermissionError` for what somebody else has
    put there, `OSError` for a link; `errors` says what becomes of what is not UTF-8."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8", errors=errors) as file:
        owner, me = os.fstat(file.fileno()).st_uid, os.geteuid()
        if owner != me and me != 0:
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def read_trusted(path: Path) -> str:
    """What nobody but this user can have written there: for what is carried out and not only read, root is no
    exception. Raises `PermissionError` otherwise, `OSError` for a link."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path} can be written by another user")
        return file.read()


def make_private(folder: Path) -> None:
    """`folder` is there, this user's, and closed to others, and so are the files that are in it. Raises what
    `require_own` raises."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(folder, stat.S_IRWXU)
    except FileExistsError:
        require_own(folder)
    _close(folder)
    for file in folder.iterdir():
        _close(file)


def require_own(folder: Path) -> None:
    """Raises `AccessDenied` where the folder is another user's: who owns it reads, deletes and exchanges what is kept
    there."""
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise AccessDenied(
            f"The folder {folder} belongs to user {owner}, and lines would be kept there as user {os.geteuid()}.",
            safe="nothing was received; the folder is as it was.",
            to_do="name a folder that does not exist yet or belongs to the user who runs the job, or give it to them.",
        )


def private_file(path: str, flags: int) -> int:
    """An `opener`: what is made is its owner's alone."""
    return os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)


def _close(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        os.chmod(path, mode & ~_OTHERS)
    except PermissionError as error:
        raise AccessDenied(
            f"{path} is open to other users and cannot be closed to them: {error.strerror}.",
            safe="nothing was received; what is there is as it was.",
            to_do="take the rights of other users away, or name another folder.",
        ) from error


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds the lock file `path` alone among all processes of this machine; waits for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by closing, also when this process dies
        yield
