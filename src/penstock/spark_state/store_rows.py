"""The rows of a state store as Spark keeps them: `key_bytes` and `value_bytes` in the bytes of Spark's own row format,
the same with every backend, `partition_key`, a struct by which they are spread, and `column_family_name`.

For RocksDB Spark has such a reader from 4.2 on, for its own repartitioning. Where it has none, and for hashmap, the
typed reader is used and its structs are taken as the bytes that they are: stores of one kind of rows can be read so.

`typed_rows` shows the same rows to people, with Spark's own names and types, but for what a file of Parquet cannot
hold: a column name that is there twice gets a number, columns without a type of Parquet's (`void`, intervals of days
and months together) are left out, and so is a key or a value of which nothing remains.

Rows become state on executors, one task per partition. RocksDB's files are written by the class that Spark's
repartitioning uses, which takes its rows from a function; given ours, it writes our rows. Hashmap's are written here,
in Python workers. A partition is one file, `N.snapshot`:

    [size of key][key][size of value][value] … [-1], sizes as four bytes, the largest first; all of it compressed

Keys and values are Spark's own bytes, moved and never looked into, column by column through Arrow, so that no row
becomes a Python object.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoint import layout
from penstock.checkpoint.decision import StateIds
from penstock.config.state import Backend, backend_of
from penstock.errors import PenstockError, SavepointError
from penstock.spark_state import work_session
from penstock.spark_state.metadata import DEFAULT, Family, OperatorMetadata, Store
from penstock.storage.local import LocalStorage
from penstock.storage.storage import local_path
from penstock.storage.tree import Tree
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_NOT_IN_PARQUET = ("void", "null", "interval", "calendarinterval")

PARTITION, KEY, VALUE, FAMILY = "partition_key", "key_bytes", "value_bytes", "column_family_name"
JOIN, JOIN_FORMAT = "symmetricHashJoin", "spark.sql.streaming.join.stateFormatVersion"
#: Where Spark cannot be asked: how many columns at the end of a key do not decide its partition.
_BESIDE = {"sessionWindowStateStoreSaveExec": 1}  # where the session begins
_BESIDE_IN_JOINS = "keyWithIndexToValue"  # and there the index of a row among those of its key
Rows = Callable[[OperatorMetadata, Store], "DataFrame"]
"""The rows of a store, spread over the partitions they are to be written to."""

_CHUNK = 4 << 20
_END = struct.pack(">i", -1)

HASHMAP_CODEC = "zstd"  # Arrow's Zstandard is Spark's; its LZ4 has frames that Spark does not read


def join_format(conf: Mapping[str, str], operator: OperatorMetadata) -> int | None:
    return int(conf.get(JOIN_FORMAT, "1")) if operator.name == JOIN else None


def raw_rows(
    work: SparkSession, checkpoint: str, batch: int, conf: Mapping[str, str], operator: OperatorMetadata, store: Store
) -> DataFrame:
    """One task reads one partition, in their order. Of a hashmap store a task holds its whole partition in memory, as
    the job does. `conf` are the checkpoint's settings."""
    place: dict[str, str | int] = {"path": checkpoint, "batchId": batch, "operatorId": operator.id}
    reader = work.read.format("statestore").options(**place, storeName=store.name)
    if backend_of(conf) != Backend.HASHMAP and version_of(work).rewrites_rocksdb:
        jvm: Any = work._jvm
        options = jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
        everything = str(options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES())
        return reader.option(everything, "true").load()
    return as_bytes(work, reader.load(), partition_columns(work, operator, store, join_format(conf, operator)), store)


def as_bytes(work: SparkSession, typed: DataFrame, columns: int, store: Store) -> DataFrame:
    """Rows with a `key` and a `value` struct as their bytes; the first `columns` of the key spread them."""
    from pyspark.sql import functions as f

    key = store.families[0].key
    schema = struct_of([("key", number_columns(key)), (KEY, "binary"), (VALUE, "binary")])
    keyed = work_session.reinterpret(work, typed.select("key", "key", "value"), schema)
    whole = columns == len(key["fields"])
    spread_by = f.col("key") if whole else f.struct(*(f.col("key").getField(f"c{i}") for i in range(columns)))
    return keyed.select(spread_by.alias(PARTITION), KEY, VALUE, f.lit(DEFAULT).alias(FAMILY))


