"""Where a table's files are: folders, and object stores, which have none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from penstock.contracts.sink import Finding
from penstock.sinks.files import check_folder as check_local_folder
from penstock.storage.arrow import ObjectTree
from penstock.storage.open import is_local
from penstock.storage.tree import Tree

#: What pyarrow calls what the environment, and `deltalake`, call so.
_S3 = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_override": "aws_endpoint_url",
}


def open_folder(path: str, options: Mapping[str, str]) -> Tree:
    """The tree of a table at a local path or an `s3://` address, with the options that `deltalake` takes."""
    if is_local(path):
        from penstock.storage.local import LocalTree

        return LocalTree(path)
    from pyarrow.fs import S3FileSystem

    given = {key.lower(): value for key, value in options.items()}
    chosen = {ours: given.get(theirs, os.environ.get(theirs.upper())) for ours, theirs in _S3.items()}
    named = {key: value for key, value in chosen.items() if value}
    parts = urlsplit(path)
    return ObjectTree(S3FileSystem(**named), f"{parts.netloc}{parts.path}")


def check_folder(path: str, uid: str) -> Sequence[Finding]:
    """Raises for a folder that cannot be written; of other storage only the first write tells."""
    if not is_local(path):
        return ()
    return check_local_folder(path, uid, what="a table")
