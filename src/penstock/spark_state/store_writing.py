"""Writing rows as state: on executors, one task per partition, by Spark's own writer or ours.

RocksDB's files are written by the class that Spark's repartitioning uses, which takes its rows from a function; given
ours, it writes our rows. Hashmap's are written here, in Python workers. A partition is one file, `N.snapshot`:

    [size of key][key][size of value][value] … [-1], sizes as four bytes, the largest first; all of it compressed

Keys and values are Spark's own bytes, moved and never looked into, column by column through Arrow, so that no row
becomes a Python object.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint import layout
from penstock.checkpoint.decision import StateIds
from penstock.errors import PenstockError, SavepointError
from penstock.spark_state.store_rows import KEY, VALUE
from penstock.spark_state.work_session import cause_of, hadoop_conf, resolve_location, scala_option, to_json
from penstock.storage.local import LocalStorage
from penstock.storage.storage import local_path
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_state.metadata import OperatorMetadata, Store
    from penstock.storage.tree import Tree

Rows = Callable[["OperatorMetadata", "Store"], "DataFrame"]
"""The rows of a store, spread over the partitions they are to be written to."""

_CHUNK = 4 << 20
_END = struct.pack(">i", -1)

HASHMAP_CODEC = "zstd"  # Arrow's Zstandard is Spark's; its LZ4 has frames that Spark does not read


def write_rocksdb(
    work: SparkSession, target: Tree, batch: int, operators: Sequence[OperatorMetadata], rows: Rows
) -> StateIds | None:
    """State version `batch` + 1 of every store, in the format of the session `work`; its ids. The target must hold
    `offsets/<batch>` that say RocksDB, `commits/<batch>` of that format, and the operators' descriptions."""
    from py4j.protocol import Py4JJavaError
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(work.sparkContext._gateway)  # type: ignore[no-untyped-call]
    stores = [(operator, store) for operator in operators for store in operator.stores]
    supply = _Supply(work, [rows(operator, store) for operator, store in stores])
    location = resolve_location(work, target.location)
    options = [scala_option(work, value) for value in (location, supply, None)]
    rewriter_class = version_of(work).java_class(work, "StateRewriter")
    rewriter = rewriter_class(work._jsparkSession, batch, batch, location, hadoop_conf(work), *options)
    try:
        ids = rewriter.run()
    except Py4JJavaError as error:
        raise supply.error or _failed(target, error) from error
    return json.loads(to_json(work, ids.get())) if ids.isDefined() else None


class _Supply:
    """A function of Scala's: asked for the rows of one store after the other, in their order."""

    class Java:
        implements = ("scala.Function1",)

    def __init__(self, work: SparkSession, frames: Sequence[DataFrame]) -> None:
        self._work, self._frames = work, iter(frames)
        self.error: Exception | None = None

    def apply(self, expected: Any) -> Any:
        """`expected` is a frame of the same store as Spark would read it: only its schema counts."""
        try:
            rows = next(self._frames)._jdf.queryExecution().toRdd()
            return self._work._jsparkSession.internalCreateDataFrame(rows, expected.schema(), False)
        except Exception as error:
            self.error = error
            raise


def write_hashmap(target: Tree, batch: int, operators: Sequence[OperatorMetadata], rows: Rows) -> None:
    """State version `batch` + 1 of every store."""
    for operator in operators:
        for store in operator.stores:
            file = f"{layout.operator(operator.id)}/{store.folder('{partition}')}/{batch + 1}.snapshot"
            try:
                if isinstance(target.storage, LocalStorage):
                    root = local_path(target.location)
                    assert root is not None
                    task = partial(_write_file, str(root / file))
                    rows(operator, store).select(KEY, VALUE).mapInArrow(task, "bytes long").collect()
                else:
                    _write_through_driver(rows(operator, store), target, file)
            except PenstockError:
                raise
            except Exception as error:
                raise _failed(target, error) from error


def _write_through_driver(rows: DataFrame, target: Tree, file: str) -> None:
    """Where executors' Python cannot reach the storage: the bytes come here, and go out through the JVM."""
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    parts = rows.select(KEY, VALUE).mapInArrow(_hand_back, "partition int, piece binary")
    pieces = parts.toLocalIterator(prefetchPartitions=True)
    for partition, mine in itertools.groupby(pieces, key=lambda row: int(row["partition"])):
        path = jvm.org.apache.hadoop.fs.Path(f"{target.location}/{file.format(partition=partition)}")
        with closing(path.getFileSystem(hadoop_conf(spark)).create(path, True)) as stream:
            for row in mine:
                stream.write(bytes(row["piece"]))


def _write_file(path: str, batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: one partition's file, aside and then under its name. A task that runs twice writes the same again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    target = Path(path.format(partition=context.partitionId()))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{context.taskAttemptId()}.tmp")
    with open(aside, "wb") as stream:
        for piece in snapshot((batch.column(0), batch.column(1)) for batch in batches):
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
        size = stream.tell()
    os.replace(aside, target)
    yield pa.RecordBatch.from_pydict({"bytes": [size]})


def _hand_back(batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: one partition's file, in pieces."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition = pa.array([context.partitionId()], pa.int32())
    waiting = bytearray()
    for piece in snapshot((batch.column(0), batch.column(1)) for batch in batches):
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


# Hashmap's files


def snapshot(batches: Iterable[tuple[Any, Any]]) -> Iterator[bytes]:
    """The file's bytes, piece by piece, from Arrow arrays of keys and values: Zstandard frames."""
    codec = pa.Codec(HASHMAP_CODEC, compression_level=1)
    for keys, values in batches:
        yield codec.compress(records(keys, values), asbytes=True)
    yield codec.compress(_END, asbytes=True)


def records(keys: Any, values: Any) -> memoryview:
    """Keys and values, each with its size before it, one row after the other."""
    if not len(keys):
        return memoryview(b"")
    joined = pc.binary_join_element_wise(_sizes(keys), keys, _sizes(values), values, pa.scalar(b"", pa.binary()))
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)
    first, last = int(bounds[joined.offset]), int(bounds[joined.offset + len(joined)])
    return memoryview(data)[first:last]


def _sizes(rows: Any) -> Any:
    sizes = np.asarray(pc.binary_length(rows)).astype(">i4")
    bounds = np.arange(0, 4 * len(sizes) + 4, 4, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(sizes)])
