"""The interface between the shared part of the table sinks and Delta or Iceberg, and what both formats share.

All proofs rest on one thing: `append` succeeds only against the very state that was last looked at, so no other writer
can have taken a token between "not taken yet" and "taken now".
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import FileMetaData, Statistics

from penstock import errors as ours
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.secrets import without_secrets
from penstock.sinks.files import commit
from penstock.sinks.files.encode import not_in_parquet
from penstock.sinks.files.text import column_problems, types_in
from penstock.sinks.sql.tables import Column, compare, hint
from penstock.storage.storage import is_full
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DATA = re.compile(r"-(?P<token>[0-9a-f]{20})-\d+\.parquet$")
_MARKER = re.compile(r"^g(?P<generation>\d+)-(?P<file>e\d+-a\d+-.*-(?P<token>[0-9a-f]{20})-\d+\.parquet)$")
_DENIED = re.compile(r"\b(401|403)\b|unauthori[sz]ed|forbidden|access ?denied|permission denied|authentication", re.I)
_FULL = re.compile(r"no space left|disk quota exceeded|disk is full", re.I)
#: Types a table can be partitioned by: those with an unambiguous text.
PARTITION_TYPES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_signed_integer,
    pa.types.is_date32,
    pa.types.is_boolean,
)

#: Spark's metadata on a column of text with a limited length. To the formats it is a string.
VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_VARCHAR = re.compile(r"varchar\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Known:
    """A table at one moment: enough for a task to write files that fit, and for a proof to begin at."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    position: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "partition_by": list(self.partition_by),
            "position": dict(self.position),
            "extra": dict(self.extra),
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Known:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"])))
        return Known(schema, tuple(body["partition_by"]), body["position"], body["extra"])


