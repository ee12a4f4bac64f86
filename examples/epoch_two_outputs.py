"""One epoch, two outputs: alerts to Kafka and everything to Parquet, both visible or neither.

    KAFKA=localhost:9092 python examples/epoch_two_outputs.py

A reader of both never sees one without the other once an epoch is complete.
"""

import os

from pyspark.sql import DataFrame

from penstock import Checkpoints, DataGenSource, Epoch, FileSink, Job, KafkaSink

SERVERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))
ROWS = int(os.environ.get("ROWS", 1_000_000))

job = Job("split", checkpoints=Checkpoints(storage=CHECKPOINTS))
payments = job.read(DataGenSource(ROWS, max_rows_per_epoch=max(1, ROWS // 5)), uid="payments")

alerts = KafkaSink(os.environ.get("ALERTS", "alerts"), servers=SERVERS, create_topic=True)
archive = FileSink(os.environ.get("ARCHIVE", os.path.expanduser("~/penstock-examples/archive")))


@job.epoch(payments, sinks={"alerts": alerts, "archive": archive})
def split(batch: DataFrame, epoch: Epoch) -> None:
    large = batch.where("amount > 9000")
    epoch.write(large.selectExpr("account AS key", "to_json(struct(*)) AS value"), alerts)
    epoch.write(batch, archive)


if __name__ == "__main__":
    job.run()
