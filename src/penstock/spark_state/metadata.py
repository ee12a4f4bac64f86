"""Which stateful operators a checkpoint holds, or a program will have: known before the program starts, without reading
the state, from what Spark writes down about it. Per operator that is a description, per store the schema of its rows.

    state/<op>/_metadata/metadata            most operators
    state/<op>/_metadata/v2/<batch>          operators whose stores hold several column families
    state/<op>/0[/<store>]/_metadata/schema  the schema of a store of the first kind
    state/<op>/_stateSchema/<store>/<file>   and of the second, named by full paths in the description

Small files, read and written here without Spark's help. Full paths are the one thing in a checkpoint that does not
survive a move: they are kept as names below the operator's folder and made whole again where they are written.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.spark_files import conf_of
from penstock.config.state import PARTITIONS
from penstock.errors import LedgerCorrupt
from penstock.naming import safe_name, safe_part
from penstock.spark_state.work_session import open_work_session, scala_option
from penstock.storage.local import LocalTree, tree_at
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.storage.tree import Tree

DEFAULT = "default"  # the name of a store that is an operator's only one, and of a store's only column family


@dataclass(frozen=True, slots=True)
class Family:
    """Rows of one kind in a store. Schemas are Spark's, as JSON."""

    name: str
    key: dict[str, Any]
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Store:
    name: str
    prefix_columns: int
    partitions: int
    families: tuple[Family, ...]
    schema_files: tuple[str, ...] = ()  # below the operator's folder; the last one counts

    def folder(self, partition: int | str) -> str:
        """Where a partition of this store is, below the operator's folder."""
        return str(partition) if self.name == DEFAULT else f"{partition}/{self.name}"


@dataclass(frozen=True, slots=True)
class OperatorMetadata:
    """One stateful operator as Spark describes it. `files` are its schema files, by name below its folder."""

    id: int
    name: str
    version: int
    stores: tuple[Store, ...]
    files: Mapping[str, bytes] = field(repr=False)
    properties: str | None = None
    number: int = 0  # the batch that a description of the second kind is named after

    @property
    def has_families(self) -> bool:
        """Whether a store holds more than one kind of rows, which only RocksDB can."""
        return any(family.name != DEFAULT for store in self.stores for family in store.families)

    def rescaled(self, partitions: int) -> OperatorMetadata:
        return replace(self, stores=tuple(replace(store, partitions=partitions) for store in self.stores))

    def body(self, location: str) -> bytes:
        """The description as Spark reads it, for a checkpoint at `location`."""
        stores: list[dict[str, Any]] = []
        for store in self.stores:
            entry: dict[str, Any] = {"storeName": store.name, "numColsPrefixKey": store.prefix_columns}
            entry["numPartitions"] = store.partitions
            if self.version > 1:
                root = f"{location}/{layout.operator(self.id)}"
                entry["stateSchemaFilePaths"] = [f"{root}/{name}" for name in store.schema_files]
            stores.append(entry)
        info = {"operatorId": self.id, "operatorName": self.name}
        body: dict[str, Any] = {"operatorInfo": info, "stateStoreInfo": stores}
        if self.version > 1:
            body["operatorPropertiesJson"] = self.properties or ""
        return f"v{self.version}\n{json.dumps(body, separators=(',', ':'))}".encode()

    def write(self, checkpoint: Tree) -> None:
        """Write description and schemas into `checkpoint`, replacing what is there."""
        for name, data in self.files.items():
            checkpoint.put(f"{layout.operator(self.id)}/{name}", data)
        name = layout.operator_description(self.id, None if self.version == 1 else self.number)
        checkpoint.put(name, self.body(checkpoint.location))

    def stands_in(self, checkpoint: Tree) -> bool:
        """Whether the description in `checkpoint` names its schema files where they are, so that Spark can read it."""
        if self.version == 1:
            return True
        data = checkpoint.storage.read(layout.operator_description(self.id, self.number)) or b""
        paths = [path for entry in _parse(data, "")[1]["stateStoreInfo"] for path in entry["stateSchemaFilePaths"]]
        root = f"{checkpoint.location.partition(':')[2].lstrip('/')}/{layout.operator(self.id)}/"
        return all(path.partition(":")[2].lstrip("/").startswith(root) for path in paths)


def read_metadata(checkpoint: Tree, batch: int) -> tuple[OperatorMetadata, ...]:
    """Every stateful operator of the checkpoint as it was after `batch`, in the plan's order; none for a query that
    keeps no state. `LedgerCorrupt` where an operator has state and no description of it."""
    numbers = sorted(int(name) for name in checkpoint.names(layout.STATE) if name.isdigit())
    return tuple(_operator(checkpoint, number, batch) for number in numbers)


def relocate(checkpoint: Tree, batch: int) -> None:
    """Make a copy of a checkpoint independent of the original: its descriptions name its own schema files."""
    for operator in read_metadata(checkpoint, batch):
        if not operator.stands_in(checkpoint):
            operator.write(checkpoint)


