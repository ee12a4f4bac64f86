"""One epoch of a plan with a shuffle, on a cluster of two executors, one of which dies with a prepared writer.

python shuffled.py CONFIG.json. Prints one line of JSON at its end: what Spark did, and what was open when.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import KafkaSink
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.engine.attempt import Attempt
from penstock.engine.output_jobs import EachEpoch
from penstock.engine.preparation import Assignments, EpochOutputs
from penstock.processes import stat_fields

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS, ROWS, DOOMED = 4, 400, 2


@dataclass(frozen=True, repr=False)
class Deadly(KafkaSink):
    """Its writer of partition `DOOMED` kills the executor it runs in, once it is prepared; only the first time."""

    marker: str = field(default="", kw_only=True)

    def open_writer(self, scope: WriterScope) -> Any:
        opened = super().open_writer(scope)
        return DeadlyWriter(opened, self.marker) if scope.partition == DOOMED else opened

    def __reduce__(self) -> tuple[Any, ...]:
        return (Deadly._made, ({one.name: getattr(self, one.name) for one in fields(self)},))

    @staticmethod
    def _made(given: Mapping[str, Any]) -> Deadly:
        return Deadly(**given)


class DeadlyWriter:
    def __init__(self, opened: Any, marker: str) -> None:
        self._opened, self._marker = opened, marker

    def write(self, batch: pa.RecordBatch) -> None:
        self._opened.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        payload: Mapping[str, Any] = self._opened.pre_commit()
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return payload
        daemon = os.getppid()
        jvm = int(stat_fields(daemon)[1])  # its parent
        os.kill(jvm, signal.SIGKILL)
        time.sleep(600)  # ends with its executor
        raise AssertionError

    def abort(self) -> None:
        self._opened.abort()


def main(servers: str, topic: str, job: str, folder: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
        .config("spark.local.dir", folder)
        .config("spark.worker.dir", folder)
        .getOrCreate()
    )
    sink = Deadly(topic, servers=servers, marker=f"{folder}/killed")
    committer = sink.open_committer(SinkScope(job, "out", 1))
    frame = spark.range(0, ROWS, numPartitions=PARTITIONS).repartition(PARTITIONS, "id")
    barrier: Any = None
    attempt = Attempt("out", 0, 1, 1, frame, barrier, EachEpoch())
    outputs = EpochOutputs(attempt, {"out": sink}, Assignments(job, attempt, None, {"out": committer}, None))
    outputs.write(frame.selectExpr("cast(id AS string) AS value"), "out")
    tracker: Any = spark.sparkContext.statusTracker()
    stages = [s for j in tracker.getJobIdsForGroup(None) for s in tracker.getJobInfo(j).stageIds]
    found = [one.name for one in committer.leftovers(Deadline(30)) or ()]
    sealed = committer.seal(outputs.committables, Deadline(30))
    outcomes = committer.commit(0, sealed, Deadline(30))
    swept = committer.abort_dangling(sealed, Deadline(30)) if outputs.strays else 0
    left = [one.name for one in committer.leftovers(Deadline(30)) or ()]
    told = {
        "attempts": tracker.getStageInfo(max(stages)).currentAttemptId + 1,
        "strays": outputs.strays,
        "writers": sorted(one.writer for one in outputs.committables),
        "open": len(found),
        "committed": sorted(outcome.value for outcome in outcomes.values()),
        "swept": swept,
        "left": left,
    }
    committer.close()
    spark.stop()
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(Path(sys.argv[1]).read_text()))) + "\n")
