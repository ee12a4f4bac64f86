"""What a Delta log says about a data file, from the file's own footer.

Readers skip files by these numbers, so a wrong one loses rows in every later query. What is not certain is left out:
a file without statistics is only read more often.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.sinks.files.encode import leaves

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, Statistics

    from penstock.sinks.tables.target import Written

#: Letters of a text that the log keeps; the same number as Spark's writer.
PREFIX = 32
#: Columns with statistics, counted from the first, unless the table says otherwise.
INDEXED = 32
_LAST = "\U0010ffff"


def statistics(file: Written, schema: pa.Schema, indexed: int = INDEXED) -> str:
    """The `stats` of an add action, as JSON."""
    names = schema.names if indexed < 0 else schema.names[:indexed]
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, name in _flat(file.metadata.schema.to_arrow_schema()):
        if name not in names:
            continue
        found = _column(file.metadata, number)
        if found is None:
            continue
        count, least, most = found
        nulls[name] = count
        if least is not None and (shown := _low(least)) is not None:
            low[name] = shown
        if most is not None and (shown := _high(most)) is not None:
            high[name] = shown
    body = {"numRecords": file.metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return json.dumps(body, ensure_ascii=False)


def _flat(schema: pa.Schema) -> Iterator[tuple[int, str]]:
    """The columns of a file that hold plain values, with their numbers in the footer. Its paths would not do: that of
    column `a.b` is also that of field `b` in column `a`."""
    number = 0
    for field in schema:
        if not pa.types.is_nested(field.type):
            yield number, field.name
        number += len(list(leaves(field.name, field.type)))


def _column(metadata: FileMetaData, number: int) -> tuple[int, Any, Any] | None:
    """Nulls, least and largest value over all row groups; None where a group does not say."""
    nulls = 0
    low: list[Any] = []
    high: list[Any] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        found = chunk.statistics if chunk.is_stats_set else None
        if found is None or not found.has_null_count:
            return None
        nulls += found.null_count
        if found.null_count == chunk.num_values:
            continue
        if not has_bounds(found):
            low, high = [None], [None]
            break
        low.append(found.min)
        high.append(found.max)
    if not low or None in low:
        return nulls, None, None
    return nulls, min(low), max(high)


def has_bounds(found: Statistics) -> bool:
    """Whether least and largest value can be told: Spark has dates before the year 1 and after 9999, Python has not."""
    try:
        return bool(found.has_min_max) and (found.min, found.max) is not None
    except (OverflowError, ValueError):
        return False


def _low(value: Any) -> Any:
    if isinstance(value, str):
        return value[:PREFIX]
    return _shown(value)


def _high(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= PREFIX:
            return value
        # Larger than every text that begins so, unless the next letter is the last of all.
        return None if value[PREFIX] == _LAST else value[:PREFIX] + _LAST
    return _shown(value)


def _shown(value: Any) -> Any:
    """None for types whose text readers may not agree on: decimals, binaries, booleans, endless numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if 1 <= value.year <= 9999 else None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    return None


def partition_values(values: Sequence[Any], columns: Sequence[str]) -> Mapping[str, str | None]:
    """The text of partition values as the Delta protocol writes it."""
    return {name: _text(value) for name, value in zip(columns, values, strict=True)}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def unsupported(version: int, features: Collection[str]) -> list[str]:
    """Of what a table asks of its writers, that which an append of plain files does not honour, or deltalake refuses to
    commit to, which would show only after a decision."""
    if version not in (*_LEGACY, 7):
        return [f"it wants writers of version {version}"]
    return [f"it has the feature {name}" for name in sorted(set(features) - _HARMLESS)]


#: Versions without a list of features. Version 6 is left out: it stands for identity columns, which deltalake lacks.
_LEGACY = (1, 2, 3, 4, 5)

#: Features that ask nothing of an append, or only what is checked: that no column uses them.
_HARMLESS = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "timestampNtz",
        "deletionVectors",
        "v2Checkpoint",
    }
)
