"""The target table as its user describes it, the names of what a sink leaves beside it, and rows against its columns.

A writer's name ends with a random token, which makes it unique for all time: also after the checkpoint was deleted,
when generations and epochs begin again at one.
"""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from penstock.contracts.sink import WriterScope
from penstock.errors import ConfigurationError, DataError, SchemaMismatch
from penstock.sinks.files.text import LOSSLESS, keys_as_text, refuse_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

#: Longest label of a sink; the rest of a writer's name takes at most 90 characters.
_LABEL = 100
_WRITER = re.compile(r":g(?P<generation>\d+):e(?P<epoch>\d+):a\d+:p(?P<partition>\d+):t\d+:[0-9a-f]{12}")
_STAGED = re.compile(r"(?P<generation>\d+)_[0-9a-f]{12}")
_STAGING = re.compile(rf"penstock_stage_[0-9a-f]{{16}}_g{_STAGED.pattern}")
_NAME = r'(?:"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^".`\s]+))'
_TABLE = re.compile(rf"(?:{_NAME}\.)?{_NAME}")


def digest(prefix: str, length: int = 16) -> str:
    return sha256(prefix.encode()).hexdigest()[:length]


def label(prefix: str) -> str:
    """`prefix` itself, or, where it is too long, its beginning and a digest. No two sinks share one."""
    return prefix if len(prefix) <= _LABEL else f"{prefix[: _LABEL - 33]}#{digest(prefix, 32)}"


def writer_name(scope: WriterScope) -> str:
    """A unique name for one writer, at most 200 bytes."""
    return (
        f"{label(scope.sink.prefix)}:g{scope.sink.generation}:e{scope.epoch}:a{scope.attempt}"
        f":p{scope.partition}:t{scope.task_attempt}:{secrets.token_hex(6)}"
    )


def numbers_in(name: str, prefix: str) -> dict[str, Any] | None:
    """Generation and, of a transaction, epoch and partition in the name of a writer of the sink `prefix`."""
    for pattern, start in ((_WRITER, label(prefix)), (_STAGED, staging_prefix(prefix))):
        if name.startswith(start) and (match := pattern.fullmatch(name, len(start))):
            return {key: int(value) for key, value in match.groupdict().items()}
    return None


def staging_prefix(prefix: str) -> str:
    return f"penstock_stage_{digest(prefix)}_g"


def staging_name(scope: WriterScope) -> str:
    """A unique name for one writer's staging table, at most 63 bytes."""
    return f"{staging_prefix(scope.sink.prefix)}{scope.sink.generation}_{secrets.token_hex(6)}"


def is_staging(name: str) -> bool:
    """Whether a writer's name, of whatever sink, is that of a staging table, and not of a transaction."""
    return _STAGING.fullmatch(name) is not None


def quoted(name: str, mark: str = '"') -> str:
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def literal(text: str) -> str:
    """`text` as a string in a statement that takes no parameters. For names made here, which hold no backslash."""
    return "'" + text.replace("'", "''") + "'"


def split_table(text: str, sink: str) -> tuple[str | None, str]:
    """Schema (or None) and table of `table` or `schema.table`, quoted or not; case is kept."""
    match = _TABLE.fullmatch(text)
    if match is not None:
        schema, table = (
            plain or (double or "").replace('""', '"') or (back or "").replace("``", "`")
            for double, back, plain in (match.groups()[:3], match.groups()[3:])
        )
        return schema or None, table
    raise ConfigurationError(
        f"{sink} cannot read {text!r} as the name of a table.",
        to_do="write table or schema.table, and quote a name that holds a dot or a blank.",
    )


SqlMode = Literal["auto", "two_phase", "staged", "upsert"]

#: What each one does, for `describe`, `explain` and error messages.
MODES: dict[str, str] = {
    "auto": "two_phase where the server allows prepared transactions, else staged",
    "two_phase": "one prepared transaction per writer, committed after the decision",
    "staged": "one staging table per writer, moved with a marker in one transaction after the decision",
    "upsert": "staged, and the move inserts or updates by key",
}


def check_mode(sink: str, mode: str, key: Sequence[str]) -> None:
    wrong = to_do = ""
    if mode not in MODES:
        wrong, to_do = f"{sink} has no mode {mode!r}.", f"use one of {', '.join(MODES)}."
    elif mode == "upsert" and not key:
        wrong = f"{sink} in mode upsert needs the columns that make a row the same row."
        to_do = "say key=['id'], with the columns of a primary key or a unique index of the table."
    elif mode != "upsert" and key:
        wrong = f"{sink} has a key, but mode {mode!r} inserts every row and does not use it."
        to_do = "say mode='upsert', or remove the key."
    elif len(set(key)) != len(key):
        wrong, to_do = f"{sink} has a column twice in its key {list(key)}.", "name every column once."
    if wrong:
        raise ConfigurationError(wrong, to_do=to_do)