def _operator(checkpoint: Tree, operator: int, batch: int) -> OperatorMetadata:
    root = layout.operator(operator)
    numbers = [int(name) for name in checkpoint.names(f"{root}/{layout.DESCRIPTIONS}") if name.isdigit()]
    versions = [number for number in numbers if number <= batch]
    number = max(versions, default=0)
    name = layout.operator_description(operator, number if versions else None)
    data = checkpoint.storage.read(name)
    if data is None:
        raise LedgerCorrupt(
            f"{checkpoint.location} has state of operator {operator} and no description of it ({name}).",
            to_do="restore the file from a copy. A checkpoint of Spark before 3.5 has none: run the query once with"
            " a newer Spark, which writes it.",
        )
    version, body = _parse(data, f"{checkpoint.location}/{name}")
    files: dict[str, bytes] = {}
    stores = []
    for entry in body["stateStoreInfo"]:
        store = Store(entry["storeName"], int(entry["numColsPrefixKey"]), int(entry["numPartitions"]), ())
        names: tuple[str, ...] = (f"{store.folder(0)}/{layout.STORE_SCHEMA}",)
        if version > 1:
            names = tuple(path.rpartition(f"/{root}/")[2] for path in entry["stateSchemaFilePaths"])
            store = replace(store, schema_files=names)
        safe_part(store.name, name)
        for file in names:
            safe_name(file, name)
            content = checkpoint.storage.read(f"{root}/{file}")
            if content is None:
                raise LedgerCorrupt(
                    f"{checkpoint.location} has no {root}/{file}, the schema of a state store.",
                    to_do="restore the file from a copy of the checkpoint.",
                )
            files[file] = content
        stores.append(replace(store, families=tuple(families(files[names[-1]])) if names else ()))
    info, properties = body["operatorInfo"], body.get("operatorPropertiesJson")
    operator, title = int(info["operatorId"]), str(info["operatorName"])
    return OperatorMetadata(operator, title, version, tuple(stores), files, properties, number)


def _parse(data: bytes, where: str) -> tuple[int, dict[str, Any]]:
    line, _, body = data.decode(errors="replace").partition("\n")
    try:
        parsed = json.loads(body)
        if line not in ("v1", "v2") or not isinstance(parsed, dict):
            raise ValueError(line)
    except ValueError as error:
        raise LedgerCorrupt(
            f"Spark's description of a stateful operator, {where}, is of a form this version does not know.",
            to_do="restore the file from a copy, or use a version of Penstock that knows this version of Spark.",
        ) from error
    return int(line[1:]), parsed


def families(data: bytes) -> Iterator[Family]:
    reader = _JavaData(data)
    version = reader.utf()
    if version == "v1":
        yield Family(DEFAULT, json.loads(reader.utf()), json.loads(reader.utf()))
    elif version == "v2":
        yield Family(DEFAULT, json.loads(reader.long_text()), json.loads(reader.long_text()))
    elif version == "v3":
        for _ in range(reader.integer()):
            name = reader.utf()
            reader.integer(">h")
            key = json.loads(reader.long_text())
            reader.integer(">h")
            value = json.loads(reader.long_text())
            reader.long_text()  # how keys are encoded
            reader.long_text()  # the user's key, where there is one
            yield Family(name, key, value)
    else:
        raise LedgerCorrupt(
            f"A state schema of Spark's has the version {version!r}, which this version does not know.",
            to_do="use a version of Penstock that knows this version of Spark.",
        )


class _JavaData(io.BytesIO):
    """What Java's DataOutputStream wrote."""

    def integer(self, form: str = ">i") -> int:
        [value] = struct.unpack(form, self.read(struct.calcsize(form)))
        return int(value)

    def utf(self) -> str:
        raw = self.read(self.integer(">H")).replace(b"\xc0\x80", b"\0")
        # Java writes a character beyond 16 bits as its two surrogates.
        return raw.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16")

    def long_text(self) -> str:
        return "".join(self.utf() for _ in range(self.integer()))


def read_operators(spark: SparkSession | None, checkpoint: str, batch: int) -> tuple[dict[str, Any], ...]:
    """The stateful operators of a checkpoint as they were after `batch`, each as `describe_operator` shows it; none for
    a query that keeps no state. Reads a few small files. Without a session only a local disk can be reached."""
    folder = tree_at(checkpoint, spark)
    count = conf_of(folder, batch).get(PARTITIONS)
    partitions = None if count is None else int(count)
    return tuple(describe_operator(operator, partitions) for operator in read_metadata(folder, batch))


def describe_operator(operator: OperatorMetadata, partitions: int | None = None) -> dict[str, Any]:
    """One stateful operator as savepoints keep it: its position in the plan, Spark's name for what it does, and a store
    for each kind of rows, with Spark's schemas. A column family is a store under its own name. `partitions` come from
    the positions: Spark does not correct its description when it repartitions."""
    count = partitions or max((store.partitions for store in operator.stores), default=0)
    stores = [
        {
            "name": store.name if family.name == DEFAULT else family.name,
            "partitions": count,
            "key_schema": family.key,
            "value_schema": family.value,
        }
        for store in operator.stores
        for family in store.families
    ]
    return {"id": operator.id, "name": operator.name, "stores": stores, "partitions": count}


def plan_operators(frame: DataFrame, output_mode: str) -> tuple[dict[str, Any], ...]:
    """The stateful operators of a streaming DataFrame in the plan's order, with the schemas their state would have.
    Spark plans the first batch of a query into a folder that is thrown away, and writes there what it would write into
    a new checkpoint. Nothing runs, and no source is asked."""
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
            *([False] * version.plan_flags),
        )
        execution.executedPlan()
        return tuple(describe_operator(operator) for operator in read_metadata(LocalTree(Path(folder)), 0))


def _uuid(jvm: Any) -> Any:
    return jvm.java.util.UUID.fromString(str(uuid.uuid4()))
