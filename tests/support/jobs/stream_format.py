"""The query that fault tests kill, written with `format("penstock")`: Kafka → Kafka, a copy. It is started again in
the same driver a few times.

python stream_format.py CONFIG.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock
from penstock.supply.jars import jar_set
from penstock.supply.versions import KAFKA_JARS
from tests.support.jobs.pipeline import Pipeline


def main(config: Pipeline) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(config.master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(map(str, jar_set(KAFKA_JARS)))).config(
        "spark.driver.memory", "512m"
    )
    builder = builder.config("spark.python.daemon.module", "penstock.spark.python_daemon")
    for name, value in config.conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(penstock.StreamSink)
    options = {"kafka.bootstrap.servers": config.servers, "subscribe": config.source, "startingOffsets": "earliest"}
    rows = (
        spark.readStream.format("kafka").options(**options).load().selectExpr("key", "cast(value AS string) AS value")
    )
    writer = (
        rows.writeStream.format("penstock")
        .option("sink", "kafka")
        .option("servers", config.sink_servers or config.servers)
        .option("topic", config.copy_to or "")
        .option("transaction_timeout", config.transaction_timeout)
        .option("job", config.name)
        .option("uid", "copy")
        .option("timeout", config.timeout)
        .option("commit_timeout", config.commit_timeout)
        .option("checkpointLocation", f"{config.storage}/{config.name}/copy/spark")
        .option("ledger", f"{config.storage}/ledgers")
    )
    for _ in range(config.restarts):
        query = writer.start()
        try:
            query.awaitTermination()
        except Exception as error:
            sys.stderr.write(f"QUERY FAILED: {error}\n")


if __name__ == "__main__":
    main(Pipeline(**json.loads(Path(sys.argv[1]).read_text())))
    os._exit(1)  # out of restarts
