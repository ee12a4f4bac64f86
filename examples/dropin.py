"""A query that exists already becomes exactly-once by one line.

    KAFKA=localhost:9092 python examples/dropin.py

Before: `.foreachBatch(lambda batch, epoch: batch.write.format("kafka")…)`, which repeats rows after every crash.
"""

import os

from pyspark.sql import SparkSession

import penstock
from penstock import DataGenSource, KafkaSink

SERVERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINT = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples")) + "/dropin"
ROWS = int(os.environ.get("ROWS", 1_000_000))

spark = SparkSession.builder.appName("dropin").getOrCreate()  # or any session of yours
numbers = DataGenSource(ROWS, max_rows_per_epoch=max(1, ROWS // 5)).load(spark, "numbers")  # or any stream of yours
sink = KafkaSink(os.environ.get("NUMBERS", "numbers"), servers=SERVERS, create_topic=True)

query = (
    numbers.selectExpr("account AS key", "cast(id AS string) AS value")
    .writeStream.foreachBatch(penstock.exactly_once(sink, uid="numbers", checkpoint=CHECKPOINT))  # the one line
    .option("checkpointLocation", CHECKPOINT)
    .trigger(availableNow=True)
    .start()
)

if __name__ == "__main__":
    query.awaitTermination()
