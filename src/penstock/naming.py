"""Names that become folders, transactional ids and file names."""

from __future__ import annotations

import re

from penstock.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str) -> str:
    """`name`, if it can stand in a path and in an id of another system; otherwise an error that says what may."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be a {what}.",
            safe="nothing was started.",
            to_do="use up to 100 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return name
