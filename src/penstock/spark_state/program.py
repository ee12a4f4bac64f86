"""Which stateful operators a program will have, told before it starts."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.spark_state.metadata import read_metadata
from penstock.spark_state.operators import Operator, described
from penstock.spark_state.working import option, working
from penstock.storage.local import LocalTree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def program_operators(frame: DataFrame, output_mode: str) -> tuple[Operator, ...]:
    """The stateful operators of a streaming DataFrame in the plan's order, with the schemas their state would have.

    Spark plans the first batch of a query into a folder that is thrown away, and writes there what it would write
    into a new checkpoint. Nothing runs, no source is asked for anything."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as folder, working(spark) as work:
        LocalTree(Path(folder)).put(layout.offsets(0), b"")  # there before the first batch is planned, and looked for
        runtime: Any = jvm.org.apache.spark.sql.execution.streaming.runtime
        propagator = getattr(getattr(runtime, "WatermarkPropagator$"), "MODULE$").noop()
        none: Any = jvm.PythonUtils.toScalaMap({})
        execution = runtime.IncrementalExecution(
            work._jsparkSession,
            frame._jdf.queryExecution().analyzed(),
            getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())(),
            Path(folder, layout.STATE).as_uri(),
            _uuid(jvm),
            _uuid(jvm),
            0,
            option(work),
            jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata(0, 0, none),
            propagator,
            True,
            jvm.scala.collection.mutable.HashMap(),
            jvm.scala.collection.mutable.HashMap(),
            jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL(),
            False,
        )
        execution.executedPlan()
        return tuple(described(one) for one in read_metadata(LocalTree(Path(folder)), 0))


def _uuid(jvm: Any) -> Any:
    return jvm.java.util.UUID.fromString(str(uuid.uuid4()))
