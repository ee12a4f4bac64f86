"""A decided epoch is replayed with the layout that it had: some plans deal their rows out by the number of cores.

Spark packs files into tasks by `leafNodeDefaultParallelism`, and adaptive execution puts partitions of a shuffle
together by it. Unless it is set, it is the number of cores that are there at that moment, which is another one after a
restart on another machine, or before the last executor has come. A manifest says which one its epoch was planned by.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.engine.protocol import Replay

_KEYS = ("spark.sql.leafNodeDefaultParallelism", "spark.sql.adaptive.coalescePartitions.minPartitionNum")
_PATIENCE = 60.0  # for another replay to be planned; one that failed before that is not waited for any longer

_one_at_a_time = threading.Lock()


def as_decided(spark: SparkSession, replay: Replay | None) -> Callable[[], None]:
    """From now on Spark plans as it did for the epoch to be replayed, until what this returns is called, for the first
    time. A source of files goes by the settings of the session that it was made in, which all queries share: so one
    replay is planned at a time."""
    parallelism = None if replay is None else replay.decision.parallelism
    if parallelism is None:
        return lambda: None
    mine = _one_at_a_time.acquire(timeout=_PATIENCE)
    before = {key: spark.conf.get(key, None) for key in _KEYS}
    for key in _KEYS:
        spark.conf.set(key, str(parallelism))
    over = threading.Event()

    def release() -> None:
        if over.is_set():
            return
        over.set()
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
        if mine:
            _one_at_a_time.release()

    return release
