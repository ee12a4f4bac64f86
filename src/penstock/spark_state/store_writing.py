"""Writing rows as state: on executors, one task per partition, by Spark's own writer or ours.

RocksDB's files are written by the class that Spark's repartitioning uses, which takes its rows from a function; given
ours, it writes our rows. Hashmap's are written here, in Python workers. A partition is one file, `N.snapshot`:

    [size of key][key][size of value][value] … [-1], sizes as four bytes, the largest first; all of it compressed

Keys and values are Spark's own bytes, moved and never looked into, column by column through Arrow, so that no row
becomes a Python object.
"""

from __future__ import annotations

import itertools
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.checkpoint import layout
from penstock.errors import ConfigurationError, PenstockError, SavepointError
from penstock.spark_state.store_rows import KEY, VALUE
from penstock.spark_state.work_session import cause_of, hadoop_conf, resolve_location, scala_option
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

_BLOCK = 1 << 15  # as large as Spark's own


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
    options = [scala_option(work, value) for value in (location, supply, None)]
    rewriter_class = version_of(work).java_class(work, "StateRewriter")
    rewriter = rewriter_class(work._jsparkSession, batch, batch, location, hadoop_conf(work), *options)
    try:
        rewriter.run()
    except Py4JJavaError as error:
        raise supply.error or _failed(target, error) from error


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


def write_hashmap(target: Tree, batch: int, operators: Sequence[OperatorMetadata], rows: Rows, codec: str) -> None:
    """State version `batch` + 1 of every store."""
    for operator in operators:
        for store in operator.stores:
            file = f"{layout.operator(operator.id)}/{store.folder('{partition}')}/{batch + 1}.snapshot"
            try:
                if isinstance(target.storage, LocalStorage):
                    root = local_path(target.location)
                    assert root is not None
                    task = partial(_write_file, str(root / file), codec)
                    rows(operator, store).select(KEY, VALUE).mapInArrow(task, "bytes long").collect()
                else:
                    _write_through_driver(rows(operator, store), target, file, codec)
            except PenstockError:
                raise
            except Exception as error:
                raise _failed(target, error) from error


def _write_through_driver(rows: DataFrame, target: Tree, file: str, codec: str) -> None:
    """Where executors' Python cannot reach the storage: the bytes come here, and go out through the JVM."""
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    parts = rows.select(KEY, VALUE).mapInArrow(partial(_hand_back, codec), "partition int, piece binary")
    pieces = parts.toLocalIterator(prefetchPartitions=True)
    for partition, mine in itertools.groupby(pieces, key=lambda row: int(row["partition"])):
        path = jvm.org.apache.hadoop.fs.Path(f"{target.location}/{file.format(partition=partition)}")
        with closing(path.getFileSystem(hadoop_conf(spark)).create(path, True)) as stream:
            for row in mine:
                stream.write(bytes(row["piece"]))


def _write_file(path: str, codec: str, batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: one partition's file, aside and then under its name. A task that runs twice writes the same again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    target = Path(path.format(partition=context.partitionId()))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{context.taskAttemptId()}.tmp")
    with open(aside, "wb") as stream:
        for piece in snapshot(((batch.column(0), batch.column(1)) for batch in batches), codec):
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
        size = stream.tell()
    os.replace(aside, target)
    yield pa.RecordBatch.from_pydict({"bytes": [size]})


def _hand_back(codec: str, batches: Iterator[Any]) -> Iterator[Any]:
    """In a task: one partition's file, in pieces."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition = pa.array([context.partitionId()], pa.int32())
    waiting = bytearray()
    for piece in snapshot(((batch.column(0), batch.column(1)) for batch in batches), codec):
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


class Encoder(ABC):
    """One of Spark's compressed streams: `write` takes pieces of any size and gives bytes, `end` gives the rest. Blocks
    are compressed by Arrow."""

    _unit = _BLOCK

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._waiting += data
        whole = len(self._waiting) // self._unit * self._unit
        if whole:
            yield from self._blocks(bytes(self._waiting[:whole]))
            del self._waiting[:whole]

    def end(self) -> Iterator[bytes]:
        yield from self._blocks(bytes(self._waiting))
        self._waiting.clear()

    @abstractmethod
    def _blocks(self, data: bytes) -> Iterator[bytes]:
        """Whole blocks; only before the end of the stream may the last be short."""


class Lz4(Encoder):
    """lz4-java's block stream: before every block a header with lengths and checksum, at the end an empty one."""

    _magic = b"LZ4Block"
    _raw, _compressed = 0x10, 0x20
    _level = _BLOCK.bit_length() - 11  # a block is 2 ** (10 + level) bytes long
    _seed = 0x9747B28C
    _mask = 0x0FFFFFFF  # the stream's checksum is cut to 28 bits

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        codec = pa.Codec("lz4_raw")
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            checksum = xxhash.xxh32_intdigest(block, self._seed)
            packed = codec.compress(block, asbytes=True)
            smaller = len(packed) < len(block)
            kind = (self._compressed if smaller else self._raw) | self._level
            body = packed if smaller else block
            yield self._magic + struct.pack("<BIII", kind, len(body), len(block), checksum & self._mask)
            yield body

    def end(self) -> Iterator[bytes]:
        yield from super().end()
        yield self._magic + struct.pack("<BIII", self._raw | self._level, 0, 0, 0)


class Zstd(Encoder):
    """One frame after the other."""

    _unit = 1 << 20

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        if data:
            yield pa.Codec("zstd", compression_level=1).compress(data, asbytes=True)


_CODECS: dict[str, type[Encoder]] = {"lz4": Lz4, "zstd": Zstd}


def encoder(codec: str) -> Encoder:
    """For a codec by the name that Spark's settings have for it, or its class."""
    name = codec.rpartition(".")[2].lower().removesuffix("compressioncodec")
    if name not in _CODECS:
        raise ConfigurationError(
            f"The state is compressed with {codec}, which Penstock cannot write.",
            safe="nothing was changed.",
            to_do="only lz4, Spark's default, and zstd can be written; keep the state backend, or start from a"
            " savepoint of a job with one of these.",
        )
    return _CODECS[name]()


def snapshot(batches: Iterable[tuple[Any, Any]], codec: str) -> Iterator[bytes]:
    """The file's bytes, piece by piece, from Arrow arrays of keys and values."""
    stream = encoder(codec)
    for keys, values in batches:
        yield from stream.write(records(keys, values))
    yield from stream.write(_END)
    yield from stream.end()


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
