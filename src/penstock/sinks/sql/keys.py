"""The key of an upsert: what may stand in it, and which indexes of a table can get in its way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DataError
from penstock.sinks.sql.faults import NOTHING_VISIBLE

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index. `columns` are those it compares as a whole; `parts` tells that it compares something else too:
    the first characters of a column, or an expression."""

    name: str
    columns: frozenset[str]
    parts: bool = False

    def is_on(self, key: Collection[str]) -> bool:
        """Whether two rows are the same to it exactly where their keys are."""
        return not self.parts and self.columns == frozenset(key)

    def may_disagree_with(self, key: Collection[str], never_equal: Collection[str]) -> bool:
        """Whether it can take a row for one that has another key. It cannot if it compares the key as well, or a
        column of `never_equal`, which differs between any two rows."""
        return not (self.columns >= frozenset(key) or self.columns & frozenset(never_equal))


def require_values(batch: pa.RecordBatch, key: Sequence[str], system: str, table: str) -> None:
    """`DataError` for a row whose key is null, in whole or in part. A unique index takes nulls for different or for
    equal as it was made, and rows of one batch would be judged by another rule than rows of two."""
    for name in key:
        if batch.column(name).null_count:
            raise DataError(
                f"A row for the {system} table {table} has no key: the column {name!r} is null.",
                safe=NOTHING_VISIBLE,
                to_do="leave such rows out before they are written, or give them a value: an upsert has to know which "
                "row it changes.",
            )
