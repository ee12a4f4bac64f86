"""What both sides of the sinks benchmark read: a folder of Parquet files, one for each core and epoch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "id bigint, account int, amount double, name string, at timestamp, flag boolean"

#: The first epoch of a query loads classes, connects and makes tables: it is not measured, and is small.
WARM_UP = 0.1


def make_input(folder: Path, rows: int, files: int) -> int:
    """Two epochs of `files` files each: a small one, then one of `rows` rows. Returns how many rows there are in all.

    Spark's file source takes files by age, so the ages are set."""
    folder.mkdir(parents=True)
    first = 0
    for epoch, count in enumerate((max(files, int(rows * WARM_UP)), rows)):
        edges = [first + count * part // files for part in range(files + 1)]
        for part in range(files):
            path = folder / f"epoch-{epoch}-{part:03d}.parquet"
            pq.write_table(numbered(edges[part], edges[part + 1]), path)
            os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))
        first += count
    return first


def numbered(first: int, end: int) -> pa.Table:
    """The rows `first` to `end - 1`: every value follows from the row's number."""
    ids = np.arange(first, end)
    mixed = (ids * 2_654_435_761) % 4_294_967_296
    return pa.table(
        {
            "id": ids,
            "account": pa.array(mixed % 100_000, pa.int32()),
            "amount": mixed / 1000,
            "name": pa.array([f"customer {number}" for number in mixed % 1_000_000]),
            "at": pa.array(1_767_225_600_000_000 + ids * 1_000, pa.timestamp("us", "UTC")),
            "flag": mixed % 2 == 0,
        }
    )
