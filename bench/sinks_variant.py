"""One system of the sinks benchmark: both sides in turn, in one session; what to do comes as JSON, and so do results.

Every run is a query of its own with two epochs; the second counts. Its time is what Spark says `addBatch` took,
for both sides: from the moment the batch is handed over until its rows are written, and for us visible.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock import Checkpoints, FileSource, Job, RestartStrategy
from penstock.spark.session import session
from penstock.supply.jars import jar_set
from sinks_input import SCHEMA
from sinks_targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

MEASURED = 1  # the epoch that counts


class Clock(StreamingQueryListener):
    """What Spark says each batch took."""

    def __init__(self) -> None:
        self._heard = threading.Condition()
        self._told: dict[int, Mapping[str, int]] = {}

    def start(self) -> None:
        self._told = {}

    def measured(self) -> Mapping[str, int]:
        """Milliseconds of the steps of the epoch that counts."""
        with self._heard:
            if not self._heard.wait_for(lambda: MEASURED in self._told, timeout=60):
                raise SystemExit("Spark did not tell how long the epoch took")
            return self._told[MEASURED]

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        with self._heard:
            self._told[event.progress.batchId] = dict(event.progress.durationMs)
            self._heard.notify_all()

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802
    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802
    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802


class Sides:
    def __init__(self, spark: SparkSession, target: Target, given: Mapping[str, Any]) -> None:
        self._spark, self._target, self._given = spark, target, given
        self._clock = Clock()
        spark.streams.addListener(self._clock)

    def run(self, side: str, number: int) -> dict[str, Any]:
        name = f"bench_{side}_{number}"
        checkpoint = str(Path(self._given["folder"]) / "checkpoints" / name)
        self._target.prepare(name)
        self._clock.start()
        more = self._penstock(checkpoint) if side == "penstock" else self._sparks(checkpoint)
        took = self._clock.measured()
        rows, total = self._target.found()
        wanted = self._given["all_rows"]
        if (rows, total) != (wanted, wanted * (wanted - 1) // 2):
            raise SystemExit(f"{side} wrote {rows:,} rows, {wanted:,} were read, or their ids do not add up")
        seconds = took["addBatch"] / 1000
        return {
            "rows_per_second": round(self._given["rows"] / seconds),
            "seconds": seconds,
            "trigger_seconds": took["triggerExecution"] / 1000,
            **more,
        }

    def _penstock(self, checkpoint: str) -> dict[str, Any]:
        job = Job(
            "bench", checkpoints=Checkpoints(storage=checkpoint), restart=RestartStrategy.none(), spark=self._spark
        )
        source = FileSource(
            self._given["input"],
            format="parquet",
            schema=SCHEMA,
            bounded=True,
            max_files_per_epoch=self._given["files"],
        )
        job.write(job.read(source, uid="in"), self._target.sink(), uid="out")
        events: list[Mapping[str, Any]] = []
        job.run(on_event=events.append)
        mine = {event["event"]: event for event in events if event.get("epoch") == MEASURED}
        return {
            "writers": mine["committed"]["writers"],
            "precommit_ms": round(mine["precommitted"]["seconds"] * 1000),
            "commit_ms": round(mine["committed"]["commit_ms"], 1),
        }

    def _sparks(self, checkpoint: str) -> dict[str, Any]:
        frame = (
            self._spark.readStream.format("parquet")
            .schema(SCHEMA)
            .option("maxFilesPerTrigger", self._given["files"])
            .load(self._given["input"])
        )
        writer = self._target.spark(frame).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return {}


def main() -> None:
    given = json.load(sys.stdin)
    kind: Any = TARGETS[given["target"]]
    jars = ",".join(str(path) for one in kind.jars for path in jar_set(one))
    conf = {"spark.driver.memory": "2g", **({"spark.jars": jars} if jars else {}), **kind.conf}
    sides = Sides(session("bench", conf=conf, jars=(), local_storage=True), kind(given), given)
    rounds: dict[str, list[dict[str, Any]]] = {"penstock": [], "spark": []}
    for number in range(given["warm_up"] + given["repeat"]):
        for side, own in rounds.items():
            measured = sides.run(side, number)
            if number >= given["warm_up"]:
                own.append(measured)
    print(json.dumps({"spark_writer": kind.spark_writer, "rounds": rounds}))


if __name__ == "__main__":
    main()
