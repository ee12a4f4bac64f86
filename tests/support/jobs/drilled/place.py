"""Where the drilled jobs keep everything: a folder that the test names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import Checkpoints, DataGenSource, FileSink, Job

FOLDER = Path(os.environ["PENSTOCK_TEST_DRILLED"])
INPUT = FOLDER / "input"
SERVERS = os.environ.get("PENSTOCK_TEST_SERVERS", "localhost:9")
TOPIC = os.environ.get("PENSTOCK_TEST_TOPIC", "numbers")
ROWS = 6_000
SEEN = itertools.count()  # in each process


def make_job(name: str, **checkpoints: Any) -> Job:
    at = Checkpoints(interval="100ms", storage=str(FOLDER / "checkpoints"), **checkpoints)
    return Job(name, checkpoints=at, conf={"spark.sql.shuffle.partitions": "2"})


def numbers(columns: Mapping[str, str] | None = None, rows: int = ROWS) -> DataGenSource:
    """A dozen epochs, cut alike in every run."""
    return DataGenSource(rows=rows, max_rows_per_epoch=rows // 12, columns=columns)


def files(name: str = "out", kind: Any = "parquet") -> FileSink:
    return FileSink(str(FOLDER / name), format=kind)
