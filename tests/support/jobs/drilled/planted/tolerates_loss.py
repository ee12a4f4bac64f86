"""Planted: failOnDataLoss=false in a KafkaSource."""

from penstock import KafkaSource
from tests.support.jobs.drilled.place import SERVERS, TOPIC, files, make_job

job = make_job("tolerates_loss")
source = KafkaSource(TOPIC, servers=SERVERS, options={"failOnDataLoss": "false"})
job.write(job.read(source, uid="numbers").selectExpr("CAST(value AS STRING) AS value"), files(), uid="out")
