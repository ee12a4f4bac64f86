"""An archive of Python and packages, as Spark's executors get it: unpacked into the folder they run in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "penstock-env"
"""Where an executor finds the archive, below its working folder."""

PYTHON = f"./{FOLDER}/bin/python3"
ARCHIVES = "spark.archives"
_VARIABLE = "PYSPARK_PYTHON"


def is_shipped() -> bool:
    """Whether the workers of this process's job run out of such an archive."""
    return os.environ.get(_VARIABLE) == PYTHON


def settings(archive: Path, others: str = "") -> dict[str, str]:
    """What Spark has to be told; `others` are archives that it was told of already."""
    return {ARCHIVES: ",".join(filter(None, [others, f"{archive}#{FOLDER}"]))}


def environment() -> Mapping[str, str]:
    """What has to be in the environment of a driver."""
    return {_VARIABLE: PYTHON}


def submit_line(archive: Path, master: str, script: str) -> str:
    """For people: how the same is done without `penstock run`."""
    return f"{_VARIABLE}={PYTHON} spark-submit --master {master} --conf {ARCHIVES}={archive}#{FOLDER} {script}"
