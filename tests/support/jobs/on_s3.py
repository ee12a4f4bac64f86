"""Numbers into files, with checkpoints and files on S3: `python on_s3.py CONFIG.json`, which holds Spark's settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from tests.support.run_job import Numbers

ROWS, PER_EPOCH = 1_000, 100
CHECKPOINTS, FILES = "s3a://lake/checkpoints", "s3://lake/files"


def main(config: Path) -> None:
    job = Job(
        "lake",
        checkpoints=Checkpoints(storage=CHECKPOINTS),
        conf=json.loads(config.read_text()),
        restart=RestartStrategy.fixed_delay(attempts=5, delay="50ms"),
    )
    rows = job.read(Numbers(ROWS, {"id": "id"}, per_epoch=PER_EPOCH), uid="numbers")
    job.write(rows, FileSink(FILES), uid="files")
    job.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
