"""The whole picture of a hashmap state partition, `N.snapshot`, as Spark reads it.

    [size of key][key][size of value][value] … [-1], sizes as four bytes, the largest first; all of it compressed

Keys and values are Spark's own bytes, moved and never looked into. Written column by column through Arrow, so that no
row ever becomes an object of Python's.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark_state.codecs import encoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_END = struct.pack(">i", -1)


def snapshot(batches: Iterable[tuple[Any, Any]], codec: str) -> Iterator[bytes]:
    """The file's bytes, piece by piece, from Arrow arrays of keys and values."""
    stream = encoder(codec)
    for keys, values in batches:
        yield from stream.write(records(keys, values))
    yield from stream.write(_END)
    yield from stream.end()


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
