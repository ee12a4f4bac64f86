"""A real-time query through lanes, without a job around it: opens the lanes as generation GENERATION, starts Spark at
their marks, and runs until it is killed or a line comes in.

    python -m tests.support.jobs.lanes '{"servers": …, "source": …, "sink": …, "uid": …, "generation": 1, …}'

Prints a line of JSON for each thing that happens: `opened`, `started`, `failed`, `stopped`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from typing import Any

from penstock.contracts.lanes import Lane, Mark
from penstock.contracts.sink import SinkScope
from penstock.sinks.kafka import KafkaSink
from penstock.spark.executors import fault_in
from penstock.supply.jars import jar_set

QUERY = "22222222-2222-2222-2222-222222222222"
POSITIONS = ("__penstock_topic", "__penstock_partition", "__penstock_offset")


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)  # noqa: T201


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    asked = json.loads(sys.argv[1])
    servers, source, generation = asked["servers"], asked["source"], asked["generation"]
    sink = KafkaSink(asked["sink"], servers=asked.get("through", servers), options=asked.get("options", {}))
    lanes = sink.open_lanes(SinkScope("lanes", asked["uid"], generation), QUERY)
    every = [Lane(source, number) for number in range(asked["partitions"])]

    def begin(lane: Lane, found: Mark | None) -> Mark:
        at = found or Mark(QUERY, 0, 0)
        return Mark(QUERY, generation, at.offset, at.part, at.digest)

    lanes.prepare({source: asked["partitions"]})
    marks = lanes.open_all(every, begin)
    say("opened", marks={str(lane): [mark.offset, mark.part] for lane, mark in marks.items()})
    properties = {"penstock.lane.trace": asked.get("trace"), "penstock.lane.failpoint": asked.get("failpoint")}
    options = " ".join(f"-D{name}={value}" for name, value in properties.items() if value)
    jars = [*jar_set("spark-kafka"), *sink.lane_jars()]
    spark = (
        SparkSession.builder.master(asked.get("master", f"local[{asked['partitions'] + 2}]"))
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{options} {asked.get('java', '')}".strip())
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    starting = {source: {str(lane.partition): mark.offset for lane, mark in marks.items()}}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    reader = reader.option("startingOffsets", json.dumps(starting)).option("kafka.isolation.level", "read_committed")
    reader = reader.option("kafka.fetch.max.wait.ms", "8").option("kafka.fetch.min.bytes", "65536")
    rows = reader.load().select(
        "*", *(f.col(name).alias(ours) for name, ours in zip(("topic", "partition", "offset"), POSITIONS, strict=True))
    )
    several = asked.get("several", False)
    if several:  # row n becomes n % 4 rows, and every seventh none
        number = f.get_json_object(f.col("value").cast("string"), "$.id").cast("int")
        rows = rows.where(number % 7 != 3).withColumn("k", f.explode(f.expr("sequence(0, 3)")))
        rows = rows.where(f.col("k") < number % 4)
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
    say("started")
    asked_to_stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), asked_to_stop.set()), daemon=True).start()
    while query.isActive and not asked_to_stop.wait(0.05):
        pass
    if asked_to_stop.is_set():
        begun = time.monotonic()
        query.stop()
        took = time.monotonic() - begun
        jvm: Any = spark._jvm
        threads = jvm.java.lang.Thread
        while "penstock-lane-" in threads.getAllStackTraces().keySet().toString():
            time.sleep(0.01)
        gone = time.monotonic() - begun
        newest = {str(lane): [mark.offset, mark.part] for lane, mark in lanes.marks().items()}
        say("stopped", seconds=took, gone=gone, marks=newest)
    else:
        text = str(query.exception())
        fault = fault_in(text)
        say("failed", error=type(fault).__name__, text=str(fault) if fault else text)
    lanes.close()


if __name__ == "__main__":
    main()
