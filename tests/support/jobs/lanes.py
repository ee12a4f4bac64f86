"""Real-time queries through lanes, without a job around them, one after the other in one Spark session.

    python -m tests.support.jobs.lanes TRACE

Each line of input is a request in JSON: `{"run": 1, "servers": …, "source": …, "sink": …, "uid": …, "generation": 1,
…}` opens the lanes as that generation, starts Spark at their marks, and runs until `{"stop": 1}` comes or the query
fails. Prints a line of JSON for each thing that happens: `ready`, then with the number of the run `opened`, `started`,
and `failed` or `stopped`. The writers' traces begin with TRACE. A failpoint counts in the first run alone, because Java
reads it once.
"""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
import time
from typing import Any

from penstock.contracts.lanes import Lane, Mark
from penstock.contracts.sink import SinkScope
from penstock.sinks.kafka import KafkaSink
from penstock.spark.executors import fault_in
from penstock.spark.session import ensure_files, session

QUERY = "22222222-2222-2222-2222-222222222222"
POSITIONS = ("__penstock_topic", "__penstock_partition", "__penstock_offset")
SLOTS = 4


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)  # noqa: T201


def main() -> None:
    conf = {"spark.master": f"local[{SLOTS}]", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    spark = session("lanes", conf=conf, jars=("spark-kafka",), local_storage=True)
    ensure_files(spark, KafkaSink("t", servers="h:1").lane_jars())
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("penstock.lane.trace", sys.argv[1])
    say("ready")
    requests: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        requests.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (asked := requests.get()) is not None:
        if "run" in asked:  # a request to stop may come after the end
            jvm.java.lang.System.setProperty("penstock.lane.failpoint", asked.get("failpoint", ""))
            run(spark, asked, requests)


def run(spark: Any, asked: dict[str, Any], requests: queue.Queue[dict[str, Any] | None]) -> None:
    from pyspark.sql import functions as f

    number = asked["run"]
    servers, source, generation = asked["servers"], asked["source"], asked["generation"]
    sink = KafkaSink(asked["sink"], servers=asked.get("through", servers), options=asked.get("options", {}))
    lanes = sink.open_lanes(SinkScope("lanes", asked["uid"], generation), QUERY)
    every = [Lane(source, number) for number in range(asked["partitions"])]

    def begin(lane: Lane, found: Mark | None) -> Mark:
        at = found or Mark(QUERY, 0, 0)
        return Mark(QUERY, generation, at.offset, at.part, at.digest)

    lanes.prepare({source: asked["partitions"]})
    marks = lanes.open_all(every, begin)
    say("opened", run=number, marks={str(lane): [mark.offset, mark.part] for lane, mark in marks.items()})
    starting = {source: {str(lane.partition): mark.offset for lane, mark in marks.items()}}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    reader = reader.option("startingOffsets", json.dumps(starting)).option("kafka.isolation.level", "read_committed")
    reader = reader.option("kafka.fetch.max.wait.ms", "8").option("kafka.fetch.min.bytes", "65536")
    rows = reader.load().select(
        "*", *(f.col(name).alias(ours) for name, ours in zip(("topic", "partition", "offset"), POSITIONS, strict=True))
    )
    several = asked.get("several", False)
    if several:  # row n becomes n % 4 rows, and every seventh none
        given = f.get_json_object(f.col("value").cast("string"), "$.id").cast("int")
        rows = rows.where(given % 7 != 3).withColumn("k", f.explode(f.expr("sequence(0, 3)")))
        rows = rows.where(f.col("k") < given % 4)
        value = f.concat(f.col("value").cast("string"), f.lit(" "), f.col("k").cast("string")).cast("binary")
        if asked.get("differs"):
            value = f.concat(value, f.lit(str(generation)).cast("binary"))
    else:
        value = f.col("value")
    frame = rows.select(value.alias("value"), f.col("key"), *POSITIONS)
    writer = lanes.writer(spark, frame.columns, multiplies=several, latency_ms=asked.get("latency", 20))
    stream: Any = frame.writeStream.outputMode("update").option("checkpointLocation", tempfile.mkdtemp())
    stream = stream.trigger(realTime=asked.get("batch", "5 minutes"))
    stream._jwrite.foreach(writer)
    query = stream.start()
    say("started", run=number)
    if ends_by_itself(query, number, requests):
        text = str(query.exception())
        fault = fault_in(text)
        say("failed", run=number, error=type(fault).__name__, text=str(fault) if fault else text)
    else:
        query.stop()
        while "penstock-lane-" in spark._jvm.java.lang.Thread.getAllStackTraces().keySet().toString():
            time.sleep(0.01)
        newest = {str(lane): [mark.offset, mark.part] for lane, mark in lanes.marks().items()}
        say("stopped", run=number, marks=newest)
    lanes.close()


def ends_by_itself(query: Any, number: int, requests: queue.Queue[dict[str, Any] | None]) -> bool:
    """False where a request to stop comes first, or the input ends."""
    while query.isActive:
        try:
            asked = requests.get(timeout=0.05)
        except queue.Empty:
            continue
        if asked is None:
            requests.put(None)  # for the caller
            return False
        if asked == {"stop": number}:
            return False
    return True


if __name__ == "__main__":
    main()
