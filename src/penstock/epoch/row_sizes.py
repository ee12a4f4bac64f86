"""How large rows are, and what follows for the batches in which they travel to Python.

Spark bounds a batch by rows and by bytes. To keep the second bound it measures the batch again after every row, and for
small rows that costs as much as all else on the way. So the bound is lifted for an output whose rows were small in the
epoch before. A new run knows no sizes: what grew too fast for that, and failed, is tried again with the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_BYTES, _ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNBOUNDED = str((1 << 31) - 1)  # the one value with which Spark does not measure
_USUAL = {str(64 << 20), f"{64 << 20}b"}  # our default, which is Spark's own; another one is the user's wish
SMALL = 4 << 20  # bytes of a full batch; rows may then grow a hundredfold within an epoch and still fit


class RowSizes:
    """What the outputs of one query have told; used by one thread."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    def learn(self, uid: str, bytes_per_row: Iterable[float]) -> None:
        """What each writer of an epoch has seen; writers without rows say 0."""
        self._largest[uid] = max(bytes_per_row, default=0.0)

    @contextmanager
    def bounded(self, conf: Any, uid: str) -> Iterator[None]:
        """While this lasts, `conf` of the session that runs the plan has the bound that output `uid` needs."""
        usual = conf.get(_BYTES)
        if not self._largest.get(uid) or usual not in _USUAL:
            yield
            return
        most = int(conf.get(_ROWS))
        if most <= 0 or self._largest[uid] * most > SMALL:
            yield
            return
        conf.set(_BYTES, _UNBOUNDED)
        try:
            yield
        finally:
            conf.set(_BYTES, usual)