def check_length(system: str, table: str, length: int, longest: int, unit: str) -> None:
    if length > longest:
        raise ConfigurationError(
            f"The table's name {table!r} is longer than the {longest} {unit} {system} takes.",
            to_do="give it a shorter name.",
        )


def require_key(where: str, missing: Sequence[str], columns: Sequence[str]) -> None:
    if missing:
        raise SchemaMismatch(
            f"The key of {where} has columns that the rows do not have: {', '.join(missing)}.",
            to_do=f"name columns of the DataFrame as key; it has {', '.join(columns)}.",
        )


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    nullable: bool = True
    filled: bool = False  # by the database: a default, an identity
    generated: bool = False  # only the database may write it


def compare(
    given: Iterable[tuple[str, str]], table: Sequence[Column], where: str, refusal: Callable[[str, Column], str | None]
) -> None:
    """`SchemaMismatch` with every reason why rows of `given` (name, type) cannot go into `table`."""
    by_name = {column.name: column for column in table}
    wrong: list[str] = []
    names: set[str] = set()
    for name, kind in given:
        if name in names:
            wrong.append(f"column {name!r} occurs twice")
        names.add(name)
        column = by_name.get(name)
        if column is None:
            wrong.append(f"the table has no column {name!r}{hint(name, by_name)}")
        elif column.generated:
            wrong.append(f"column {name!r} is generated by the database, so rows may not have it")
        else:
            reason = refusal(kind, column)
            if reason is not None:
                wrong.append(f"column {name!r} is {kind}, the table's is {column.type}: {reason}")
    wrong.extend(
        f"the table's column {column.name!r} may not be null, has no default, and the rows do not have it"
        for column in table
        if column.name not in names and not (column.nullable or column.filled or column.generated)
    )
    if wrong:
        raise SchemaMismatch(
            f"The rows do not fit into {where}: {'; '.join(wrong)}.",
            to_do="select, rename or cast the columns of the DataFrame, or alter the table.",
        )


def hint(name: str, there: Iterable[str]) -> str:
    same = [column for column in there if column.lower() == name.lower()]
    close = same or difflib.get_close_matches(name, list(there), n=1)
    return f" (it has {close[0]!r})" if close else ""


def require_values(batch: pa.RecordBatch, key: Sequence[str], system: str, table: str) -> None:
    """`DataError` for a row with a null in its key: whether nulls are equal depends on the unique index."""
    for name in key:
        if batch.column(name).null_count:
            raise DataError(
                f"A row for the {system} table {table} has no key: the column {name!r} is null.",
                to_do="filter such rows in the query, or fill the key in: an upsert must know which row it changes.",
            )


def with_json(frame: DataFrame, as_json: Callable[[DataType], bool], *, decimals_as_text: bool = False) -> DataFrame:
    """`frame` with every column whose type `as_json` picks turned into JSON text; null stays null, and null fields are
    kept. Times are in UTC and keep their microseconds, which Spark's default JSON format cuts. Decimals are numbers
    with all their digits, or text where the database's JSON would make doubles of them. Numbers of a variant stay as
    they are. Keys of maps become text, see `sinks.files.text`."""
    from pyspark.sql import functions as f

    nested = [field for field in frame.schema.fields if as_json(field.dataType)]
    refuse_keys(nested, "The sink")
    if not nested:
        return frame
    chosen, select = [], frame.select  # first: a frame that is out of reach refuses here, see `Columns`
    for field in frame.schema.fields:
        column = f.col(quoted(field.name, "`"))
        if as_json(field.dataType):
            exact = _with_text(field.dataType) if decimals_as_text else field.dataType
            if exact != field.dataType:
                column = column.cast(exact)
            column = keys_as_text(column, exact)
            column = f.to_json(column, {**LOSSLESS["json"], "ignoreNullFields": "false"}).alias(field.name)
        chosen.append(column)
    return select(*chosen)


def _with_text(kind: DataType) -> DataType:
    """`kind` with strings in the place of decimals, however deep."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_with_text(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_with_text(kind.keyType), _with_text(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType(
            [StructField(each.name, _with_text(each.dataType), each.nullable, each.metadata) for each in kind.fields]
        )
    return kind
