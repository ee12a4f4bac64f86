"""Names that users choose, names of files inside files (a ledger, a savepoint, Spark's checkpoint), and users' folders.

A file must not be able to name one outside its folder: every storage checks every name, and savepoints are checked
again as they are read, before anything is copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError, UnsafeName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FORBIDDEN = frozenset("\0\\\n\r")


def check_name(name: str, what: str) -> str:
    """`name`, if it is fit for a path and for an id in another system; otherwise an error that says what is."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be a {what}.",
            to_do="use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return name


def safe_name(name: Any, where: str) -> str:
    """`name`, if it lies below the folder `where`; "" is that folder itself."""
    if name == "":
        return ""
    if not isinstance(name, str) or _FORBIDDEN & set(name) or {"", ".", ".."} & set(name.split("/")):
        raise _unsafe(name, where)
    return name


def safe_part(name: Any, where: str) -> str:
    """`name`, if it is a file or folder directly in `where`."""
    if not safe_name(name, where) or "/" in name:
        raise _unsafe(name, where)
    return str(name)


def refuse_link(path: Path) -> None:
    """Neither Spark nor Penstock creates links, and a link may lead anywhere."""
    if path.is_symlink():
        raise _unsafe(f"{path.name} -> {os.readlink(path)}", str(path.parent))


def _unsafe(name: Any, where: str) -> UnsafeName:
    return UnsafeName(
        f"A file named {name!r} is asked for in {where}, and that is not a name below this folder.",
        safe="nothing was read or written under that name.",
        to_do="do not use the savepoint or ledger that names it: Penstock did not write that. Restore it from a copy.",
    )


def user_cache(environ: Mapping[str, str] | None = None) -> Path:
    """`$PENSTOCK_CACHE`, else `$XDG_CACHE_HOME/penstock`, else `~/.cache/penstock`; what can be made again."""
    return user_folder("PENSTOCK_CACHE", "XDG_CACHE_HOME", ".cache", environ)


def user_folder(variable: str, xdg_variable: str, default: str, environ: Mapping[str, str] | None) -> Path:
    environ = os.environ if environ is None else environ
    if folder := environ.get(variable):
        return Path(folder).expanduser().absolute()
    if folder := environ.get(xdg_variable):
        return Path(folder).expanduser().absolute() / "penstock"
    try:
        return Path.home() / default / "penstock"
    except RuntimeError:  # a container's user without a name; where this cannot be written, the error says so
        return Path("/") / default / "penstock"
