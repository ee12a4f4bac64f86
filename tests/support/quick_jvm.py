"""JVMs of tests start in half the time: one job runs in peace, and the JVM archives the classes it loaded for all later
ones, which also do without the better compiler; none of them lives long enough to gain from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from penstock.naming import user_cache
from penstock.supply.java import find_java

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


def options() -> str:
    """Java's options, with an archive that is made once, whoever asks first, and used by all later runs. An archive
    that does not fit is left aside by the JVM."""
    archive = _archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
                aside = archive.with_suffix(".new")
                environment = {**os.environ, VARIABLE: f"{PLAIN} -XX:ArchiveClassesAtExit={aside}"}
                command = [sys.executable, "-c", _JOB, folder]
                subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
                with contextlib.suppress(FileNotFoundError):  # this Java makes none: slower, not wrong
                    aside.replace(archive)
    return f"{PLAIN} -XX:SharedArchiveFile={archive}"


def _archive() -> Path:
    """In the user's cache; another Java or another PySpark has one of its own."""
    import pyspark

    java = find_java()
    modules = java.home / "lib" / "modules"
    age = modules.stat().st_mtime_ns if modules.exists() else 0  # an updated Java keeps its path
    key = f"{java.home}:{java.version}:{age}:{pyspark.__file__}:{pyspark.__version__}:{PLAIN}:{_JOB}"
    return user_cache() / "tests" / f"classes-{zlib.crc32(key.encode()):08x}.jsa"


def begin() -> subprocess.Popen[bytes]:
    """Make the archive beside what else is done; who asks for it before it is there waits."""
    return subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT)


if __name__ == "__main__":
    options()
