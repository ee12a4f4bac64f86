"""The job that the demo kills: an ordinary Penstock job with a pass-through and a stateful output.

`python tests/support/demo/job.py FOLDER ROWS RATE` runs it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.deadline import polling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock import Job

ACCOUNTS = 500
#: The payments, for the generator; `result.true_payments` defines them once more, for the judge. Accounts come in no
#: simple order, and an epoch of a thousand rows has most of them.
COLUMNS: Mapping[str, str] = {
    "id": "id",
    "account": f"concat('acc-', lpad(cast(pmod(id * 7919 + id div 97, {ACCOUNTS}) AS string), 4, '0'))",
    "amount": "pmod(id * 48271 + 11, 10007)",
    "ts": "timestamp_millis(1767225600000 + id)",
}
#: A run of the demo lives for seconds: code that is compiled once and quickly starts in half the time.
_CONF = {"spark.driver.extraJavaOptions": "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def output_folder(folder: Path, name: str) -> Path:
    return folder / "out" / name


def build(folder: Path, rows: int, rate: float) -> Job:
    """The job, ready to run. An epoch has at most half a second of the rate, so that the rows that pile up while Spark
    starts stay several epochs."""
    from pyspark.sql import functions as f

    from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy

    checkpoints = Checkpoints(interval="200ms", storage=(folder / "checkpoints").as_uri())
    # The demo must see a job that cannot continue end, not retry for ever.
    restart = RestartStrategy.fixed_delay(attempts=3, delay="1s")
    job = Job("demo", checkpoints=checkpoints, restart=restart, conf=_CONF)
    source = DataGenSource(rows=rows, rate=rate, columns=COLUMNS, max_rows_per_epoch=max(1, int(rate / 2)))
    payments = job.read(source, uid="payments")
    job.write(payments, FileSink(str(output_folder(folder, "payments"))), uid="payments")
    totals = payments.groupBy("account").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
    job.write(totals, FileSink(str(output_folder(folder, "totals"))), uid="totals", output_mode="update")
    return job


def run(folder: Path, rows: int, rate: float) -> None:
    """Run the job; should the demo be killed, end it cleanly, so that no job runs on unseen."""
    parent = os.getppid()

    def has_parent() -> bool:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
        return os.getppid() == parent

    with polling("demo-parent", 1.0, has_parent):
        build(folder, rows, rate).run()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
