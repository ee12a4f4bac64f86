"""A savepoint: the whole job between two epochs, in one folder that can be moved anywhere.

    savepoint-payments-3f2a9c41d07e/
      _metadata                          what it is, and a checksum of every other file; written last
      queries/<uid>/spark/…              Spark's checkpoint of the query at its epoch
      queries/<uid>/state/…              canonical only: the state as Parquet, in the place of spark/state

`_metadata` is one sealed line of JSON, created in one step. A folder without it is no savepoint, however much is in it:
nothing ever reads one. No path inside is absolute, so a savepoint may be copied, moved and renamed.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import SAVEPOINT, seal, unseal
from penstock.errors import SavepointCorrupt, SavepointIncomplete
from penstock.naming import safe_name, safe_part
from penstock.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from penstock.storage.tree import Tree

METADATA = SAVEPOINT
_KIND = "savepoint"
_NAME = re.compile(r"^savepoint-.+-[0-9a-f]{12}$")


class Kind(StrEnum):
    """`native`: Spark's own files, as they are: quick, for the same backend and parallelism at no cost.
    `canonical`: state as Parquet with its schema, whatever backend, parallelism or version wrote it."""

    NATIVE = "native"
    CANONICAL = "canonical"


@dataclass(frozen=True, slots=True)
class SavedSink:
    """Where a sink's rows went. `prefix` names what it may have left in the other system."""

    kind: str
    where: str
    prefix: str


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """One query at its epoch. `sources` are the uids behind Spark's positions, in their order; `backend` and
    `partitions` are None for a query that keeps no state. `operators` as `spark_state.operators` describes them."""

    epoch: int
    query_id: str
    generation: int
    sources: tuple[str | None, ...]
    sinks: Mapping[str, SavedSink]
    watermark: int | None
    backend: str | None
    partitions: int | None
    output_mode: str
    operators: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What `_metadata` says. `files` are all others, with size and SHA-256. `drained`: made by a stop that emitted
    the final results of all windows, so that rows which come later are late."""

    id: str
    kind: Kind
    job: str
    created: float
    penstock: str
    spark: str
    queries: Mapping[str, SavedQuery]
    files: Mapping[str, tuple[int, str]] = field(repr=False)
    drained: bool = False
    mode: str = "exactly_once"

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    def to_bytes(self) -> bytes:
        return seal(_KIND, dataclasses.asdict(self))

    @classmethod
    def of(cls, data: bytes, where: str) -> Savepoint:
        """What is in `data`, whichever version wrote it; a field that this version does not know is passed over."""
        body = unseal(_KIND, data, where)
        queries = {safe_part(uid, where): _query(one) for uid, one in body["queries"].items()}
        files = {safe_name(name, where): (int(size), str(digest)) for name, (size, digest) in body["files"].items()}
        return cls(**_known(cls, {**body, "kind": Kind(body["kind"]), "queries": queries, "files": files}))


def new_name(job: str) -> tuple[str, str]:
    """A fresh id, and the folder's name."""
    made = secrets.token_hex(6)
    return made, f"savepoint-{job}-{made}"


def read(folder: Tree) -> Savepoint:
    """The savepoint in `folder`; `SavepointIncomplete` where there is none."""
    data = folder.storage.read(METADATA)
    if data is None:
        half = _NAME.match(folder.location.rstrip("/").rpartition("/")[2]) and folder.files()
        raise SavepointIncomplete(
            f"{folder.location} has no {METADATA}, so it is "
            + ("a savepoint that was never finished." if half else "not a savepoint."),
            safe="nothing was started or changed.",
            to_do="use another savepoint; this one can be removed by `penstock savepoint --dispose`."
            if half
            else "give the folder that holds `_metadata`, or a retained checkpoint as STORAGE/JOB/chk-N.",
        )
    return Savepoint.of(data, f"{folder.location}/{METADATA}")


def verify(folder: Tree, saved: Savepoint, progress: Progress = silent) -> None:
    """See that every file is there and unaltered; `SavepointCorrupt` names the first that is not."""
    present = folder.files()
    for name, (size, _) in saved.files.items():
        if present.get(name) != size:
            found = f"has {present[name]} bytes instead of {size}" if name in present else "is missing"
            raise _damaged(folder, f"{name} {found}")
    sizes = {name: size for name, (size, _) in saved.files.items()}
    for name, digest in folder.digests(sizes, progress).items():
        if digest != saved.files[name][1]:
            raise _damaged(folder, f"{name} does not match its checksum")


def dispose(path: str, spark: SparkSession | None = None) -> int:
    """Delete a savepoint, finished or not, and say how many files it had. `_metadata` goes first: from then on it is
    none. A folder that is not one is refused."""
    from penstock.storage.open import tree_at

    folder = tree_at(path, spark)
    files = folder.files()
    if METADATA in files:
        read(folder)  # of a newer version, or altered: not ours to delete
    elif not (_NAME.match(folder.location.rstrip("/").rpartition("/")[2]) and files):
        read(folder)
    folder.storage.delete(METADATA)
    folder.delete()
    return len(files)


def _damaged(folder: Tree, what: str) -> SavepointCorrupt:
    return SavepointCorrupt(
        f"The savepoint {folder.location} is damaged: {what}.",
        safe="nothing was started or changed.",
        to_do="copy the savepoint again from where it was made, or use another.",
    )


def _query(body: Mapping[str, Any]) -> SavedQuery:
    sinks = {uid: SavedSink(**_known(SavedSink, one)) for uid, one in body["sinks"].items()}
    made = {**body, "sinks": sinks, "sources": tuple(body["sources"]), "operators": tuple(body["operators"])}
    return SavedQuery(**_known(SavedQuery, made))


def _known(kind: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in body.items() if key in known}
