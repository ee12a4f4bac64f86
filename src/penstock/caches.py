"""Where Penstock keeps what it can always make again: jars, a Java launcher, the development broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def user_cache(environ: Mapping[str, str] | None = None) -> Path:
    """`$PENSTOCK_CACHE`, else `$XDG_CACHE_HOME/penstock`, else `~/.cache/penstock`; not created here.

    Everything below it may be deleted at any time that no Penstock process runs; the next use brings it back.
    """
    environ = os.environ if environ is None else environ
    if own := environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "penstock"
    return Path.home() / ".cache" / "penstock"
