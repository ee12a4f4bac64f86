"""Planted: failOnDataLoss=false in a stream of Spark's own, beside one that would stop."""

from penstock import KafkaSource
from tests.support.jobs.drilled.place import SERVERS, TOPIC, files, make_job

job = make_job("skips_lost_rows")
fresh = job.read(KafkaSource(TOPIC, servers=SERVERS), uid="fresh").select("value")
kafka = {"kafka.bootstrap.servers": SERVERS, "subscribe": f"{TOPIC}-old", "failOnDataLoss": "false"}
older = job.read(job.spark.readStream.format("kafka").options(**kafka), uid="older", replayable=True).select("value")
job.write(older.union(fresh).selectExpr("CAST(value AS STRING) AS value"), files(), uid="out")
