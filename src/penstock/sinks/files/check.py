"""Whether a folder on this machine can take files, asked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.contracts.sink import Finding
from penstock.errors import AccessDenied, ConfigurationError, StorageFull

#: Below this a check warns: an epoch of a busy job writes more.
_LITTLE_SPACE = 1 << 30


def check_folder(path: str, uid: str, *, what: str) -> Sequence[Finding]:
    """Raises for a folder that cannot be written, there or still to be made; `what` it is to be is for people."""
    folder = Path(path)
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigurationError(
            f"{nearest} is a file, so {folder} cannot be {what}.",
            safe="nothing was started.",
            to_do="give the path of a folder.",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise AccessDenied(
            f"This user may not write in {nearest}.",
            safe="nothing was started.",
            to_do="grant the right to write, or choose another folder.",
        )
    space = os.statvfs(nearest)
    free = space.f_bavail * space.f_frsize
    if free == 0:
        raise StorageFull(f"No space is left in {nearest}.", safe="nothing was started.", to_do="free some space.")
    return (Finding(uid, f"only {free >> 20} MiB are free in {nearest}"),) if free < _LITTLE_SPACE else ()
