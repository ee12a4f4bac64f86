"""Any stream of Spark's as a source: `job.read(frame, uid=…, replayable=…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.source import Source
from penstock.errors import ConfigurationError
from penstock.sources.spark_reader import refuse_named_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from penstock.spark.query import Lineage


class FrameSource(Source):
    """A streaming DataFrame, or a reader that is not loaded yet, with the user's word on whether it replays."""

    def __init__(self, stream: DataFrame | DataStreamReader, *, replayable: bool) -> None:
        self._stream = stream
        self.replayable = replayable
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
        if _session_of(frame.sparkSession) != _session_of(spark):
            raise ConfigurationError(
                f"Source {uid!r} belongs to another Spark session than the job.",
                to_do="give the job that session: Job(…, spark=frame.sparkSession).",
            )
        self._formats = _formats(frame)
        return frame

    def link(self, uid: str) -> Link:
        if self.replayable:
            return Link("source", uid, Guarantee.EXACTLY_ONCE, f"the program says it is replayable, {self.describe()}")
        return Link(
            "source",
            uid,
            Guarantee.AT_MOST_ONCE,
            f"the program says it cannot give rows again, {self.describe()}",
            "ask for mode=at_most_once; or put what can replay between, such as Kafka or files.",
        )

    def describe(self) -> str:
        return f"Spark's {' and '.join(self._formats) or 'stream'}"


def as_source(given: Any, uid: str, replayable: bool | None, known: Lineage) -> Source:
    """`given` as a source; an error where what is said does not fit together. `known`: what was read before."""
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


def _session_of(spark: Any) -> str:
    return str(spark._jsparkSession.sessionUUID())


def _formats(frame: DataFrame) -> tuple[str, ...]:
    """The names of the formats behind a frame; never their options, which may hold passwords."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming():
            found.append(str(leaf.sourceName()))
    return tuple(dict.fromkeys(found))
