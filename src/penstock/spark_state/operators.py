"""Which stateful operators a checkpoint holds, or a program will have, and what they keep: known without reading the
state and before the program starts."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.spark_files import conf_of
from penstock.config.state import PARTITIONS
from penstock.spark.versions import version_of
from penstock.spark_state.metadata import DEFAULT, read_metadata
from penstock.spark_state.work_session import open_work_session, scala_option
from penstock.storage.local import LocalTree
from penstock.storage.open import tree_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_state.metadata import OperatorMetadata
    from penstock.storage.tree import Tree


@dataclass(frozen=True, slots=True)
class StateStore:
    """Rows of one kind: a store, or, where a store holds several column families, one of those, under its own name.
    Schemas are Spark's, as JSON; None where they cannot be told."""

    name: str
    partitions: int
    key_schema: dict[str, Any] | None
    value_schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator: its position in the plan, Spark's name for what it does, and what it keeps."""

    id: int
    name: str
    stores: tuple[StateStore, ...]
    partitions: int


def read_operators(spark: SparkSession | None, checkpoint: str, batch: int) -> tuple[Operator, ...]:
    """The stateful operators of a checkpoint as they were after `batch`; none for a query that keeps no state.
    Reads a few small files. Without a session only a local disk can be reached."""
    folder = tree_at(checkpoint, spark)
    partitions = _partitions(folder, batch)
    return tuple(describe_operator(one, partitions) for one in read_metadata(folder, batch))


def describe_operator(operator: OperatorMetadata, partitions: int | None = None) -> Operator:
    """`partitions`: what the positions say. Spark does not correct its description when it repartitions."""
    count = partitions or max((store.partitions for store in operator.stores), default=0)
    stores = tuple(
        StateStore(store.name if family.name == DEFAULT else family.name, count, family.key, family.value)
        for store in operator.stores
        for family in store.families
    )
    return Operator(operator.id, operator.name, stores, count)


def _partitions(folder: Tree, batch: int) -> int | None:
    count = conf_of(folder, batch).get(PARTITIONS)
    return None if count is None else int(count)


def plan_operators(frame: DataFrame, output_mode: str) -> tuple[Operator, ...]:
    """The stateful operators of a streaming DataFrame in the plan's order, with the schemas their state would have.

    Spark plans the first batch of a query into a folder that is thrown away, and writes there what it would write
    into a new checkpoint. Nothing runs, no source is asked for anything."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as folder, open_work_session(spark) as work:
        LocalTree(Path(folder)).put(layout.offsets(0), b"")  # there before the first batch is planned, and looked for
        version = version_of(spark)
        propagator = getattr(version.java_class(spark, "WatermarkPropagator$"), "MODULE$").noop()
        none: Any = jvm.PythonUtils.toScalaMap({})
        execution = version.java_class(spark, "IncrementalExecution")(
            work._jsparkSession,
            frame._jdf.queryExecution().analyzed(),
            getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())(),
            Path(folder, layout.STATE).as_uri(),
            _uuid(jvm),
            _uuid(jvm),
            0,
            scala_option(work),
            version.java_class(spark, "OffsetSeqMetadata")(0, 0, none),
            propagator,
            True,
            jvm.scala.collection.mutable.HashMap(),
            jvm.scala.collection.mutable.HashMap(),
            jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL(),
            *([False] if version.tells_trigger else []),
        )
        execution.executedPlan()
        return tuple(describe_operator(one) for one in read_metadata(LocalTree(Path(folder)), 0))


def _uuid(jvm: Any) -> Any:
    return jvm.java.util.UUID.fromString(str(uuid.uuid4()))
