"""Looking into state from outside, without the job: where it is under a path, what it holds, the row under a key.

| path | whose state |
|---|---|
| a savepoint | every query's at the savepoint |
| `STORAGE/JOB`, `STORAGE/JOB/chk-N` | every query's at its newest complete epoch, or at checkpoint N |
| a checkpoint of Spark's | its newest complete batch |

What there is, is told from small files. Rows of a canonical savepoint are read by Arrow, all others by Spark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.history import Histories
from penstock.checkpoint.record import read_global
from penstock.checkpoint.spark_files import conf_of
from penstock.config.state import PARTITIONS, backend_of
from penstock.errors import ConfigurationError, SavepointIncomplete
from penstock.savepoints import savepoint
from penstock.spark_state.metadata import DEFAULT, read_metadata
from penstock.storage.local import LocalTree
from penstock.storage.open import tree_at
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from penstock.spark_state.metadata import Family, OperatorMetadata, Store


@dataclass(frozen=True)
class StatePlace:
    """The state of one query at one moment. `canonical`: the folder holds Parquet, else a checkpoint of Spark's."""

    query: str | None
    folder: Tree
    batch: int
    canonical: bool = False


@dataclass(frozen=True)
class StateRows:
    """One kind of rows. `rows` is None where only reading them all would tell."""

    place: StatePlace
    operator: OperatorMetadata
    store: Store
    family: Family
    partitions: int
    backend: str
    bytes: int
    rows: int | None = None
    parquet: str | None = None

    @property
    def name(self) -> str:
        return self.store.name if self.family.name == DEFAULT else self.family.name


def find_places(path: str, spark: SparkSession | None = None) -> list[StatePlace]:
    """The state under a path, a place per query."""
    named = layout.split_checkpoint(path)
    folder = tree_at(named[0] if named else path.rstrip("/"), spark)
    names = folder.names()
    if named is None and savepoint.METADATA in names:
        saved = savepoint.read(folder)
        canonical = saved.kind is savepoint.Kind.CANONICAL
        return [
            StatePlace(
                uid,
                folder.at(layout.saved_state(uid) if canonical else layout.saved_checkpoint(uid)),
                query.epoch,
                canonical,
            )
            for uid, query in saved.queries.items()
            if query.operators
        ]
    if named is None and layout.OFFSETS in names:
        return [StatePlace(None, folder, _newest(folder))]
    uids = layout.query_uids(folder.names(layout.QUERIES))
    if not uids:
        raise SavepointIncomplete(
            f"{path} is no savepoint, no job's folder and no checkpoint of Spark's.",
            safe="nothing was changed.",
            to_do="give a savepoint, STORAGE/JOB, STORAGE/JOB/chk-N, or the folder that holds `offsets`.",
        )
    history = Histories(folder.storage).current()
    epochs = _epochs(folder, uids, named[1]) if named else dict.fromkeys(sorted(uids))
    found = []
    for uid, epoch in epochs.items():
        checkpoint = folder.at(f"{uid}/{history}")
        found.append(StatePlace(uid, checkpoint, _newest(checkpoint) if epoch is None else epoch))
    return found


def list_rows(place: StatePlace) -> Iterator[StateRows]:
    """Everything the query keeps."""
    if place.canonical:
        yield from _canonical(place)
        return
    conf = conf_of(place.folder, place.batch)
    sizes = place.folder.files(layout.STATE)
    for operator in read_metadata(place.folder, place.batch):
        for store in operator.stores:
            inside = re.compile(rf"{layout.operator(operator.id)}/{store.folder('[0-9]+')}/")
            total = sum(size for name, size in sizes.items() if inside.match(name))
            for family in store.families:
                yield StateRows(place, operator, store, family, int(conf[PARTITIONS]), backend_of(conf), total)


def choose_rows(found: list[StateRows], query: str | None, operator: int | None, store: str | None) -> StateRows:
    """The one that is meant; an error that names all where it is not clear which."""
    meant = [
        entry
        for entry in found
        if (query is None or entry.place.query == query)
        and (operator is None or entry.operator.id == operator)
        and (store is None or entry.name == store)
    ]
    if len(meant) != 1:
        listed = ", ".join(_options_for(entry) for entry in (meant or found)) or "none"
        raise ConfigurationError(
            f"{'Several kinds of rows fit' if meant else 'No state fits'} what was asked for.",
            safe="nothing was changed.",
            to_do=f"choose with --query, --operator and --store. There is: {listed}.",
        )
    return meant[0]


def _options_for(entry: StateRows) -> str:
    query = f"--query {entry.place.query} " if entry.place.query else ""
    return f"{query}--operator {entry.operator.id} --store {entry.name}"


def _canonical(place: StatePlace) -> Iterator[StateRows]:
    from penstock.savepoints.canonical import parse_operator, read_layout

    body = read_layout(place.folder)
    sizes = place.folder.files()
    for entry in body["operators"]:
        operator = parse_operator(entry)
        for store, written in zip(operator.stores, entry["stores"], strict=True):
            for family, where in zip(store.families, written["families"], strict=True):
                total = sum(size for name, size in sizes.items() if name.startswith(f"{where['folder']}/"))
                rows = _count(place.folder, where["folder"])
                backend = f"canonical (from {backend_of(body['conf'])})"
                yield StateRows(
                    place, operator, store, family, store.partitions, backend, total, rows, parquet=where["folder"]
                )


def _count(folder: Tree, name: str) -> int | None:
    if not isinstance(folder, LocalTree):
        return None
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(folder.root / file).num_rows) for file in folder.files(name))


def _newest(checkpoint: Tree) -> int:
    complete = [int(name) for name in checkpoint.names(layout.COMMITS) if name.isdigit()]
    if not complete:
        raise SavepointIncomplete(
            f"{checkpoint.location} has no complete batch.",
            safe="nothing was changed.",
            to_do="let the query run first.",
        )
    return max(complete)


def _epochs(folder: Tree, uids: list[str], number: int) -> dict[str, int | None]:
    if len(uids) == 1:
        return {uids[0]: number}
    body = read_global(folder.storage, number)
    if body is None:
        raise SavepointIncomplete(
            f"There is no global checkpoint {number} in {folder.location}.",
            safe="nothing was changed.",
            to_do=f"name one that is in {folder.location}/{layout.GLOBAL}.",
        )
    return {uid: int(entry["epoch"]) for uid, entry in body["queries"].items()}
