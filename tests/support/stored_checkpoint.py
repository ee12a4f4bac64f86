"""A checkpoint and savepoints as a version leaves them: the jobs that made `tests/data/checkpoint-VERSION.tar.gz`.

    python -m tests.support.stored_checkpoint make tests/data/checkpoint-VERSION.tar.gz    stores those of a new version

What is stored is never made anew: a version that cannot read it any more needs a migration, not another fixture. It is
an archive because folders that are empty count, too. In it:

- `savepoints/native`, `savepoints/canonical`: of the job `stored`, two queries, one of them with state.
- `checkpoints/stored`: begun from the native savepoint, stopped, started again and killed when an epoch was decided.
- `checkpoints/behind`: unaligned, killed when the delivery of an epoch from the in-flight log was decided.
- `out`: what was visible and what was staged then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS, PER_EPOCH = 10, 50


class Files(FileSink):
    def describe(self) -> str:
        return "files"  # where they are on this machine is nobody's business


def stored(folder: Path, spark: SparkSession | None = None, sink: type[FileSink] = FileSink) -> Job:
    """Rows as they are, and how many there are by key."""
    checkpoints = _checkpoints(folder)
    job = Job("stored", checkpoints=checkpoints, restart=RestartStrategy.none(), spark=spark, conf=_conf(spark))
    rows = job.read(_rows(), uid="rows")
    job.write(rows, sink(str(folder / "out" / "copies")), uid="copies")
    again = job.read(_rows(), uid="again")
    counts = again.groupBy("key").count()
    job.write(counts, sink(str(folder / "out" / "counts")), uid="counts", output_mode="update")
    return job


def behind(folder: Path, spark: SparkSession | None = None, sink: type[FileSink] = FileSink) -> Job:
    """Rows as they are, through the in-flight log."""
    checkpoints = _checkpoints(folder, unaligned=True)
    job = Job("behind", checkpoints=checkpoints, restart=RestartStrategy.none(), spark=spark, conf=_conf(spark))
    job.write(job.read(_rows(), uid="rows"), sink(str(folder / "out" / "behind")), uid="late")
    return job


def _checkpoints(folder: Path, **more: Any) -> Checkpoints:
    return Checkpoints(storage=str(folder / "checkpoints"), interval="500ms", **more)


def _rows() -> DataGenSource:
    return DataGenSource(columns={"id": "id", "key": f"id % {KEYS}"}, max_rows_per_epoch=PER_EPOCH)


def _conf(spark: SparkSession | None) -> dict[str, str] | None:
    """Settings for a session of the job's own, which is patient with a busy machine."""
    if spark is not None:
        return None
    return {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "120s",
    }


def _run(step: str, folder: Path) -> None:
    """One run, in this process: `savepoints` of a first one, `restored` from one of them, `killed`, or `behind`."""
    job = (behind if step == "behind" else stored)(folder, sink=Files)
    events: list[Any] = []
    thread = threading.Thread(target=lambda: job.run(on_event=events.append), daemon=True)
    thread.start()
    while not all(_completed(events, query) >= 3 for query in ("copies", "counts")):
        assert thread.is_alive(), "the job ended by itself"
        time.sleep(0.1)
    if step == "savepoints":
        for kind in ("native", "canonical"):
            path = job.savepoint(f"{folder}/savepoints-{kind}", kind=kind)
            (folder / f"{kind}.path").write_text(str(path))
    job.stop()
    thread.join()


def _completed(events: list[Any], query: str) -> int:
    return sum(event["event"] == "completed" and event["query"] == query for event in list(events))


def _make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name) / "last", Path(name) / "first"
        folder.mkdir()
        first.mkdir()
        _start("savepoints", first)
        native = (first / "native.path").read_text()
        _start("restored", folder, PENSTOCK_OPTIONS=json.dumps({"execution.state-recovery.path": native}))
        _start("killed", folder, PENSTOCK_FAILPOINTS="epoch.decided=crash@5")
        _start("behind", folder, PENSTOCK_FAILPOINTS="drain.decided=crash@3")
        for kind in ("native", "canonical"):
            shutil.copytree((first / f"{kind}.path").read_text(), folder / "savepoints" / kind)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(folder, "")


def _start(step: str, folder: Path, **environment: str) -> None:
    command = [sys.executable, "-m", __spec__.name, step, str(folder)]
    status = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    killed = "PENSTOCK_FAILPOINTS" in environment
    assert (status < 0) == killed, f"{step} ended with {status}"


if __name__ == "__main__":
    if sys.argv[1] == "make":
        _make(Path(sys.argv[2]))
    else:
        _run(sys.argv[1], Path(sys.argv[2]))
