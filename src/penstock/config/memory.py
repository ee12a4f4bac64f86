"""`memory:` as a place for checkpoints."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from penstock.config.checkpoints import Checkpoints


def placed(checkpoints: Checkpoints) -> Checkpoints:
    """`memory:` as the temporary folder it means; Spark's own checkpoint needs a folder too."""
    if not checkpoints.storage.startswith("memory:"):
        return checkpoints
    shared_memory = "/dev/shm"  # noqa: S108 - a file system, not a file; where Linux keeps files in memory
    parent = shared_memory if os.access(shared_memory, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="penstock-memory-", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return checkpoints.but(storage=folder)
