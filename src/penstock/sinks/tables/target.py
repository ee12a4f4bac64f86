"""What a table format has to offer: the one interface between the shared halves of the sink and Delta or Iceberg.

A table's own log is a line: every commit is made against the state before it, and of two made against the same state
one fails. All proofs rest on that. A data file carries its writer's random token in its name, and `history` tells
which tokens the table has taken or given up since a position. `append` succeeds only against the very state that was
last looked at, so between "not taken yet" and "taken now" nobody else can have taken it.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from penstock.contracts.sink import SinkScope, WriterScope
    from penstock.storage.tree import Tree

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DATA = re.compile(r"-(?P<token>[0-9a-f]{20})-\d+\.parquet$")
_MARKER = re.compile(r"^g(?P<generation>\d+)-(?P<file>e\d+-a\d+-.*-(?P<token>[0-9a-f]{20})-\d+\.parquet)$")


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
    """What the table's own history says since a position. Not `complete`: it no longer reaches back so far. `quiet`: it
    is known all the same that nothing was given up since."""

    added: frozenset[str] = frozenset()
    swept: frozenset[str] = frozenset()
    complete: bool = True
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One commit of the table: files with what `describe` said of them, and the tokens it takes and gives up."""

    note: str
    files: Sequence[Mapping[str, Any]] = ()
    added: Sequence[str] = ()
    swept: Sequence[str] = ()


class Target(ABC):
    """One table, for one sink. Not for several threads at once."""

    where: str
    """For people: "Delta table /data/orders"."""

    @abstractmethod
    def translate_errors(self) -> AbstractContextManager[None]:
        """Around calls of the library and of the storage: what they raise becomes an error of ours."""

    @abstractmethod
    def look(self) -> Known | None:
        """The table as it is now; None where there is none. Raises for a table that this sink must not write."""

    @abstractmethod
    def create(self, schema: pa.Schema) -> None:
        """Make the table, unless somebody else just did."""

    @abstractmethod
    def storage(self, known: Known) -> Tree:
        """The folder of the data files."""

    @abstractmethod
    def describe(self, known: Known, file: Written) -> Mapping[str, Any]:
        """What the table's log will say about a data file, as JSON."""

    @abstractmethod
    def history(self, since: Mapping[str, Any]) -> History:
        """History from `since` to the last look."""

    @abstractmethod
    def holds(self, names: Collection[str]) -> bool:
        """Whether all those files are in the table as last looked at. Slow: for where the history ends."""

    def make_durable(self, since: Mapping[str, Any]) -> None:
        """See that the history from `since` to the last look survives a power cut, whoever wrote it. Nothing to do
        where each entry is durable before it can be seen."""
        return

    @abstractmethod
    def append(self, change: Change) -> bool:
        """Commit against the state last looked at; False where the table has moved on, and nothing was done."""


@dataclass(frozen=True, slots=True)
class Written:
    """A complete data file."""

    name: str
    size: int
    metadata: FileMetaData
    values: tuple[Any, ...]  # of the columns the table is partitioned by


def marker_body(position: Mapping[str, Any], values: Sequence[Any]) -> bytes:
    """What a marker says: where the history stood, and the values by which the table is partitioned. They are rows'
    values, which the ledger must not hold; a marker lies beside the rows themselves."""
    values_json = [value.isoformat() if isinstance(value, date) else value for value in values]
    return json.dumps({"position": dict(position), "values": values_json}).encode()


def marked_position(body: bytes) -> Mapping[str, Any]:
    """Cut short by a crash: nothing was written behind the marker, the beginning will do."""
    try:
        position: Mapping[str, Any] = json.loads(body)["position"]
    except (ValueError, KeyError):
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
    """Where markers of open files are; readers and clean-up tools of both formats skip names that begin like this."""
    from penstock.sinks.files.commit import private_folder

    return f"{private_folder(scope)}/{part}"


def pages_folder(scope: SinkScope) -> str:
    """Where an Iceberg table's pages are, see `iceberg_mark`."""
    return private_folder(scope, "taken")


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
    """The token in the name of one of our data files; None for everybody else's."""
    match = _DATA.search(path)
    return None if match is None else match["token"]
