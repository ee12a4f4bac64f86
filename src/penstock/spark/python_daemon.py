"""Spark's daemon for Python workers, as it is, but with the PySpark that is installed.

Spark puts an archive of PySpark's sources before everything else on a worker's path. Python compiles sources in an
archive anew in every process: half a second for each worker of each start. An installed PySpark holds the same modules,
compiled once. Nothing is imported ahead of the fork: Spark warns that some packages start threads.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

MODULE = "penstock.spark.python_daemon"


def without_archives(path: Sequence[str]) -> list[str]:
    """`path` without the archives that the PySpark installed on the rest of it carries; as it is where none is."""
    rest = [entry for entry in path if not entry.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return list(path)
    own = Path(found.origin).resolve().parent / "python" / "lib"
    return [entry for entry in path if not (entry.endswith(".zip") and Path(entry).resolve().parent == own)]


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
