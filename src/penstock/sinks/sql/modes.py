"""How an epoch becomes visible in a SQL database, and what a user may say of a SQL sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.errors import ConfigurationError, SchemaMismatch

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
    wrong = to_do = ""
    if mode not in MODES:
        wrong, to_do = f"{sink} has no mode {mode!r}.", f"use one of {', '.join(MODES)}."
    elif mode == "upsert" and not key:
        wrong = f"{sink} in mode upsert needs the columns that make a row the same row."
        to_do = "say key=['id'], with the columns of a primary key or a unique index of the table."
    elif mode != "upsert" and key:
        wrong = f"{sink} has a key, but mode {mode!r} inserts every row and would never look at it."
        to_do = "say mode='upsert', or leave the key away."
    elif len(set(key)) != len(key):
        wrong, to_do = f"{sink} has a column twice in its key {list(key)}.", "name every column once."
    if wrong:
        raise ConfigurationError(wrong, safe="nothing was started.", to_do=to_do)


def check_length(system: str, table: str, length: int, longest: int, unit: str) -> None:
    """`ConfigurationError` for a table's name that is longer than the database takes."""
    if length > longest:
        raise ConfigurationError(
            f"The table's name {table!r} is longer than the {longest} {unit} {system} takes.",
            safe="nothing was started.",
            to_do="give it a shorter name.",
        )


def require_key(where: str, missing: Sequence[str], columns: Sequence[str]) -> None:
    """`SchemaMismatch` for columns of a key that the rows do not have."""
    if missing:
        raise SchemaMismatch(
            f"The key of {where} has columns that the rows do not have: {', '.join(missing)}.",
            safe="nothing was written.",
            to_do=f"name columns of the DataFrame as key; it has {', '.join(columns)}.",
        )
