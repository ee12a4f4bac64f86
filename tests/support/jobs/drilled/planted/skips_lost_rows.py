"""Planted: failOnDataLoss=false in a stream of Spark's own."""

from tests.support.jobs.drilled.place import SERVERS, TOPIC, files, make_job

job = make_job("skips_lost_rows")
kafka = {"kafka.bootstrap.servers": SERVERS, "subscribe": TOPIC, "failOnDataLoss": "false"}
rows = job.read(job.spark.readStream.format("kafka").options(**kafka), uid="numbers", replayable=True)
job.write(rows.selectExpr("CAST(value AS STRING) AS value"), files(), uid="out")
