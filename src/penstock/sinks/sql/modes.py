"""How an epoch becomes visible in a SQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.errors import ConfigurationError

SqlMode = Literal["auto", "two_phase", "staged", "upsert"]

#: What each one does, for `describe`, `explain` and error messages.
MODES: dict[str, str] = {
    "auto": "two_phase where the server allows prepared transactions, else staged",
    "two_phase": "one prepared transaction per writer, committed after the decision",
    "staged": "one staging table per writer, moved with a marker in one transaction after the decision",
    "upsert": "staged, and the move inserts or updates by key",
}


def check_mode(sink: str, mode: str, key: Sequence[str]) -> None:
    """`ConfigurationError` for a mode there is not, for upsert without a key, and for a key that nothing uses."""
    if mode not in MODES:
        raise ConfigurationError(
            f"{sink} has no mode {mode!r}.", safe="nothing was started.", to_do=f"use one of {', '.join(MODES)}."
        )
    if mode == "upsert" and not key:
        raise ConfigurationError(
            f"{sink} in mode upsert needs the columns that make a row the same row.",
            safe="nothing was started.",
            to_do="say key=['id'], with the columns of a primary key or a unique index of the table.",
        )
    if mode != "upsert" and key:
        raise ConfigurationError(
            f"{sink} has a key, but mode {mode!r} inserts every row and would never look at it.",
            safe="nothing was started.",
            to_do="say mode='upsert', or leave the key away.",
        )
    if len(set(key)) != len(key):
        raise ConfigurationError(
            f"{sink} has a column twice in its key {list(key)}.",
            safe="nothing was started.",
            to_do="name every column once.",
        )
