"""From a location to the storage or tree behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from penstock.errors import ConfigurationError
from penstock.storage.local import LocalStorage, LocalTree
from penstock.storage.storage import Storage, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.storage.tree import Tree


def storage_at(location: str, spark: SparkSession | None) -> Storage:
    """Storage for any location: this machine's disk directly, everything else through Hadoop. Without a session only a
    local disk can be reached."""
    path = local_path(location) if spark is None or is_own_disk(location, spark) else None
    if path is not None:
        return LocalStorage(path)
    if spark is None:
        raise ConfigurationError(
            f"{location} can be reached through Spark only, and there is no session.",
            safe="nothing was changed.",
            to_do="give a path of this machine, or a mounted folder. Or run this where a Spark session is running:"
            " penstock transactions starts one with --job JOB.py, and a Job or penstock.exactly_once has one.",
        )
    from penstock.storage.hadoop import HadoopStorage

    return HadoopStorage(spark, location)


def is_own_disk(location: str, spark: SparkSession) -> bool:
    """Whether a location is a path of the machine that looks at it, so that others see other files there. A path
    without a scheme belongs to `fs.defaultFS`."""
    if urlparse(location).scheme:
        return local_path(location) is not None
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return urlparse(str(default)).scheme in ("", "file")


def tree_at(location: str, spark: SparkSession | None) -> Tree:
    """The tree at any location, for work on whole folders. Without a session only a local disk can be reached."""
    return tree_of(storage_at(location, spark))


def tree_of(storage: Storage) -> Tree:
    """The tree at the location of a storage that `storage_at` returned."""
    if isinstance(storage, LocalStorage):
        return LocalTree(storage.root)
    from penstock.storage.hadoop import HadoopStorage, HadoopTree

    assert isinstance(storage, HadoopStorage)
    return HadoopTree(storage)


def task_tree(location: str) -> Tree:
    """The tree at a location as tasks reach it, for single files: this machine's disk, or what pyarrow can open."""
    path = local_path(location)
    if path is not None:
        return LocalTree(path)
    from pyarrow.fs import FileSystem

    from penstock.storage.hadoop import ArrowTree

    scheme, _, rest = location.partition("://")
    address = f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
    return ArrowTree(*FileSystem.from_uri(address), address=location)
