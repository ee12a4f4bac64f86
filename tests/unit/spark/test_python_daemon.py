"""Which archives a worker goes without: those of the PySpark that is installed beside it, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from penstock.spark.python_daemon import without_archives

ARCHIVES = sorted(str(path) for path in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))


def test_the_installed_one_is_used() -> None:
    assert ARCHIVES
    assert without_archives([*ARCHIVES, "/job.zip", *sys.path]) == ["/job.zip", *sys.path]


def test_without_an_installed_one_nothing_changes() -> None:
    path = [*ARCHIVES, "/job.zip", "/elsewhere"]
    assert without_archives(path) == path


def test_another_spark_s_archive_stays() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", *sys.path]
    assert without_archives(path) == path


def test_the_daemon_finds_pyspark_outside_its_archive() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from penstock.spark import python_daemon as d\n"
        "sys.path[:] = d.without_archives(sys.path); import pyspark.daemon; print(pyspark.daemon.__file__)"
    )
    command = [sys.executable, "-c", code, *ARCHIVES]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(Path(pyspark.__file__).parent / "daemon.py")
