"""The log of a detached job, kept to a size.

Its driver, Java and the supervisor have it open, all of them to add to it, so it keeps its name: what it holds is
copied aside, and it begins anew.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.storage.private import create_own

log = logging.getLogger("penstock.supervisor")

MOST_BYTES = 16 << 20
"""Of a log, and of the one before it."""
_LOOK_SECONDS = 2.0


def earlier(file: Path) -> Path:
    """What the log held before it began anew."""
    return file.with_name(f"{file.name}.1")


@contextmanager
def kept_small(file: Path | None) -> Iterator[None]:
    """While this lasts, look after the log."""
    if file is None:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(file, over), name="penstock-log", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def begin_anew(file: Path) -> None:
    """Where the log is too large. What is written between the copy and the cut, a moment, is lost."""
    if file.stat().st_size <= MOST_BYTES:
        return
    aside = earlier(file).with_suffix(".new")
    aside.unlink(missing_ok=True)
    with file.open("rb") as held, open(create_own(aside), "wb") as copy:
        held.seek(-MOST_BYTES, os.SEEK_END)
        shutil.copyfileobj(held, copy)
        os.truncate(file, 0)
    aside.replace(earlier(file))


def _watch(file: Path, over: threading.Event) -> None:
    while not over.wait(_LOOK_SECONDS):
        try:
            begin_anew(file)
        except OSError as error:
            log.warning("the log cannot be kept small: %s", error)
            return