@dataclass(frozen=True, slots=True)
class History:
    """History since a position. Not `complete`: it does not reach back. `quiet`: even so, nothing was given up."""

    added: frozenset[str] = frozenset()
    swept: frozenset[str] = frozenset()
    complete: bool = True
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One commit of the table: its files as `Target.describe` returns them, and the tokens it takes and gives up."""

    note: str
    files: Sequence[Any] = ()
    added: Sequence[str] = ()
    swept: Sequence[str] = ()


class Target(ABC):
    """One table, for one sink. Not for several threads at once."""

    where: str  # for messages: "Delta table /data/orders"
    options: dict[str, str]  # of the library; their secrets are hidden in messages
    errors: tuple[type[Exception], ...]  # of the library

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Around calls of the library and the storage: their errors become Penstock's, without secrets; others pass."""
        try:
            yield
        except Exception as error:
            if isinstance(error, ours.PenstockError) or not isinstance(error, (*self.errors, OSError)):
                raise
            # The original may show an address with its password.
            raise translated(error, self.where, self.options) from None

    @abstractmethod
    def look(self) -> Known | None:
        """The table as it is now; None if there is none. Raises for a table that this sink must not write."""

    @abstractmethod
    def create(self, schema: pa.Schema) -> None:
        """Create the table, unless another task just did."""

    @abstractmethod
    def storage(self, known: Known) -> Tree:
        """The folder of the data files."""

    @abstractmethod
    def describe(self, known: Known, file: Written) -> Any:
        """A data file as the library adds it to the table last looked at."""

    @abstractmethod
    def history(self, since: Mapping[str, Any]) -> History:
        """History from `since` to the last look."""

    @abstractmethod
    def holds(self, names: Collection[str]) -> bool:
        """Whether all those files are in the table as last looked at. Slow; for when the history is incomplete."""

    def make_durable(self, since: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing to do
        """Make the history from `since` to the last look survive a power cut, whichever program wrote it."""

    @abstractmethod
    def append(self, change: Change) -> bool:
        """Commit against the state last looked at; False where the table has moved on, and nothing was done."""


@dataclass(frozen=True, slots=True)
class Written:
    name: str
    size: int
    metadata: FileMetaData
    values: tuple[Any, ...]  # of the columns the table is partitioned by


def marker_body(position: Mapping[str, Any], values: Sequence[Any]) -> bytes:
    """The position, and the partition values: rows' values, which the ledger must not hold."""
    values_json = [value.isoformat() if isinstance(value, date) else value for value in values]
    return json.dumps({"position": dict(position), "values": values_json}).encode()


def marked_position(storage: Tree, marker: str) -> Mapping[str, Any]:
    """The beginning for a marker that is gone, or was cut short by a crash: no file was written behind it."""
    try:
        position: Mapping[str, Any] = json.loads(storage.read(marker))["position"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}
    return position


def marked_values(body: bytes, known: Known) -> tuple[Any, ...]:
    kinds = [known.schema.field(name).type for name in known.partition_by]
    values_json = json.loads(body)["values"]
    return tuple(
        date.fromisoformat(value) if value is not None and pa.types.is_date(kind) else value
        for value, kind in zip(values_json, kinds, strict=True)
    )


def private_folder(scope: SinkScope, part: str = "open") -> str:
    """The folder of the markers of open files; readers and clean-up tools of both formats skip such names."""
    return f"{commit.private_folder(scope)}/{part}"


def data_name(scope: WriterScope, token: str, number: int) -> str:
    uid = _UNSAFE.sub("-", scope.sink.uid)[:60]
    return f"e{scope.epoch:010d}-a{scope.attempt}-p{scope.partition:05d}-{uid}-{token}-{number}.parquet"


def marker_name(scope: SinkScope, data: str) -> str:
    return f"{private_folder(scope)}/g{scope.generation:08d}-{data}"


def parse_marker(name: str) -> tuple[int, str, str] | None:
    """Generation, data file and token of a marker."""
    match = _MARKER.match(name)
    return None if match is None else (int(match["generation"]), match["file"], match["token"])


def token_of(path: str) -> str | None:
    """The token in the name of a data file of these sinks; None for any other."""
    match = _DATA.search(path)
    return None if match is None else match["token"]


def translated(error: BaseException, where: str, options: Mapping[str, str]) -> ours.PenstockError:
    text = without_secrets(f"{type(error).__name__}: {error}", options).strip()
    if (isinstance(error, OSError) and is_full(error)) or _FULL.search(text):
        return ours.StorageFull(
            f"No space is left where {where} is: {text}.",
            safe="nothing of an undecided epoch is visible; a decided one is kept until it can be committed.",
            to_do="free space or raise the quota; the job resumes from the same positions.",
        )
    if isinstance(error, PermissionError) or _DENIED.search(text):
        return ours.AccessDenied(
            f"{where} may not be used: {text}.",
            safe="what is committed stays committed; nothing else is visible.",
            to_do="check the credentials, and the right to read, write, list and delete in the table's folder.",
        )
    return ours.SystemUnavailable(
        f"{where} does not answer as it should: {text}.",
        safe="what is committed stays committed; nothing else is visible.",
        to_do="see that the storage or the catalog can be reached; the restart strategy retries.",
    )


def has_bounds(stats: Statistics) -> bool:
    """Whether Python can hold the least and largest value: unlike Spark, it has no dates before 1 and after 9999."""
    try:
        return bool(stats.has_min_max) and (stats.min, stats.max) is not None
    except (OverflowError, ValueError):
        return False


# Columns of rows and of a table, compared before the first row is written: nothing is cut, rounded or dropped silently


def varchar_length(kind: str) -> int | None:
    """The limit in Spark's metadata of a column; None for other kinds, such as char(3)."""
    match = _VARCHAR.fullmatch(kind)
    return int(match[1]) if match else None


def of_frame(frame: DataFrame, forbidden: str, where: str) -> pa.Schema:
    """The Arrow columns of `frame`; `SchemaMismatch` for types and names that no table can have."""
    from pyspark.sql import types as t
    from pyspark.sql.pandas.types import to_arrow_type

    problems = column_problems(frame, not_in_parquet)
    structs = (part for part in types_in(frame.schema) if isinstance(part, t.StructType))
    for name in (name for struct in structs for name in struct.names):
        odd = sorted({repr(letter) for letter in name if letter in forbidden})
        if odd or not name:
            problems.append(f"the name {name!r} has {', '.join(odd) or 'no letters'}")
    if problems:
        raise ours.SchemaMismatch(
            f"The rows do not fit into {where}: {'; '.join(problems)}.",
            to_do="select, rename or cast the columns of the DataFrame.",
        )
    kinds = [(column.name, to_arrow_type(column.dataType, timezone="UTC")) for column in frame.schema.fields]
    return pa.schema(kinds)


def plain(schema: pa.Schema) -> pa.Schema:
    """`schema` for a new table: every column nullable, times with a zone in UTC, no metadata."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _plain(part.type)) for part in _fields(kind)])
    return kind


def fit(rows: pa.Schema, table: pa.Schema, where: str) -> pa.Schema:
    """The columns of `table` that `rows` fill, in the table's order; `SchemaMismatch` names all differences."""
    compare(
        types_of(rows).items(),
        [Column(name, kind, table.field(name).nullable) for name, kind in types_of(table).items()],
        where,
        lambda _, column: (
            None if widens(rows.field(column.name).type, table.field(column.name).type) else "not every value fits"
        ),
    )
    return pa.schema([field for field in table if field.name in rows.names])


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    narrow, wide = _plain(narrow), _plain(wide)
    if narrow.equals(wide):
        return True
    if pa.types.is_signed_integer(narrow) and pa.types.is_signed_integer(wide):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_float32(narrow) and pa.types.is_float64(wide):
        return True
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale <= wide.scale and narrow.precision - narrow.scale <= wide.precision - wide.scale)
    if pa.types.is_list(narrow) and pa.types.is_list(wide):
        return widens(narrow.value_type, wide.value_type)
    if pa.types.is_map(narrow) and pa.types.is_map(wide):
        return widens(narrow.key_type, wide.key_type) and widens(narrow.item_type, wide.item_type)
    if pa.types.is_struct(narrow) and pa.types.is_struct(wide) and narrow.num_fields == wide.num_fields:
        pairs = zip(_fields(narrow), _fields(wide), strict=True)
        return all(part.name == other.name and widens(part.type, other.type) for part, other in pairs)
    return False


