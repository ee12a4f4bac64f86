"""Looking into state from outside, without the job: where it is under a path, what it holds, the row under a key.

| path | whose state |
|---|---|
| a savepoint | every query's at the savepoint |
| `STORAGE/JOB`, `STORAGE/JOB/chk-N` | every query's at its newest complete epoch, or at checkpoint N |
| a checkpoint of Spark's | its newest complete batch |

Small files tell what there is. Rows of a canonical savepoint are read by Arrow, all others by Spark.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.history import Histories
from penstock.checkpoint.spark_files import conf_of
from penstock.config.state import PARTITIONS, backend_of
from penstock.errors import ConfigurationError, PenstockError, SavepointError, SavepointIncomplete
from penstock.savepoints import savepoint
from penstock.savepoints.restorable import global_epochs
from penstock.spark_state.metadata import DEFAULT, read_metadata
from penstock.storage.local import LocalTree
from penstock.storage.open import tree_at
from penstock.storage.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, SparkSession

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
    named = layout.split_checkpoint(path)
    folder = tree_at(named[0] if named else path.rstrip("/"), spark)
    names = folder.names()
    if named is None and savepoint.METADATA in names:
        saved = savepoint.read(folder)
        canonical = saved.kind is savepoint.Kind.CANONICAL
        place = layout.saved_state if canonical else layout.saved_checkpoint
        queries = [(uid, query) for uid, query in saved.queries.items() if query.operators]
        return [StatePlace(uid, folder.at(place(uid)), query.epoch, canonical) for uid, query in queries]
    if named is None and layout.OFFSETS in names:
        return [StatePlace(None, folder, _newest(folder))]
    uids = layout.query_uids(folder.names(layout.QUERIES))
    if not uids:
        raise SavepointIncomplete(
            f"{path} is no savepoint, no job's folder and no checkpoint of Spark's.",
            to_do="give a savepoint, STORAGE/JOB, STORAGE/JOB/chk-N, or the folder that holds `offsets`.",
        )
    history = Histories(folder.storage).current()
    if named and len(uids) > 1:
        history, epochs = global_epochs(folder, named[1])
        return [StatePlace(uid, folder.at(f"{uid}/{history}"), epoch) for uid, epoch in epochs.items()]
    checkpoints = {uid: folder.at(f"{uid}/{history}") for uid in sorted(uids)}
    return [StatePlace(uid, tree, named[1] if named else _newest(tree)) for uid, tree in checkpoints.items()]


def list_rows(place: StatePlace) -> Iterator[StateRows]:
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
        happened = f"{checkpoint.location} has no complete batch."
        raise SavepointIncomplete(happened, to_do="let the query run first.")
    return max(complete)


def parse_key(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What `--key` means: a JSON object with some or all columns of the key, or, where the key has one column, its
    value, as JSON or as plain text."""
    names = [str(entry["name"]) for entry in schema["fields"]]
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict) and value and value.keys() <= set(names):
        return value
    if len(names) == 1:
        return {names[0]: value}
    raise ConfigurationError(
        f"{text} does not say which key is meant.",
        safe="nothing was changed.",
        to_do=f"the key has the columns {', '.join(names) or 'none'}; give a JSON object with some of them,"
        f" such as {json.dumps(dict.fromkeys(names[:2], '…'), ensure_ascii=False)}.",
    )


def read_rows(
    entry: StateRows, key: str | None, limit: int, session: Callable[[], SparkSession]
) -> list[dict[str, Any]]:
    """At most `limit` rows as dictionaries with `key` and `value`. `session` is called only where Spark is needed."""
    wanted = None if key is None else parse_key(key, entry.family.key)
    if entry.parquet is not None and isinstance(entry.place.folder, LocalTree):
        return _by_arrow(entry, wanted, limit)
    return _by_spark(entry, wanted, limit, session())


def count_rows(entry: StateRows, session: Callable[[], SparkSession]) -> int:
    if entry.rows is not None:
        return entry.rows
    with _reading(entry, session()) as frame:
        return int(frame.count())


def _by_arrow(entry: StateRows, wanted: Mapping[str, Any] | None, limit: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    folder = entry.place.folder
    assert isinstance(folder, LocalTree)
    data = ds.dataset(folder.root / str(entry.parquet), format="parquet")
    chosen: Any = None
    if wanted is not None:
        for path, value in _leaves(wanted, ("key",)):
            field = pc.field(path)
            if value is None:
                test = field.is_null()
            else:
                kind: Any = data.schema.field(path[0]).type
                for name in path[1:]:
                    kind = kind.field(name).type
                try:
                    test = field == pa.scalar(_text(value)).cast(kind)
                except pa.ArrowInvalid:
                    return []  # not a value of that type, so no key of that value
            chosen = test if chosen is None else chosen & test
    columns = [name for name in ("key", "value") if name in data.schema.names]
    return list(data.scanner(columns=columns, filter=chosen).head(limit).to_pylist())


def _by_spark(
    entry: StateRows, wanted: Mapping[str, Any] | None, limit: int, spark: SparkSession
) -> list[dict[str, Any]]:
    with _reading(entry, spark) as frame:
        for path, value in _leaves(wanted or {}, ("key",)):
            frame = frame.where(_test(frame, path, value))
        columns = [name for name in ("key", "value") if name in frame.columns]
        return [row.asDict(recursive=True) for row in frame.select(*columns).limit(limit).collect()]


@contextmanager
def _reading(entry: StateRows, spark: SparkSession) -> Iterator[Any]:
    """The rows as a frame, and Spark's complaints as ours."""
    from penstock.spark_state.work_session import cause_of, open_work_session

    try:
        with open_work_session(spark) as work:
            yield _frame(entry, work)
    except PenstockError:
        raise
    except Exception as error:
        raise SavepointError(
            f"The state of operator {entry.operator.id} ({entry.operator.name}) in {entry.place.folder.location}"
            f" could not be read: {cause_of(error)}",
            to_do="if the job runs, its files may just have been replaced: ask again. Otherwise look at another"
            " checkpoint or savepoint.",
        ) from error


def _frame(entry: StateRows, work: SparkSession) -> Any:
    from penstock.spark_state.store_rows import raw_rows, typed_rows

    place = entry.place
    if entry.parquet is not None:
        return work.read.parquet(f"{place.folder.location}/{entry.parquet}")
    conf = conf_of(place.folder, place.batch)
    raw = raw_rows(work, place.folder.location, place.batch, conf, entry.operator, entry.store)
    return typed_rows(work, raw, entry.family)


def _test(frame: Any, path: tuple[str, ...], value: Any) -> Column:
    from pyspark.sql import functions as f

    column, kind = f.col(path[0]), frame.schema[path[0]].dataType
    for name in path[1:]:
        column, kind = column.getField(name), kind[name].dataType
    return column.isNull() if value is None else column == f.lit(_text(value)).try_cast(kind)


def _leaves(wanted: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in wanted.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
