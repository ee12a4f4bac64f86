"""State written out as Parquet, independent of backend, parallelism and Spark version, and made into state again. The
files and their columns: docs/concepts/state.md. `layout.json` is written last.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import CANONICAL, CANONICAL_VERSION, refuse_newer
from penstock.checkpoint.spark_files import conf_of
from penstock.errors import LedgerCorrupt
from penstock.naming import safe_name, safe_part
from penstock.progress import Progress, silent
from penstock.spark_state import store_rows
from penstock.spark_state.metadata import DEFAULT, Family, OperatorMetadata, Store, read_metadata
from penstock.spark_state.rewrite import RewritePlan, open_readable, read_commit, require_reader, require_spread_by_key
from penstock.spark_state.store_rows import FAMILY, KEY, PARTITION, VALUE
from penstock.spark_state.work_session import open_work_session, tell_tasks
from penstock.storage.local import tree_at
from penstock.storage.tree import Tree
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_POSITION = "position"
_NO_MARK = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


def export(spark: SparkSession, source: str, batch: int, folder: str, progress: Progress = silent) -> None:
    """Write the state of the checkpoint `source` after `batch` into `folder`, which is empty or not there yet. It is
    complete when its `layout.json` is there, which comes last."""
    origin, goal = tree_at(source, spark), tree_at(folder, spark)
    conf = conf_of(origin, batch)
    operators = read_metadata(origin, batch)
    commit = read_commit(origin, batch)
    RewritePlan.of(conf, operators, None, None)  # the same state can be read and rewritten
    require_spread_by_key(conf, operators)
    require_reader(version_of(spark), conf, operators)
    described = []
    with (
        open_work_session(spark, commit.format) as work,
        open_readable(origin, goal, operators, progress) as location,
        tell_tasks(work, progress, "writing state as Parquet"),
    ):
        for operator in operators:
            stores = []
            for store in operator.stores:
                raw = store_rows.raw_rows(work, location, batch, conf, operator, store)
                spread_by = {"partition_schema": raw.schema[PARTITION].dataType.jsonValue()}
                stores.append({**asdict(store), **spread_by, "families": _export(work, goal, operator, store, raw)})
            files = {name: base64.b64encode(data).decode() for name, data in operator.files.items()}
            plain = {name: getattr(operator, name) for name in ("id", "name", "version", "number", "properties")}
            described.append({**plain, "stores": stores, "files": files})
    version = {"version": CANONICAL_VERSION, "batch": batch, "spark": str(spark.version)}
    body = {**version, "conf": conf, "operators": described}
    goal.put(CANONICAL, json.dumps(body, indent=1).encode())


def load(
    spark: SparkSession,
    folder: str,
    target: str,
    batch: int,
    partitions: int | None = None,
    backend: str | None = None,
    state_format: str | None = None,
    progress: Progress = silent,
) -> None:
    """Make the state in `folder` the state of the checkpoint `target` after `batch`. The target holds everything of the
    checkpoint but its state. It is complete when this returns, and of no use before."""
    origin, goal = tree_at(folder, spark), tree_at(target, spark)
    body = read_layout(origin)
    operators = tuple(parse_operator(operator) for operator in body["operators"])
    plan = RewritePlan.of(body["conf"], operators, partitions, backend, state_format or read_commit(goal, batch).format)
    require_spread_by_key(body["conf"], operators)
    plan.require_writer(version_of(spark), operators)
    plan.describe(goal, batch, operators)
    with open_work_session(spark) as work:
        stores = {(entry["id"], store["name"]): store for entry in body["operators"] for store in entry["stores"]}

        def rows(operator: OperatorMetadata, store: Store) -> DataFrame:
            return spread_rows(work, origin, stores[operator.id, store.name], plan.partitions)

        plan.write(work, goal, batch, operators, rows, progress)


def read_layout(folder: Tree) -> dict[str, Any]:
    data = folder.storage.read(CANONICAL)
    try:
        body: dict[str, Any] = json.loads(data or b"")
        version = int(body["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerCorrupt(
            f"{folder.location} holds no state that was written out completely ({CANONICAL} is missing or damaged).",
            to_do="use another savepoint.",
        ) from error
    refuse_newer(f"{folder.location}/{CANONICAL}", version, CANONICAL_VERSION)
    return body


def spread_rows(work: SparkSession, origin: Tree, store: dict[str, Any], partitions: int) -> DataFrame:
    """The rows of all families of a store, as `raw_rows` gives them, where the query will look for them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    partition = store_rows.number_columns(store["partition_schema"])
    ordered = _order_counts([family["name"] for family in store["families"]])
    columns: list[tuple[str, Any]] = [(PARTITION, partition)] if partition["fields"] else []
    columns += [(KEY, "binary"), (VALUE, "binary")]
    columns += [(_POSITION, "long")] if ordered else []
    schema = StructType.fromJson(store_rows.struct_of(columns))
    spread_by = f.col(PARTITION) if partition["fields"] else f.struct().alias(PARTITION)
    frames = [
        work.read.schema(schema)
        .parquet(f"{origin.location}/{safe_name(family['folder'], CANONICAL)}")
        .select(spread_by, KEY, VALUE, f.lit(family["name"]).alias(FAMILY), *([_POSITION] if ordered else []))
        for family in store["families"]
    ]
    frame = store_rows.spread_over(functools.reduce(lambda left, right: left.union(right), frames), partitions)
    return frame.sortWithinPartitions(_POSITION).drop(_POSITION) if ordered else frame


def _export(
    work: SparkSession, goal: Tree, operator: OperatorMetadata, store: Store, raw: DataFrame
) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    extra = (_POSITION,) if _order_counts([family.name for family in store.families]) else ()
    if extra:
        raw = raw.withColumn(_POSITION, f.monotonically_increasing_id())
    done = []
    first = sum(len(before.families) for before in operator.stores[: operator.stores.index(store)])
    for number, family in enumerate(store.families, first):
        name = store.name if family.name == DEFAULT else family.name
        place = f"{operator.id}/{number:02d}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
        typed = store_rows.typed_rows(work, raw, family, extra)
        typed.write.option(_NO_MARK, "false").option("compression", "zstd").parquet(f"{goal.location}/{place}")
        done.append({**asdict(family), "folder": place})
    return done


def _order_counts(families: Sequence[str]) -> bool:
    """Whether the order of rows counts: the values of a list are rows of their own, one after the other."""
    return any(name != DEFAULT for name in families)


def parse_operator(body: dict[str, Any]) -> OperatorMetadata:
    stores = tuple(
        Store(
            safe_part(store["name"], CANONICAL),
            store["prefix_columns"],
            store["partitions"],
            tuple(Family(family["name"], family["key"], family["value"]) for family in store["families"]),
            tuple(safe_name(name, CANONICAL) for name in store["schema_files"]),
        )
        for store in body["stores"]
    )
    files = {safe_name(name, CANONICAL): base64.b64decode(data) for name, data in body["files"].items()}
    return OperatorMetadata(
        int(body["id"]), body["name"], int(body["version"]), stores, files, body["properties"], int(body["number"])
    )
