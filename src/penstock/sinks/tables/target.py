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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa
from pyarrow.parquet import FileMetaData, Statistics

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.errors import AccessDenied, PenstockError, StorageFull, SystemUnavailable
from penstock.secrets import without_secrets
from penstock.sinks.files import commit
from penstock.storage.storage import is_full
from penstock.storage.tree import Tree

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DATA = re.compile(r"-(?P<token>[0-9a-f]{20})-\d+\.parquet$")
_MARKER = re.compile(r"^g(?P<generation>\d+)-(?P<file>e\d+-a\d+-.*-(?P<token>[0-9a-f]{20})-\d+\.parquet)$")
_DENIED = re.compile(r"\b(401|403)\b|unauthori[sz]ed|forbidden|access ?denied|permission denied|authentication", re.I)
_FULL = re.compile(r"no space left|disk quota exceeded|disk is full", re.I)


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
            if isinstance(error, PenstockError) or not isinstance(error, (*self.errors, OSError)):
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


def translated(error: BaseException, where: str, options: Mapping[str, str]) -> PenstockError:
    text = without_secrets(f"{type(error).__name__}: {error}", options).strip()
    if (isinstance(error, OSError) and is_full(error)) or _FULL.search(text):
        return StorageFull(
            f"No space is left where {where} is: {text}.",
            safe="nothing of an undecided epoch is visible; a decided one is kept until it can be committed.",
            to_do="free space or raise the quota; the job resumes from the same positions.",
        )
    if isinstance(error, PermissionError) or _DENIED.search(text):
        return AccessDenied(
            f"{where} may not be used: {text}.",
            safe="what is committed stays committed; nothing else is visible.",
            to_do="check the credentials, and the right to read, write, list and delete in the table's folder.",
        )
    return SystemUnavailable(
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
