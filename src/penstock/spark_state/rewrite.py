"""A checkpoint with the same state in other partitions, or in another backend.

The query is at the same batch as before: state version N+1 is written anew, and `offsets/N` says which backend and
how many partitions it has. Nothing of an older version is carried over, so the query can go on from N and not go back.

The source is only read. The target is complete when `rewrite` returns, and of no use before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.checkpoint import layout
from penstock.checkpoint.decision import StateIds
from penstock.checkpoint.spark_files import conf_of, set_conf
from penstock.checkpoint.spark_log import STATE_FORMAT, Commit
from penstock.config.state import PARTITIONS, PROVIDER, PROVIDERS, Backend, backend_of
from penstock.errors import ConfigurationError, LedgerCorrupt
from penstock.progress import Progress, silent
from penstock.spark_state import store_rows
from penstock.spark_state.metadata import OperatorMetadata, Store, read_metadata
from penstock.spark_state.store_rows import HASHMAP_CODEC, JOIN, JOIN_FORMAT, Rows
from penstock.spark_state.work_session import open_work_session, tell_tasks
from penstock.storage.local import tree_at
from penstock.storage.tree import Tree
from penstock.supply.versions import SparkVersion, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

CODEC = "spark.sql.streaming.stateStore.compression.codec"
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
ROW_CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"
_KNOWN = {
    "stateStoreSave",
    "dedupe",
    "dedupeWithinWatermark",
    "sessionWindowStateStoreSaveExec",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
    JOIN,
}


def rewrite(
    spark: SparkSession,
    source: str,
    batch: int,
    target: str,
    *,
    partitions: int | None = None,
    backend: str | None = None,
    state_format: str | None = None,
    progress: Progress = silent,
) -> None:
    """Write the state of the checkpoint `source` after `batch` into `target`, in so many partitions, in that backend
    and format (None: as it is). The target holds everything of the checkpoint but its state. What cannot
    be done is refused before anything is written."""
    origin, goal = tree_at(source, spark), tree_at(target, spark)
    conf = conf_of(origin, batch)
    operators = read_metadata(origin, batch)
    commit = read_commit(origin, batch)
    plan = RewritePlan.of(conf, operators, partitions, backend, state_format or commit.format)
    spread = plan.partitions != int(conf[PARTITIONS])
    if spread:
        require_spread_by_key(conf, operators)
    require_reader(version_of(spark), conf, operators)
    plan.require_writer(version_of(spark), operators)
    plan.describe(goal, batch, operators)
    reading = open_work_session(spark, commit.format)
    with reading as work, open_readable(origin, goal, operators, progress) as location:

        def rows(operator: OperatorMetadata, store: Store) -> DataFrame:
            frame = store_rows.raw_rows(work, location, batch, conf, operator, store)
            return store_rows.spread_over(frame, plan.partitions) if spread else frame

        plan.write(work, goal, batch, operators, rows, progress)


class RewritePlan:
    """What the target is to be: its backend, its partitions, its format, and what follows for Spark's settings."""

    def __init__(self, conf: Mapping[str, str], backend: Backend, partitions: int, state_format: str = "1") -> None:
        self.backend, self.partitions, self.format = backend, partitions, state_format
        self.settings = {PROVIDER: PROVIDERS[backend], PARTITIONS: str(partitions)}
        if backend is Backend.HASHMAP:
            self.settings[CODEC] = HASHMAP_CODEC
        if backend is Backend.HASHMAP and conf.get(ROW_CHECKSUM, "false") == "true":
            self.settings[ROW_CHECKSUM] = "false"  # a checksum of every row, which we do not write

    @classmethod
    def of(
        cls,
        conf: Mapping[str, str],
        operators: Sequence[OperatorMetadata],
        partitions: int | None,
        backend: str | None,
        state_format: str = "1",
    ) -> RewritePlan:
        """Raises where it cannot be reached from here."""
        was = backend_of(conf)
        if was not in PROVIDERS:
            raise _refused(
                f"The state is kept by {was}, which Penstock cannot read or write.",
                to_do="only the state of hashmap and rocksdb can be rewritten.",
            )
        if partitions is not None and partitions < 1:
            raise _refused(
                f"State cannot be spread over {partitions} partitions.", to_do="give a parallelism of 1 or more."
            )
        if backend is not None and backend not in PROVIDERS:
            raise _refused(f"There is no state backend {backend!r}.", to_do="ask for hashmap or rocksdb.")
        goal = cls(conf, Backend(backend or was), partitions or int(conf[PARTITIONS]), state_format)
        if operators and goal.backend is Backend.HASHMAP and state_format != "1":
            raise _refused(
                f"hashmap cannot keep state in format {state_format}.",
                to_do=f"set {STATE_FORMAT} to 1, or state.backend.type to rocksdb.",
            )
        for operator in operators:
            _check(conf, operator, goal.backend)
        return goal

    def require_writer(self, version: SparkVersion, operators: Sequence[OperatorMetadata]) -> None:
        """Raises where this version of Spark cannot write the state."""
        if operators and self.backend is Backend.ROCKSDB and not version.rewrites_rocksdb:
            raise _refused(
                f"Spark {version.name} has no way to write rows into RocksDB's files; Spark 4.2 and newer have.",
                to_do="restore it as it is (a native savepoint, with the parallelism and backend it has), or with"
                " state.backend.type=hashmap; or upgrade PySpark, which takes up the same savepoint, and do it there.",
            )

    def describe(self, goal: Tree, batch: int, operators: Sequence[OperatorMetadata]) -> None:
        """What Spark must find written down about the state to come."""
        if goal.names(layout.STATE):
            raise _refused(f"{goal.location} holds state already.", to_do="give a folder without state.")
        set_conf(goal, batch, self.settings)
        for operator in operators:
            operator.rescaled(self.partitions).write(goal)

    def write(
        self,
        work: SparkSession,
        goal: Tree,
        batch: int,
        operators: Sequence[OperatorMetadata],
        rows: Rows,
        progress: Progress = silent,
    ) -> None:
        # Before the session that writes is there: Spark's reader keeps the one that is active when it is made.
        frames = {(one.id, store.name): rows(one, store) for one in operators for store in one.stores}
        commit = read_commit(goal, batch)
        # Spark compares the file's version with the session's format, and takes the ids from nowhere else.
        ids: StateIds | None = None if self.format == "1" else {}
        goal.put(layout.commits(batch), Commit(commit.watermark, ids).text().encode())
        with open_work_session(work, self.format) as writing, tell_tasks(writing, progress, "writing state"):
            if operators and self.backend is Backend.ROCKSDB:
                ids = store_rows.write_rocksdb(
                    writing, goal, batch, operators, lambda one, store: frames[one.id, store.name]
                )
            elif operators:
                store_rows.write_hashmap(goal, batch, operators, lambda one, store: frames[one.id, store.name])
        goal.put(layout.commits(batch), replace(commit, ids=ids).text().encode())


