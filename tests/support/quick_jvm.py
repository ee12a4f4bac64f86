"""JVMs of tests start in half the time: one job runs in peace, and the JVM archives the classes it loaded for all later
ones, which also do without the better compiler; none of them lives long enough to gain from it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

VARIABLE = "SPARK_SUBMIT_OPTS"  # Spark adds it to Java's options, and says nothing of it
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"

_JOB = """
import sys
from penstock import Checkpoints, DataGenSource, FileSink, Job

job = Job("classes", checkpoints=Checkpoints(storage=sys.argv[1]), conf={"spark.sql.shuffle.partitions": "2"})
rows = job.read(DataGenSource(1000), uid="rows")
job.write(rows.groupBy("account").count(), FileSink(sys.argv[1] + "/counts"), uid="counts", output_mode="update")
job.run()
"""


def options(folder: Path) -> str:
    """Java's options, with an archive that is made once in `folder`, whoever asks first. An archive that does not fit
    is left aside by the JVM."""
    archive = folder / "classes.jsa"
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = {**os.environ, VARIABLE: f"{PLAIN} -XX:ArchiveClassesAtExit={archive}"}
            command = [sys.executable, "-c", _JOB, str(folder / "classes")]
            subprocess.run(command, env=made, check=True, timeout=300, capture_output=True)
    return f"{PLAIN} -XX:SharedArchiveFile={archive}"


def begin(folder: Path) -> subprocess.Popen[bytes]:
    """Make the archive beside what else is done; who asks for it before it is there waits."""
    return subprocess.Popen([sys.executable, "-m", __name__, str(folder)], cwd=ROOT)


if __name__ == "__main__":
    options(Path(sys.argv[1]))
