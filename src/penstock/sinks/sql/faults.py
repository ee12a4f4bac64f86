"""The errors of SQL sinks in one voice. `system` is the product's name, `where` a place without secrets."""

from __future__ import annotations

from penstock.errors import (
    AccessDenied,
    ConstraintViolated,
    DataError,
    MissingExtra,
    PreCommitFailed,
    SchemaMismatch,
    StorageFull,
    SystemUnavailable,
    TableMissing,
)

NOTHING_VISIBLE = "nothing of this epoch is visible."


def missing_extra(system: str, extra: str, error: ImportError) -> MissingExtra:
    return MissingExtra(
        f"Writing to {system} needs a client library that cannot be imported ({error}).",
        safe="nothing was started.",
        to_do=f"pip install 'penstock[{extra}]' where the driver and the tasks run.",
    )


def unavailable(system: str, where: str, reason: str) -> SystemUnavailable:
    return SystemUnavailable(
        f"{system} at {where} does not answer: {reason}",
        safe="what was committed stays committed, what was prepared stays prepared; nothing else is visible.",
        to_do="check that the address is right and the server runs; the job tries again by its restart strategy.",
    )


def denied(system: str, where: str, reason: str, to_do: str = "") -> AccessDenied:
    return AccessDenied(
        f"{system} at {where} refused: {reason}",
        safe=NOTHING_VISIBLE,
        to_do=to_do or "check user, password and the rights on the table and its schema.",
    )


def table_missing(system: str, table: str, to_do: str) -> TableMissing:
    return TableMissing(f"The {system} table {table} does not exist.", safe=NOTHING_VISIBLE, to_do=to_do)


def violated(system: str, table: str, reason: str, to_do: str = "") -> ConstraintViolated:
    return ConstraintViolated(
        f"Rows for the {system} table {table} break one of its rules: {reason}",
        safe=NOTHING_VISIBLE,
        to_do=to_do or "correct the rows in the query, or the table's rule, and start the job again.",
    )


def not_all(system: str, table: str, sent: int, there: int) -> ConstraintViolated:
    """The server took rows without an error, and did not put all of them there."""
    return violated(
        system,
        table,
        f"{sent} were sent, and by the server's count {there} are there.",
        "see which trigger or rule of the table leaves rows out, or puts them elsewhere; do that in the query, and "
        "start the job again.",
    )


def mismatch(system: str, table: str, reason: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Rows do not fit into the {system} table {table}: {reason}",
        safe=NOTHING_VISIBLE,
        to_do="if the table was altered, alter it back or change the query; then start the job again.",
    )


def bad_value(system: str, table: str, reason: str, to_do: str = "") -> DataError:
    return DataError(
        f"A row cannot be stored in the {system} table {table}: {reason}",
        safe=NOTHING_VISIBLE,
        to_do=to_do or "correct or filter such rows in the query, and start the job again.",
    )


def full(system: str, where: str, reason: str) -> StorageFull:
    return StorageFull(
        f"{system} at {where} has no space left: {reason}",
        safe="what was committed stays committed; nothing else is visible.",
        to_do="free some space on the database's disk; the job tries again by its restart strategy.",
    )


def failed(system: str, table: str, doing: str, reason: str, to_do: str = "") -> PreCommitFailed:
    return PreCommitFailed(
        f"{system} failed while {doing} for {table}: {reason}",
        safe=NOTHING_VISIBLE,
        to_do=to_do or "nothing: the epoch replays.",
    )


def fenced(system: str, writer: str) -> PreCommitFailed:
    return PreCommitFailed(
        f"The {system} writer {writer} was given up: its driver, or a newer run, swept before it had prepared.",
        safe="its rows are rolled back; nothing of them is visible.",
        to_do="nothing: whoever swept goes on in its place.",
    )