def read_commit(origin: Tree, batch: int) -> Commit:
    """The commit of the batch must be there, and of a format that we know."""
    data = origin.storage.read(layout.commits(batch))
    if data is None:
        raise LedgerCorrupt(
            f"{origin.location} has no {layout.commits(batch)}: batch {batch} is not complete there.",
            to_do="name the last complete batch.",
        )
    if (commit := Commit.parse(data)) is None:
        raise _refused(
            f"{origin.location}/{layout.commits(batch)} is in a format that this version of Penstock does not know.",
            to_do="keep parallelism, state backend and format as they are, or use a version of Penstock that knows this"
            " version of Spark.",
        )
    return commit


def require_reader(version: SparkVersion, conf: Mapping[str, str], operators: Sequence[OperatorMetadata]) -> None:
    """Raises where this version of Spark cannot read all rows of the state."""
    several = next((operator for operator in operators if operator.has_families), None)
    if several is not None and backend_of(conf) == Backend.ROCKSDB and not version.rewrites_rocksdb:
        raise _refused(
            f"The state of operator {several.id} ({several.name}) consists of several column families, which Spark"
            f" {version.name} cannot read all at once; Spark 4.2 and newer can.",
            to_do="keep parallelism and state backend as they are, and take native savepoints; or upgrade PySpark,"
            " which takes up the same checkpoint, and do it there.",
        )


def require_spread_by_key(conf: Mapping[str, str], operators: Sequence[OperatorMetadata]) -> None:
    """Raises where rows of the state need not be in the partition that their own key belongs to. Before Spark 3.3, or
    with this setting, an operator also takes rows as an earlier shuffle by other columns has left them."""
    if operators and conf.get(STRICT, "false").lower() != "true":
        raise _refused(
            f"The query was begun with {STRICT}=false, or by a Spark older than 3.3: which partition a row of its"
            " state belongs to depends on the shuffles before the operator, and only the plan knows them.",
            to_do="keep the parallelism as it is and take native savepoints; a query that is begun anew with the"
            " setting left at its default can be rescaled.",
        )


def _check(conf: Mapping[str, str], operator: OperatorMetadata, backend: Backend) -> None:
    what = f"The state of operator {operator.id} ({operator.name})"
    if operator.name not in _KNOWN:
        raise _refused(
            f"{what} cannot be rewritten: Spark does not know which partition its rows belong to.",
            to_do="keep parallelism and state backend as they are, or take the operation (a limit, for instance) out"
            " of the query.",
        )
    if (store_rows.join_format(conf, operator) or 0) > 3:
        raise _refused(
            f"{what} is in join format {store_rows.join_format(conf, operator)}, which cannot be rewritten.",
            to_do=f"keep parallelism and state backend as they are; a new query with {JOIN_FORMAT}=2 can be rewritten.",
        )
    if backend is Backend.HASHMAP and operator.has_families:
        raise _refused(
            f"{what} consists of several column families, which hashmap cannot hold.",
            to_do="keep the state backend rocksdb: transformWithState, and joins in format 3, run on nothing else.",
        )


def _refused(happened: str, *, to_do: str) -> ConfigurationError:
    return ConfigurationError(happened, safe="nothing was changed.", to_do=to_do)


@contextmanager
def open_readable(
    origin: Tree, goal: Tree, operators: Sequence[OperatorMetadata], progress: Progress = silent
) -> Iterator[str]:
    """Where Spark can read the source. That is the source, unless it was moved since and its descriptions name files
    by the paths they had: then a copy with these put right."""
    if all(operator.stands_in(origin) for operator in operators):
        yield origin.location
        return
    copy = goal.at(f".reading-{uuid.uuid4().hex[:8]}")
    try:
        copy.take(origin, {name: name for name in origin.files()}, progress)
        for operator in operators:
            operator.write(copy)
        yield copy.location
    finally:
        copy.delete()
