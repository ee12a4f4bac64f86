"""Large payments from one Kafka topic to another, exactly once.

    penstock dev kafka up
    penstock dev kafka produce payments --rows 5000 --rate 0
    penstock run -d examples/kafka_to_kafka.py
    penstock dev kafka consume alerts --rows 49

Kill it whenever you like and start it again: readers with isolation.level=read_committed see every alert exactly once.
"""

import os

from pyspark.sql import functions as f

from penstock import Checkpoints, Job, KafkaSink, KafkaSource

SERVERS = os.environ.get("KAFKA", "localhost:9092")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))

job = Job("payments", checkpoints=Checkpoints(interval="200ms", storage=CHECKPOINTS))

payments = job.read(KafkaSource(os.environ.get("PAYMENTS", "payments"), servers=SERVERS), uid="payments")
amount = f.get_json_object(f.col("value").cast("string"), "$.amount").cast("decimal(12,2)")
alerts = KafkaSink(os.environ.get("ALERTS", "alerts"), servers=SERVERS, create_topic=True)

job.write(payments.where(amount > 1000).select("key", "value"), alerts, uid="alerts")

if __name__ == "__main__":
    print(job.explain())
    job.run()  # until SIGTERM or Ctrl-C; the epoch under way is finished first
