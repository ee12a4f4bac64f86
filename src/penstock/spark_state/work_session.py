"""A Spark session beside the job's, set up for reading and writing state, and the few hands that reach into Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.spark_log import STATE_FORMAT
from penstock.config.state import CHANGELOG
from penstock.deadline import polling
from penstock.progress import Progress, Step, silent
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GROUP, _GROUP_TEXT = "spark.jobGroup.id", "spark.job.description"
_LOOK_SECONDS = 1.0

_SETTINGS: Mapping[str, str] = {
    # One task per partition of the state, whatever its size: an empty partition is a file too.
    "spark.sql.adaptive.enabled": "false",
    # What is written is a whole picture; and a reader that could log changes would make a file to log them in.
    CHANGELOG: "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}


@contextmanager
def open_work_session(spark: SparkSession, state_format: str = "1") -> Iterator[SparkSession]:
    """A session that has the settings of `spark` and those that this work needs: it reads, or writes, state of that
    format. Changes in it stay in it."""
    from pyspark.sql import SparkSession
    from pyspark.sql.session import _monkey_patch_RDD

    active: Any = _jvm(spark).org.apache.spark.sql.classic.SparkSession
    before = active.getActiveSession()
    work = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for key, value in {**_SETTINGS, STATE_FORMAT: state_format}.items():
        work.conf.set(key, value)
    # Tasks that open a state store report to an endpoint of the driver's, which a session's first use of streams makes.
    spark._jsparkSession.streams()
    # Spark's reader of state asks for the active session of the thread, not for the one it was called on.
    active.setActiveSession(work._jsparkSession)
    try:
        yield work
    finally:
        _monkey_patch_RDD(spark)  # a new session makes itself the one of RDD.toDF
        if before.isDefined():
            active.setActiveSession(before.get())
        else:
            active.clearActiveSession()


@contextmanager
def tell_tasks(work: SparkSession, progress: Progress, what: str) -> Iterator[None]:
    """While this lasts, report how many tasks of Spark's jobs in this thread are done: a command that waits for a
    savepoint gives up without progress. How many there will be is not known."""
    if progress is silent:
        yield
        return
    context, group = work.sparkContext, f"penstock-{uuid.uuid4().hex}"
    before = {key: context.getLocalProperty(key) for key in (_GROUP, _GROUP_TEXT)}
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_GROUP_TEXT, f"penstock: {what}")
    tracker = context.statusTracker()

    def look() -> bool:
        with suppress(Exception):  # an error of Spark's only costs a report
            progress(Step(what, count_tasks(tracker, group), 0, "tasks"))
        return True

    try:
        with polling("penstock-progress", _LOOK_SECONDS, look):
            yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)  # type: ignore[arg-type]


def count_tasks(tracker: Any, group: str) -> int:
    jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)))
    stages = filter(None, (tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds))
    return sum(stage.numCompletedTasks for stage in stages)


def reinterpret(work: SparkSession, frame: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """The same rows under another schema (Spark's JSON), not converted: a struct and its bytes are the same thing in
    Spark's rows, so one can be read as the other. Names and nullability may differ freely."""
    from pyspark.sql import DataFrame

    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(work._jsparkSession.internalCreateDataFrame(rows, java_schema(work, schema), False), work)


def java_schema(work: SparkSession, schema: Mapping[str, Any]) -> Any:
    return _jvm(work).org.apache.spark.sql.types.DataType.fromJson(json.dumps(schema))


def resolve_location(work: SparkSession, location: str) -> str:
    """The location as Spark writes it."""
    utils: Any = version_of(work).java_class(work, "StreamingUtils")
    return str(utils.resolvedCheckpointLocation(hadoop_conf(work), location))


def hadoop_conf(work: SparkSession) -> Any:
    return work._jsparkSession.sessionState().newHadoopConf()


def scala_option(work: SparkSession, value: Any = None) -> Any:
    return _jvm(work).scala.Option.apply(value)


def to_json(spark: Any, value: Any) -> str:
    """An object of Scala's as one text: each call into Java takes its time, and a field of each would be many."""
    json4s = spark._jvm.org.json4s
    return str(json4s.jackson.Serialization.write(value, getattr(getattr(json4s, "DefaultFormats$"), "MODULE$")))


def cause_of(error: BaseException) -> str:
    """What went wrong, in a line: of Java's exceptions the innermost, of a worker's traceback the last line."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        java = error.java_exception
        while java.getCause() is not None:
            java = java.getCause()
        return str(java.toString()).strip().splitlines()[0]
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
