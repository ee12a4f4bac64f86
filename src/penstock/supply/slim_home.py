"""Spark's folder as a local JVM sees it: all that is in it, but not PySpark's sources in an archive.

Spark puts `$SPARK_HOME/python/lib/*.zip` before everything else on the path of each Python process that it starts, and
Python compiles what it imports from an archive anew in every process: half a second each. A job's own workers have
`python_daemon` against that; those that plan a Python data source, several at each start, have no such setting. Where
the archives are not there, Python passes them over, and finds the same modules in the PySpark that is installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from penstock.naming import user_cache
from penstock.storage.private import own_folder

_LEFT_OUT = "python"
_NEEDED = ("jars", "bin")


def slim_home(home: Path, conf: Mapping[str, str]) -> Path:
    """A folder of links into `home`, for `SPARK_HOME`. `home` itself where workers may run elsewhere or in another
    Python, and where there is no place for the folder."""
    master = conf.get("spark.master", "local")
    if not (master == "local" or master.startswith("local[")) or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        return home
    with contextlib.suppress(OSError):
        folder = own_folder(user_cache() / "java") / f"spark-{zlib.crc32(str(home).encode()):08x}"
        own_folder(folder)
        for entry in (one for one in home.iterdir() if one.name != _LEFT_OUT and one.suffix != ".py"):
            with contextlib.suppress(FileExistsError):
                (folder / entry.name).symlink_to(entry)
        if all((folder / name).resolve() == (home / name).resolve() for name in _NEEDED):
            return folder
    return home
