"""Writing rows as state: on executors, one task per partition, by Spark's own writer or ours.

RocksDB's files are written by the class that Spark's repartitioning uses, which takes its rows from a function; given
ours, it writes whatever we have. Hashmap's are written by `penstock.spark_state.hashmap_files` in Python workers.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.errors import PenstockError, SavepointError
from penstock.spark.versions import version_of
from penstock.spark_state.hashmap_files import snapshot
from penstock.spark_state.store_rows import KEY, VALUE
from penstock.spark_state.work_session import cause_of, hadoop_conf, resolve_location, scala_option
from penstock.storage.local import LocalStorage
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_state.metadata import OperatorMetadata, Store
    from penstock.storage.tree import Tree

Rows = Callable[["OperatorMetadata", "Store"], "DataFrame"]
"""The rows of a store, spread over the partitions they are to be written to."""

_CHUNK = 4 << 20


def write_rocksdb(
    work: SparkSession, target: Tree, batch: int, operators: Sequence[OperatorMetadata], rows: Rows
) -> None:
    """State version `batch` + 1 of every store. The target must hold `offsets/<batch>` that say RocksDB,
    `commits/<batch>`, and the operators' descriptions."""
    from py4j.protocol import Py4JJavaError
    from pyspark.java_gateway import ensure_callback_server_started

    if not operators:
        return
    ensure_callback_server_started(work.sparkContext._gateway)  # type: ignore[no-untyped-call]
    stores = [(operator, store) for operator in operators for store in operator.stores]
    supply = _Supply(work, [rows(operator, store) for operator, store in stores])
    location = resolve_location(work, target.location)
    rewriter = version_of(work).java_class(work, "StateRewriter")(
        work._jsparkSession,
        batch,
        batch,
        location,
        hadoop_conf(work),
        scala_option(work, location),
        scala_option(work, supply),
        scala_option(work),
    )
    try:
        rewriter.run()
    except Py4JJavaError as error:
        raise supply.error or _failed(target, error) from error


class _Supply:
    """A function of Scala's: asked for the rows of one store after the other, in their order."""

    class Java:
        implements = ("scala.Function1",)

    def __init__(self, work: SparkSession, frames: Sequence[DataFrame]) -> None:
        self._work = work
        self._frames = iter(frames)
        self.error: Exception | None = None

    def apply(self, expected: Any) -> Any:
        """`expected` is a frame of the same store as Spark would read it: only its schema counts."""
        try:
            rows = next(self._frames)._jdf.queryExecution().toRdd()
            return self._work._jsparkSession.internalCreateDataFrame(rows, expected.schema(), False)
        except Exception as error:
            self.error = error
            raise


def write_hashmap(target: Tree, batch: int, operators: Sequence[OperatorMetadata], rows: Rows, codec: str) -> None:
    """State version `batch` + 1 of every store."""
    for operator in operators:
        for store in operator.stores:
            file = f"{layout.operator(operator.id)}/{store.folder('{partition}')}/{batch + 1}.snapshot"
            try:
                if isinstance(target.storage, LocalStorage):
                    _write_on_executors(rows(operator, store), target.location, file, codec)
                else:
                    _write_through_driver(rows(operator, store), target, file, codec)
            except PenstockError:
                raise
            except Exception as error:
                raise _failed(target, error) from error


def _write_on_executors(rows: DataFrame, location: str, file: str, codec: str) -> None:
    root = local_path(location)
    assert root is not None
    task = _FileTask(str(root / file), codec)
    rows.select(KEY, VALUE).mapInArrow(task, "bytes long").collect()


def _write_through_driver(rows: DataFrame, target: Tree, file: str, codec: str) -> None:
    """Where executors' Python cannot reach the storage: the bytes come here, and go out through the JVM."""
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    parts = rows.select(KEY, VALUE).mapInArrow(_ChunkTask(codec), "partition int, piece binary")
    pieces = parts.toLocalIterator(prefetchPartitions=True)
    for partition, mine in itertools.groupby(pieces, key=lambda row: int(row["partition"])):
        path = jvm.org.apache.hadoop.fs.Path(f"{target.location}/{file.format(partition=partition)}")
        stream = path.getFileSystem(hadoop_conf(spark)).create(path, True)
        try:
            for row in mine:
                stream.write(bytes(row["piece"]))
        finally:
            stream.close()


class _FileTask:
    """Writes one partition's file, aside and then under its name: a task that runs twice writes the same again."""

    def __init__(self, path: str, codec: str) -> None:
        self._path, self._codec = path, codec

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        path = Path(self._path.format(partition=context.partitionId()))
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{context.taskAttemptId()}.tmp")
        with open(aside, "wb") as stream:
            for piece in snapshot(((batch.column(0), batch.column(1)) for batch in batches), self._codec):
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
            size = stream.tell()
        os.replace(aside, path)
        yield pa.RecordBatch.from_pydict({"bytes": [size]})


class _ChunkTask:
    """Hands one partition's file back in pieces."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = pa.array([context.partitionId()], pa.int32())
        waiting = bytearray()
        for piece in snapshot(((batch.column(0), batch.column(1)) for batch in batches), self._codec):
            waiting += piece
            if len(waiting) >= _CHUNK:
                yield pa.RecordBatch.from_arrays([partition, pa.array([bytes(waiting)])], ["partition", "piece"])
                waiting.clear()
        yield pa.RecordBatch.from_arrays([partition, pa.array([bytes(waiting)])], ["partition", "piece"])


def _failed(target: Tree, error: Exception) -> SavepointError:
    return SavepointError(
        f"State could not be written to {target.location}: {cause_of(error)}",
        safe="what it was read from is untouched; what was written is not complete and must not be used.",
        to_do="see the cause, then do it again into an empty folder.",
    )