def partition_columns(work: SparkSession, operator: OperatorMetadata, store: Store, form: int | None) -> int:
    """How many columns of a store's key, from the left, decide to which partition a row belongs."""
    version = version_of(work)
    if not version.rewrites_rocksdb:
        return known_partition_columns(operator.name, store)
    key, none = work_session.java_schema(work, store.families[0].key), work_session.scala_option(work)
    factory = version.java_class(work, "StatePartitionKeyExtractorFactory")
    extractor = factory.create(operator.name, key, store.name, DEFAULT, work_session.scala_option(work, form), none)
    return int(extractor.partitionKeySchema().length())


def known_partition_columns(operator: str, store: Store) -> int:
    """The same without Spark's help, for stores of one kind of rows."""
    beside = 1 if _BESIDE_IN_JOINS in store.name else _BESIDE.get(operator, 0)
    return len(store.families[0].key["fields"]) - beside


def spread_over(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows in the partitions where the query will look for them."""
    if not frame.schema[PARTITION].dataType.fieldNames():  # type: ignore[attr-defined]
        return frame.coalesce(1)  # nothing to spread by: one row, which the query's only task looks for in partition 0
    return frame.repartition(partitions, PARTITION)


def number_columns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with columns named by their position: names may be odd, or there twice."""
    fields = [{**field, "name": f"c{index}"} for index, field in enumerate(schema["fields"])]
    return {**schema, "fields": fields}


def struct_of(columns: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns]
    return {"type": "struct", "fields": fields}


def typed_rows(work: SparkSession, raw: DataFrame, family: Family, extra: tuple[str, ...] = ()) -> DataFrame:
    """Of the rows that `raw_rows` gives those of one kind, with `key` and `value` before the raw columns, and `extra`
    columns of theirs after."""
    from pyspark.sql import functions as f

    partition: Any = raw.schema[PARTITION].dataType.jsonValue()
    mine = raw.where(f.col(FAMILY) == family.name).select(KEY, VALUE, PARTITION, KEY, VALUE, *extra)
    kinds = {field.name: field.dataType.jsonValue() for field in raw.schema if field.name in extra}
    structs = {"key": family.key, "value": family.value, PARTITION: partition}
    numbered = [(name, number_columns(schema)) for name, schema in structs.items()]
    whole = work_session.reinterpret(
        work, mine, struct_of([*numbered, (KEY, "binary"), (VALUE, "binary"), *kinds.items()])
    )
    columns = [
        f.struct(*(f.col(side).getField(f"c{at}").alias(name) for at, name in names)).alias(side)
        for side, schema in (("key", family.key), ("value", family.value))
        if (names := visible_columns(schema))
    ]
    spread_by = [PARTITION] if partition["fields"] else []
    return whole.select(*columns, *spread_by, KEY, VALUE, *extra)


def visible_columns(schema: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The columns that can be shown, by position, each with a name of its own."""
    taken: set[str] = set()
    columns = []
    for at, field in enumerate(schema["fields"]):
        if not _holds(field["type"]):
            continue
        name, number = field["name"], 2
        while name.lower() in taken:
            name, number = f"{field['name']}_{number}", number + 1
        taken.add(name.lower())
        columns.append((at, name))
    return columns


def _holds(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return str(kind) not in _NOT_IN_PARQUET
    if kind["type"] == "struct":
        names = [field["name"].lower() for field in kind["fields"]]
        return bool(names) and len(set(names)) == len(names) and all(_holds(field["type"]) for field in kind["fields"])
    if kind["type"] == "array":
        return _holds(kind["elementType"])
    if kind["type"] == "map":
        return _holds(kind["keyType"]) and _holds(kind["valueType"])
    return _holds(kind.get("sqlType", "string"))


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
    location = work_session.resolve_location(work, target.location)
    options = [work_session.scala_option(work, value) for value in (location, supply, None)]
    rewriter_class = version_of(work).java_class(work, "StateRewriter")
    rewriter = rewriter_class(work._jsparkSession, batch, batch, location, work_session.hadoop_conf(work), *options)
    try:
        ids = rewriter.run()
    except Py4JJavaError as error:
        raise supply.error or _failed(target, error) from error
    return json.loads(work_session.to_json(work, ids.get())) if ids.isDefined() else None


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
        with closing(path.getFileSystem(work_session.hadoop_conf(spark)).create(path, True)) as stream:
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
        f"State could not be written to {target.location}: {work_session.cause_of(error)}",
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