def strict_inside(table: pa.Schema) -> list[str]:
    """Columns with a nested part that may not be null: Spark's schemas are not reliable there."""

    def strict(kind: pa.DataType) -> bool:
        if pa.types.is_map(kind):
            return not kind.item_field.nullable or strict(kind.key_type) or strict(kind.item_type)
        if pa.types.is_nested(kind):
            return any(not part.nullable or strict(part.type) for part in _fields(kind))
        return False

    return [field.name for field in table if strict(field.type)]


def adapt(batch: pa.RecordBatch, target: pa.Schema, where: str) -> pa.RecordBatch:
    """`batch` as `target` has it. `ConstraintViolated` for a null where none may be, and for text that is too long."""
    columns = []
    for wanted in target:
        column = batch.column(batch.schema.get_field_index(wanted.name))
        if not wanted.nullable and column.null_count:
            raise ours.ConstraintViolated(
                f"{column.null_count} rows have no value in column {wanted.name!r}, which may not be null in {where}.",
                to_do="filter or fill such rows, or let the column be null; then restart.",
            )
        most = varchar_length((wanted.metadata or {}).get(VARCHAR.encode(), b"").decode())
        if most is not None and (pc.max(pc.utf8_length(column)).as_py() or 0) > most:
            raise ours.ConstraintViolated(
                f"A row has more than {most} letters in column {wanted.name!r}, which is varchar({most}) in {where}.",
                to_do="filter or shorten such rows, or widen the column; then restart.",
            )
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def check_partitions(by: Sequence[str], table: pa.Schema, where: str) -> None:
    wrong = []
    for name in by:
        if name not in table.names:
            wrong.append(f"there is no column {name!r}{hint(name, table.names)}")
        elif not any(fits(_plain(table.field(name).type)) for fits in PARTITION_TYPES):
            wrong.append(f"column {name!r} is {_type_name(table.field(name).type)}")
    if by and len(by) >= len(table.names):
        wrong.append("no column is left beside them")
    if wrong:
        raise ours.SchemaMismatch(
            f"{where} cannot be partitioned by {', '.join(by)}: {'; '.join(wrong)}.",
            to_do="partition by text, whole numbers, dates or booleans; derive such a column if there is none.",
        )


def changed(written: Mapping[str, str], table: pa.Schema) -> str | None:
    """Why files whose columns had those types no longer fit into `table`; None if they do."""
    now = types_of(table)
    different = [name for name, kind in written.items() if now.get(name) != kind]
    different += [field.name for field in table if not field.nullable and field.name not in written]
    if not different:
        return None
    return f"columns {', '.join(sorted(different))} are not what they were when the rows were written"


def types_of(schema: pa.Schema) -> dict[str, str]:
    return {field.name: _type_name(field.type) for field in schema}


def _fields(kind: Any) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _type_name(kind: pa.DataType) -> str:
    return str(_plain(kind))
