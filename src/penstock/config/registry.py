"""All options, found by key."""

from __future__ import annotations

import difflib

from penstock.config.checkpoint_options import CHECKPOINT_OPTIONS
from penstock.config.flink import some_keys
from penstock.config.option import Option
from penstock.config.recovery_options import RECOVERY_OPTIONS
from penstock.config.rest_options import REST_OPTIONS
from penstock.config.restart_options import RESTART_OPTIONS
from penstock.config.state_options import STATE_OPTIONS

OPTIONS: tuple[Option, ...] = (
    *CHECKPOINT_OPTIONS,
    *STATE_OPTIONS,
    *RESTART_OPTIONS,
    *RECOVERY_OPTIONS,
    *REST_OPTIONS,
)
BY_KEY = {key: option for option in OPTIONS for key in (option.key, *option.aliases)}
BY_NAME = {(option.part, option.name): option for option in OPTIONS}


def nearest(key: str) -> str | None:
    """The known key that is spelt most like this one, if any is close."""
    known = [*BY_KEY, *some_keys()]
    found = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return found[0] if found else None
