"""Where a table's files are: folders, and object stores, which have none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from penstock.contracts.sink import Finding
from penstock.sinks.files import check_folder as check_local_folder
from penstock.storage.files import Storage, is_local
from penstock.storage.files_hadoop import ArrowStorage

#: What pyarrow calls what the environment, and `deltalake`, call so.
_S3 = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_override": "aws_endpoint_url",
}


class ObjectStorage(ArrowStorage):
    """Objects with long names. The one thing this sink never asks for is a rename, which such storage does not have:
    the step from unseen to seen is the table's log."""

    def create_folder(self, name: str) -> None:
        return None  # pyarrow would put an empty object there


def open_folder(path: str, options: Mapping[str, str]) -> Storage:
    """Storage for a table at a local path or an `s3://` address, with the options that `deltalake` takes."""
    if is_local(path):
        from penstock.storage.files_local import LocalStorage

        return LocalStorage(path)
    from pyarrow.fs import S3FileSystem

    given = {key.lower(): value for key, value in options.items()}
    chosen = {ours: given.get(theirs, os.environ.get(theirs.upper())) for ours, theirs in _S3.items()}
    named = {key: value for key, value in chosen.items() if value}
    parts = urlsplit(path)
    return ObjectStorage(S3FileSystem(**named), f"{parts.netloc}{parts.path}")


def check_folder(path: str, uid: str) -> Sequence[Finding]:
    """Raises for a folder that cannot be written; of other storage only the first write tells."""
    if not is_local(path):
        return ()
    return check_local_folder(path, uid, what="a table")
