"""One variant of the Kafka benchmark, in a process of its own; prints one JSON line at its end."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory import PeakMemory, resident_megabytes
from penstock import Checkpoints, DataGenSource, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Mapping

WARM_UP = 2
TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}


def spark_sink(tuned: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Spark's own source and sink, on the same session settings as ours."""
    spark = session("bench", conf={}, jars=("spark-kafka",), local_storage=True)
    options = {
        "kafka.bootstrap.servers": given["servers"],
        "subscribe": given["source"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(given["epoch"]),
        **(TUNED if tuned else {}),
    }
    frame = spark.readStream.format("kafka").options(**options).load().select("key", "value")
    query = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", given["servers"])
        .option("topic", given["target"])
        .option("checkpointLocation", given["checkpoint"])
        .start()
    )
    finished: list[tuple[float, int]] = []
    seen = -1
    with PeakMemory() as peak:
        while sum(rows for _, rows in finished) < given["rows"]:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > seen:
                for one in query.recentProgress:
                    if one["batchId"] > seen and one["numInputRows"] > 0:
                        seen = one["batchId"]
                        finished.append((time.monotonic(), one["numInputRows"]))
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
            time.sleep(0.01)
    query.stop()
    return {**rates(finished), "peak_megabytes": peak.megabytes}


def penstock_sink(tuned: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    checkpoints = Checkpoints(storage=given["checkpoint"], **given.get("checkpoints", {}))
    job = Job("bench", checkpoints=checkpoints, restart=RestartStrategy.none(), conf=given.get("conf", {}))
    source = KafkaSource(given["source"], servers=given["servers"], max_offsets_per_epoch=given["epoch"], tuned=tuned)
    frame = job.read(source, uid="in").select("key", "value")
    job.write(frame, KafkaSink(given["target"], servers=given["servers"]), uid="out")
    watch = Watch(job, given["rows"])
    with PeakMemory() as peak:
        job.run(on_event=watch)
    return {
        **rates(watch.finished),
        "decided_to_visible_ms": watch.visible_ms,
        "peak_megabytes": peak.megabytes,
        "inflight_folder": any(Path(given["checkpoint"]).rglob("inflight")),
    }


def memory(given: Mapping[str, Any]) -> dict[str, Any]:
    """Many small epochs; the driver's memory at several moments, the JVM's after a collection."""
    job = Job("bench", checkpoints=Checkpoints(storage=given["checkpoint"]), restart=RestartStrategy.none())
    source = DataGenSource(given["rows"], max_rows_per_epoch=given["epoch"], partitions=4)
    frame = job.read(source, uid="in").selectExpr("account AS key", "to_json(struct(*)) AS value")
    job.write(frame, KafkaSink(given["target"], servers=given["servers"]), uid="out")
    watch = Watch(job, given["rows"])
    python: list[float] = []
    heap: list[float] = []
    epoch_ms: list[float] = []
    every = max(1, given["rows"] // given["epoch"] // 10)

    def sample(event: Mapping[str, Any]) -> None:
        watch(event)
        if event["event"] == "completed":
            epoch_ms.append(event["seconds"] * 1000)
        if event["event"] == "committed" and (event["epoch"] + 1) % every == 0:
            runtime: Any = job.spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
            runtime.gc()
            heap.append((runtime.totalMemory() - runtime.freeMemory()) / 1e6)
            python.append(resident_megabytes())

    job.run(on_event=sample)
    return {
        "epochs": len(watch.finished),
        "python_megabytes": python,
        "heap_megabytes": heap,
        "epoch_ms": epoch_ms,
        "visible_p50_ms": statistics.median(watch.visible_ms),
    }


class Watch:
    """Follows a job's events and stops it when all rows are visible."""

    def __init__(self, job: Job, rows: int) -> None:
        self._job, self._left, self._decided = job, rows, 0.0
        self.finished: list[tuple[float, int]] = []
        self.visible_ms: list[float] = []

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "decided":
            self._decided = event["time"]
        elif event["event"] == "committed" and event["rows"]:
            self.visible_ms.append((event["time"] - self._decided) * 1000)
            self._visible(event["rows"])
        elif event["event"] == "drained":
            self._visible(event["rows"])

    def _visible(self, rows: int) -> None:
        self.finished.append((time.monotonic(), rows))
        self._left -= rows
        if self._left <= 0:
            self._job.stop()


def rates(finished: list[tuple[float, int]]) -> dict[str, Any]:
    """Rows a second from the end of the warm-up to the end of the last epoch."""
    (begin, _), *rest = finished[WARM_UP - 1 :]
    return {"rows_per_second": sum(rows for _, rows in rest) / (rest[-1][0] - begin), "epochs": len(finished)}


if __name__ == "__main__":
    engine, settings, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    Path(given["checkpoint"]).mkdir(parents=True, exist_ok=True)
    if settings == "memory":
        print(json.dumps(memory(given)))
    else:
        print(json.dumps((spark_sink if engine == "spark" else penstock_sink)(settings == "tuned", given)))
