"""Rows of state, all or those under a key: by Arrow from a canonical savepoint, by Spark from everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError, PenstockError, SavepointError
from penstock.storage.local import LocalTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, SparkSession

    from penstock.savepoints.stores import StateRows


def parse_key(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What `--key` means: a JSON object with some or all columns of the key, or, where the key has one column, its
    value, as JSON or as it stands."""
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
    """How many rows there are."""
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
            safe="nothing was changed.",
            to_do="if the job runs, its files may just have been replaced: ask again. Otherwise look at another"
            " checkpoint or savepoint.",
        ) from error


def _frame(entry: StateRows, work: SparkSession) -> Any:
    from penstock.checkpoint.spark_files import conf_of
    from penstock.spark_state.rewrite import join_format
    from penstock.spark_state.store_rows import raw_rows, typed_rows

    place = entry.place
    if entry.parquet is not None:
        return work.read.parquet(f"{place.folder.location}/{entry.parquet}")
    raw = raw_rows(
        work,
        place.folder.location,
        place.batch,
        entry.operator,
        entry.store,
        hashmap=entry.backend == "hashmap",
        join_format=join_format(conf_of(place.folder, place.batch), entry.operator),
    )
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
