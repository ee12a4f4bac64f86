"""The job that the demo kills: an ordinary Penstock job with a pass-through and a stateful output.

`python -m penstock.dev.demo.job CONFIG.json` runs it, with Java started ahead from its second run on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.supply import early

if TYPE_CHECKING:
    from penstock import Job

#: A run of the demo lives for seconds: code that is compiled once and quickly starts in half the time.
_CONF = {"spark.driver.extraJavaOptions": "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True, slots=True)
class JobConfig:
    """All that the job has to know."""

    folder: str
    rows: int
    rate: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> JobConfig:
        return cls(**json.loads(path.read_text()))

    @property
    def rows_per_epoch(self) -> int:
        """At most half a second of the rate, so that the rows that pile up while Spark starts stay several epochs."""
        return max(1, int(self.rate / 2))


def output_folder(folder: str | Path, name: str) -> Path:
    return Path(folder) / "out" / name


def build(config: JobConfig) -> Job:
    """The job, ready to run."""
    from pyspark.sql import functions as f

    from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy
    from penstock.dev.demo.truth import COLUMNS

    checkpoints = Checkpoints(interval="200ms", storage=(Path(config.folder) / "checkpoints").as_uri())
    # The demo must see a job that cannot continue end, not retry for ever.
    restart = RestartStrategy.fixed_delay(attempts=3, delay="1s")
    job = Job("demo", checkpoints=checkpoints, restart=restart, conf=_CONF)
    source = DataGenSource(
        rows=config.rows, rate=config.rate, columns=COLUMNS, max_rows_per_epoch=config.rows_per_epoch
    )
    rows = job.read(source, uid="payments")
    job.write(rows, FileSink(str(output_folder(config.folder, "payments"))), uid="payments")
    totals = rows.groupBy("account").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
    job.write(totals, FileSink(str(output_folder(config.folder, "totals"))), uid="totals", output_mode="update")
    return job


def _end_with_parent() -> None:
    """Stop cleanly should the demo be killed, so that no job runs on unseen."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="demo-parent", daemon=True).start()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    early.begin(path)
    _end_with_parent()
    build(JobConfig.read(path)).run()
