"""The job that the demo kills: an ordinary Penstock job with a pass-through and a stateful output."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from pyspark.sql import functions as f

from penstock import Checkpoints, DataGenSource, FileSink, Job, KafkaSink, KafkaSource, RestartStrategy
from penstock.dev.demo.job_process import JobConfig
from penstock.dev.demo.truth import COLUMNS

#: A run of the demo lives for seconds: code that is compiled once and quickly starts in half the time.
_CONF = {"spark.driver.extraJavaOptions": "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

_PAYMENT = "id bigint, account string, amount bigint"


def build(config: JobConfig) -> Job:
    """The job, ready to run."""
    folder = Path(config.folder)
    checkpoints = Checkpoints(interval="200ms", storage=(folder / "checkpoints").as_uri())
    # The demo wants to see a job that cannot go on end, not try for ever.
    restart = RestartStrategy.fixed_delay(attempts=3, delay="1s")
    job = Job("demo", checkpoints=checkpoints, restart=restart, conf=_CONF)
    if config.mode == "kafka":
        _on_kafka(job, config)
    else:
        _on_files(job, config, folder / "out")
    return job


def _on_files(job: Job, config: JobConfig, out: Path) -> None:
    source = DataGenSource(
        rows=config.rows, rate=config.rate, columns=COLUMNS, max_rows_per_epoch=config.rows_per_epoch
    )
    rows = job.read(source, uid="payments")
    job.write(rows, FileSink(str(out / "payments")), uid="payments")
    totals = rows.groupBy("account").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
    job.write(totals, FileSink(str(out / "totals")), uid="totals", output_mode="update")


def _on_kafka(job: Job, config: JobConfig) -> None:
    source = KafkaSource("payments", servers=config.servers, max_offsets_per_epoch=config.rows_per_epoch)
    messages = job.read(source, uid="payments")
    job.write(messages.select("key", "value"), KafkaSink("payments-out", servers=config.servers), uid="payments")
    rows = messages.select(f.from_json(f.col("value").cast("string"), _PAYMENT).alias("row")).select("row.*")
    totals = rows.groupBy("account").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
    shaped = totals.select(f.col("account").alias("key"), f.to_json(f.struct("account", "n", "total")).alias("value"))
    job.write(shaped, KafkaSink("totals-out", servers=config.servers), uid="totals", output_mode="update")


def end_with_parent() -> None:
    """Stop cleanly should the demo die without a word, so that no job runs on unseen."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="demo-parent", daemon=True).start()
