"""Which stateful operators a checkpoint holds, and what they keep: told without reading the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.spark_files import conf_of
from penstock.config.spark_conf import PARTITIONS
from penstock.spark_state.metadata import DEFAULT, read_metadata
from penstock.storage.open import tree_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark_state.metadata import OperatorMetadata
    from penstock.storage.tree import Tree


@dataclass(frozen=True, slots=True)
class StateStore:
    """Rows of one kind: a store, or, where a store holds several column families, one of those, under its own name.
    Schemas are Spark's, as JSON; None where they cannot be told."""

    name: str
    partitions: int
    key_schema: dict[str, Any] | None
    value_schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator: its position in the plan, Spark's name for what it does, and what it keeps."""

    id: int
    name: str
    stores: tuple[StateStore, ...]
    partitions: int


def operators(spark: SparkSession | None, checkpoint: str, batch: int) -> tuple[Operator, ...]:
    """The stateful operators of a checkpoint as they were after `batch`; none for a query that keeps no state.
    Reads a few small files. Without a session only a local disk can be reached."""
    folder = tree_at(checkpoint, spark)
    partitions = _partitions(folder, batch)
    return tuple(described(one, partitions) for one in read_metadata(folder, batch))


def described(operator: OperatorMetadata, partitions: int | None = None) -> Operator:
    """`partitions`: what the positions say. Spark does not correct its description when it repartitions."""
    count = partitions or max((store.partitions for store in operator.stores), default=0)
    stores = tuple(
        StateStore(store.name if family.name == DEFAULT else family.name, count, family.key, family.value)
        for store in operator.stores
        for family in store.families
    )
    return Operator(operator.id, operator.name, stores, count)


def _partitions(folder: Tree, batch: int) -> int | None:
    said = conf_of(folder, batch).get(PARTITIONS)
    return None if said is None else int(said)
