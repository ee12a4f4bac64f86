"""How sources reach Spark, and any stream of Spark's as a source: `job.read(frame, uid=…, replayable=…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.source import Source
from penstock.errors import ConfigurationError
from penstock.spark.query import Lineage, analysed, items
from penstock.supply.pack import is_shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamReader

#: With this on, Spark keeps positions by the names of sources, in files of another format and in no order.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def stream_reader(spark: SparkSession, uid: str) -> DataStreamReader:
    refuse_named_sources(spark, uid)
    return spark.readStream


def refuse_named_sources(spark: SparkSession, uid: str) -> None:
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        raise ConfigurationError(
            f"The session has {EVOLUTION} on, and source {uid!r} is known by its uid, not by Spark's names.",
            to_do="turn it off; sources are added, removed and reordered by a restore from a savepoint.",
        )


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Like `spark.dataSource.register`, but safe for several queries that start at once. Makes `spark` this thread's
    session: Spark looks registered sources up there, whichever session it is asked through.

    Spark keeps one map of environment variables per registered class and writes to it from the thread of each query
    that starts. PySpark's is a plain `HashMap`, which two such threads can break for good: no task that carries it can
    be read any more (`OptionalDataException`). So it gets a map made for many threads.
    """
    if is_shipped():  # Spark plans a source that is written in Python with the executors' Python, but here
        raise ConfigurationError(
            f"The source {source.__name__} is planned by the driver with the Python that executors use, which"
            " comes out of an archive: executors have it, the driver's machine does not.",
            to_do="have Python and Penstock at one place on all machines, set PYSPARK_PYTHON to it, and say --no-pack.",
        )
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    context: Any = spark.sparkContext
    plain = context.environment
    shared = context._jvm.java.util.concurrent.ConcurrentHashMap()
    for name, value in plain.items():
        shared.put(name, value)
    context.environment = shared
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = plain


class FrameSource(Source):
    """A streaming DataFrame, or a reader that is not loaded yet, with the user's word on whether it replays."""

    def __init__(self, stream: DataFrame | DataStreamReader, *, replayable: bool) -> None:
        self._stream, self.replayable = stream, replayable
        self._formats: tuple[str, ...] = ()

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        refuse_named_sources(spark, uid)
        stream: Any = self._stream
        frame: DataFrame = stream if _is_frame(stream) else stream.load()
        if not frame.isStreaming:
            raise ConfigurationError(
                f"Source {uid!r} is a DataFrame that does not stream.",
                to_do="make it with spark.readStream; what does not stream can be joined without job.read.",
            )
        here, there = (str(each._jsparkSession.sessionUUID()) for each in (spark, frame.sparkSession))
        if here != there:
            raise ConfigurationError(
                f"Source {uid!r} belongs to another Spark session than the job.",
                to_do="give the job that session: Job(…, spark=frame.sparkSession).",
            )
        self._formats = _formats(frame)
        return frame

    def link(self, uid: str) -> Link:
        if self.replayable:
            return Link("source", uid, Guarantee.EXACTLY_ONCE, f"the program says it is replayable, {self.describe()}")
        because = f"the program says it cannot give rows again, {self.describe()}"
        remedy = "ask for mode=at_most_once; or put what can replay between, such as Kafka or files."
        return Link("source", uid, Guarantee.AT_MOST_ONCE, because, remedy)

    def describe(self) -> str:
        return f"Spark's {' and '.join(self._formats) or 'stream'}"


def as_source(given: Any, uid: str, replayable: bool | None, known: Lineage) -> Source:
    """`given` as a source; an error where the arguments contradict each other. `known`: what was read before."""
    if isinstance(given, Source):
        if replayable is not None:
            raise ConfigurationError(
                f"Source {uid!r} says itself whether it is replayable.",
                to_do="leave out replayable=; it is for streams that Spark's own readers make.",
            )
        return given
    if not _is_frame(given) and not (hasattr(given, "load") and hasattr(given, "option")):
        raise ConfigurationError(
            f"job.read cannot read {type(given).__name__} as source {uid!r}.",
            to_do="give a Source, a streaming DataFrame or spark.readStream.format(…).",
        )
    if replayable is None:
        raise ConfigurationError(
            f"Source {uid!r} is a stream that Penstock does not know, and replayable= was not given.",
            to_do="say replayable=True if the same positions always give the same rows (Kafka, files, rate), and False"
            " if what was read once cannot be read again (a socket).",
        )
    taken = sorted({name for name in known.positions(given) if name is not None}) if _is_frame(given) else []
    if taken:
        raise ConfigurationError(
            f"Source {uid!r} is made of what was read as {taken} already.",
            to_do="use the DataFrame as it is; only what Spark's own readers make is read by job.read.",
        )
    return FrameSource(given, replayable=replayable)


def _is_frame(given: Any) -> bool:
    from pyspark.sql import DataFrame

    return isinstance(given, DataFrame)


def _formats(frame: DataFrame) -> tuple[str, ...]:
    """The names of the formats behind a frame; never their options, which may hold passwords."""
    leaves = items(analysed(frame).collectLeaves())
    return tuple(dict.fromkeys(str(leaf.sourceName()) for leaf in leaves if leaf.isStreaming()))
