"""An archive of the classes that a driver's JVM loads (class data sharing): drivers of tests start in less time.

    python -m tests.support.class_archive     writes it, unless it is there; `make setup` does

It belongs to one Java and one PySpark. Java ignores one that does not fit.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

from penstock.naming import user_cache
from penstock.storage.private import only_one, own_folder
from penstock.supply.java import find_java

_SECONDS = 180.0  # it takes half a minute; a busy machine does without
_REHEARSE = """
import sys
from penstock.spark.session import session
from penstock.spark.warm_up import warm_up
spark = session("rehearsal", conf={"spark.master": "local[2]"}, jars=[], local_storage=True)
process = spark.sparkContext._gateway.proc
warm_up(spark)
spark.stop()
process.stdin.close()  # Java ends, and archives what it has loaded
process.wait()
"""


def archive_path() -> Path:
    """Where it is or will be."""
    java, spark = find_java(), find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars, modules = Path(spark.origin).with_name("jars"), java.home / "lib" / "modules"
    changes = [path.stat().st_mtime_ns for path in (jars, modules) if path.exists()]
    return user_cache() / "java" / f"tests-{zlib.crc32(f'{java.home} {jars} {changes}'.encode()):08x}.jsa"


def archive_options() -> list[str]:
    """By which a JVM starts from it, where it is there."""
    path = archive_path()
    return ["-Xlog:disable", "-Xshare:auto", f"-XX:SharedArchiveFile={path}"] if path.exists() else []


def write_archive() -> None:
    path = archive_path()
    aside = own_folder(path.parent) / f"{path.stem}.aside"
    with only_one(path.with_suffix(".lock")):
        if not path.exists():
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            environment["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={aside}"
            command = [sys.executable, "-c", _REHEARSE]
            with contextlib.suppress(subprocess.SubprocessError):  # without it, drivers start as well, but slower
                subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)
                aside.replace(path)


if __name__ == "__main__":
    write_archive()
