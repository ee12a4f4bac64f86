"""A real S3 server of a test's own, with a bucket in it, to be found by its variables as a user's would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.s3 import S3Server


@contextmanager
def lake(folder: Path) -> Iterator[S3Server]:
    """With the bucket `lake`, and its keys in this process's variables as long as it lives."""
    boto3 = pytest.importorskip("boto3")
    with S3Server.start(folder) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment().items():
            patch.setenv(name, value)
        boto3.session.Session().client("s3").create_bucket(Bucket="lake")
        yield started
