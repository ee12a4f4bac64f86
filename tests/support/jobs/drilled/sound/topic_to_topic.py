"""Sound: Kafka to Kafka, without end."""

from penstock import KafkaSink, KafkaSource
from tests.support.jobs.drilled.place import SERVERS, TOPIC, make_job

job = make_job("topic_to_topic")
rows = job.read(KafkaSource(TOPIC, servers=SERVERS, max_offsets_per_epoch=200), uid="numbers")
sink = KafkaSink("copies", servers=SERVERS, create_topic=True)
job.write(rows.selectExpr("key", "upper(CAST(value AS STRING)) AS value"), sink, uid="out")
