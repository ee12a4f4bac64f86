"""A task with Spark's own source and sink, at least once, on the session settings of Penstock: python task_spark.py
TASK.json"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flink_sql import PRODUCER
from penstock.sources.kafka import TUNED
from penstock.spark.session import session
from tasks import Task, shape


def main(task: Task) -> None:
    spark = session(task.target, conf={}, jars=("spark-kafka",), local_storage=True)
    reading = {
        "subscribe": task.source,
        "startingOffsets": "earliest",
        "kafka.bootstrap.servers": task.servers,
        "kafka.isolation.level": "read_committed",
        **{f"kafka.{name}": value for name, value in TUNED.items()},
    }
    if task.epoch_rows is not None:
        reading["maxOffsetsPerTrigger"] = str(task.epoch_rows)
    writing = {
        "topic": task.target,
        "checkpointLocation": f"{task.folder}/checkpoint",
        "kafka.bootstrap.servers": task.servers,
        **{f"kafka.{name}": value for name, value in PRODUCER.items()},
    }
    rows = spark.readStream.format("kafka").options(**reading).load()
    writer = shape(task, rows).writeStream.format("kafka").options(**writing)
    writer = writer.outputMode("update" if task.work == "keys" else "append")
    if task.interval is not None:
        writer = writer.trigger(processingTime=f"{round(task.interval * 1000)} milliseconds")
    query = writer.start()
    Path(task.folder, "events.jsonl").write_text(json.dumps({"event": "opened", "time": time.time()}) + "\n")
    query.awaitTermination()


if __name__ == "__main__":
    main(Task.read(sys.argv[1]))
