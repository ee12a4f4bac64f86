"""Names: those that users give, and those of files that come out of a file (a ledger, a savepoint, Spark's checkpoint).

What a user names becomes folders, file names and transactional ids. And whoever can write a file that names others must
not be able to name a place outside the folder it speaks of. Every storage checks every name it is given, so there is no
door beside; savepoints are checked as they are read, too, before anything is copied.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, UnsafeName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FORBIDDEN = frozenset("\0\\\n\r")


def check_name(name: str, what: str) -> str:
    """`name`, if it can stand in a path and in an id of another system; otherwise an error that says what may."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be a {what}.",
            safe="nothing was started.",
            to_do="use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return name


def safe_name(name: Any, where: str) -> str:
    """`name` as it is, where it leads to something below the folder `where`; "" is that folder itself."""
    if name == "":
        return ""
    if not isinstance(name, str) or _FORBIDDEN & set(name) or {"", ".", ".."} & set(name.split("/")):
        raise _unsafe(name, where)
    return name


def safe_part(name: Any, where: str) -> str:
    """`name` as it is, where it is one file or folder directly in `where`."""
    if not safe_name(name, where) or "/" in name:
        raise _unsafe(name, where)
    return str(name)


def refuse_link(path: Path) -> None:
    """Neither Spark nor Penstock makes links, and one leads wherever its maker likes."""
    if path.is_symlink():
        raise _unsafe(f"{path.name} -> {os.readlink(path)}", str(path.parent))


def _unsafe(name: Any, where: str) -> UnsafeName:
    return UnsafeName(
        f"A file named {name!r} is asked for in {where}, and that is not a name below this folder.",
        safe="nothing was read or written under that name.",
        to_do="do not use the savepoint or ledger that names it: Penstock did not write that. Restore it from a copy.",
    )
