"""Files that several processes may touch at once."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds the lock file `path` alone among all processes of this machine; waits for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by closing, also when this process dies
        yield
