"""Rows that say when they were made: 100 bytes, in front an id and a moment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROW = np.dtype([("id", "S16"), ("made", "S19"), ("rest", "S65")])
_REST = "x" * ROW["rest"].itemsize


def row(number: int, made_ns: int) -> bytes:
    return f"{number:016d}{made_ns:019d}{_REST}".encode()


def columns(values: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ids, and when each was made in nanoseconds since 1970, of rows one behind the other."""
    rows = np.frombuffer(values, dtype=ROW)
    return rows["id"].astype(np.int64), rows["made"].astype(np.int64)
