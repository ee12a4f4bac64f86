"""How much state a query keeps, operator by operator, from the progress that Spark reports after each epoch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import OperatorState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_BACK = 10  # reports; one is made per epoch, and a record is never so many epochs behind
_ROCKSDB_FILES = "rocksdbSstFileSize"
_HEAP_VERSION = "stateOnCurrentVersionSizeBytes"


def state_sizes(progress: Mapping[str, Any]) -> tuple[OperatorState, ...]:
    """The state of each operator, in the plan's order; empty for a query without state. `progress` is one report of
    Spark's: `StreamingQuery.lastProgress`, or what `progress_of` gives."""
    return tuple(_operator(one) for one in progress.get("stateOperators") or ())


def progress_of(query: StreamingQuery, epoch: int) -> dict[str, Any] | None:
    """Spark's report of the epoch, None as long as it is not there. It comes after `commits/N`. Empty where it will
    not come any more: reports of later epochs are there, and none of this one."""
    reports: Any = query._jsq.recentProgress()
    newest = -1
    for index in range(len(reports) - 1, max(-1, len(reports) - 1 - _LOOK_BACK), -1):
        report = reports[index]
        number = int(report.batchId())
        if number < epoch:
            break
        if number == epoch:
            body: dict[str, Any] = json.loads(report.json())
            if "addBatch" in body.get("durationMs", {}):
                return body
            continue  # a report of a query that waits for data bears the number of the epoch to come
        newest = max(newest, number)
    return {} if newest > epoch else None


def _operator(body: Mapping[str, Any]) -> OperatorState:
    metrics: Mapping[str, Any] = body.get("customMetrics") or {}
    rocksdb = any(name.startswith("rocksdb") for name in metrics)
    size = metrics.get(_ROCKSDB_FILES if rocksdb else _HEAP_VERSION)
    return OperatorState(
        operator=str(body["operatorName"]),
        rows=int(body["numRowsTotal"]),
        updated=int(body["numRowsUpdated"]),
        removed=int(body.get("numRowsRemoved", 0)),
        memory_bytes=int(body["memoryUsedBytes"]),
        state_bytes=None if size is None else int(size),
        backend="rocksdb" if rocksdb else "hashmap",
        partitions=int(body.get("numStateStoreInstances", body.get("numShufflePartitions", 0))),
    )
