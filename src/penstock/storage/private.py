"""Folders that nobody but their owner can look into: what is received may be anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.errors import AccessDenied

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


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
