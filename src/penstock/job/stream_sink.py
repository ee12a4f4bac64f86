"""`StreamSink`: `df.writeStream.format("penstock")`, for every place where a query can be started and no Python of the
user's runs in the driver: Spark Connect, Declarative Pipelines, notebooks on a server.

Spark makes these objects anew in each of its Python workers, see `engine.relay`. A source that has travelled from one
to another is the one whose epoch has run; one that was made where it is asked for a writer begins an epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, WriterCommitMessage

from penstock.errors import ConfigurationError, PenstockError

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    raise ConfigurationError(
        "format('penstock') needs writers of streams that take Arrow's batches, which this PySpark does not have.",
        to_do="use PySpark 4.1 or newer; or penstock.exactly_once or a Job, which work from 4.0 on.",
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.engine.relay import Relay

_HIDE = "SPARK_HIDE_TRACEBACK"  # with it PySpark's workers send an error without the way to it


@dataclass
class Report(WriterCommitMessage):
    """What a task answers, as JSON."""

    text: str


class StreamSink(DataSource):
    """Exactly once from any streaming query into a sink of Penstock.

        spark.dataSource.register(penstock.StreamSink)
        df.writeStream.format("penstock").option("sink", "kafka").option("servers", …).option("topic", …) \\
          .option("uid", "alerts").option("checkpointLocation", path).start()

    `uid` names the query in the other system; keep it over restarts. All other options: docs/reference/format.md.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options: Any = options
        self._travelled = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_travelled": True}

    @staticmethod
    def explain(options: Mapping[str, str]) -> str:
        """What a query with these options promises, link by link, and what this way cannot do. The source is the
        query's own, and not looked at."""
        from penstock.contracts.guarantees import Chain, format_link
        from penstock.job.sink_options import parse_options

        arguments = parse_options(options)
        return Chain((format_link(), arguments["sink"].link(arguments["uid"]))).explain()

    def streamWriter(self, schema: StructType, overwrite: bool) -> EpochWriter:  # noqa: N802 - Spark's name
        with _plainly():
            if overwrite:
                raise ConfigurationError(
                    "format('penstock') was given outputMode('complete'), which writes every row again in each epoch.",
                    to_do="use outputMode('append') or 'update'; with 'update', a sink that updates by key.",
                )
            from penstock.engine.relay import Relay
            from penstock.job.sink_options import parse_options

            relay = Relay(**parse_options(self.options), driver=_driver())
            return EpochWriter(relay, None if self._travelled else schema)

    def schema(self, *_: Any, **__: Any) -> NoReturn:
        with _plainly():
            raise ConfigurationError(
                "format('penstock') was asked to read, or to write a batch, and it is a sink of streaming queries.",
                to_do="use df.writeStream.format('penstock').",
            )

    writer = schema


class EpochWriter(DataSourceStreamArrowWriter):
    """One epoch of the query. With a schema it begins the epoch and then goes to its tasks."""

    def __init__(self, relay: Relay, schema: StructType | None) -> None:
        self._relay = relay
        if schema is not None:
            from penstock.engine.relay import fitted

            self._fit = relay.sink.fit(schema)
            self._nullable = {field.name.lower(): field.nullable for field in schema.fields}
            self._opened, self._job = relay.open(fitted(self._fit, schema)), relay.job_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with _plainly():
            text = self._relay.write(self._opened, self._fit, self._nullable, iterator, context, self._job)
        return Report(text)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        with _plainly():
            self._relay.commit([message.text for message in messages], batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._relay.abort()


def _driver() -> str:
    """What all workers of one driver share: the folder of its blocks, which Spark names anew for each driver. Without
    it every worker counts as a driver of its own, so that each epoch recovers."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or secrets.token_hex(8)
    return hashlib.sha256(folders.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """A named error reaches the user as its own sentences, without a trace of this worker, which ends with it."""
    from penstock.spark.executors import TaskFault

    try:
        yield
    except (TaskFault, PenstockError) as error:
        os.environ[_HIDE] = "1"
        if isinstance(error, TaskFault) and error.__cause__ is not None:
            raise error.__cause__ from None
        raise
