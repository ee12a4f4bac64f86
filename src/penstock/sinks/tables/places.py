"""Where a Delta table's files are: folders, and object stores, which have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.contracts.sink import Finding
from penstock.sinks.files import check_folder as check_local_folder
from penstock.sinks.files import is_local
from penstock.storage.arrow import ObjectTree
from penstock.storage.tree import Tree


def open_folder(path: str, options: Mapping[str, str]) -> Tree:
    """The tree of a table at a local path or an `s3://` address, with the options that `deltalake` takes.

    Objects go through `deltalake` itself. It takes each option under several names, others from the environment and
    from files of AWS: a second client could come to another store than the table's log is in."""
    if is_local(path):
        from penstock.storage.local import LocalTree

        return LocalTree(path)
    from pyarrow.fs import PyFileSystem

    from penstock.sinks.tables.delta_files import DeltaFiles

    return ObjectTree(PyFileSystem(DeltaFiles(path, dict(options))), "")


def check_folder(path: str, uid: str) -> Sequence[Finding]:
    """Raises for a folder that cannot be written; of other storage only the first write tells."""
    if not is_local(path):
        return ()
    return check_local_folder(path, uid, what="a table")
