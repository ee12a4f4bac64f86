"""Small notes in the user's cache that a start is quicker with: read only where nobody else can have written them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.storage.private import create_own, own_folder, read_trusted

MOST = 100
"""Of each kind: programs come and go, and so do their settings."""


def read_note(file: Path) -> str | None:
    """None where there is none, or one that another user could have written."""
    try:
        return read_trusted(file)
    except (OSError, ValueError):
        return None


def write_note(file: Path, text: str) -> None:
    """In one step, for its owner's eyes only; nothing where there is no place to write. Of the notes whose names begin
    alike, up to the dash, the oldest are forgotten."""
    if read_note(file) == text:
        return
    with contextlib.suppress(OSError):
        own_folder(file.parent)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        with open(create_own(aside, os.O_TRUNC), "w", encoding="utf-8") as opened:
            opened.write(text)
        aside.replace(file)
        alike = file.parent.glob(f"{file.name.partition('-')[0]}-*{file.suffix}")
        for old in sorted(alike, key=lambda note: note.stat().st_mtime_ns, reverse=True)[MOST:]:
            old.unlink(missing_ok=True)
