"""Disks that are full or may not be written, made for a test: a small tmpfs where this user may mount one."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """A folder on a disk of its own. `real` says whether it is one: without the right to mount, `os.fsync` of this
    process lies in its place, which the ledger cannot tell apart, but a Spark task does not notice."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, megabytes: int = 4) -> None:
        self.folder = folder
        self._patch = patch
        self._ballast = folder / ".ballast"
        folder.mkdir(parents=True)
        self.real = _mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", str(folder))

    def fill(self) -> None:
        """Not a byte is left."""
        if not self.real:
            self._patch.setattr(os, "fsync", _no_space)
            return
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def free(self) -> None:
        if self.real:
            self._ballast.unlink()
        else:
            self._patch.undo()

    def protect(self) -> None:
        """Nobody may write any more, not even root where the disk is real."""
        if not (self.real and _mount("-o", "remount,ro", str(self.folder))):
            self.folder.chmod(0o500)

    def unprotect(self) -> None:
        if not (self.real and _mount("-o", "remount,rw", str(self.folder))):
            self.folder.chmod(0o700)

    def close(self) -> None:
        if self.real:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


def _no_space(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
