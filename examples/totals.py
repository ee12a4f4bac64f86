"""Revenue per account and minute: a stateful query whose closed windows reach Kafka exactly once.

    KAFKA=localhost:9092 python examples/totals.py

Rows come out of order; a window is written once, when the watermark says that nothing more can belong to it.
"""

import os

from pyspark.sql import functions as f

from penstock import Checkpoints, DataGenSource, Job, KafkaSink

SERVERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))
ROWS = int(os.environ.get("ROWS", 1_000_000))

job = Job(
    "totals",
    checkpoints=Checkpoints(storage=CHECKPOINTS),
    conf={
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider"
    },
)

payments = job.read(DataGenSource(ROWS, max_rows_per_epoch=max(1, ROWS // 5)), uid="payments")
totals = (
    payments.withWatermark("ts", "10 seconds")
    .groupBy(f.window("ts", "1 minute"), f.substring("account", 1, 6).alias("branch"))
    .agg(f.sum("amount").alias("total"), f.count("*").alias("payments"))
)
rows = totals.select(
    f.col("branch").alias("key"),
    f.to_json(f.struct(f.col("window.start").alias("minute"), "branch", "total", "payments")).alias("value"),
)
sink = KafkaSink(os.environ.get("TOTALS", "totals"), servers=SERVERS, create_topic=True)
job.write(rows, sink, uid="totals", output_mode="append")

if __name__ == "__main__":
    job.run(on_event=lambda event: print(event) if event["event"] == "committed" else None)
